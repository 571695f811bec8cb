"""Subcommands of ``vitshap bench`` that measure how good estimates and explainers are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vitshap.bench.command import Device, Out, ProgressLines, show, subcommand
from vitshap.experiments.tables import write_tables
from vitshap.models.base import resolve_device

if TYPE_CHECKING:
    import torch

    from vitshap.explainers import Explainer
    from vitshap.models import MaskedModel

# Options of several subcommands
Bundle = Annotated[str, typer.Argument(help="Bundle: a folder, a shipped name or a hub id.")]
Data = Annotated[Path, typer.Argument(help="Folder or archive of images with the bundle's classes.")]
Layout = Annotated[
    str, typer.Option(metavar="auto|folder|imagenette|pets|mura|chest", help="auto: as in the training, or recognised.")
]
Split = Annotated[
    Literal["own", "authors"], typer.Option(help="own: as in the training, if known; authors: that of paper-* recipes.")
]
Cache = Annotated[Path | None, typer.Option(help="Where archives are unpacked.")]
TRUTH = "truth"
"""Folder of the reference values within that of ``bench refine``."""
STEPS_OF = {
    "explainer": "explainer",
    "kernelshap": "kernelshap",
    "tokens": "refine, tokens",
    "refine": "refine, explainer",
    "total": "refine, explainer, total budget",
}
STEPS = ("truth", *STEPS_OF, "accuracy")
Compiled = Annotated[bool, typer.Option(help="Compile the evaluation (GPU).")]
Every = Annotated[int, typer.Option(min=1, help="Distance between the images, which are often ordered by class.")]


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


@subcommand("race")
def bench_race(
    model: Annotated[str, typer.Argument(help="digits (trained first), a bundle, or the name of a model.")],
    data: Annotated[Path | None, typer.Argument(help="Images of a bundle or model; its test part is used.")] = None,
    layout: Layout = "auto",
    split: Split = "own",
    cache: Cache = None,
    first: Annotated[int, typer.Option(min=0, help="Test images to leave out before the first one.")] = 100,
    every: Every = 1,
    images: Annotated[int, typer.Option(min=1, help="Test images.")] = 20,
    weights: Annotated[str | None, typer.Option(help="Safetensors file with the weights of a timm network.")] = None,
    head_rows: Annotated[str | None, typer.Option(help="Rows of its head to keep, as 0,217,482.")] = None,
    crop: Annotated[
        float | None, typer.Option(help="Share of the resized image that is kept; default: its own.")
    ] = None,
    budgets: Annotated[str, typer.Option(help="Evaluations of our estimators.")] = "512,1024,2048,4096,16384",
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions.")] = 3,
    reference: Annotated[int, typer.Option(min=100, help="Evaluations per image of the reference values.")] = 262_144,
    estimators: Annotated[str, typer.Option(help="Estimators of shapiq, separated by semicolons.")] = "all",
    shapiq_python: Annotated[str, typer.Option(help="Python that has shapiq 1.8; default: this one.")] = sys.executable,
    workers: Annotated[int, typer.Option(min=1, help="Processes that fit shapiq's estimators.")] = 1,
    folder: Annotated[
        Path | None, typer.Option(help="For reference values and finished runs; what is there is not computed again.")
    ] = None,
    compiled: Compiled = True,
    device: Device = "auto",
    out: Out = None,
) -> None:
    """Compare kernelshap and refine with n evaluations to the estimators of shapiq 1.8 with n / 0.7, at 196 players."""
    from vitshap.bench import race
    from vitshap.bench.shapiq_worker import ESTIMATORS
    from vitshap.training.values.reference import open_data, sample_images

    names = list(ESTIMATORS) if estimators == "all" else estimators.split(";")
    if unknown := [name for name in names if name not in ESTIMATORS]:
        raise ValueError(f"--estimators are of {'; '.join(ESTIMATORS)}; got {'; '.join(unknown)}")
    progress = ProgressLines()
    if model == "digits":
        progress.start("training a network of two layers on enlarged digits")
        racing = race.enlarged_digits(range(first, first + images * every, every), device=resolve_device(device))
    else:
        if data is None:
            raise ValueError("give the data of this model too; only digits need none")
        masked, explainer = _open_model(model, weights, head_rows, crop, resolve_device(device))
        trained_on = None if explainer is None else explainer.trained_on
        test = open_data(masked, data, layout=layout, split=split, cache=cache, trained_on=trained_on).test
        pixels, _ = sample_images(masked, test.subset(range(first, first + images * every, every)), images)
        racing = race.Racing(masked, pixels)
    if compiled and racing.model.device.type == "cuda":
        racing.model.compile()
    progress.start(f"reference values of {images} images, {reference:,} evaluations each")
    table = race.race(
        racing,
        racing.known(reference, folder),
        budgets=[int(number) for number in budgets.split(",")],
        seeds=range(seeds),
        estimators=names,
        python=shapiq_python,
        workers=workers,
        folder=folder,
        title=f"{model}, {images} images, {seeds} seeds",
        note=progress.start,
    )
    show(out, race.verdict(table), table)


@subcommand("calibrate")
def bench_calibrate(
    bundle: Bundle,
    data: Data,
    truth: Annotated[Path, typer.Option(help="Folder for the reference values, or with those of an earlier run.")],
    layout: Layout = "auto",
    split: Split = "own",
    cache: Cache = None,
    images: Annotated[int, typer.Option(min=40, help="Validation images whose reference values are computed.")] = 200,
    budget: Annotated[int, typer.Option(min=100, help="Evaluations per image.")] = 65_536,
    record: Annotated[bool, typer.Option(help="Write the calibration into the bundle's configuration.")] = False,
    compiled: Compiled = True,
    device: Device = "auto",
    out: Out = None,
) -> None:
    """Learn the standard errors of an explainer's values from validation images with converged Shapley values."""
    from vitshap.experiments import refinement
    from vitshap.explainers import Explainer
    from vitshap.explainers import bundle as bundles
    from vitshap.explainers.calibration import calibrate
    from vitshap.training.values.reference import open_data, reference_set
    from vitshap.training.values.store import Evaluator

    if record:
        bundles.local_folder(bundle)
    explainer = Explainer.from_pretrained(bundle, device=resolve_device(device))
    trained_on = explainer.trained_on
    val = open_data(explainer.surrogate, data, layout=layout, split=split, cache=cache, trained_on=trained_on).val
    evaluate = Evaluator(explainer.surrogate, compiled=compiled and explainer.surrogate.device.type == "cuda")
    progress = ProgressLines()
    progress.start(f"reference values in {truth}, {budget:,} evaluations per image, images", images)
    known = reference_set(truth, evaluate, val, count=images, budget=budget, progress=progress.update)
    # Every other image judges what is learned from the rest (parts are often ordered by class); all make the calibration.
    learned, left = slice(0, None, 2), slice(1, None, 2)
    explainer.calibration = calibrate(explainer, known.pixels[learned], known.truth[learned])
    judged = refinement.error_curves(
        explainer, known.pixels[left], known.truth[left], budgets=(), methods=("explainer",)
    )
    judged.title = f"{bundle}, calibrated on every other of {len(known.labels)} validation images, judged on the others"
    show(out, judged)
    if record:
        bundles.record_calibration(bundle, calibrate(explainer, known.pixels, known.truth))


@subcommand("refine")
def bench_refine(
    model: Annotated[str, typer.Argument(help="Bundle, or the name of a model without an explainer.")],
    data: Data,
    folder: Annotated[
        Path, typer.Option(help="For reference values and estimates; what is there is not computed again.")
    ],
    layout: Layout = "auto",
    split: Split = "own",
    cache: Cache = None,
    part: Annotated[Literal["val", "test"], typer.Option(help="Part of the data.")] = "test",
    first: Annotated[int, typer.Option(min=0, help="Images of the part to leave out before the first one.")] = 0,
    every: Every = 1,
    images: Annotated[int, typer.Option(min=1, help="Images, in the order of the part.")] = 100,
    weights: Annotated[str | None, typer.Option(help="Safetensors file with the weights of a timm network.")] = None,
    head_rows: Annotated[str | None, typer.Option(help="Rows of its head to keep, as 0,217,482.")] = None,
    crop: Annotated[
        float | None, typer.Option(help="Share of the resized image that is kept; default: its own.")
    ] = None,
    steps: Annotated[
        str, typer.Option(help=f"What to compute, of {','.join(STEPS)}; accuracy: of --accuracy.")
    ] = "all",
    budgets: Annotated[str, typer.Option(help="Evaluations per image.")] = "256,512,1024,2048,4096,8192,16384,100000",
    reference: Annotated[int, typer.Option(min=100, help="Of the reference values; 2^players: exact.")] = 262_144,
    accuracy: Annotated[float, typer.Option(min=0, max=1, help="Estimated correlation to stop at.")] = 0.95,
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions.")] = 1,
    batch: Annotated[int, typer.Option(min=1, help="Images estimated at a time.")] = 20,
    compiled: Compiled = True,
    device: Device = "auto",
) -> None:
    """Compute reference values and estimates of kernelshap and refine into a folder; bench refine-tables shows them."""
    from vitshap.experiments import estimates, refinement
    from vitshap.training.values.reference import open_data, sample_images

    asked = STEPS if steps == "all" else tuple(steps.split(","))
    if unknown := [step for step in asked if step not in STEPS]:
        raise ValueError(f"--steps are of {', '.join(STEPS)}; got {', '.join(unknown)}")
    numbers = [int(number) for number in budgets.split(",")]
    masked, explainer = _open_model(model, weights, head_rows, crop, resolve_device(device))
    if compiled and masked.device.type == "cuda":
        masked.compile()
    trained_on = None if explainer is None else explainer.trained_on
    splits = open_data(masked, data, layout=layout, split=split, cache=cache, trained_on=trained_on)
    known = getattr(splits, part)
    chosen = range(first, first + images * every, every)
    if chosen[-1] >= len(known):
        raise ValueError(f"the {part} part has {len(known):,} images, asked are {first + 1:,} to {chosen[-1] + 1:,}")
    pixels, _ = sample_images(masked, known.subset(chosen), images)
    subject = estimates.Subject(masked, pixels, explainer, batch=batch)
    progress = ProgressLines()
    if "truth" in asked:
        progress.start(f"reference values, {reference:,} evaluations per image, images", images)
        refinement.store_truth(folder / TRUTH, subject, budget=reference, progress=progress.update)
    methods = [STEPS_OF[step] for step in asked if step in STEPS_OF and STEPS_OF[step] in subject.methods()]
    for key in estimates.keys(methods, numbers, range(seeds)):
        progress.start(f"{key.method}, {key.budget:,} evaluations per image, seed {key.seed}")
        estimates.stored(folder, subject, key)
    if "accuracy" in asked:
        progress.start(f"until the estimated correlation is {accuracy:g}")
        estimates.stored_accuracy(folder, subject, accuracy, budget=max(numbers))


@subcommand("refine-tables")
def bench_refine_tables(
    folder: Annotated[Path, typer.Argument(help="Folder that `bench refine` wrote.")],
    confidence: Annotated[
        float, typer.Option(min=0, max=1, help="Images whose largest output is below this are of low confidence.")
    ] = 0.9,
    accuracy: Annotated[float, typer.Option(min=0, max=1, help="As for `bench refine`.")] = 0.95,
    figure: Annotated[Path | None, typer.Option(help="Draw the curves into this file.")] = None,
    out: Out = None,
) -> None:
    """Show error, correlation and coverage of what `bench refine` computed, and compare ways to spend evaluations."""
    from vitshap.estimators import truth
    from vitshap.experiments import estimates, refinement

    known = truth.load(folder / TRUTH)
    found = estimates.found_in(folder)
    curves = refinement.stored_curves(found, known, confidence=confidence)
    low = int((known.full_values.amax(1) < confidence).sum())
    own = known.reliability.gather(1, known.full_values.argmax(1, keepdim=True)).mean()
    curves.notes.append(
        f"reference: {known.specification.budget:,} evaluations per image, reliability {float(own):.4f} (target), "
        f"{float(known.reliability.mean()):.4f} (all classes); {low} images of low confidence (below {confidence:g})"
    )
    tables = [curves, refinement.two_step_table(found, known)]
    if (path := folder / estimates.accuracy_file(accuracy)).exists():
        method = estimates.REFINED if estimates.Key(estimates.EXPLAINER, 0) in found else estimates.TOKENS
        tables += refinement.accuracy_table(found, estimates.read(path), known, accuracy, method)
    show(out, *tables, seconds={f"{k.method}, {k.budget}, {k.seed}": v.seconds for k, v in found.items()})
    if figure is not None:
        refinement.figure(curves).savefig(figure)


def _open_model(
    name: str, weights: str | None, head_rows: str | None, crop: float | None, device: torch.device
) -> tuple[MaskedModel, Explainer | None]:
    """Return a model and, if it is a bundle, its explainer."""
    from vitshap.explainers import Explainer
    from vitshap.models.load import ModelSpec, load_model
    from vitshap.models.stored import is_bundle

    if is_bundle(name):
        explainer = Explainer.from_pretrained(name, device=device)
        return explainer.surrogate, explainer
    rows = None if head_rows is None else tuple(int(row) for row in head_rows.split(","))
    return load_model(ModelSpec(name, weights=weights, head_rows=rows, crop=crop, option="--{}")).to(
        device
    ).eval(), None
