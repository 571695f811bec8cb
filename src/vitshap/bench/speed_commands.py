"""Subcommands of ``vitshap bench`` that measure speed and memory."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from vitshap.bench.command import Pace, app, console, write_json
from vitshap.devices import resolve_device


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


class ProcedureName(StrEnum):
    """How an explainer is trained."""

    values = "values"
    paper = "paper"


# Options that commands share
Arch = Annotated[ArchName, typer.Option(help="Size of the net.")]
Library = Annotated[LibraryName, typer.Option(help="Library of the net.")]
Device = Annotated[str, typer.Option(help="cpu or cuda; auto takes a GPU if there is one.")]
Out = Annotated[Path | None, typer.Option(help="Also write the numbers as JSON.")]


@app.command("coalitions")
def bench_coalitions(
    arch: Arch = ArchName.tiny,
    library: Library = LibraryName.transformers,
    device: Device = "auto",
    coalitions: Annotated[
        int, typer.Option(min=0, help="Of each of 4 images; 0: as many as suit a GPU, on a CPU as fit into --seconds.")
    ] = 0,
    seconds: Annotated[float, typer.Option(min=1, help="About what the evaluations take on a CPU.")] = 40.0,
    compiled: Annotated[bool, typer.Option(help="Also time packed and compiled (GPU).")] = True,
    out: Out = None,
) -> None:
    """Evaluations per second: full length with an explicit mask, fused, packed, packed and compiled."""
    from vitshap.bench import coalitions as measuring
    from vitshap.bench.machine import describe

    where = resolve_device(device)
    result = measuring.measure(
        library.value,
        arch.value,
        where,
        coalitions=coalitions or None,
        compiled=compiled,
        limit=seconds,
        note=Pace().begin,
    )
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
    write_json(out, {"machine": describe(where), "lines": [line._asdict() for line in result.lines]})


@app.command("explain")
def bench_explain(
    bundle: Annotated[str | None, typer.Option(help="Stored explainer; default: the one that is shipped.")] = None,
    arch: Annotated[ArchName | None, typer.Option(help="A random net of this size instead.")] = None,
    device: Device = "auto",
    half: Annotated[bool, typer.Option("--half", help="bfloat16 autocast (GPU).")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in which the calls take turns.")] = 15,
    out: Out = None,
) -> None:
    """Latency at batch 1 and throughput at 64 of an explanation beside one forward of the net and of the surrogate."""
    from vitshap.bench import explain as measuring
    from vitshap.bench.machine import describe

    where = resolve_device(device)
    if bundle is not None and arch is not None:
        raise typer.BadParameter("--bundle and --arch exclude each other")
    try:
        explainer, name = measuring.load(bundle, where) if arch is None else measuring.build(arch.value, where)
        lines = measuring.measure_all(explainer, half=half, rounds=rounds)
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    precision = ", bfloat16 autocast" if half else ", float32"
    console.print(measuring.table(lines, f"{name}{precision}, {describe(where)}"))
    write_json(out, {"machine": describe(where), "explainer": name, "lines": [line._asdict() for line in lines]})


@app.command("training")
def bench_training(
    arch: Arch = ArchName.base,
    library: Library = LibraryName.transformers,
    procedure: Annotated[ProcedureName, typer.Option(help="How the explainer is trained.")] = ProcedureName.values,
    batch: Annotated[int, typer.Option(min=1, help="Images per step.")] = 256,
    coalitions: Annotated[int, typer.Option(min=2, help="Evaluations per image (and view).")] = 48,
    steps: Annotated[int, typer.Option(min=2, help="Steps that are timed.")] = 16,
    epochs: Annotated[int, typer.Option(min=1, help="What to extrapolate to.")] = 100,
    views: Annotated[int, typer.Option(min=1, help="Views that are evaluated for them (procedure values).")] = 50,
    images: Annotated[int, typer.Option(min=1, help="Images of such a training.")] = 9_469,
    compiled: Annotated[bool, typer.Option(help="Compile network and evaluations (GPU).")] = True,
    device: Device = "auto",
    out: Out = None,
) -> None:
    """Training of an explainer, timed on random images and weights: images and evaluations per second, memory, hours."""
    from vitshap.bench import training as measuring
    from vitshap.bench.machine import describe

    where = resolve_device(device)
    config = measuring.training_for(procedure.value, batch=batch, coalitions=coalitions, compiled=compiled)
    speed = measuring.measure(library.value, arch.value, config, where, steps=steps)
    hours = speed.hours(epochs, images, views * images * (coalitions + 1))
    console.print(f"{library} ViT-{arch}, procedure {procedure}, {describe(where)}", highlight=False)
    console.print(
        f"{speed.images_per_second:,.0f} images/s ({speed.step_seconds * 1e3:.1f} ms a step of {batch}), "
        f"{speed.evaluations_per_second:,.0f} evaluations/s"
        + ("" if speed.peak_gib is None else f", at most {speed.peak_gib:.1f} GiB of GPU memory"),
        highlight=False,
    )
    console.print(f"{epochs} epochs of {images:,} images: {hours:.2f} hours", highlight=False)
    write_json(out, {"machine": describe(where), "arch": arch.value, **speed._asdict(), "hours": hours})


@app.command("memory")
def bench_memory(
    arch: Arch = ArchName.tiny,
    library: Library = LibraryName.transformers,
    device: Annotated[str, typer.Option(help="A GPU.")] = "cuda",
    coalitions: Annotated[int, typer.Option(min=10, help="Of one image.")] = 1_000_000,
    out: Out = None,
) -> None:
    """Peak GPU memory of many coalitions of one image, beyond net, input and output."""
    from vitshap.bench.coalitions import measure_memory
    from vitshap.bench.machine import describe

    where = resolve_device(device)
    found = measure_memory(library.value, arch.value, where, coalitions)
    for name, mebibytes in found.items():
        console.print(f"{name}: {mebibytes:,.0f} MiB beyond net, input and output")
    write_json(out, {"machine": describe(where), "mebibytes": found})
