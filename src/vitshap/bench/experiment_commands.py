"""Subcommands of ``vitshap bench`` that measure how good estimates and explainers are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from vitshap.bench.command import Device, Out, ProgressLines, console, show, subcommand
from vitshap.experiments.tables import Table, write_tables
from vitshap.models.base import resolve_device

# Options of several subcommands
Bundle = Annotated[str, typer.Argument(help="Bundle: a folder, a shipped name or a hub id.")]
Data = Annotated[Path, typer.Argument(help="Folder or archive of images with the bundle's classes.")]
TruthFolder = Annotated[Path, typer.Option(help="Folder for the reference values, or with those of an earlier run.")]
Layout = Annotated[str, typer.Option(help="How the data is laid out; see `vitshap train`.")]
Split = Annotated[
    Literal["own", "authors"], typer.Option(help="Split that it was trained on; authors: paper-* recipes.")
]
Cache = Annotated[Path | None, typer.Option(help="Where archives are unpacked.")]
Images = Annotated[int, typer.Option(min=1, help="Test images whose reference values are computed.")]
Budget = Annotated[int, typer.Option(min=100, help="Evaluations per image.")]
Compiled = Annotated[bool, typer.Option(help="Compile the evaluation of coalitions (GPU).")]
Record = Annotated[bool, typer.Option(help="Write the numbers into the bundle's configuration and card.")]


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


@subcommand("convergence")
def bench_convergence(
    data: Annotated[Path, typer.Argument(help="Folder of images.")],
    weights: Annotated[Path, typer.Option(help="Safetensors file with the weights of the timm model.")],
    net: Annotated[str, typer.Option(help="Name of a timm model.")] = "deit_tiny_patch16_224",
    classes: Annotated[str, typer.Option(help="Rows of its head to keep, comma-separated; empty: all.")] = "",
    images: Annotated[int, typer.Option(min=1, help="Images, the first in the order of their names.")] = 20,
    budgets: Annotated[str, typer.Option(help="Evaluations per image, comma-separated.")] = "4096,16384,32000,40000",
    reference: Annotated[int, typer.Option(help="Evaluations per image of the reference.")] = 1_048_576,
    threshold: Annotated[float, typer.Option(help="Error over range at which an image has converged.")] = 0.1,
    others: Annotated[
        bool, typer.Option(help="Also balanced sampling, KernelSHAP as published, and permutations.")
    ] = True,
    compiled: Annotated[bool, typer.Option(help="Compile the packed evaluation.")] = False,
    device: Device = "auto",
    out: Out = None,
) -> None:
    """Measure evaluations and seconds per image until Shapley values converge: threshold, reliability, correlation."""
    from vitshap.bench.speed import describe
    from vitshap.experiments import convergence

    where = resolve_device(device)
    model, pixels = convergence.load(net, weights, [int(c) for c in classes.split(",") if c], data, images, where)
    if compiled:
        model.compile()

    progress = ProgressLines()

    def game_of(part: slice) -> Any:
        return convergence.watched(model.game(pixels[part]), progress.advance)

    reached = convergence.measure_threshold(game_of, len(pixels), threshold, budget=2**18, start=progress.start)
    used, seconds = sorted(reached.values("evaluations")), sorted(reached.values("seconds"))
    console.print(
        f"error/range < {threshold:g} for every class: {sum(reached.values('converged'))} of {len(used)} images, "
        f"evaluations median {used[len(used) // 2]:,} (most {used[-1]:,}), seconds median "
        f"{seconds[len(used) // 2]:.2f} (most {seconds[-1]:.2f})"
    )
    table = convergence.measure_budgets(
        game_of,
        len(pixels),
        [int(b) for b in budgets.split(",")],
        reference=reference,
        estimators=list(convergence.ESTIMATORS)[: None if others else 1],
        finished=lambda table: console.print(table.line(), highlight=False),
        start=progress.start,
    )
    table.title = f"{net}, {table.title}, {describe(where)}"
    show(None, table)
    write_tables(out, table, reached, machine=describe(where))


@subcommand("quality")
def bench_quality(
    bundle: Bundle,
    data: Data,
    truth: TruthFolder,
    layout: Layout = "auto",
    split: Split = "own",
    cache: Cache = None,
    images: Images = 100,
    budget: Budget = 65_536,
    curves: Annotated[int, typer.Option(min=0, help="Test images for insertion and deletion.")] = 1000,
    compiled: Compiled = False,
    record: Record = False,
    device: Device = "auto",
    out: Out = None,
) -> None:
    """Measure an explainer on test images: correlation with converged Shapley values, insertion and deletion."""
    from vitshap.bench.speed import describe
    from vitshap.experiments import quality
    from vitshap.explainers import Explainer
    from vitshap.explainers import bundle as bundles
    from vitshap.training.values.store import Evaluator

    if record:
        bundles.local_folder(bundle)  # an error before anything is measured
    where = resolve_device(device)
    explainer = Explainer.from_pretrained(bundle, device=where)
    test = quality.open_data(explainer.surrogate, data, layout=layout, split=split, cache=cache).test
    evaluate = Evaluator(explainer.surrogate, compiled=compiled)
    progress = ProgressLines()
    progress.start(f"reference values in {truth}, {budget:,} evaluations per image, images", images)
    known = quality.reference_set(truth, evaluate, test, count=images, budget=budget, progress=progress.update)
    scores = quality.agreement(explainer(known.pixels).values, known.truth, known.labels)
    if curves:
        scores |= quality.areas(evaluate, explainer, *quality.sample_images(explainer.surrogate, test, curves))
    title = f"{bundle}, {len(known.labels)} test images, {describe(where)}"
    show(out, quality.scores_table(title, scores, budget=budget), machine=describe(where), budget=budget)
    if record:
        bundles.record(bundle, {name: round(value, 4) for name, value in scores.items() if value is not None})


@subcommand("calibrate")
def bench_calibrate(
    bundle: Bundle,
    data: Data,
    truth: TruthFolder,
    layout: Layout = "auto",
    split: Split = "own",
    cache: Cache = None,
    images: Annotated[int, typer.Option(min=20, help="Validation images whose reference values are computed.")] = 200,
    budget: Budget = 65_536,
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


@subcommand("unknown")
def bench_unknown(
    bundle: Bundle,
    data: Data,
    others: Annotated[list[Path], typer.Option(help="Images of other classes, a folder or archive; may be repeated.")],
    layout: Layout = "auto",
    split: Split = "own",
    cache: Cache = None,
    images: Annotated[int, typer.Option(min=20, help="Images of each data set.")] = 1000,
    warned: Annotated[
        float, typer.Option(min=0, max=1, help="Share of images of known classes that may be below the threshold.")
    ] = 0.05,
    record: Record = False,
    device: Device = "auto",
    out: Out = None,
) -> None:
    """Choose the probability below which `vitshap explain` reports low confidence, and measure what it detects."""
    from vitshap.data import load_data
    from vitshap.experiments import quality
    from vitshap.explainers import Explainer
    from vitshap.explainers import bundle as bundles

    if record:
        bundles.local_folder(bundle)
    model = Explainer.from_pretrained(bundle, device=resolve_device(device)).surrogate
    test = quality.open_data(model, data, layout=layout, split=split, cache=cache).test
    known = quality.top_probabilities(model, test, count=images)
    tops = {}
    for path in others:
        part = load_data(path, cache=cache and cache / path.name, channels=model.adapter.channels).test
        tops[path.name] = quality.top_probabilities(model, part, count=images)
    threshold = quality.low_confidence_threshold(known, warned)
    show(out, quality.separation(known, tops, threshold), threshold=threshold)
    if record:
        bundles.record(bundle, {"unknown_threshold": threshold})


@subcommand("ablation")
def bench_ablation(
    bundle: Annotated[str, typer.Argument(help="Bundle whose surrogate new explainers are trained for.")],
    data: Data,
    truth: TruthFolder,
    layout: Layout = "auto",
    split: Split = "own",
    cache: Cache = None,
    images: Images = 100,
    budget: Budget = 65_536,
    views: Annotated[int, typer.Option(min=1, help="Views of every training image.")] = 10,
    coalitions: Annotated[int, typer.Option(min=4, help="Evaluations per view.")] = 32,
    only: Annotated[str, typer.Option(help="Numbers of variants, comma-separated, in order; empty: all.")] = "",
    compiled: Compiled = False,
    device: Device = "auto",
    out: Out = None,
) -> None:
    """Train explainers with each step beyond the paper's procedure, alone and together, with equal evaluations."""
    from tempfile import TemporaryDirectory

    from vitshap.bench.speed import describe
    from vitshap.data import open_pixels
    from vitshap.experiments import ablation, quality
    from vitshap.explainers import Explainer
    from vitshap.training.values.store import Evaluator

    where = resolve_device(device)
    surrogate = Explainer.from_pretrained(bundle, device=where).surrogate
    splits = quality.open_data(surrogate, data, layout=layout, split=split, cache=cache)
    evaluate = Evaluator(surrogate)
    progress = ProgressLines()
    progress.start(f"reference values in {truth}, {budget:,} evaluations per image, images", images)
    known = quality.reference_set(truth, evaluate, splits.test, count=images, budget=budget, progress=progress.update)

    def judge(one: Explainer) -> dict[str, float | None]:
        agreement = quality.agreement(one(known.pixels).values, known.truth, known.labels)
        return {**agreement, **quality.areas(evaluate, one, known.pixels, known.labels)}

    def finished(table: Table) -> None:
        console.print(table.line(), highlight=False)
        write_tables(out, table, machine=describe(where))

    train, val = (open_pixels(part, surrogate.preprocess, device=where) for part in splits[:2])
    named = list(ablation.variants(views, coalitions, surrogate.num_players).items())
    chosen = dict(named if not only else (named[int(number)] for number in only.split(",")))
    table = ablation.results_table(f"{bundle}, {len(known.labels)} test images, {describe(where)}")
    with TemporaryDirectory() as folder:
        ablation.ablate(
            surrogate, train, val, judge, chosen, Path(folder), table=table, compiled=compiled, finished=finished
        )
