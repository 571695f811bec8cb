"""What ``vitshap explain`` does with shards.

Exit codes: 0, all images of all shards are explained; 1, some shards or images could not be; 2, nothing could be done, or
the disk is full; 130, interrupted. Finished shards stay in every case, and the same command continues.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitshap.explaining import terminal
from vitshap.explaining.batch import BatchExplainer
from vitshap.explaining.shards.read import PARQUET, Shard, find_shards, is_shard
from vitshap.explaining.shards.write import RUN, Job, ShardResult, claim_folder, explain_shard
from vitshap.explaining.terminal import Terminal, working
from vitshap.methods import target_from_words

if TYPE_CHECKING:
    from vitshap.explaining.command import Options

ENGINES = ("process", "ray")
NOT_FOR_SHARDS = ("json", "parquet", "against", "heatmaps", "curves")
"""Options of reports on photos."""


def wanted(options: Options) -> bool:
    """Return whether the command is about shards rather than photos."""
    asked = options.shard is not None or options.engine is not None or options.workers is not None
    return asked or any(is_shard(name) for name in options.photos)


def run(options: Options, printer: Terminal) -> int:
    """Explain this process's share of the shards; return the exit code."""
    job = _job(options)
    explained = Path(job.out) if (Path(job.out) / RUN).is_file() else None
    shards = part(find_shards(options.photos, leave_out=explained), options.shard)
    _check(options, shards, job)
    driver = job.explainer if options.engine != "ray" else replace(job.explainer, device="cpu")
    with working(printer, f"loading {options.model or options.bundle or 'the explainer'}"):
        source = driver.source
    classes = (source.model.class_names, source.model.num_classes)
    target: Any = target_from_words(options.target or (), *classes, default=f"top-{options.top}")
    job = replace(job, explainer=replace(job.explainer, target=target))
    printer.print(*terminal.source_lines(source))
    claim_folder(replace(job, explainer=replace(driver, target=target)))
    if options.engine == "ray":
        from vitshap.explaining.shards.on_ray import explain_on_ray

        results = explain_on_ray(job, shards, workers=options.workers)
    else:
        results = (explain_shard(job, shard) for shard in shards)
    return _report(results, printer, len(shards), options.out)


def part(shards: Sequence[Shard], which: str | None, /) -> list[Shard]:
    """Return the ``i``-th of ``N`` parts of the shards, given as ``"i/N"`` with i from 0 to N - 1; all without one."""
    if which is None:
        return list(shards)
    found = re.fullmatch(r"([0-9]{1,9})/([1-9][0-9]{0,8})", which)
    if found is None or int(found[1]) >= int(found[2]):
        raise ValueError(f"--shard is i/N with i from 0 to N - 1, for example 0/8 to 7/8; got {which!r}")
    return list(shards[int(found[1]) :: int(found[2])])


def _job(options: Options) -> Job:
    explainer = BatchExplainer(
        options.bundle,
        options.model,
        weights=options.weights,
        method=options.method,
        budget=options.budget,
        accuracy=options.accuracy,
        players=options.players,
        batch=options.batch,
        device=options.device,
    )
    return Job(explainer, str(options.out.expanduser().resolve()), options.image_column, options.id_column)


def _check(options: Options, shards: Sequence[Shard], job: Job) -> None:
    """Refuse what cannot be done with shards, before anything is loaded."""
    for name in NOT_FOR_SHARDS:
        if getattr(options, name) is not None:
            raise ValueError(f"--{name} is for photos: the explanations of a shard go to one Parquet file in --out")
    if options.engine not in (None, *ENGINES):
        raise ValueError(f"--engine is {' or '.join(ENGINES)}, got {options.engine!r}")
    if options.engine == "ray" and options.shard is not None:
        raise ValueError("--engine ray shares the shards out by itself: leave --shard away")
    if options.engine != "ray" and options.workers is not None:
        raise ValueError("--workers is for --engine ray; without it start several processes with --shard 0/N, 1/N, ...")
    if options.method is not None and "," in options.method:
        raise ValueError("shards are explained by one method, not by several")
    if options.id_column is not None and any(not shard.path.lower().endswith(PARQUET) for shard in shards):
        raise ValueError("--id-column is for Parquet shards: items of tar files are named by their key")
    for shard in shards:
        if job.output(shard) == Path(shard.path).resolve():
            raise ValueError(f"{shard.path} would be replaced by its explanations: choose another folder with --out")


def _report(results: Iterator[ShardResult], printer: Terminal, total: int, out: Path) -> int:
    """Print what becomes of the shards, one after another; return the exit code."""
    done: list[ShardResult] = []
    left: list[ShardResult] = []
    started, again = time.perf_counter(), "the same command continues"
    try:
        for result in results:
            (done if result.error is None else left).append(result)
            if result.fatal:
                printer.print_error(f"error: {result.error}; {_finished(done, total, out)}, and {again}")
                return 2
            if result.error is not None:
                printer.print_error(f"error: {result.error}")
            elif not result.finished_before:
                printer.print(_line(result))
    except KeyboardInterrupt:
        printer.print_error(f"interrupted: {_finished(done, total, out)}, and {again}")
        return 130
    images, failed = sum(one.images for one in done), sum(one.failed for one in done)
    seconds = time.perf_counter() - started
    printer.print(f"{_finished(done, total, out)}; {images:,} images now, {seconds:,.0f} s")
    if failed:
        printer.print_error(f"{failed:,} of {images:,} images could not be explained: column error")
    if left:
        printer.print_error(f"{len(left):,} of {total:,} shards could not be explained; {again}")
    return 2 if total and not done else int(bool(failed or left))


def _line(result: ShardResult) -> str:
    failed = f", {result.failed:,} of them not explained" if result.failed else ""
    rate = result.images / result.seconds if result.seconds else 0.0
    return f"{result.shard}: {result.images:,} images{failed}, {result.seconds:,.1f} s ({rate:,.1f} images/s)"


def _finished(done: Sequence[ShardResult], total: int, out: Path) -> str:
    before = sum(one.finished_before for one in done)
    earlier = f" ({before:,} were before)" if before else ""
    return f"{len(done):,} of {total:,} shards are finished{earlier}, in {out}"
