"""Where the words of a command go: results and troubles apart, with a progress bar that no line is written into."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Terminal:
    """Results to the standard output, troubles and the progress bar to the standard error."""

    def __init__(self, *, results_on_stdout: bool) -> None:
        self.errors = Console(stderr=True)
        # On one screen both go through one console, or else lines would be written into the bar.
        together = self.errors.is_terminal and sys.stdout.isatty()
        self.results = Console() if results_on_stdout and not together else self.errors

    def say(self, *lines: str) -> None:
        """A result."""
        _print(self.results, lines)

    def complain(self, *lines: str) -> None:
        """A trouble."""
        _print(self.errors, lines)


def _print(console: Console, lines: tuple[str, ...]) -> None:
    # names of files and classes are no markup
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True, emoji=False)


@dataclass
class Bar:
    """A bar that counts images."""

    progress: Progress
    task: Any

    def advance(self, done: int) -> None:
        """So many images are done."""
        self.progress.update(self.task, completed=done)

    def partly(self, estimate: Any) -> None:
        """A partial estimate of the current image: how far it is."""
        if estimate.history:
            self.progress.update(self.task, description=f"{estimate.history[-1].evaluations:,} evaluations")


@contextmanager
def progress_bar(terminal: Terminal, total: int) -> Iterator[Bar]:
    """A bar on the standard error, which vanishes at the end; none where that is no screen."""
    columns = (
        SpinnerColumn(),  # one image may take a minute
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("images,"),
        TimeElapsedColumn(),
        TextColumn("gone, left:"),
        TimeRemainingColumn(),
    )
    quiet = not terminal.errors.is_terminal
    with Progress(*columns, console=terminal.errors, transient=True, disable=quiet, redirect_stdout=False) as progress:
        yield Bar(progress, progress.add_task("explaining", total=total))
