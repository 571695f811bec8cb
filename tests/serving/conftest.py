"""A stored explainer, and a server that all tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.explaining import made
from tests.serving.running import server


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.bundle(tmp_path_factory.mktemp("served") / "small")


@pytest.fixture(scope="session")
def client(bundle: Path) -> Iterator[httpx.Client]:
    with server(bundle) as (found, _):
        yield found
