"""One run of all steps, shared by all tests of tables and figures."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.reproduce.small import TINY
from vitshap.reproduce.context import Sources
from vitshap.reproduce.runner import Runner, tasks_of
from vitshap.reproduce.specifications import SPECIFICATIONS


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """All steps of all tables and figures with the net of two layers."""
    out: Path = tmp_path_factory.mktemp("reproduce")
    runner = Runner(TINY, out, Sources({}), torch.device("cpu"))
    runner.run(tasks_of(TINY, SPECIFICATIONS.values()))
    return runner
