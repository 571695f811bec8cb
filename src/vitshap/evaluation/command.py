"""``vitshap evaluate``: load what is compared, say how long it takes, compute, and write the table in every format."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from vitshap.data import ImageData, load_data
from vitshap.errors import did_you_mean
from vitshap.estimators.truth import Truth
from vitshap.evaluation import Comparison, Evaluation, MethodSpec, prepare
from vitshap.evaluation.columns import parse_options
from vitshap.evaluation.curves import curves
from vitshap.evaluation.formats import to_csv, to_json, to_latex, to_markdown, to_terminal
from vitshap.evaluation.page import to_html
from vitshap.evaluation.rows import RANDOM
from vitshap.experiments import quality
from vitshap.explainers import Explainer, bundle
from vitshap.files import locked_folder, write_text
from vitshap.methods import TokenMethod, list_methods, method
from vitshap.methods.registry import METHODS
from vitshap.metrics import list_metrics
from vitshap.models import MaskedModel
from vitshap.models.base import resolve_device
from vitshap.models.load import ModelSpec, load_with_warnings
from vitshap.training import processes
from vitshap.training.batches import Images
from vitshap.training.recipes.timing import duration
from vitshap.training.values.store import Evaluator

EXPLAINER = "explainer"
DEFAULT_METHODS = (
    "attention-rollout",
    "gradcam-ln",
    "attnlrp",
    "integrated-gradients-embedding",
    "leave-one-out",
    "rise",
    RANDOM,
)
DEFAULT_METRICS = ("insertion", "deletion", "sensitivity-n", "faithfulness")
MOST_EXACT = 20
"""Players up to which "all" includes exact values."""
PARTS = "parts"
"""Folder of finished parts, in the output folder."""
_EVERY = 10.0
"""Seconds between two lines of progress, where there is no terminal for bars."""


@dataclass(frozen=True)
class Options:
    """What the user asked for; the help of ``vitshap evaluate`` describes the fields."""

    bundle: str | None
    data: str
    model: str | None = None
    weights: str | None = None
    layout: str = "auto"
    split: Literal["own", "authors"] = "own"
    cache: Path | None = None
    methods: str = ""
    metrics: str = ""
    images: int = 1000
    where: str | None = None
    target: str | None = None
    classes: Literal["target", "all"] = "target"
    truth: Path | None = None
    truth_images: int = 100
    budget: int = 65_536
    against: str | None = None
    batch: int | None = None
    device: str = "auto"
    compiled: bool = True
    out: Path = Path("vitshap-evaluation")
    dry_run: bool = False
    record: bool = False


@dataclass(frozen=True, eq=False)
class Loaded:
    """The models of a comparison."""

    surrogate: MaskedModel
    classifier: MaskedModel | None
    explainer: Explainer | None
    name: str


def run(options: Options, console: Console) -> None:
    """Compare; the main process prints and writes, others only compute."""
    if options.record:
        options = _for_record(options)
    where = resolve_device(options.device)
    processes.join(where)
    main = processes.rank() == 0
    notes = Console(stderr=True, highlight=False, soft_wrap=True, quiet=not main)
    _check_words(options)
    loaded = load_models(options, where)
    data = open_data(loaded.surrogate, options)
    methods = choose_methods(options, loaded, notes)
    truth = _truth(options, loaded.surrogate, data, notes)
    with locked_folder(options.out) if main and not options.dry_run else contextlib.nullcontext():
        comparison = prepare(
            loaded.surrogate,
            data,
            methods=methods,
            metrics=_metrics(options, truth),
            classifier=loaded.classifier,
            images=options.images,
            where=options.where,
            target=options.target or "predicted",
            classes=options.classes,
            truth=truth,
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


def load_models(options: Options, device: torch.device) -> Loaded:
    """Load surrogate, classifier and explainer of a bundle, or a model that is all that is known."""
    if options.bundle is None and options.model is None:
        raise ValueError("name what is compared on: a BUNDLE (folder, shipped name or hub id), or --model NAME")
    if options.weights is not None and options.model is None:
        raise ValueError("--weights are those of a model: name it with --model")
    given: MaskedModel | None = None
    if options.model is not None:
        given, _ = load_with_warnings(ModelSpec(options.model, weights=options.weights, option="--{}"))
        given = given.to(device)
    if options.bundle is None:
        assert given is not None
        return Loaded(given, None, None, f"model {options.model}")
    explainer = Explainer.from_pretrained(options.bundle, classifier=given, device=device)
    if given is None and "net" in bundle.read(options.bundle)["classifier"]:
        given = bundle.load_classifier(options.bundle, device=device)
    return Loaded(explainer.surrogate, given, explainer, f"bundle {options.bundle}")


def open_data(surrogate: MaskedModel, options: Options) -> ImageData:
    """Open the test images; their classes must be the model's where labels are used."""
    by_label = options.target == "label" or (options.where or "").startswith("label=") or options.bundle is not None
    how: dict[str, Any] = {"layout": options.layout, "split": options.split, "cache": options.cache}
    if by_label and surrogate.num_classes > 1:
        return quality.open_data(surrogate, options.data, **how).test
    return load_data(options.data, channels=surrogate.adapter.channels, **how).test


def choose_methods(options: Options, loaded: Loaded, notes: Console) -> dict[str, MethodSpec]:
    """Return the rows that were asked for; random scores are always one of them."""
    known = [name for name in list_methods() if name != "exact" or loaded.surrogate.num_players <= MOST_EXACT]
    asked = options.methods.strip()
    words = known if asked == "all" else [word.strip() for word in asked.split(",") if word.strip()]
    if not words:
        words = [EXPLAINER, *DEFAULT_METHODS]
    if loaded.explainer is None and asked in ("", "all"):
        words = [word for word in words if word != EXPLAINER]
    rows: dict[str, MethodSpec] = {}
    model = loaded.classifier or loaded.surrogate
    for word in words:
        name, *given = word.split(":")
        settings = parse_options(given, default="")
        if "" in settings:
            raise ValueError(f'options of a method are NAME:OPTION=VALUE, got "{word}"')
        if name == EXPLAINER:
            rows[word] = _explainer(loaded)
        elif asked in ("", "all") and (reason := _unsuitable(name, model)):
            notes.print(f"{name} is left out: {reason}")
        else:
            rows[word] = (name, settings)
    if not any(word.partition(":")[0] == RANDOM for word in rows):
        rows[RANDOM] = RANDOM
    return rows


def _explainer(loaded: Loaded) -> Explainer:
    if loaded.explainer is None:
        raise ValueError("the method explainer needs a stored explainer: give a BUNDLE")
    return loaded.explainer


def _unsuitable(name: str, model: MaskedModel) -> str:
    """Return why a method that reads the network cannot explain this model; empty if it can."""
    try:
        made = method(name, model)
        if not isinstance(made, TokenMethod):
            return ""
        blank = torch.zeros(1, model.adapter.channels, *model.image_size, device=model.device)
        made(blank.to(next(model.net.parameters()).dtype), target=0)
    except (ValueError, TypeError, RuntimeError, NotImplementedError, AttributeError) as error:
        return " ".join(str(error).split())[:200] or type(error).__name__
    return ""


def _metrics(options: Options, truth: Truth | None) -> list[str]:
    known = list_metrics()
    if options.metrics.strip():
        return [word.strip() for word in options.metrics.split(",") if word.strip()]
    return [*(name for name in DEFAULT_METRICS if name in known), *(["error"] if truth and "error" in known else [])]


def _check_words(options: Options) -> None:
    """Raise for unknown names before anything is loaded."""
    for word in options.metrics.split(","):
        name = word.strip().partition(":")[0]
        if name and name not in list_metrics():
            raise ValueError(f'no metric is named "{name}"{did_you_mean(name, list_metrics())}')
    for word in options.methods.split(","):
        name = word.strip().partition(":")[0]
        if name not in ("", "all"):
            METHODS.load(name)


def _truth(options: Options, surrogate: MaskedModel, data: ImageData, notes: Console) -> Truth | None:
    """Load reference values, or compute them first if the folder has none."""
    if options.truth is None:
        return None
    from vitshap.estimators import truth

    if (options.truth / truth.TENSORS).exists():
        return truth.load(options.truth, surrogate=surrogate.fingerprint())
    if processes.count() > 1:
        raise ValueError(f"{options.truth} holds no reference values: compute them with one process first")
    if options.dry_run:
        notes.print(f"{options.truth} holds no reference values yet: they are not part of the estimate")
        return None
    count = min(options.truth_images, len(data))
    with progress_bars([f"reference values, {options.budget:,} evaluations per image"], notes) as progress:
        known = quality.reference_set(
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
    """Show a bar for each name; lines every few seconds where there is no terminal. Yield a function (name, done, total)."""
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
    """Print the table, write all files, and the bundle's card if that was asked for."""
    title = f"{loaded.name}: {len(evaluation.rows)} methods compared on {data.name}"
    facts = [
        ("models", loaded.name),
        ("data", f"{options.data}, test images"),
        ("made", time.strftime("%Y-%m-%d %H:%M")),
    ]
    table = evaluation.table(against=options.against)
    console.print(to_terminal(table, title), highlight=False)
    write_files(options.out, evaluation, title, against=options.against, facts=facts)
    console.print(f"Report: {options.out / 'report.html'}", highlight=False, soft_wrap=True)
    if options.record and options.bundle is not None:
        found = figures(evaluation) | _agreement(options, loaded, data)
        bundle.record(options.bundle, {name: round(value, 4) for name, value in found.items()})
        console.print(f"Recorded in {options.bundle}: {', '.join(found)}", highlight=False, soft_wrap=True)


def write_files(
    folder: Path,
    evaluation: Evaluation,
    title: str,
    *,
    against: str | None = None,
    facts: Sequence[tuple[str, str]] = (),
) -> None:
    """Write report.html, the table as CSV, JSON, LaTeX and Markdown, curves as PNG, and all values for ``Evaluation.load``."""
    from vitshap import plots

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
        plots.save(figure, folder / f"{re.sub('[^a-z0-9-]+', '-', one.metric.lower())}.png")


def figures(evaluation: Evaluation) -> dict[str, float]:
    """Return the numbers of an explainer that a bundle's card lists: areas of it and of random scores."""
    rows = {row.kind: row.name for row in evaluation.rows}
    known = {metric.name for metric in evaluation.metrics}
    wanted: Mapping[str, tuple[str, str, Literal["target", "others"]]] = {
        "insertion": (EXPLAINER, "insertion", "target"),
        "deletion": (EXPLAINER, "deletion", "target"),
        "others_insertion": (EXPLAINER, "insertion", "others"),
        "random_insertion": (RANDOM, "insertion", "target"),
        "random_deletion": (RANDOM, "deletion", "target"),
    }
    found = {}
    for name, (kind, metric, classes) in wanted.items():
        result = evaluation.result(rows[kind], metric, classes) if kind in rows and metric in known else None
        if result is not None and result.undefined < len(result.values):
            found[name] = result.mean
    return found


def _agreement(options: Options, loaded: Loaded, data: ImageData) -> dict[str, float]:
    """Return the explainer's correlation with reference values, where there are some."""
    if options.truth is None or loaded.explainer is None:
        return {}
    from vitshap.estimators import truth
    from vitshap.evaluation.selection import reference_positions

    known = truth.load(options.truth, surrogate=loaded.surrogate.fingerprint())
    images = Images(loaded.surrogate, data.subset(reference_positions(known, data)), None, seed=0)
    values, labels = [], []
    for pixels, batch in images.in_order(64):
        values.append(loaded.explainer(pixels).values)
        labels.append(batch.labels.cpu())
    scores = quality.agreement(torch.cat(values), known, torch.cat(labels))
    return {name: value for name, value in scores.items() if value is not None}


def _for_record(options: Options) -> Options:
    """Return the options for a bundle's card, which is about the labelled class and its own explainer."""
    if options.bundle is None:
        raise ValueError("--record writes into a bundle: name one")
    bundle.local_folder(options.bundle)  # an error before anything is measured
    if options.where is not None or options.target not in (None, "label"):
        raise ValueError("--record is about all test images and their labelled class: leave out --where and --target")
    if options.methods.strip() and EXPLAINER not in [word.strip() for word in options.methods.split(",")]:
        raise ValueError("--record is about the bundle's explainer: add it to --methods")
    return replace(options, target="label")
