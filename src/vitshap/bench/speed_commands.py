"""Subcommands of ``vitshap bench`` that measure speed and memory."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from vitshap.bench.command import Device, Out, ProgressLines, show, subcommand
from vitshap.models.base import resolve_device


class ArchName(StrEnum):
    """Sizes of plain vision transformers."""

    tiny = "tiny"
    small = "small"
    base = "base"
    large = "large"


class LibraryName(StrEnum):
    """Library of the network."""

    timm = "timm"
    transformers = "transformers"


class ProcedureName(StrEnum):
    """How an explainer is trained."""

    values = "values"
    paper = "paper"


class StageName(StrEnum):
    """Trainings of a recipe."""

    classifier = "classifier"
    surrogate = "surrogate"
    explainer = "explainer"
    all = "all"


# Options of several subcommands
Arch = Annotated[ArchName, typer.Option(help="Size of the network.")]
Library = Annotated[LibraryName, typer.Option(help="Library of the network.")]


@subcommand("coalitions")
def bench_coalitions(
    arch: Arch = ArchName.tiny,
    library: Library = LibraryName.transformers,
    device: Device = "auto",
    coalitions: Annotated[
        int,
        typer.Option(
            min=0,
            help="Coalitions of each of 4 images; 0: as many as suit a GPU; on a CPU as many as fit into --seconds.",
        ),
    ] = 0,
    seconds: Annotated[float, typer.Option(min=1, help="Approximate time of the evaluations on a CPU.")] = 40.0,
    compiled: Annotated[bool, typer.Option(help="Also time packed and compiled (GPU).")] = True,
    out: Out = None,
) -> None:
    """Measure evaluations per second: full length with an explicit mask, fused, packed, packed and compiled."""
    from vitshap.bench import speed

    where = resolve_device(device)
    table = speed.measure(
        library.value,
        arch.value,
        where,
        coalitions=coalitions or None,
        compiled=compiled,
        limit=seconds,
        note=ProgressLines().start,
    )
    show(out, table, machine=speed.describe(where))


@subcommand("explain")
def bench_explain(
    bundle: Annotated[str | None, typer.Option(help="Stored explainer; default: the one that is shipped.")] = None,
    arch: Annotated[ArchName | None, typer.Option(help="An untrained network of this size instead.")] = None,
    device: Device = "auto",
    half: Annotated[bool, typer.Option("--half", help="bfloat16 autocast (GPU).")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in which each call is timed.")] = 15,
    out: Out = None,
) -> None:
    """Measure time and throughput of an explanation, compared with forward passes of the model and the surrogate."""
    from vitshap.bench import explain as measuring
    from vitshap.bench.speed import describe

    where = resolve_device(device)
    if bundle is not None and arch is not None:
        raise ValueError("--bundle and --arch exclude each other")
    explainer, name = measuring.load(bundle, where) if arch is None else measuring.build(arch.value, where)
    title = f"{name}, {'bfloat16 autocast' if half else 'float32'}, {describe(where)}"
    table = measuring.measure_all(explainer, half=half, rounds=rounds, title=title)
    show(out, table, machine=describe(where), explainer=name)


@subcommand("methods")
def bench_methods(
    arch: Arch = ArchName.tiny,
    library: Library = LibraryName.timm,
    batch: Annotated[int, typer.Option(min=0, help="Images at a time; 0: 16 on a GPU, 1 on a CPU.")] = 0,
    only: Annotated[str, typer.Option(help="Names of methods, separated by commas; default: all.")] = "",
    masks: Annotated[int, typer.Option(min=1, help="Random coalitions of rise.")] = 2000,
    device: Device = "auto",
    out: Out = None,
) -> None:
    """Time every baseline method for all classes, compared with one vectorised gradient and with the paper's figures."""
    from vitshap.bench import methods as measuring
    from vitshap.bench.speed import describe

    where = resolve_device(device)
    table = measuring.measure(
        library.value,
        arch.value,
        where,
        batch=batch or (16 if where.type == "cuda" else 1),
        names=tuple(only.split(",")) if only else measuring.METHODS,
        rise_masks=masks,
        note=ProgressLines().start,
    )
    show(out, table, machine=describe(where))


@subcommand("metrics")
def bench_metrics(
    arch: Arch = ArchName.tiny,
    library: Library = LibraryName.timm,
    images: Annotated[int, typer.Option(min=0, help="Images; 0: 1,000 on a GPU, 4 on a CPU.")] = 0,
    step: Annotated[int, typer.Option(min=1, help="Patches deleted at a time (CPU).")] = 7,
    subsets: Annotated[int, typer.Option(min=2, help="Subsets of sensitivity-n (CPU).")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Timed rounds (CPU).")] = 3,
    device: Device = "auto",
    out: Out = None,
) -> None:
    """Time metrics: on a GPU beside evaluations of coalitions, on a CPU deletion and sensitivity-n beside Quantus."""
    from vitshap.bench import metrics as measuring
    from vitshap.bench.speed import describe

    where = resolve_device(device)
    if where.type == "cuda":
        rates = measuring.measure_rates(
            library.value, arch.value, where, images=images or 1000, note=ProgressLines().start
        )
        show(out, rates, machine=describe(where))
        return
    table = measuring.measure(
        library.value,
        arch.value,
        where,
        images=images or 4,
        step=step,
        subsets=subsets,
        rounds=rounds,
        note=ProgressLines().start,
    )
    show(out, table, machine=describe(where))


@subcommand("training")
def bench_training(
    stage: Annotated[StageName, typer.Option(help="Which training; all: a row for each.")] = StageName.explainer,
    arch: Arch = ArchName.base,
    library: Library = LibraryName.transformers,
    procedure: Annotated[
        ProcedureName,
        typer.Option(
            help="How the explainer is trained. values: settings of imagenette-deit-tiny; paper: paper-imagenette."
        ),
    ] = ProcedureName.values,
    batch: Annotated[int | None, typer.Option(min=1, help="Images per step; default: the recipe's.")] = None,
    coalitions: Annotated[
        int | None,
        typer.Option(min=2, help="Evaluations per image (and view) of the explainer; default: the recipe's."),
    ] = None,
    steps: Annotated[int, typer.Option(min=2, help="Number of timed steps.")] = 16,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs of the training whose time is projected; default: the recipe's.")
    ] = None,
    views: Annotated[
        int | None, typer.Option(min=1, help="Views of that training (procedure values); default: the recipe's.")
    ] = None,
    images: Annotated[int, typer.Option(min=1, help="Images of that training.")] = 9_469,
    compiled: Annotated[bool, typer.Option(help="Compile network and evaluations (GPU).")] = True,
    device: Device = "auto",
    out: Out = None,
) -> None:
    """Time trainings on random images and weights: images and evaluations per second, memory, projected hours."""
    from vitshap.bench import training as measuring
    from vitshap.bench.speed import describe

    where = resolve_device(device)
    chosen = [name for name in measuring.STAGES if stage.value in (name, "all")]
    trainings = {
        name: measuring.training_for(
            name, procedure.value, batch=batch, epochs=epochs, coalitions=coalitions, views=views, compiled=compiled
        )
        for name in chosen
    }
    table = measuring.compare(
        library.value, arch.value, trainings, where, steps=steps, images=images, note=ProgressLines().start
    )
    show(out, table, machine=describe(where), arch=arch.value, procedure=procedure.value)


@subcommand("memory")
def bench_memory(
    arch: Arch = ArchName.tiny,
    library: Library = LibraryName.transformers,
    device: Annotated[str, typer.Option(help="A GPU.")] = "cuda",
    coalitions: Annotated[int, typer.Option(min=10, help="Coalitions of one image.")] = 1_000_000,
    out: Out = None,
) -> None:
    """Measure peak GPU memory of many coalitions of one image, beyond the network, its input and its output."""
    from vitshap.bench import speed

    where = resolve_device(device)
    show(out, speed.measure_memory(library.value, arch.value, where, coalitions), machine=speed.describe(where))


@subcommand("serve")
def bench_serve(
    bundle: Annotated[str | None, typer.Option(help="Stored explainer; default: the one that is shipped.")] = None,
    clients: Annotated[int, typer.Option(min=1, help="Clients that send photos at the same time.")] = 200,
    seconds: Annotated[float, typer.Option(min=1, help="Time of the load, over all rounds.")] = 60.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of offline explanations and load in turn.")] = 3,
    out: Out = None,
) -> None:
    """Measure vitshap serve: times of the page's requests, throughput under load compared with offline explanations."""
    from vitshap.bench import serve as measuring
    from vitshap.bench.speed import describe

    tables = measuring.measure(bundle, clients=clients, seconds=seconds, rounds=rounds)
    show(out, *tables, machine=describe(resolve_device("cpu")))


@subcommand("shards")
def bench_shards(
    bundle: Annotated[str | None, typer.Option(help="Stored explainer; default: the one that is shipped.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Time of each engine, over all rounds.")] = 300.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the stream and the engines in turn.")] = 3,
    processes: Annotated[int, typer.Option(min=1, help="Processes of an engine, and threads of the stream.")] = 2,
    ray: Annotated[bool, typer.Option(help="Also measure --engine ray (needs ray).")] = True,
    out: Out = None,
) -> None:
    """Measure shards: images per second of processes and of Ray compared with the stream in one process, on a CPU."""
    from vitshap.bench import shards
    from vitshap.bench.speed import describe

    engines = ("process", "ray") if ray else ("process",)
    table = shards.measure(bundle, seconds=seconds, rounds=rounds, processes=processes, engines=engines)
    show(out, table, machine=describe(resolve_device("cpu")))


@subcommand("export")
def bench_export(
    photos: Annotated[list[str], typer.Argument(help="Photos, or folders of photos.")],
    bundle: Annotated[str | None, typer.Option(help="Stored explainer; default: the one that is shipped.")] = None,
    images: Annotated[int, typer.Option(min=1, help="Photos, spread evenly.")] = 100,
    onnxruntime_web: Annotated[
        Path | None, typer.Option(help="Folder of the npm package onnxruntime-web; default: it is fetched with npm.")
    ] = None,
    out: Out = None,
) -> None:
    """Compare exported graphs with torch on photos: time, differences and correlation; and the page in Chromium."""
    from vitshap.bench import explain
    from vitshap.bench import export as measuring
    from vitshap.bench.speed import describe
    from vitshap.exporting.graphs import require_packages

    require_packages()
    where = resolve_device("cpu")
    explainer, name = explain.load(bundle, where)
    tables = measuring.measure(
        explainer.float(), name, photos, images=images, runtime=onnxruntime_web, progress=ProgressLines()
    )
    show(out, *tables, machine=describe(where))
