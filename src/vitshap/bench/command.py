"""``vitshap bench``: what its subcommands share. Each imports what it measures when it runs."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from vitshap.experiments.tables import Table, write_tables

app = typer.Typer()
console = Console()

# Options of several subcommands
Device = Annotated[str, typer.Option(help="cpu or cuda; auto takes a GPU if there is one.")]
Out = Annotated[Path | None, typer.Option(help="Also write the tables to this file: .md for Markdown, else JSON.")]


def subcommand(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as ``vitshap bench NAME``; errors of the user end it with one line and exit code 2."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(*arguments: Any, **options: Any) -> None:
            from vitshap.errors import user_errors

            with user_errors(resumes=False):
                function(*arguments, **options)

        return app.command(name)(run)

    return register


def show(out: Path | None, *tables: Table, **about: Any) -> None:
    """Print tables, and write them to ``out`` if given, together with ``about``."""
    for table in tables:
        console.print(table.to_terminal(), highlight=False)
    write_tables(out, *tables, **about)


class ProgressLines:
    """Print on standard error what is being measured, and every few seconds how much of it is done."""

    def __init__(self, *, every: float = 10.0) -> None:
        """``every``: seconds between two lines about the same measurement."""
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._every = every
        self.start("")

    def start(self, title: str, total: int | None = None) -> None:
        """Start a measurement, of ``total`` parts where that is known."""
        self._title, self._total, self._done = title, total, 0
        self._started = self._printed = time.perf_counter()
        if title:
            self._console.print(title + ("" if total is None else f": {total:,}"))

    def update(self, done: int, total: int) -> None:
        """Set the number of parts that are done, and of all."""
        self._total = total
        self.advance(done - self._done)

    def advance(self, parts: int) -> None:
        """Count ``parts`` more as done."""
        self._done += parts
        now = time.perf_counter()
        if now - self._printed < self._every:
            return
        self._printed = now
        text = f"{self._title}: {self._done:,}"
        if self._total is not None:
            left = (now - self._started) * max(self._total - self._done, 0) / self._done
            text += f" of {self._total:,}, about {left:,.0f} s left"
        self._console.print(text)
