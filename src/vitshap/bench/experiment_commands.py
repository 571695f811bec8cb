"""Subcommands of ``vitshap bench`` that measure how good estimates and explainers are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from vitshap.bench.command import Device, Out, ProgressLines, show, subcommand
from vitshap.experiments.tables import write_tables
from vitshap.models.base import resolve_device

# Options of several subcommands
Bundle = Annotated[str, typer.Argument(help="Bundle: a folder, a shipped name or a hub id.")]
Data = Annotated[Path, typer.Argument(help="Folder or archive of images with the bundle's classes.")]
Layout = Annotated[str, typer.Option(help="How the data is laid out; see `vitshap train`.")]
Split = Annotated[
    Literal["own", "authors"], typer.Option(help="Split that it was trained on; authors: paper-* recipes.")
]
Cache = Annotated[Path | None, typer.Option(help="Where archives are unpacked.")]


@subcommand("estimators")
def bench_estimators(
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions of our and shapiq's estimators.")] = 20,
    captum_seeds: Annotated[int, typer.Option(min=1, help="Repetitions of captum's, which are slow.")] = 5,
    digits: Annotated[int, typer.Option(min=0, help="Digits to compare on, after a minute of training.")] = 5,
    out: Out = None,
) -> None:
    """Compare evaluations to a given error: our, shapiq's and captum's estimators on analytic games and on digits."""
    from vitshap.bench import estimators

    runs = estimators.compare_all(seeds=seeds, captum_seeds=captum_seeds, digits=digits, note=ProgressLines().start)
    summaries = [estimators.summary(table) for table in runs]
    show(None, *summaries)
    write_tables(out, *summaries, *runs)


@subcommand("calibrate")
def bench_calibrate(
    bundle: Bundle,
    data: Data,
    truth: Annotated[Path, typer.Option(help="Folder for the reference values, or with those of an earlier run.")],
    layout: Layout = "auto",
    split: Split = "own",
    cache: Cache = None,
    images: Annotated[int, typer.Option(min=20, help="Validation images whose reference values are computed.")] = 200,
    budget: Annotated[int, typer.Option(min=100, help="Evaluations per image.")] = 65_536,
    record: Annotated[bool, typer.Option(help="Write the calibration into the bundle's configuration.")] = False,
    device: Device = "auto",
    out: Out = None,
) -> None:
    """Learn the standard errors of an explainer's values from validation images with converged Shapley values."""
    from vitshap.experiments import quality, refinement
    from vitshap.explainers import Explainer
    from vitshap.explainers import bundle as bundles
    from vitshap.explainers.calibration import calibrate
    from vitshap.training.values.store import Evaluator

    if record:
        bundles.local_folder(bundle)
    explainer = Explainer.from_pretrained(bundle, device=resolve_device(device))
    val = quality.open_data(explainer.surrogate, data, layout=layout, split=split, cache=cache).val
    progress = ProgressLines()
    progress.start(f"reference values in {truth}, {budget:,} evaluations per image, images", images)
    known = quality.reference_set(
        truth, Evaluator(explainer.surrogate), val, count=images, budget=budget, progress=progress.update
    )
    half = len(known.labels) // 2  # half of the images judge what is learned from the others; all make the calibration
    explainer.calibration = calibrate(explainer, known.pixels[:half], known.truth[:half])
    judged = refinement.error_curves(
        explainer, known.pixels[half:], known.truth[half:], budgets=(), methods=("explainer",)
    )
    judged.title = f"{bundle}, calibrated on {half} and judged on {len(known.labels) - half} validation images"
    show(out, judged)
    if record:
        bundles.record_calibration(bundle, calibrate(explainer, known.pixels, known.truth))
