"""``vitshap evaluate``: load what is compared, say how long it takes, compute, and write the table in every format."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from vitshap import plots
from vitshap.data import UNLABELLED, ImageData
from vitshap.estimators import truth
from vitshap.evaluation import Comparison, Evaluation, prepare
from vitshap.evaluation.curves import curves
from vitshap.evaluation.formats import to_csv, to_json, to_latex, to_markdown, to_terminal
from vitshap.evaluation.inputs import (
    Loaded,
    Options,
    check_against,
    check_words,
    choose_methods,
    choose_metrics,
    load_models,
    open_data,
)
from vitshap.evaluation.page import to_html
from vitshap.files import locked_folder, write_text
from vitshap.models import MaskedModel
from vitshap.models.base import resolve_device
from vitshap.training import processes
from vitshap.training.recipes.clock import duration
from vitshap.training.values.reference import reference_set
from vitshap.training.values.store import Evaluator

__all__ = ["Options", "run", "write_files"]

PARTS = "parts"
"""Folder of finished parts, in the output folder."""
_EVERY = 10.0
"""Seconds between two lines of progress, where there is no terminal for bars."""


def run(options: Options, console: Console) -> None:
    """Compare; the main process prints and writes, others only compute."""
    where = resolve_device(options.device)
    processes.join(where)
    main = processes.rank() == 0
    notes = Console(stderr=True, highlight=False, soft_wrap=True, quiet=not main)
    check_words(options)
    loaded = load_models(options, where)
    data = open_data(loaded, options)
    methods = choose_methods(options, loaded, notes)
    check_against(options, methods)
    if data.class_names == UNLABELLED:
        notes.print(
            f"{options.data} is not divided into classes: all of its {len(data):,} images are taken, without labels"
            if options.bundle is None
            else f"the classes of {options.data} are not the model's: no label is used"
        )
    known = _truth(options, loaded.surrogate, data, notes)
    with locked_folder(options.out) if main and not options.dry_run else contextlib.nullcontext():
        comparison = prepare(
            loaded.surrogate,
            data,
            methods=methods,
            metrics=choose_metrics(options, known),
            classifier=loaded.classifier,
            images=options.images,
            where=options.where,
            target=options.target or "predicted",
            classes=options.classes,
            truth=known,
            folder=options.out / PARTS,
            batch=options.batch,
            compiled=options.compiled,
        )
        print_estimate(comparison, notes)
        if options.dry_run:
            return
        with progress_bars([row.name for row in comparison.rows], notes) as progress:
            evaluation = comparison.run(progress)
        if comparison.store.damaged:
            notes.print(f"{comparison.store.damaged:,} damaged files in {options.out / PARTS} were computed again")
        if main:
            _finish(options, loaded, data, evaluation, console)


def _truth(options: Options, surrogate: MaskedModel, data: ImageData, notes: Console) -> truth.Truth | None:
    """Load reference values, or compute them first if the folder has none."""
    if options.truth is None:
        return None
    if (options.truth / truth.TENSORS).exists():
        return truth.load(options.truth, surrogate=surrogate.fingerprint())
    if processes.count() > 1:
        raise ValueError(f"{options.truth} holds no reference values: compute them with one process first")
    if options.dry_run:
        notes.print(f"{options.truth} holds no reference values yet: they are not part of the estimate")
        return None
    count = min(options.truth_images, len(data))
    with progress_bars([f"reference values, {options.budget:,} evaluations per image"], notes) as progress:
        known = reference_set(
            options.truth,
            Evaluator(surrogate, compiled=options.compiled),
            data,
            count=count,
            budget=options.budget,
            progress=lambda done, total: progress("", done, total),
        )
    return known.truth


def print_estimate(comparison: Comparison, notes: Console) -> None:
    """Print how long the computation will take, by method."""
    images = len(comparison.selection)
    if comparison.selection.note:
        notes.print(comparison.selection.note)
    steps = comparison.estimate()
    if not steps:
        notes.print(f"all results of {images:,} images are stored already")
        return
    total = sum(step.seconds for step in steps)
    notes.print(f"about {duration(total)} for {images:,} images, timed on a few of them:")
    for step in sorted(steps, key=lambda step: -step.seconds):
        parts = f"explaining {duration(step.explaining)}, measuring {duration(step.measuring)}"
        notes.print(f"  {step.name}: {duration(step.seconds)}" + (f" ({parts})" if step.explaining >= 1 else ""))
    notes.print(
        f"finished parts are stored in {comparison.store.folder}: the same command continues an interrupted run"
    )


@contextlib.contextmanager
def progress_bars(names: Sequence[str], console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar for each name, or lines where there is no terminal; yield a function of name, done and total."""
    if not console.is_terminal or console.quiet:
        yield _Lines(names, console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bars:
        tasks = {name: bars.add_task(name, total=None) for name in names}

        def advance(name: str, done: int, total: int) -> None:
            bars.update(tasks.get(name, tasks[names[0]]), completed=done, total=total)

        yield advance


class _Lines:
    """Progress in lines, for a log."""

    def __init__(self, names: Sequence[str], console: Console) -> None:
        self._console, self._default, self._printed = console, names[0], time.monotonic()

    def __call__(self, name: str, done: int, total: int) -> None:
        if time.monotonic() - self._printed >= _EVERY:
            self._printed = time.monotonic()
            self._console.print(f"{name or self._default}: {done:,} of {total:,} images")


def _finish(options: Options, loaded: Loaded, data: ImageData, evaluation: Evaluation, console: Console) -> None:
    """Print the table and write all files."""
    title = f"{loaded.name}: {len(evaluation.rows)} methods compared on {data.name}"
    facts = [
        ("models", loaded.name),
        (
            "data",
            f"{options.data}, {'all' if options.bundle is None and data.class_names == UNLABELLED else 'test'} images",
        ),
        ("made", time.strftime("%Y-%m-%d %H:%M")),
    ]
    table = evaluation.table(against=options.against)
    console.print(to_terminal(table, title, console.width), highlight=False)
    write_files(options.out, evaluation, title, against=options.against, facts=facts)
    console.print(f"Report: {options.out / 'report.html'}", highlight=False, soft_wrap=True)


def write_files(
    folder: Path,
    evaluation: Evaluation,
    title: str,
    *,
    against: str | None = None,
    facts: Sequence[tuple[str, str]] = (),
) -> None:
    """Write report.html, the table as CSV, JSON, LaTeX and Markdown, curves as PNG, and what ``Evaluation.load`` reads."""
    table = evaluation.table(against=against)
    evaluation.save(folder)
    for name, text in {
        "table.csv": to_csv(table),
        "table.json": to_json(evaluation, table, title),
        "table.tex": to_latex(table, title),
        "table.md": to_markdown(table, title),
        "report.html": to_html(evaluation, table, title, facts=facts),
    }.items():
        write_text(folder / name, text)
    for one in curves(evaluation):
        figure = plots.comparison_figure([one.panel])
        plots.save(figure, folder / f"{re.sub('[^a-z0-9-]+', '-', one.name.lower())}.png")
