"""Speed of shards: processes with ``--shard i/N`` and workers of ``--engine ray``, compared with the stream in one process.

All use the same cores and explain the same photos into Parquet files. They are timed in turn, round by round, because the
speed of a shared machine changes; a measurement begins when every process has finished its first shard.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

import torch

from vitshap.bench.command import ProgressLines
from vitshap.bench.serve import photos
from vitshap.experiments.tables import Cell, Column, Table
from vitshap.explaining import Source, explain_photos, open_bundle
from vitshap.explaining.photos import InMemory
from vitshap.explaining.sinks import ParquetRows

RATIO = 0.9
"""Goal: smallest throughput, as a share of the stream's."""
PER_SHARD = 32
BATCH = 16
STARTUP_SECONDS = 300.0
"""Longest time until every process has finished a shard."""
COLUMNS = (
    Column("engine"),
    Column("processes", "d"),
    Column("images_per_second", ",.1f", "images/s", title="throughput"),
    Column("ratio", ".2f", title="ratio to the stream"),
    Column("images", ",d"),
    Column("seconds", ",.0f", "s"),
)
_FINISHED = re.compile(r": ([\d,]+) images.* images/s\)")


class Measured:
    """Images and seconds of one engine, round by round."""

    def __init__(self, engine: str, processes: int) -> None:
        self.engine, self.processes = engine, processes
        self.rounds: list[tuple[int, float]] = []

    @property
    def images(self) -> int:
        """All images."""
        return sum(images for images, _ in self.rounds)

    @property
    def seconds(self) -> float:
        """All seconds."""
        return sum(seconds for _, seconds in self.rounds)

    @property
    def rates(self) -> list[float]:
        """Images per second of each round."""
        return [images / seconds for images, seconds in self.rounds]


def measure(
    bundle: str | None, *, seconds: float, rounds: int, processes: int, engines: Sequence[str] = ("process", "ray")
) -> Table:
    """Time the stream and the engines in turn; ``seconds`` is the time of each of them over all rounds."""
    progress, source = ProgressLines(), open_bundle(bundle)
    files, each = photos(), seconds / rounds
    stream = Measured("stream", 1)
    others = [Measured(engine, processes) for engine in engines]
    with tempfile.TemporaryDirectory() as folder:
        shards = _write_shards(Path(folder, "in"), files, count=4096)
        for number in range(rounds):
            for one in (stream, *others):
                progress.start(f"round {number + 1} of {rounds}: {one.engine}, {each:.0f} s")
                out = Path(folder, f"{one.engine}-{number}")
                if one is stream:
                    one.rounds.append(_stream(source, files, each, out, processes))
                else:
                    calls = _commands(one.engine, shards, out, bundle, processes)
                    one.rounds.append(_timed(calls, each, first=processes))
    table = Table("Shards", COLUMNS, notes=[f"ratio: mean (least to greatest round); the goal is at least {RATIO}"])
    for one in (stream, *others):
        ratios = [here / there for here, there in zip(one.rates, stream.rates, strict=True)]
        table.add(
            engine=one.engine,
            processes=one.processes,
            images_per_second=one.images / one.seconds,
            ratio=Cell(sum(ratios) / rounds, interval=(min(ratios), max(ratios))),
            images=one.images,
            seconds=one.seconds,
        )
    return table


def _write_shards(folder: Path, files: Sequence[bytes], count: int) -> Path:
    """Write shards, which are all links to one file."""
    folder.mkdir()
    first = folder / "photos-0000.tar"
    with tarfile.open(first, "w") as archive:
        for i, content in enumerate(islice(cycle(files), PER_SHARD)):
            member = tarfile.TarInfo(f"{i:06}.jpg")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    for number in range(1, count):
        os.link(first, folder / f"photos-{number:04}.tar")
    return folder


def _commands(engine: str, shards: Path, out: Path, bundle: str | None, processes: int) -> list[list[str]]:
    given = [] if bundle is None else ["--bundle", bundle]
    call = [sys.executable, "-m", "vitshap", "explain", str(shards), "--out", str(out), "--batch", str(BATCH), *given]
    if engine == "ray":
        return [[*call, "--engine", "ray", "--workers", str(processes)]]
    return [[*call, "--shard", f"{i}/{processes}"] for i in range(processes)]


def _stream(source: Source, files: Sequence[bytes], seconds: float, out: Path, threads: int) -> tuple[int, float]:
    """Return the images of the stream in one process, and the seconds after its first shard's worth of them."""
    former = torch.get_num_threads()
    torch.set_num_threads(threads)
    out.mkdir()
    try:
        with ParquetRows(str(out / "photos.parquet")) as sink:
            explained = explain_photos((InMemory(file) for file in cycle(files)), source, batch=BATCH)
            count, started = 0, 0.0
            while not started or time.perf_counter() - started < seconds:
                for entry in islice(explained, PER_SHARD):
                    sink.add(entry)
                if started:
                    count += PER_SHARD
                else:
                    started = time.perf_counter()
            return count, time.perf_counter() - started
    finally:
        torch.set_num_threads(former)


def _timed(commands: Sequence[Sequence[str]], seconds: float, first: int) -> tuple[int, float]:
    """Return the images of processes, and the seconds after the ``first`` shards were finished; then stop them."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "COLUMNS": "1000"}
    running = [subprocess.Popen(one, stdout=subprocess.PIPE, text=True, env=environment) for one in commands]
    finished: list[tuple[float, int]] = []

    def read(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if found := _FINISHED.search(line):
                finished.append((time.perf_counter(), int(found[1].replace(",", ""))))

    readers = [threading.Thread(target=read, args=(process,), daemon=True) for process in running]
    for reader in readers:
        reader.start()
    try:
        limit = time.perf_counter() + STARTUP_SECONDS
        while len(finished) <= first or finished[-1][0] - finished[first - 1][0] < seconds:
            if len(finished) < first and time.perf_counter() > limit:
                raise ValueError(f"no shard was finished in {STARTUP_SECONDS:.0f} s")
            if any(process.poll() is not None for process in running):
                raise ValueError("a process has ended early: see its message above")
            time.sleep(0.05)
        done = finished[:]
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(60)
    return sum(images for _, images in done[first:]), done[-1][0] - done[first - 1][0]
