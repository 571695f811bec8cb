"""Real servers for tests: in a thread of this process, or the command in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from tests.explaining import made
from vitshap.serving.app import create_app
from vitshap.serving.command import server_config
from vitshap.serving.models import ModelChoice
from vitshap.serving.state import Serving
from vitshap.serving.uploads import Limits

ROOT = Path(__file__).parents[2]


@contextmanager
def server(
    *bundles: Path, limits: Limits | None = None, token: str | None = None, **options: Any
) -> Iterator[tuple[httpx.Client, Serving]]:
    """Serve these bundles; yield a client and the server's state."""
    choices = [ModelChoice("bundle", str(folder), folder.name) for folder in bundles]
    serving = Serving(choices, limits or Limits())
    app = create_app(serving, token=token, **options)
    running = uvicorn.Server(server_config(app, "127.0.0.1", 0, 5.0))
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    wait_for(lambda: running.started and (serving.ready or serving.failure))
    port = running.servers[0].sockets[0].getsockname()[1]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
            yield client, serving
    finally:
        running.should_exit = True
        thread.join(30)


def wait_for(condition: Any, limit: float = 60.0, every: float = 0.01) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < until, "it took too long"
        time.sleep(every)


def command(*arguments: object, port: int = 0, **variables: str) -> subprocess.Popen[str]:
    """Start ``vitshap serve``, at any free port by default."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.Popen(
        [sys.executable, "-m", "vitshap", "serve", "--port", str(port), *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def address(process: subprocess.Popen[str]) -> str:
    """Return the address of a server once it is ready."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("ready: "):
            return line.split()[1]
    raise AssertionError("the server has ended")


def photo(seed: int = 0, kind: str = "png", size: tuple[int, int] = (60, 40)) -> bytes:
    """A photo as bytes."""
    import io

    buffer = io.BytesIO()
    made.picture(seed, *size).save(buffer, kind)
    return buffer.getvalue()


def bits(*rows: list[int] | str) -> str:
    """Coalitions as the interface takes them."""
    return json.dumps(["".join(map(str, row)) for row in rows])
