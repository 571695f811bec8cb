"""A running server of small explainers, for the tests of the live page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.explaining import made
from tests.serving import running
from vitshap.explaining import Source, open_bundle


class Server(NamedTuple):
    """The address of a running server, and what it serves first, for comparisons."""

    address: str
    source: Source


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two explainers; of the second, every photo is doubtful."""
    folder = tmp_path_factory.mktemp("served")
    doubtful = made.bundle(folder / "doubtful", quality={"unknown_threshold": 0.99})
    return [made.bundle(folder / "insects"), doubtful]


@pytest.fixture(scope="session")
def server(bundles: list[Path]) -> Iterator[Server]:
    with running.server(*bundles) as (client, serving):
        assert serving.failure is None
        yield Server(f"{client.base_url}", open_bundle(str(bundles[0])))


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return made.photos(tmp_path_factory.mktemp("photos"), 2)
