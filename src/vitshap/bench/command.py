"""``vitshap bench``: what all measurements share. Each subcommand imports what it needs when it runs."""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

app = typer.Typer(help="Measure speed, as ratios within one run, and quality.", no_args_is_help=True)
console = Console()


def write_json(path: Path | None, content: dict[str, Any]) -> None:
    """Valid JSON: numbers that are not finite are null. Nothing, where no path is given."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(_finite(content), indent=2, allow_nan=False) + "\n")


def _finite(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, Sequence) and not isinstance(content, str):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


class Pace:
    """Says on standard error what is being measured, and every few seconds how far that is."""

    def __init__(self, *, every: float = 10.0) -> None:
        """``every``: seconds between two lines about the same thing."""
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._every = every
        self.begin("")

    def begin(self, title: str, total: int | None = None) -> None:
        """Something new, of which ``total`` parts are to be done."""
        self._title, self._total, self._done = title, total, 0
        self._started = self._said = time.perf_counter()
        if title:
            self._console.print(title + ("" if total is None else f": {total:,}"))

    def reached(self, done: int, total: int) -> None:
        """So many parts of all are done."""
        self._total = total
        self.add(done - self._done)

    def add(self, parts: int) -> None:
        """So many more parts are done."""
        self._done += parts
        now = time.perf_counter()
        if now - self._said < self._every:
            return
        self._said = now
        text = f"{self._title}: {self._done:,}"
        if self._total is not None:
            left = (now - self._started) * max(self._total - self._done, 0) / self._done
            text += f" of {self._total:,}, about {left:,.0f} s left"
        self._console.print(text)


def one_line_errors(command: Callable[..., None]) -> Callable[..., None]:
    """The command, whose user's errors end in one line."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        from vitshap.errors import user_errors

        with user_errors(resumes=False):
            command(*arguments, **options)

    return run
