"""Subcommands of ``vitshap bench`` that measure speed and memory."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from vitshap.bench.command import app, console, device_named, write_json


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


@app.command("coalitions")
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

    where = device_named(device)
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
    write_json(out, {"machine": describe(where), "lines": [line._asdict() for line in result.lines]})


@app.command("explain")
def bench_explain(
    bundle: Annotated[str | None, typer.Option(help="Stored explainer; default: the one that is shipped.")] = None,
    arch: Annotated[ArchName | None, typer.Option(help="A random net of this size instead.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda; auto takes a GPU if there is one.")] = "auto",
    half: Annotated[bool, typer.Option("--half", help="bfloat16 autocast (GPU).")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in which the calls take turns.")] = 15,
    out: Annotated[Path | None, typer.Option(help="Also write the numbers as JSON.")] = None,
) -> None:
    """Latency at batch 1 and throughput at 64 of an explanation beside one forward of the net and of the surrogate."""
    from vitshap.bench import explain as measuring
    from vitshap.bench.machine import describe

    where = device_named(device)
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


@app.command("memory")
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

    where = device_named(device)
    found = measure_memory(library.value, arch.value, where, coalitions)
    for name, mebibytes in found.items():
        console.print(f"{name}: {mebibytes:,.0f} MiB beyond net, input and output")
    write_json(out, {"machine": describe(where), "mebibytes": found})
