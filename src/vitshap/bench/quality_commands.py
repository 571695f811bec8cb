"""Subcommands of ``vitshap bench`` that measure how good estimates and explainers are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from vitshap.bench.command import Pace, app, console, one_line_errors, write_json
from vitshap.devices import resolve_device

# Options that `quality` and `ablation` share
Data = Annotated[Path, typer.Argument(help="Folder or archive of images with the bundle's classes.")]
TruthFolder = Annotated[Path, typer.Option(help="Folder for the converged values, or with those of an earlier run.")]
Layout = Annotated[str, typer.Option(help="How the data is laid out; see `vitshap train`.")]
Split = Annotated[
    Literal["own", "authors"], typer.Option(help="Split that it was trained in; authors: paper-* recipes.")
]
Cache = Annotated[Path | None, typer.Option(help="Where archives are unpacked.")]
Judged = Annotated[int, typer.Option(min=1, help="Test images whose values are computed.")]
Budget = Annotated[int, typer.Option(min=100, help="Evaluations per image.")]
Compiled = Annotated[bool, typer.Option(help="Compile the evaluation of coalitions (GPU).")]
Record = Annotated[bool, typer.Option(help="Write the numbers into the bundle's configuration and card.")]
Device = Annotated[str, typer.Option(help="cpu or cuda; auto takes a GPU if there is one.")]


@app.command("estimators")
def bench_estimators(
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions of ours and shapiq's estimators.")] = 20,
    captum_seeds: Annotated[int, typer.Option(min=1, help="Repetitions of captum's, which are slow.")] = 5,
    digits: Annotated[int, typer.Option(min=0, help="Digits to compare on, after a minute of training.")] = 5,
    out: Annotated[Path | None, typer.Option(help="Also write every run as JSON.")] = None,
) -> None:
    """Evaluations to a given error: ours, shapiq's and captum's estimators, on analytic games and on digits."""
    from statistics import geometric_mean

    from vitshap.bench import estimators

    errors = (0.2, 0.1, 0.05, 0.03)
    groups = estimators.compare_all(seeds=seeds, captum_seeds=captum_seeds, digits=digits, note=Pace().begin)
    for title, rows in groups.items():
        table = Table(title=f"{title}: evaluations to a relative error, geometric mean", title_justify="left")
        for heading in ("estimator", *map(str, errors)):
            table.add_column(heading, justify="left" if heading == "estimator" else "right")
        needed = [estimators.evaluations_to_error(rows, error) for error in errors]
        for name in dict.fromkeys(row.estimator for row in rows):
            means = (geometric_mean([n for (_, own), n in found.items() if own == name]) for found in needed)
            table.add_row(name, *(f"{mean:,.0f}" for mean in means))
        ratios = (estimators.ours_over_theirs(rows, error)[0] for error in errors)
        table.add_row("kernelshap / best of theirs on each game", *(f"{ratio:.2f}" for ratio in ratios))
        console.print(table)
    write_json(out, {title: [vars(row) for row in rows] for title, rows in groups.items()})


@app.command("convergence")
@one_line_errors
def bench_convergence(
    data: Annotated[Path, typer.Argument(help="Folder of images.")],
    weights: Annotated[Path, typer.Option(help="Safetensors file with the weights of the timm net.")],
    net: Annotated[str, typer.Option(help="Name of a timm net.")] = "deit_tiny_patch16_224",
    classes: Annotated[str, typer.Option(help="Rows of its head to keep, comma-separated; empty: all.")] = "",
    images: Annotated[int, typer.Option(min=1, help="Images, the first in the order of their names.")] = 20,
    budgets: Annotated[str, typer.Option(help="Evaluations per image, comma-separated.")] = "4096,16384,32000,40000",
    reference: Annotated[int, typer.Option(help="Evaluations per image of the reference.")] = 1_048_576,
    threshold: Annotated[float, typer.Option(help="Error over range at which an image has converged.")] = 0.1,
    rivals: Annotated[
        bool, typer.Option(help="Also balanced sampling, KernelSHAP as published, and permutations.")
    ] = True,
    compiled: Annotated[bool, typer.Option(help="Compile the packed evaluation.")] = False,
    device: Device = "auto",
    out: Annotated[Path | None, typer.Option(help="Also write the numbers as JSON.")] = None,
) -> None:
    """Evaluations and seconds per image until its Shapley values are known: threshold, reliability, correlation."""
    from vitshap.bench import convergence
    from vitshap.bench.machine import describe

    where = resolve_device(device)
    model, pixels = convergence.load(net, weights, [int(c) for c in classes.split(",") if c], data, images, where)
    if compiled:
        model.compile()

    pace = Pace()

    def game_of(part: slice) -> Any:
        return convergence.watched(model.game(pixels[part]), pace.add)

    reached = convergence.measure_threshold(game_of, len(pixels), threshold, budget=2**18, begin=pace.begin)
    used, seconds = sorted(reached.evaluations), sorted(reached.seconds)
    console.print(
        f"error/range < {threshold:g} for every class: {sum(reached.converged)} of {len(used)} images, evaluations "
        f"median {used[len(used) // 2]:,} (most {used[-1]:,}), seconds median {seconds[len(used) // 2]:.2f} "
        f"(most {seconds[-1]:.2f})"
    )
    lines = convergence.measure_budgets(
        game_of,
        len(pixels),
        [int(b) for b in budgets.split(",")],
        reference=reference,
        estimators=list(convergence.ESTIMATORS)[: None if rivals else 1],
        note=lambda line: console.print(f"{line.estimator} {line.budget:,}: correlation {line.correlation:.4f}"),
        begin=pace.begin,
    )
    table = Table(title=f"{net}, {len(pixels)} images, {describe(where)}", title_justify="left")
    for heading in ("estimator", "evaluations", "s/image", "reliability", "others", "correlation", "others"):
        table.add_column(heading, justify="left" if heading == "estimator" else "right")
    for line in lines:
        ratios = (line.reliability, line.reliability_other, line.correlation, line.correlation_other)
        table.add_row(line.estimator, f"{line.budget:,}", f"{line.seconds:.3f}", *(f"{r:.4f}" for r in ratios))
    console.print(table)
    write_json(out, {"machine": describe(where), "lines": [vars(line) for line in lines], "threshold": vars(reached)})


@app.command("quality")
@one_line_errors
def bench_quality(
    bundle: Annotated[str, typer.Argument(help="Bundle: a folder, a shipped name or a hub id.")],
    data: Data,
    truth: TruthFolder,
    layout: Layout = "auto",
    split: Split = "own",
    cache: Cache = None,
    images: Judged = 100,
    budget: Budget = 65_536,
    curves: Annotated[int, typer.Option(min=0, help="Test images for insertion and deletion.")] = 1000,
    compiled: Compiled = False,
    record: Record = False,
    device: Device = "auto",
    out: Annotated[Path | None, typer.Option(help="Also write the numbers as JSON.")] = None,
) -> None:
    """Correlation of an explainer with converged Shapley values, its insertion and deletion, on test images."""
    from vitshap.bench import quality
    from vitshap.bench.machine import describe
    from vitshap.explainers import Explainer
    from vitshap.explainers import bundle as bundles
    from vitshap.training.values.store import Evaluator

    if record:
        bundles.own_folder(bundle)  # known before anything is measured
    where = resolve_device(device)
    explainer = Explainer.from_pretrained(bundle, device=where)
    test = quality.open_data(explainer.surrogate, data, layout=layout, split=split, cache=cache).test
    evaluate = Evaluator(explainer.surrogate, compiled=compiled)
    pace = Pace()
    pace.begin(f"truth in {truth}, {budget:,} evaluations an image, images", images)
    judged = quality.judge_by(truth, evaluate, test, count=images, budget=budget, progress=pace.reached)
    found = quality.agreement(explainer(judged.pixels).values, judged.truth, judged.labels)
    if curves:
        found |= quality.areas(evaluate, explainer, *quality.spread_out(explainer.surrogate, test, curves))
    table = Table(title=f"{bundle}, {len(judged.labels)} test images, {describe(where)}", title_justify="left")
    for heading in ("measure", "value"):
        table.add_column(heading, justify="left" if heading == "measure" else "right")
    for name, value in found.items():
        table.add_row(name.replace("_", " "), "-" if value is None else f"{value:.4f}")
    console.print(table)
    unknown = [name for name, value in found.items() if value is None]
    reason = (
        f"{' and '.join(unknown)}: not known, because the truth's reliability is below {quality.LEAST_RELIABILITY:g}; "
        f"compute it with more than {budget:,} evaluations (--budget) into another folder"
    )
    if unknown:
        console.print(reason, highlight=False)
    write_json(out, {"machine": describe(where), "budget": budget, **found, "reason": reason if unknown else None})
    if record:
        bundles.record(bundle, {name: round(value, 4) for name, value in found.items() if value is not None})


@app.command("unknown")
@one_line_errors
def bench_unknown(
    bundle: Annotated[str, typer.Argument(help="Bundle: a folder, a shipped name or a hub id.")],
    data: Data,
    others: Annotated[list[Path], typer.Option(help="Images of other things, a folder or archive; may be repeated.")],
    layout: Layout = "auto",
    split: Split = "own",
    cache: Cache = None,
    images: Annotated[int, typer.Option(min=20, help="Images of each data set.")] = 1000,
    warned: Annotated[float, typer.Option(min=0, max=1, help="Share of known images that may be warned about.")] = 0.05,
    record: Record = False,
    device: Device = "auto",
) -> None:
    """The probability below which `vitshap explain` says that no class seems to fit: what it costs and what it catches."""
    from vitshap.bench import quality, unknown
    from vitshap.data import load_data
    from vitshap.explainers import Explainer
    from vitshap.explainers import bundle as bundles

    if record:
        bundles.own_folder(bundle)
    model = Explainer.from_pretrained(bundle, device=resolve_device(device)).surrogate
    test = quality.open_data(model, data, layout=layout, split=split, cache=cache).test
    known = unknown.top_probabilities(model, test, count=images)
    tops = {}
    for path in others:
        part = load_data(path, cache=cache and cache / path.name, channels=model.adapter.channels).test
        tops[path.name] = unknown.top_probabilities(model, part, count=images)
    found = unknown.separate(known, tops, warned=warned)
    console.print(
        f"threshold {found.threshold:.2f}: {found.known_below:.1%} of {len(known):,} known test images are below it",
        highlight=False,
    )
    for name, share in found.others_below.items():
        console.print(
            f"{name}: {share:.1%} of {len(tops[name]):,} images are below it; area under the ROC curve "
            f"{found.order[name]:.3f}",
            highlight=False,
        )
    if record:
        bundles.record(bundle, {"unknown_threshold": found.threshold})


@app.command("ablation")
@one_line_errors
def bench_ablation(
    bundle: Annotated[str, typer.Argument(help="Bundle whose surrogate is explained anew.")],
    data: Data,
    truth: TruthFolder,
    layout: Layout = "auto",
    split: Split = "own",
    cache: Cache = None,
    images: Judged = 100,
    budget: Budget = 65_536,
    views: Annotated[int, typer.Option(min=1, help="Views of every training image.")] = 10,
    coalitions: Annotated[int, typer.Option(min=4, help="Evaluations per view.")] = 32,
    only: Annotated[str, typer.Option(help="Numbers of variants, comma-separated, in order; empty: all.")] = "",
    compiled: Compiled = False,
    device: Device = "auto",
    out: Annotated[Path | None, typer.Option(help="Also write the numbers as JSON, after every variant.")] = None,
) -> None:
    """What carries an explainer beyond the paper's procedure: each step alone and together, at equal evaluations."""
    from tempfile import TemporaryDirectory

    from vitshap.bench import explainers, quality
    from vitshap.bench.machine import describe
    from vitshap.data import open_pixels
    from vitshap.explainers import Explainer
    from vitshap.training.values.store import Evaluator

    where = resolve_device(device)
    surrogate = Explainer.from_pretrained(bundle, device=where).surrogate
    splits = quality.open_data(surrogate, data, layout=layout, split=split, cache=cache)
    evaluate = Evaluator(surrogate)
    pace = Pace()
    pace.begin(f"truth in {truth}, {budget:,} evaluations an image, images", images)
    judged = quality.judge_by(truth, evaluate, splits.test, count=images, budget=budget, progress=pace.reached)

    def judge(one: Explainer) -> dict[str, float | None]:
        agreement = quality.agreement(one(judged.pixels).values, judged.truth, judged.labels)
        return {**agreement, **quality.areas(evaluate, one, judged.pixels, judged.labels)}

    train, val = (open_pixels(part, surrogate.preprocess, device=where) for part in splits[:2])
    named = list(explainers.variants(views, coalitions, surrogate.num_players).items())
    chosen = dict(named if not only else (named[int(number)] for number in only.split(",")))
    lines: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:
        for line in explainers.ablate(
            surrogate,
            train,
            val,
            judge,
            chosen,
            Path(folder),
            compiled=compiled,
        ):
            console.print(
                f"{line.variant}: {line.evaluations:,} evaluations, {line.values_seconds:.0f} + "
                f"{line.training_seconds:.0f} s, correlation {_shown(line.scores['target'])} target, "
                f"{_shown(line.scores['others'])} others, deletion {_shown(line.scores['deletion'])}",
                highlight=False,
            )
            lines.append(vars(line))
            write_json(out, {"machine": describe(where), "lines": lines})


def _shown(score: float | None) -> str:
    return "-" if score is None else f"{score:.3f}"
