"""Where the words of a command go: results and troubles apart, with a progress bar that no line is written into."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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


FIRST_SILENCE, LONGEST_SILENCE = 4.0, 30.0
"""Seconds after which a line says how far the work is, where there is no screen for a bar; at first, and later on."""


@dataclass
class Bar:
    """A bar that counts images."""

    progress: Progress
    task: Any
    total: int
    done: int = 0
    evaluations: int = 0
    started: float = field(default_factory=time.perf_counter)

    def advance(self, done: int) -> None:
        """So many images are done."""
        self.done, self.evaluations = done, 0
        self.progress.update(self.task, completed=done)

    def partly(self, estimate: Any) -> None:
        """A partial estimate of the current image: how far it is."""
        if estimate.history:
            self.evaluations = estimate.history[-1].evaluations
            self.progress.update(self.task, description=f"{self.evaluations:,} evaluations")

    def line(self) -> str:
        """The same as a line."""
        now = f", {self.evaluations:,} evaluations of the next" if self.evaluations else ""
        seconds = time.perf_counter() - self.started
        return f"... {self.done:,} of {self.total:,} images explained{now}, {seconds:.0f} s"


@contextmanager
def progress_bar(terminal: Terminal, total: int) -> Iterator[Bar]:
    """A bar on the standard error, which vanishes at the end; a line now and then where that is no screen."""
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
        bar = Bar(progress, progress.add_task("explaining", total=total), total)
        with lines_meanwhile(terminal, bar.line):
            yield bar


@contextmanager
def working(terminal: Terminal, what: str) -> Iterator[None]:
    """Within, the terminal says what is being done, for work that is not counted in images."""
    if terminal.errors.is_terminal:
        with terminal.errors.status(what):
            yield
    else:
        started = time.perf_counter()
        with lines_meanwhile(terminal, lambda: f"... {what}, {time.perf_counter() - started:.0f} s"):
            yield


@contextmanager
def lines_meanwhile(terminal: Terminal, line: Callable[[], str]) -> Iterator[None]:
    """Within, a line on the standard error says now and then that the work goes on, where that is no screen."""
    if terminal.errors.is_terminal:
        yield
        return
    ended = threading.Event()

    def speak() -> None:
        wait = FIRST_SILENCE
        while not ended.wait(wait):
            terminal.complain(line())
            wait = min(1.5 * wait, LONGEST_SILENCE)

    thread = threading.Thread(target=speak, name="vitshap-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
