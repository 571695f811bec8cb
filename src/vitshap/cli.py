"""The command. Each subcommand imports what it needs when it runs."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(
    name="vitshap",
    help="Which parts of an image drive a vision transformer's prediction.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Measure speed, as ratios within one run.", no_args_is_help=True)
app.add_typer(bench, name="bench")
console = Console()


class ArchName(StrEnum):
    """Sizes of plain vision transformers."""

    tiny = "tiny"
    small = "small"
    base = "base"
    large = "large"


class LibraryName(StrEnum):
    """Where the net comes from."""

    timm = "timm"
    transformers = "transformers"


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from vitshap._version import __version__

        console.print(__version__)
        raise typer.Exit


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for pictures and values.")] = Path("demo-output"),
) -> None:
    """Train a small ViT on digits, evaluate all its coalitions, draw exact Shapley values."""
    from vitshap.demo import run

    run(out, console)


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="Name of a shipped recipe (--list) or path of a YAML file.")] = "",
    data: Annotated[str | None, typer.Option(help="Folder of class folders, archive, or digits.")] = None,
    model: Annotated[str | None, typer.Option(help="timm name, or hub id or folder of transformers.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for everything that is made; default: runs/RECIPE.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be given often.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue what the folder holds.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    show_keys: Annotated[bool, typer.Option("--keys", help="Print all settings of the recipe, and exit.")] = False,
    show_list: Annotated[bool, typer.Option("--list", help="Print the shipped recipes, and exit.")] = False,
) -> None:
    """From images and a net to an explainer: classifier, surrogate, explainer, as a recipe says."""
    from vitshap.training.command import list_recipes, print_keys, user_errors
    from vitshap.training.recipes import load_recipe

    with user_errors():
        if show_list:
            list_recipes(console)
            return
        chosen = load_recipe(recipe, data=data, model=model, settings=settings or ())
        if show_keys:
            print_keys(chosen, console)
            return
        from vitshap.training.run import run

        run(chosen, out or Path("runs") / Path(recipe).stem, resume=resume, console=console, device=device)


@app.command()
def explain(
    photos: Annotated[list[str], typer.Argument(help="Images, folders of images, or quoted patterns such as '*.jpg'.")],
    bundle: Annotated[str | None, typer.Option(help="Stored explainer: shipped name, folder, or hub id.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Explain this net instead: timm name, or hub id or folder of transformers.")
    ] = None,
    weights: Annotated[str | None, typer.Option(help="Safetensors file with the weights of a timm net.")] = None,
    method: Annotated[str | None, typer.Option(help="Default: the bundle's explainer; kernelshap for --model.")] = None,
    budget: Annotated[int | None, typer.Option(min=2, help="Evaluations per image of methods that sample.")] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="Class name or number, predicted, or all; may be given often.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Without --target: this many most probable classes.")] = 5,
    patches: Annotated[int, typer.Option(min=1, help="Most important patches to name.")] = 5,
    out: Annotated[Path, typer.Option(help="Folder for report.html and heatmaps.")] = Path("vitshap-output"),
    json_lines: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="A line of JSON per image, as they come.")
    ] = None,
    parquet: Annotated[str | None, typer.Option(help="A row per image and class (needs pyarrow).")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Images at a time.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    heatmaps: Annotated[
        bool | None, typer.Option("--heatmaps/--no-heatmaps", help="Heatmaps as files; default: up to 100 images.")
    ] = None,
) -> None:
    """Show which parts of photos drive the prediction: patches in words, heatmaps, and one report.html."""
    from vitshap.explaining.command import Request, run

    request = Request(
        photos=photos,
        bundle=bundle,
        model=model,
        weights=weights,
        method=method,
        budget=budget,
        targets=tuple(target or ()),
        top=top,
        patches=patches,
        out=out,
        json=json_lines,
        parquet=parquet,
        batch=batch,
        device=device,
        heatmaps=heatmaps,
    )
    raise typer.Exit(run(request))


@bench.command("coalitions")
def bench_coalitions(
    arch: Annotated[ArchName, typer.Option(help="Size of the net.")] = ArchName.tiny,
    library: Annotated[LibraryName, typer.Option(help="Library of the net.")] = LibraryName.transformers,
    device: Annotated[str, typer.Option(help="cpu or cuda; auto takes a GPU if there is one.")] = "auto",
    coalitions: Annotated[int, typer.Option(min=0, help="Of each of 4 images; 0: as many as suit the device.")] = 0,
    compiled: Annotated[bool, typer.Option(help="Also time packed and compiled (GPU).")] = True,
    out: Annotated[Path | None, typer.Option(help="Also write the numbers as JSON.")] = None,
) -> None:
    """Evaluations per second: full length with an explicit mask, fused, packed, packed and compiled."""
    from vitshap.bench import coalitions as measuring
    from vitshap.bench.machine import describe

    where = _device(device)
    n = coalitions or (16384 if where.type == "cuda" else 96)
    result = measuring.measure(library.value, arch.value, where, coalitions=n, compiled=compiled)
    table = Table(title=f"{library} ViT-{arch}, {describe(where)}", title_justify="left")
    for heading in ("way", "threads", "evaluations/s", "ratio"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for line in result.lines:
        table.add_row(line.way, str(line.threads or ""), f"{line.per_second:,.1f}", f"{line.ratio:.2f}")
    for count, ceiling in result.limits.items():
        flops, moved = result.flop_limit[count], result.byte_limit[count]
        table.add_row(f"limit by operations, {ceiling.flops / 1e12:.3g} TFLOP/s", str(count or ""), f"{flops:,.0f}", "")
        table.add_row(f"limit by bytes, {ceiling.bytes / 1e12:.3g} TB/s", str(count or ""), f"{moved:,.0f}", "")
    console.print(table)
    _write_json(out, {"machine": describe(where), "lines": [line._asdict() for line in result.lines]})


@bench.command("memory")
def bench_memory(
    arch: Annotated[ArchName, typer.Option(help="Size of the net.")] = ArchName.tiny,
    library: Annotated[LibraryName, typer.Option(help="Library of the net.")] = LibraryName.transformers,
    device: Annotated[str, typer.Option(help="A GPU.")] = "cuda",
    coalitions: Annotated[int, typer.Option(min=10, help="Of one image.")] = 1_000_000,
    out: Annotated[Path | None, typer.Option(help="Also write the numbers as JSON.")] = None,
) -> None:
    """Peak GPU memory of many coalitions of one image, beyond net, input and output."""
    from vitshap.bench.coalitions import measure_memory
    from vitshap.bench.machine import describe

    where = _device(device)
    found = measure_memory(library.value, arch.value, where, coalitions)
    for name, mebibytes in found.items():
        console.print(f"{name}: {mebibytes:,.0f} MiB beyond net, input and output")
    _write_json(out, {"machine": describe(where), "mebibytes": found})


@bench.command("estimators")
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
    groups = estimators.compare_all(seeds=seeds, captum_seeds=captum_seeds, digits=digits)
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
    _write_json(out, {title: [vars(row) for row in rows] for title, rows in groups.items()})


@bench.command("convergence")
def bench_convergence(
    data: Annotated[Path, typer.Argument(help="Folder of images.")],
    weights: Annotated[Path, typer.Option(help="Safetensors file with the weights of the timm net.")],
    net: Annotated[str, typer.Option(help="Name of a timm net.")] = "deit_tiny_patch16_224",
    classes: Annotated[str, typer.Option(help="Rows of its head to keep, comma-separated; empty: all.")] = "",
    images: Annotated[int, typer.Option(min=1, help="Images, the first in the order of their names.")] = 20,
    budgets: Annotated[str, typer.Option(help="Evaluations per image, comma-separated.")] = "4096,16384,32000,40000",
    reference: Annotated[int, typer.Option(help="Evaluations per image of the reference.")] = 1_048_576,
    threshold: Annotated[float, typer.Option(help="Error over range at which an image has converged.")] = 0.1,
    rivals: Annotated[bool, typer.Option(help="Also balanced and plain KernelSHAP, and permutations.")] = True,
    compiled: Annotated[bool, typer.Option(help="Compile the packed evaluation.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda; auto takes a GPU if there is one.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Also write the numbers as JSON.")] = None,
) -> None:
    """Evaluations and seconds per image until its Shapley values are known: threshold, reliability, correlation."""
    from vitshap.bench import convergence
    from vitshap.bench.machine import describe

    where = _device(device)
    model, pixels = convergence.load(net, weights, [int(c) for c in classes.split(",") if c], data, images, where)
    if compiled:
        model.compile()

    def game_of(part: slice) -> Any:
        return model.game(pixels[part])

    reached = convergence.measure_threshold(game_of, len(pixels), threshold, budget=2**18)
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
    )
    table = Table(title=f"{net}, {len(pixels)} images, {describe(where)}", title_justify="left")
    for heading in ("estimator", "evaluations", "s/image", "reliability", "others", "correlation", "others"):
        table.add_column(heading, justify="left" if heading == "estimator" else "right")
    for line in lines:
        ratios = (line.reliability, line.reliability_other, line.correlation, line.correlation_other)
        table.add_row(line.estimator, f"{line.budget:,}", f"{line.seconds:.3f}", *(f"{r:.4f}" for r in ratios))
    console.print(table)
    _write_json(out, {"machine": describe(where), "lines": [vars(line) for line in lines], "threshold": vars(reached)})


def _device(name: str) -> Any:
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise typer.BadParameter("there is no CUDA device here", param_hint="--device")
    return torch.device(name)


def _write_json(path: Path | None, content: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(content, indent=2) + "\n")


def main() -> None:
    """Run the command; errors of the user end with exit code 2 and one line."""
    app()
