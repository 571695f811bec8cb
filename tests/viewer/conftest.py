"""A running server of small explainers, for the tests of the live page."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import uvicorn

from tests.explaining import made
from vitshap.explaining import Source, open_bundle
from vitshap.serving.app import create_app
from vitshap.serving.models import ModelChoice
from vitshap.serving.state import Serving
from vitshap.serving.uploads import Limits

THRESHOLD = {"unknown_threshold": 0.99}


class Server(NamedTuple):
    """The address of a running server, and what it serves first, for comparisons."""

    address: str
    source: Source


@contextmanager
def running(choices: list[ModelChoice], token: str | None = None) -> Iterator[str]:
    """Run the server in a thread, at a free port."""
    serving = Serving(choices, Limits())
    config = uvicorn.Config(create_app(serving, token=token), port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not (server.started and serving.ready):
        assert serving.failure is None, serving.failure
        assert time.monotonic() < deadline, "the server does not start"
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(20)


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[ModelChoice]:
    folder = tmp_path_factory.mktemp("served")
    insects = made.bundle(folder / "insects")
    doubtful = made.bundle(folder / "doubtful", quality=THRESHOLD)
    return [ModelChoice("bundle", str(insects), "insects"), ModelChoice("bundle", str(doubtful), "doubtful")]


@pytest.fixture(scope="session")
def server(bundles: list[ModelChoice]) -> Iterator[Server]:
    with running(bundles) as address:
        yield Server(address, open_bundle(bundles[0].given))


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return made.photos(tmp_path_factory.mktemp("photos"), 2)
