"""``vitshap explain``: its options, and what it does with them.

Exit codes: 0, all images were explained; 1, some could not be; 2, nothing could be done, with a one-line reason;
130, interrupted, and the report holds what was done by then (``vitshap.cli`` makes it 143 after SIGTERM); 141, the
program that read the results has stopped reading.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from PIL import Image

from vitshap.estimators.refine import correction_needs
from vitshap.explaining import budget, destinations, terminal
from vitshap.explaining.batch import IMAGES_AT_A_TIME
from vitshap.explaining.curves import CLASSES
from vitshap.explaining.dataset import read_run
from vitshap.explaining.entries import Explained, Failed
from vitshap.explaining.photos import Found, find_photos
from vitshap.explaining.report import ReportWriter, refuse_foreign_report
from vitshap.explaining.shards import command as shards
from vitshap.explaining.sinks import MAPS, Heatmaps, JsonLines, ParquetRows, Sink, with_drawn_classes
from vitshap.explaining.source import EXPLAINER, REFINE, Source, open_source
from vitshap.explaining.stream import CannotExplain, explain_photos
from vitshap.explaining.terminal import Terminal, progress_bar, working
from vitshap.files import locked_folder
from vitshap.methods import Target, most_classes, names_classes, target_from_words
from vitshap.methods.registry import METHODS
from vitshap.models.base import resolve_device
from vitshap.players import resolve

HEATMAPS_UP_TO = 100
"""Most images whose heatmaps are written as files by default; the report has them anyway."""
CURVES_UP_TO = 25
"""Most images whose curves are evaluated by default: those of an image take some 180 evaluations."""


@dataclass(frozen=True)
class Options:
    """Show which parts of photos drive the prediction: patches in words, heatmaps, and one report.html."""

    photos: Annotated[
        list[str],
        typer.Argument(
            help="Images, folders of images, quoted patterns such as '*.jpg', - (standard input), or shards."
        ),
    ]
    bundle: Annotated[str | None, typer.Option(help="Stored explainer: shipped name, folder, or hub id.")] = None
    model: Annotated[
        str | None, typer.Option(help="Explain this model instead: timm name, or hub id or folder of transformers.")
    ] = None
    weights: Annotated[str | None, typer.Option(help="Safetensors file with the weights of a timm model.")] = None
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,NAME...]",
            help="Default: the bundle's explainer; refine for --model. Several are shown side by side.",
        ),
    ] = None
    budget: Annotated[
        int | None,
        typer.Option(min=2, help="Evaluations per image of sampling methods; default: as many as fit 60 s (GPU: 2 s)."),
    ] = None
    accuracy: Annotated[
        float | None,
        typer.Option(
            help="Evaluate until the estimated correlation with the exact values is this, for example 0.95; --budget is "
            "the most for one image. Default method: refine."
        ),
    ] = None
    players: Annotated[
        int | None, typer.Option(min=1, help="Explain blocks of patches; 2: blocks of 2 x 2 patches.")
    ] = None
    target: Annotated[
        list[str] | None,
        typer.Option(help="Class name or number, predicted, top-K, or all; may be given more than once."),
    ] = None
    top: Annotated[int, typer.Option(min=1, help="Without --target: this many most probable classes.")] = 5
    patches: Annotated[int, typer.Option(min=1, help="Number of most important patches to list.")] = 5
    out: Annotated[Path, typer.Option(help="Folder for report.html and heatmaps.")] = Path("vitshap-output")
    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="Write a line of JSON per image, as they are done.")
    ] = None
    parquet: Annotated[str | None, typer.Option(help="Write a row per image and class (needs pyarrow).")] = None
    against: Annotated[
        str | None,
        typer.Option(help="The --json file of another model's run: list the images on which the two disagree most."),
    ] = None
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="i/N", help="PHOTOS are .tar or .parquet shards: explain the i-th of N parts, from 0/N on."
        ),
    ] = None
    engine: Annotated[
        str | None, typer.Option(metavar="process|ray", help="ray: share shards out over a Ray cluster (needs ray).")
    ] = None
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes of --engine ray; default: one per GPU or core.")
    ] = None
    image_column: Annotated[str | None, typer.Option(help="Column, or suffix in .tar, of the images in shards.")] = None
    id_column: Annotated[str | None, typer.Option(help="Column of the images' names in Parquet shards.")] = None
    batch: Annotated[int | None, typer.Option(min=1, help="Images at a time.")] = None
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto"
    heatmaps: Annotated[
        bool | None,
        typer.Option("--heatmaps/--no-heatmaps", help="Write heatmaps as files; default: up to 100 images."),
    ] = None
    curves: Annotated[
        bool | None,
        typer.Option("--curves/--no-curves", help="Evaluate the model without the best patches; up to 25 images."),
    ] = None

    def draws_heatmaps(self, images: int) -> bool:
        """Return whether heatmaps are written as files."""
        return images <= HEATMAPS_UP_TO if self.heatmaps is None else self.heatmaps

    def curves_of(self, images: int) -> int:
        """Return for how many classes the report has a curve of the output while patches are removed."""
        return CLASSES if (images <= CURVES_UP_TO if self.curves is None else self.curves) else 0


def run(options: Options) -> int:
    """Explain photos; return the exit code."""
    printer = Terminal(results_on_stdout=options.json != "-")
    gc.disable()  # until the first image is done: libraries are imported faster
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # becomes a note about the image
        warnings.filterwarnings("ignore", r"\d+ players: Shapley values")  # was printed when the model was loaded
        warnings.filterwarnings("ignore", r"\d+ evaluations are fewer than")  # is printed once for all photos
        try:
            destinations.check_folder(options.out)
            if shards.wanted(options):
                return shards.run(options, printer)
            found = _photos(options)
            with locked_folder(options.out):
                refuse_foreign_report(options.out)
                return _Run(options, found, printer).run()
        except KeyboardInterrupt:
            printer.print_error("interrupted: no image was explained")
            return 130
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that flushing at the exit is silent
            return 141
        except (ValueError, OSError) as error:
            printer.print_error(f"error: {' '.join(str(error).split())}")
            return 2
        finally:
            gc.enable()


@dataclass
class _Run:
    """One run of the command: photos, source, stream, sinks."""

    options: Options
    found: Found
    printer: Terminal
    sinks: list[Sink] = field(default_factory=list)
    explained: int = 0
    failed: int = 0
    low_confidence: int = 0
    heatmaps: Heatmaps = field(init=False)

    def run(self) -> int:
        options, printer, total = self.options, self.printer, len(self.found.photos)
        with working(printer, f"loading {options.model or options.bundle or 'the explainer'}"):
            source, *others = _sources(options)
        classes = (source.model.class_names, source.model.num_classes)
        target = target_from_words(options.target or (), *classes, default=f"top-{options.top}")
        printer.print(*terminal.source_lines(source))
        source, facts = self._with_budget(source, target)
        others = [self._with_budget(other, target)[0] for other in others]
        batch = options.batch or (1 if source.method.samples else IMAGES_AT_A_TIME[source.model.device.type])
        try:
            with ExitStack() as stack:
                self._open_sinks(source, stack, batch, facts)
                bar = stack.enter_context(progress_bar(printer, total))
                for missing in self.found.missing:
                    self._add(missing, source, target)
                watched = source.with_progress(bar.add_estimate) if _shows_partial(source) else source
                curves = options.curves_of(total)
                streams = (  # of further methods the curve of one class
                    explain_photos(
                        self.found.photos, one, target=target, batch=batch, curves=curves if i == 0 else min(curves, 1)
                    )
                    for i, one in enumerate((watched, *others))
                )
                for entry, *rest in zip(*streams, strict=True):
                    self._add(self._compared(entry, rest), source, target)
                    bar.advance(self.explained + self.failed - len(self.found.missing))
        except KeyboardInterrupt:
            where = f"; they are in {options.out / 'report.html'}" if self.explained else ""
            printer.print_error(f"interrupted: {self.explained:,} of {total:,} images were explained{where}")
            return 130
        except CannotExplain as error:
            raise ValueError(f"{source.name}, method {source.method.name}: {error}") from error
        return self._end()

    def _with_budget(self, source: Source, target: Target) -> tuple[Source, dict[str, Any]]:
        """Return the source with its budget, chosen if the user gave none, and what JSON says about it."""
        options, images = self.options, len(self.found.photos)
        if not source.method.samples:
            return source, {}
        device = source.model.device
        with working(self.printer, "timing a few evaluations"):
            classes = most_classes(target, source.model.num_classes)
            cost = budget.measure_cost(source, classes, options.budget or budget.MOST)
            maps = classes if names_classes(target) else min(classes, MAPS)
            drawing = maps * budget.seconds_per_map(source) if options.draws_heatmaps(images) else 0.0
        chosen = options.budget or budget.choose(cost, device)
        why = terminal.REQUESTED if options.budget is not None else budget.reason(chosen, cost, device)
        line = terminal.budget_line(chosen, why, cost.seconds(chosen) + drawing, images, options.accuracy)
        self.printer.print(line)
        players = resolve(options.players or source.model.players, source.model.grid).num_players
        if source.method.name == REFINE and chosen < (needed := correction_needs(players)):
            too_few = f"warning: one correction of {players} players needs {needed:,} evaluations"
            self.printer.print(f"{too_few}: the values are the prior's")
        facts = {} if options.accuracy is None else {"accuracy": options.accuracy}
        return source.with_budget(chosen), {"budget": chosen, "budget_is": why, **facts}

    def _open_sinks(self, source: Source, stack: ExitStack, batch: int, facts: dict[str, Any]) -> None:
        """Open the files to write; each is completed and closed however the run ends."""
        options = self.options
        settings = {
            "targets": ", ".join(options.target or ()) or f"the {options.top} most probable classes of each image",
            "images at a time": str(batch),
            "device": str(source.model.device),
            "made": time.strftime("%Y-%m-%d %H:%M"),
        }
        if source.budget is not None:
            settings["evaluations per image"] = f"{source.budget:,}, {facts['budget_is']}"
        if options.players is not None:
            settings["players"] = f"blocks of {options.players} \N{MULTIPLICATION SIGN} {options.players} patches"
        if options.parquet is not None:
            self.sinks.append(stack.enter_context(ParquetRows(options.parquet)))
        if options.json is not None:
            self.sinks.append(stack.enter_context(JsonLines(options.json, k=options.patches, facts=facts)))
        drawing = options.draws_heatmaps(len(self.found.photos))
        self.heatmaps = stack.enter_context(Heatmaps(options.out, self.found.files, drawing=drawing))
        self.sinks.append(self.heatmaps)
        earlier = None if options.against is None else read_run(options.against)
        report = ReportWriter(options.out, source.summary(settings), patches=options.patches, earlier=earlier)
        self.sinks.append(stack.enter_context(report))

    def _add(self, entry: Explained | Failed, source: Source, target: Target) -> None:
        """Give an entry to all sinks and print it."""
        drawn = entry if isinstance(entry, Failed) or names_classes(target) else with_drawn_classes(entry)
        for sink in self.sinks:
            sink.add(entry if isinstance(sink, JsonLines | ParquetRows) else drawn)
        if isinstance(entry, Failed):
            self.failed += 1
            show = self.printer.print_error
        else:
            self.explained += 1
            self.low_confidence += bool(entry.warnings)
            show = self.printer.print
        show(*terminal.entry_lines(entry, source, k=self.options.patches))
        gc.enable()

    def _compared(self, entry: Explained | Failed, others: Sequence[Explained | Failed]) -> Explained | Failed:
        """Return the entry with the explanations of the other methods, and draw their maps side by side into a file."""
        if isinstance(entry, Failed) or not others:
            return entry
        explained = [one for one in others if isinstance(one, Explained)]
        self.heatmaps.add_comparison(entry, explained)
        curves = (*entry.curves, *(curve for one in explained for curve in one.curves))
        return replace(entry, others=tuple(one.explanation for one in explained), curves=curves)

    def _end(self) -> int:
        options, printer = self.options, self.printer
        if self.low_confidence:
            printer.print(terminal.low_confidence_line(self.low_confidence, self.explained))
        if self.explained:
            drawn = options.draws_heatmaps(len(self.found.photos))
            files = "heatmaps" if drawn else "no heatmaps as files: --heatmaps"
            printer.print(f"Report: {options.out / 'report.html'} ({files})")
        if not self.failed:
            return 0
        total = self.failed + self.explained
        if not self.explained:
            printer.print_error(f"error: none of the {total:,} could be explained")
            return 2
        printer.print_error(f"{self.failed:,} of {total:,} could not be explained")
        return 1


def _photos(options: Options) -> Found:
    found = find_photos(options.photos, leave_out=options.out)
    destinations.check_files((("--json", options.json), ("--parquet", options.parquet)), options.out, found.files)
    if not found.photos:
        reasons = "; ".join(f"{one.name}: {one.reason}" for one in found.missing[:3])
        raise ValueError(reasons or "no photo is given")
    return found


def _shows_partial(source: Source) -> bool:
    """Whether partial estimates are shown: on a GPU computing them takes longer than up to 65,536 evaluations.

    This depends on device and budget alone, not on timing, because partial estimates change the last digits of the values.
    """
    return source.model.device.type != "cuda" or (source.budget or 0) > budget.LADDER[-1]


def _sources(options: Options) -> list[Source]:
    """Return what explains the photos, one source for each method, which share one model."""
    if options.method is None:
        return [_source(options)]
    names = [name.strip() for name in options.method.split(",")]
    for name in names:
        METHODS.load(name)  # an unknown name is an error before anything is loaded
    if len(names) == 1:
        return [_source(replace(options, method=names[0]))]
    if options.accuracy is not None:
        raise ValueError("--accuracy is for one method, not for several")
    first = _source(replace(options, method=names[0], budget=None))  # those that sample get the budget later
    return [first, *(_another(first, name, options) for name in names[1:])]


def _another(source: Source, name: str, options: Options) -> Source:
    if name == EXPLAINER:
        return _source(replace(options, method=name, budget=None))
    return source.with_method(name, players=options.players)


def _source(options: Options) -> Source:
    return open_source(
        options.bundle,
        options.model,
        weights=options.weights,
        method_name=options.method,
        budget=options.budget,
        players=options.players,
        accuracy=options.accuracy,
        device=resolve_device(options.device),
    )
