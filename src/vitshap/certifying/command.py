"""``vitshap certify``: say how long it takes, measure, write the page and the JSON, and the bundle's card if asked."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from vitshap._version import __version__
from vitshap.certifying.certificate import Certificate, Settings, Step, prepare
from vitshap.certifying.formats import card_numbers, lines, to_json
from vitshap.certifying.page import to_html
from vitshap.data import ImageData, Splits
from vitshap.evaluation.command import progress_bars
from vitshap.evaluation.compare import device_name
from vitshap.evaluation.inputs import unlabelled_images
from vitshap.explainers import Explainer, bundle
from vitshap.explainers.card import MEASURES
from vitshap.files import locked_folder, write_text
from vitshap.models.base import resolve_device
from vitshap.training.recipes.clock import duration
from vitshap.training.values import reference

PAGE, JSON = "certificate.html", "certificate.json"
NONE = "none"


@dataclass(frozen=True)
class Options:
    """What the user asked for; the help of ``vitshap certify`` describes the fields."""

    bundle: str
    data: str
    others: Sequence[Path] | None = None
    images: int = 1000
    truth_images: int = 100
    drift_images: int = 16
    budget: int = 65_536
    coalitions: int = 64
    corruptions: str = "noise,blur,contrast,dark"
    metrics: str = "insertion,deletion"
    warned: float | None = None
    truth: Path | None = None
    layout: str = "auto"
    split: Literal["own", "authors"] = "own"
    cache: Path | None = None
    device: str = "auto"
    compiled: bool = True
    out: Path = Path("vitshap-certificate")
    dry_run: bool = False
    record: bool = False

    def settings(self) -> Settings:
        """Return how much is measured."""
        return Settings(
            images=self.images,
            truth_images=min(self.truth_images, self.images),
            drift_images=self.drift_images,
            budget=self.budget,
            coalitions=self.coalitions,
            corruptions=_listed(self.corruptions),
            metrics=_listed(self.metrics),
            warned=self.warned,
        )


def run(options: Options, console: Console) -> None:
    """Certify a bundle."""
    settings = options.settings()
    if options.record:
        bundle.local_folder(options.bundle)
    notes = Console(stderr=True, highlight=False, soft_wrap=True)
    device = resolve_device(options.device)
    explainer = Explainer.from_pretrained(options.bundle, device=device)
    splits, others = open_data(explainer, options)
    with contextlib.nullcontext() if options.dry_run else locked_folder(options.out):
        ready = prepare(
            explainer,
            splits,
            folder=options.out,
            others=others,
            settings=settings,
            truth=options.truth,
            compiled=options.compiled and device.type == "cuda",
            about=_about(options, explainer, splits),
        )
        print_estimate(ready.estimate(), notes)
        if options.dry_run:
            return
        started = time.perf_counter()
        with progress_bars([part.name for part in ready.parts], notes) as progress:
            certificate = ready.run(progress)
        notes.print(f"measured in {duration(time.perf_counter() - started)}")
        _finish(options, certificate, console)


def open_data(explainer: Explainer, options: Options) -> tuple[Splits, dict[str, ImageData]]:
    """Open the data, divided as in training, and all images of the others, by the names of their folders or archives."""
    surrogate = explainer.surrogate
    how: dict[str, Any] = {"layout": options.layout, "split": options.split, "cache": options.cache}
    splits = reference.open_data(surrogate, options.data, **how, trained_on=explainer.trained_on, labels=False)
    others: dict[str, ImageData] = {}
    for path in options.others or ():
        if path.name in others:
            raise ValueError(f"two of --others are named {path.name}: rename one")
        cache = None if options.cache is None else options.cache / path.name
        others[path.name] = unlabelled_images(path, cache=cache, channels=surrogate.adapter.channels)
    return splits, others


def print_estimate(steps: Sequence[Step], notes: Console) -> None:
    """Print evaluations and time of every step."""
    total = sum(step.seconds for step in steps)
    evaluations = sum(step.evaluations or 0 for step in steps)
    notes.print(
        f"about {duration(total)}, {evaluations:,} evaluations for losses and converged values; less where these are "
        "stored already:"
    )
    for step in steps:
        count = "" if step.evaluations is None else f"{step.evaluations:,} evaluations, "
        notes.print(f"  {step.name}: {count}{duration(step.seconds)}")


def _listed(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip() and word.strip() != NONE)


def _about(options: Options, explainer: Explainer, splits: Splits) -> dict[str, Any]:
    surrogate = explainer.surrogate
    names = surrogate.class_names
    return {
        "bundle": options.bundle,
        "data": f"{splits.test.name}: {len(splits.val):,} validation and {len(splits.test):,} test images",
        "players": surrogate.num_players,
        "outputs": surrogate.num_classes,
        "unit": surrogate.unit,
        "class_names": None if names is None else list(names),
        "surrogate": surrogate.fingerprint(),
        "calibration_images": None if explainer.calibration is None else explainer.calibration.images,
        "device": device_name(surrogate.device),
        "made": time.strftime("%Y-%m-%d %H:%M"),
        "vitshap": __version__,
    }


def _finish(options: Options, certificate: Certificate, console: Console) -> None:
    """Write the files, print the verdict, and write the card if that was asked for."""
    title = f"Certificate of {Path(options.bundle).name}"
    write_text(options.out / JSON, to_json(certificate, title))
    write_text(options.out / PAGE, to_html(certificate, title))
    for line in lines(certificate):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(f"Page: {options.out / PAGE}", highlight=False, soft_wrap=True)
    if options.record:
        recorded: dict[str, Any] = {"certificate": card_numbers(certificate)}
        if certificate.threshold is not None:
            recorded["unknown_threshold"] = certificate.threshold
        bundle.record(options.bundle, recorded, replaces=set(MEASURES) - set(recorded))
        console.print(f"Recorded in {options.bundle}", highlight=False, soft_wrap=True)
