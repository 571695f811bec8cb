"""``vitshap explain``: options in, results out as they come, an exit code at the end.

0: all images were explained. 1: some could not be, the others were. 2: nothing could be done as asked, said in one line.
130: interrupted; what was done by then is in the report (``vitshap.cli`` makes it 143 after SIGTERM). 141: whoever read
the results has stopped reading.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from vitshap.devices import resolve_device
from vitshap.explaining import budget, spoken
from vitshap.explaining.outputs import MAPS, Heatmaps, JsonLines, ParquetRows, refuse_foreign_report, with_drawn_classes
from vitshap.explaining.photos import SUFFIXES, Found, find_photos
from vitshap.explaining.sources import Source, open_bundle, open_model, watched
from vitshap.explaining.stream import CannotExplain, explain_photos
from vitshap.explaining.terminal import Terminal, progress_bar, working
from vitshap.explaining.wanted import Wanted
from vitshap.files import locked_folder
from vitshap.models.load import ModelSpec, load_with_warnings
from vitshap.report import Explained, Failed, ReportWriter

HEATMAPS_UP_TO = 100
"""Images up to which heatmaps are drawn as files without being asked for; the report has them anyway."""
BATCHES = {"cpu": 16, "cuda": 64}
"""Images at a time for an explainer; methods that ask the net thousands of times take one."""


@dataclass(frozen=True)
class Request:
    """What the user typed."""

    photos: list[str]
    bundle: str | None = None
    model: str | None = None
    weights: str | None = None
    method: str | None = None
    budget: int | None = None
    players: int | None = None
    targets: tuple[str, ...] = ()
    top: int = 5
    patches: int = 5
    out: Path = Path("vitshap-output")
    json: str | None = None
    parquet: str | None = None
    batch: int | None = None
    device: str = "auto"
    heatmaps: bool | None = None


class Sink(Protocol):
    """Where results go."""

    def add(self, entry: Explained | Failed, /) -> None: ...


def run(request: Request) -> int:
    """Do it; returns the exit code."""
    terminal = Terminal(results_on_stdout=request.json != "-")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # said as a note of the image
        warnings.filterwarnings("ignore", r"\d+ players: Shapley values")  # said when the net was loaded
        try:
            return _run(request, terminal)
        except KeyboardInterrupt:
            terminal.complain("interrupted: no image was explained")
            return 130
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more is said, at the exit neither
            return 141
        except (ValueError, OSError) as error:
            terminal.complain(f"error: {' '.join(str(error).split())}")
            return 2


def _run(request: Request, terminal: Terminal) -> int:
    found = _photos(request)
    with locked_folder(request.out):
        refuse_foreign_report(request.out)
        return _explain(request, found, terminal)


def _explain(request: Request, found: Found, terminal: Terminal) -> int:
    with working(terminal, f"loading {request.model or request.bundle or 'the explainer'}"):
        source = _source(request)
    wanted = Wanted.parse(request.targets, source.model, top=request.top)
    for line in spoken.about_source(source):
        terminal.say(line)
    source, facts = _with_budget(request, source, wanted, terminal, len(found.photos))
    batch = request.batch or (BATCHES[source.model.device.type] if source.budget is None else 1)
    tally = _Tally()
    try:
        with ExitStack() as stack:
            sinks = _sinks(request, found, source, stack, batch, facts)
            bar = stack.enter_context(progress_bar(terminal, len(found.photos)))
            for missing in found.missing:
                _take(missing, sinks, tally, source, wanted, terminal, request)
            listening = watched(source, bar.partly)
            for entry in explain_photos(found.photos, listening, wanted=wanted, batch=batch):
                _take(entry, sinks, tally, source, wanted, terminal, request)
                bar.advance(tally.explained + tally.failed - len(found.missing))
    except KeyboardInterrupt:
        done = f"{tally.explained:,} of {len(found.photos):,} images were explained"
        where = f"; they are in {request.out / 'report.html'}" if tally.explained else ""
        terminal.complain(f"interrupted: {done}{where}")
        return 130
    except CannotExplain as error:
        raise ValueError(f"{source.name}, method {source.method_name}: {error}") from error
    return _end(request, tally, terminal, len(found.photos))


def _with_budget(
    request: Request, source: Source, wanted: Wanted, terminal: Terminal, images: int
) -> tuple[Source, dict[str, Any]]:
    """The source with its budget, chosen where none was asked for, and what JSON says of the budget."""
    if source.budget is None:
        return source, {}
    device = source.model.device
    with working(terminal, "timing a few evaluations"):
        classes = wanted.count(source.model.num_classes)
        seconds = budget.seconds_per_evaluation(source, classes, request.budget or budget.MOST)
        maps = classes if wanted.named else min(classes, MAPS)
        drawing = maps * budget.seconds_per_map(source) if _drawn(request, images) else 0.0
    chosen = request.budget or budget.choose(seconds, device)
    why = "asked for" if request.budget is not None else budget.reason(chosen, seconds, device)
    terminal.say(spoken.about_budget(chosen, why, seconds * chosen + drawing, images))
    return source.with_budget(chosen), {"budget": chosen, "budget_is": why}


@dataclass
class _Tally:
    explained: int = 0
    failed: int = 0
    doubtful: int = 0

    def add(self, entry: Explained | Failed) -> None:
        if isinstance(entry, Failed):
            self.failed += 1
        else:
            self.explained += 1
            self.doubtful += bool(entry.warnings)


def _take(
    entry: Explained | Failed,
    sinks: list[Sink],
    tally: _Tally,
    source: Source,
    wanted: Wanted,
    terminal: Terminal,
    request: Request,
) -> None:
    drawn = entry if isinstance(entry, Failed) or wanted.named else with_drawn_classes(entry)
    for sink in sinks:
        sink.add(entry if isinstance(sink, JsonLines | ParquetRows) else drawn)
    tally.add(entry)
    speak = terminal.complain if isinstance(entry, Failed) else terminal.say
    speak(*spoken.about_entry(entry, source, k=request.patches))


def _end(request: Request, tally: _Tally, terminal: Terminal, photos: int) -> int:
    if tally.doubtful:
        terminal.say(spoken.nothing_fits(tally.doubtful, tally.explained))
    if tally.explained:
        files = "heatmaps" if _drawn(request, photos) else "no heatmaps as files: --heatmaps"
        terminal.say(f"Report: {request.out / 'report.html'} ({files})")
    if not tally.failed:
        return 0
    total = tally.failed + tally.explained
    if not tally.explained:
        terminal.complain(f"error: none of the {total:,} could be explained")
        return 2
    terminal.complain(f"{tally.failed:,} of {total:,} could not be explained")
    return 1


def _photos(request: Request) -> Found:
    if request.out.exists() and not request.out.is_dir():
        raise ValueError(f"--out {request.out} is a file; it must be a folder")
    found = find_photos(request.photos, leave_out=request.out)
    for option, target in (("--json", request.json), ("--parquet", request.parquet)):
        if target is None or target == "-":
            continue
        place = Path(os.path.expanduser(target))
        if place.suffix.lower() in SUFFIXES or place.resolve() in {one.resolve() for one in found.files}:
            raise ValueError(f"{option} takes the name of a file to write, and {target} is that of a photo")
    if not found.photos:
        said = "; ".join(f"{one.name}: {one.reason}" for one in found.missing[:3])
        raise ValueError(said or "no photo is given")
    return found


def _source(request: Request) -> Source:
    device = resolve_device(request.device)
    if request.weights is not None and request.model is None:
        raise ValueError("--weights are those of a net: name it with --model")
    options: dict[str, Any] = {"method_name": request.method, "budget": request.budget, "players": request.players}
    options["device"] = device
    if request.model is None:
        return open_bundle(request.bundle, **options)
    if request.bundle is None:
        return open_model(request.model, weights=request.weights, **options)
    # The bundle must have been made for this model.
    classifier, _ = load_with_warnings(ModelSpec(request.model, weights=request.weights, option="--{}"))
    return open_bundle(request.bundle, classifier=classifier, **options)


def _sinks(
    request: Request, found: Found, source: Source, stack: ExitStack, batch: int, facts: dict[str, Any]
) -> list[Sink]:
    """The files to write; each is closed, and so complete, whatever ends the work."""
    sinks: list[Sink] = []
    settings = {
        "targets": ", ".join(request.targets) or f"the {request.top} most probable classes of each image",
        "images at a time": str(batch),
        "device": str(source.model.device),
        "made": time.strftime("%Y-%m-%d %H:%M"),
    }
    if source.budget is not None:
        settings["evaluations per image"] = f"{source.budget:,}, {facts['budget_is']}"
    if request.players is not None:
        settings["players"] = f"blocks of {request.players} \N{MULTIPLICATION SIGN} {request.players} patches"
    if request.parquet is not None:
        sinks.append(stack.enter_context(ParquetRows(request.parquet)))
    if request.json is not None:
        sinks.append(stack.enter_context(JsonLines(request.json, k=request.patches, facts=facts)))
    drawing = _drawn(request, len(found.photos))
    sinks.append(stack.enter_context(Heatmaps(request.out, found.files, drawing=drawing)))
    report = ReportWriter(request.out, source.summary(settings), patches=request.patches)
    sinks.append(stack.enter_context(report))
    return sinks


def _drawn(request: Request, images: int) -> bool:
    return images <= HEATMAPS_UP_TO if request.heatmaps is None else request.heatmaps
