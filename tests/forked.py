"""Run the real command many times: one process imports it once and forks a child with a time limit for each call.

``python -m tests.forked`` reads one call per line and prints one result per line (JSON). Nothing is computed before a fork.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Done:
    """How a call ended."""

    code: int | None
    """None: it was killed at the time limit."""
    stdout: str
    stderr: str
    seconds: float
    peak: int
    """Peak resident memory in megabytes."""


class Command:
    """Runs ``vitshap`` in a folder of your choice."""

    def __init__(self, home: Path) -> None:
        """``home`` is used as the user's home; caches of libraries are next to it."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "HF_", "TRITON"))}
        caches = {"MPLCONFIGDIR": str(home.parent / "mpl"), "HF_HOME": str(home.parent / "hub")}
        quiet = {"HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "COLUMNS": "10000", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked"],
            cwd=Path(__file__).parent.parent,
            env=kept | caches | quiet | {"HOME": str(home), "TMPDIR": str(home)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: object, cwd: Path, limit: float) -> Done:
        """Run the command with these arguments; kill it after ``limit`` seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        call = {"arguments": [str(one) for one in arguments], "cwd": str(cwd), "limit": limit}
        self._process.stdin.write(json.dumps(call) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the process that runs the command has ended")
        return Done(**json.loads(answer))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def _child(call: dict[str, Any], out: int, err: int) -> None:
    """Run the command as installed, with its exit code."""
    from vitshap.cli import main

    code: Any = 1
    try:
        os.setsid()
        os.chdir(call["cwd"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["vitshap", *call["arguments"]]
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _answer(call: dict[str, Any]) -> dict[str, Any]:
    pipes = [os.pipe(), os.pipe()]
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        _child(call, pipes[0][1], pipes[1][1])
    said = {}
    for read, write in pipes:
        os.close(write)
        said[read] = b""
    waiting, hung = set(said), False
    while waiting:
        left = started + call["limit"] - time.monotonic()
        ready = select.select(list(waiting), [], [], max(left, 0))[0]
        if not ready and not hung:
            os.killpg(child, signal.SIGKILL)
            hung = True
        for pipe in ready:
            chunk = os.read(pipe, 1 << 16)
            said[pipe] += chunk
            if not chunk:
                waiting.discard(pipe)
                os.close(pipe)
    _, status, used = os.wait4(child, 0)
    stdout, stderr = (text.decode(errors="replace") for text in said.values())
    code = None if hung else os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - started
    return {"code": code, "stdout": stdout, "stderr": stderr, "seconds": seconds, "peak": used.ru_maxrss // 1024}


def _serve() -> None:
    # What the commands import when they run is imported once.
    import seaborn
    import timm
    from PIL import Image
    from transformers import AutoModelForImageClassification, ViTForImageClassification  # noqa: F401
    from typer import rich_utils  # noqa: F401

    import vitshap.bench.command
    import vitshap.bench.experiment_commands
    import vitshap.bench.speed_commands
    import vitshap.cli
    import vitshap.evaluation.command
    import vitshap.explaining.command
    import vitshap.training.recipes.run
    import vitshap.training.values.reference  # noqa: F401

    Image.init()
    timm.list_models()
    seaborn.color_palette("icefire")
    gc.collect()
    gc.freeze()  # the collector of a child does not touch, and so does not copy, what was imported here

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    import vitshap  # noqa: F401 (before transformers)

    _serve()
