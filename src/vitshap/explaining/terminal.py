"""What ``vitshap explain`` prints: results and errors on their own streams, progress, and the lines themselves."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
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

from vitshap.explaining import text
from vitshap.explaining.entries import Explained, Failed, Patch, class_label, patches
from vitshap.explaining.source import RANDOM, Source

NAMES_SHOWN = 20
PREDICTIONS = 5
OTHERS = 4
"""Further classes whose maps' reliability is printed."""


class Terminal:
    """Print results to the standard output, errors and the progress bar to the standard error."""

    def __init__(self, *, results_on_stdout: bool) -> None:
        self.errors = Console(stderr=True)
        # On one screen both use one console: otherwise lines would be written into the bar.
        together = self.errors.is_terminal and sys.stdout.isatty()
        self.results = Console() if results_on_stdout and not together else self.errors

    def print(self, *lines: str) -> None:
        """Print a result."""
        _print(self.results, lines)

    def print_error(self, *lines: str) -> None:
        """Print an error, or progress."""
        _print(self.errors, lines)


def _print(console: Console, lines: tuple[str, ...]) -> None:
    # names of files and classes are not markup
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True, emoji=False)


FIRST_WAIT, LONGEST_WAIT = 4.0, 30.0
"""Seconds between lines of progress if the standard error is not a screen: at first, and later on."""


@dataclass
class Bar:
    """A progress bar that counts images."""

    progress: Progress
    task: Any
    total: int
    done: int = 0
    evaluations: int = 0
    started: float = field(default_factory=time.perf_counter)

    def advance(self, done: int) -> None:
        """Set the number of images that are done."""
        self.done, self.evaluations = done, 0
        self.progress.update(self.task, completed=done)

    def add_estimate(self, estimate: Any) -> None:
        """Show how far a partial estimate of the current image is."""
        if estimate.history:
            self.evaluations = estimate.history[-1].evaluations
            self.progress.update(self.task, description=f"{self.evaluations:,} evaluations")

    def line(self) -> str:
        """Return the progress as a line."""
        now = f", {self.evaluations:,} evaluations of the next" if self.evaluations else ""
        seconds = time.perf_counter() - self.started
        return f"... {self.done:,} of {self.total:,} images explained{now}, {seconds:.0f} s"


@contextmanager
def progress_bar(terminal: Terminal, total: int) -> Iterator[Bar]:
    """Show a bar on the standard error, which vanishes at the end; lines now and then if that is not a screen."""
    columns = (
        SpinnerColumn(),  # one image may take a minute
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("images,"),
        TimeElapsedColumn(),
        TextColumn("elapsed, left:"),
        TimeRemainingColumn(),
    )
    quiet = not terminal.errors.is_terminal
    with Progress(*columns, console=terminal.errors, transient=True, disable=quiet, redirect_stdout=False) as progress:
        bar = Bar(progress, progress.add_task("explaining", total=total), total)
        with progress_lines(terminal, bar.line):
            yield bar


@contextmanager
def working(terminal: Terminal, what: str) -> Iterator[None]:
    """Show what is being done, for work that is not counted in images."""
    if terminal.errors.is_terminal:
        with terminal.errors.status(what):
            yield
    else:
        started = time.perf_counter()
        with progress_lines(terminal, lambda: f"... {what}, {time.perf_counter() - started:.0f} s"):
            yield


@contextmanager
def progress_lines(terminal: Terminal, line: Callable[[], str]) -> Iterator[None]:
    """Print a line of progress now and then if the standard error is not a screen."""
    if terminal.errors.is_terminal:
        yield
        return
    ended = threading.Event()

    def repeat() -> None:
        wait = FIRST_WAIT
        while not ended.wait(wait):
            terminal.print_error(line())
            wait = min(1.5 * wait, LONGEST_WAIT)

    thread = threading.Thread(target=repeat, name="vitshap-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def source_lines(source: Source) -> Iterator[str]:
    """Yield what explains, its classes and warnings about it."""
    yield f"{source.name}; method {source.method_text}"
    names, count = source.model.class_names, source.model.num_classes
    if names is None:
        yield f"{count:,} classes without names: give --target by number, 0 to {count - 1}"
    else:
        shown = ", ".join(class_label(names, index) for index in range(min(count, NAMES_SHOWN)))
        more = f", and {count - NAMES_SHOWN:,} more" if count > NAMES_SHOWN else ""
        yield f"{count:,} class{'' if count == 1 else 'es'}: {shown}{more}"
    if source.held_out is not None:
        yield f"95 % intervals are calibrated on {source.held_out:,} held-out images"
    for warning in source.warnings:
        yield f"warning: {warning}"


def budget_line(budget: int, why: str, seconds: float, images: int, accuracy: float | None = None) -> str:
    """Return how many evaluations an image gets, why, and how long that will take."""
    if accuracy is not None:
        whole = f"{duration(seconds)} per image at most" + f" ({images:,} images)" * (images > 1)
        rule = f"until the estimated correlation with the exact values is {accuracy:g}"
        return f"{rule}, up to {budget:,} evaluations: {whole}"
    whole = f", {duration(seconds * images)} for {images:,} images" if images > 1 else ""
    again = "" if why == REQUESTED else f"; --budget {budget} gives the same values again"
    return f"{budget:,} evaluations per image, {why}: {duration(seconds)} per image{whole}{again}"


REQUESTED = "as requested"
"""Why the budget is what it is, if the user gave it."""


def entry_lines(entry: Explained | Failed, source: Source, *, k: int) -> Iterator[str]:
    """Yield the lines about one image: predictions, and the most important patches of the first explained class."""
    if isinstance(entry, Failed):
        yield f"{entry.name}: {entry.reason}"
        return
    outputs, unit = source.model.unit, entry.explanation.unit
    yield entry.name
    predicted = (
        f"{entry.label(index)} {text.output_text(value, outputs)}" for index, value in entry.predicted(PREDICTIONS)
    )
    if entry.one_probability:
        yield f"  probability of {entry.label(0)}: {text.probability_text(entry)}"
    else:
        yield f"  predicted: {', '.join(predicted)}"
    for warning in entry.warnings:
        yield f"  warning: {warning}"
    for note in (*entry.notes, *text.hints(entry)):
        yield f"  note: {note}"
    first = entry.classes[0]
    if source.method.name == RANDOM:
        yield f"  patches with the highest random values, which explain nothing about {entry.label(first)}:"
        yield from _patch_lines(patches(entry, k, first), unit)
    else:
        ends = f"{_ends(entry, source)}, rows and columns counted from 1"
        for heading, found in text.important_patches(entry, k, first):
            yield f"  {heading}{ends}:" if found else f"  {heading}"
            yield from _patch_lines(found, unit)
            ends = "" if found else ends
    for line in (text.accuracy(entry, first), text.convergence(entry.explanation)):
        if line is not None:
            yield f"    {line}"
    known = [(index, text.reliability(entry, index)) for index in entry.classes[1 : 1 + OTHERS]]
    if others := [
        f"{entry.label(index)} {text.reliability_text(value)}" for index, value in known if value is not None
    ]:
        yield f"    reliability of other maps: {', '.join(others)}"


def _patch_lines(found: Sequence[Patch], unit: str) -> Iterator[str]:
    for rank, patch in enumerate(found, 1):
        value = text.with_unit(text.value_text(patch.value, unit), unit)
        if patch.interval is not None:
            value += f" (95 % interval {text.interval_text(patch.interval, unit)})"
        yield f"    {rank}. {value}  {patch.place}: {patch.cell} ({patch.pixels})"


def low_confidence_line(low: int, explained: int) -> str:
    """Return what to do about images of low confidence."""
    which = "this image" if explained == 1 else f"{low:,} of {explained:,} images"
    return (
        f"Low confidence for {which}: perhaps none of the classes fits, and the explanation is of little use. For other "
        "classes name a model that has them: vitshap explain PHOTO --model NAME (of timm, or a hub id or folder of "
        "transformers)."
    )


def duration(seconds: float) -> str:
    """Return a rounded time."""
    if seconds < 90:
        return f"about {max(seconds, 0.1):.1f} s" if seconds < 10 else f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


def _ends(entry: Explained, source: Source) -> str:
    base, full = entry.explanation.base_values, entry.explanation.full_values
    if base is None or full is None:
        return ""
    texts = (text.output_text(float(ends[0, 0]), source.model.unit) for ends in (base, full))
    return " ({} with no patch, {} with all)".format(*texts)
