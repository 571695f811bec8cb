"""Speed of ``vitshap serve``: times of the page's requests, and throughput under load compared with offline explanations.

The server is the real command in a process of its own; clients are coroutines of this process with plain sockets, which
wait as long as ``Retry-After`` says. Offline explanations (the stream behind ``vitshap explain``, which decodes, prepares
and batches the same photos) are timed in turn with the load, round by round, because the speed of a shared machine changes
from second to second.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from PIL import Image

from vitshap.bench.command import ProgressLines
from vitshap.experiments.tables import Cell, Column, Table
from vitshap.explaining import Source, explain_photos, open_bundle
from vitshap.explaining.entries import Explained
from vitshap.explaining.photos import InMemory

RATIO = 0.8
"""Goal: smallest throughput under load, as a share of the offline throughput."""
PAGE_SECONDS, BRUSH_SECONDS = 1.0, 0.15
"""Goals of the page: from a photo to its map, and from a brushed patch to the new prediction."""
DISTINCT = 160
"""Different photos that are sent: more than the server keeps, so that each is decoded."""
OFFLINE_BATCH = 16
_BOUNDARY = "vitshap-bench-boundary"

LATENCY_COLUMNS = (
    Column("request"),
    Column("median", ",.0f", "ms"),
    Column("p95", ",.0f", "ms"),
    Column("goal", ",.0f", "ms"),
    Column("requests", "d"),
)
LOAD_COLUMNS = (
    Column("clients", "d"),
    Column("seconds", ",.0f", "s"),
    Column("online", ",.1f", "photos/s"),
    Column("offline", ",.1f", "photos/s"),
    Column("ratio", ".2f"),
    Column("p50", ",.2f", "s"),
    Column("p99", ",.2f", "s"),
    Column("p99_with_retries", ",.2f", "s", title="p99 with retries"),
    Column("never_answered", "d", "clients"),
    Column("statuses"),
    Column("memory", ",.0f", "MiB"),
)
LOAD_NOTES = [
    f"ratio: online / offline, decoding included in both; mean (least to greatest round); the goal is at least {RATIO}",
    "p50, p99: from an accepted request to its answer; with retries: from the first attempt, waits included, and with the "
    "photos that were still unanswered at the end of a round, which makes it a lower bound",
    "never answered: clients without any answer in a round, the sum over rounds",
    "memory: of the server in the first and in the last quarter of the load (medians), and its peak",
]


@dataclass
class Load:
    """What clients saw in one round."""

    statuses: Counter[int] = field(default_factory=Counter)
    answers: list[tuple[float, float]] = field(default_factory=list)
    """Of each accepted request: seconds of its last attempt, and from the first one."""
    waiting: list[float] = field(default_factory=list)
    """Of each photo that was not answered when the round ended: seconds from its first attempt."""
    never: int = 0
    """Clients that got no answer at all."""
    broken: int = 0
    """Connections that were closed without an answer."""
    memory: list[int] = field(default_factory=list)
    """Resident bytes of the server, now and then."""


class Running(NamedTuple):
    """A server in a process of its own."""

    process: subprocess.Popen[str]
    host: str
    port: int

    def memory(self) -> int:
        """Return its resident bytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def photos(count: int = DISTINCT, size: tuple[int, int] = (500, 375)) -> list[bytes]:
    """Return different JPEG files, about as large as those of ImageNet."""
    found = []
    for seed in range(count):
        generator = np.random.default_rng(seed)
        blots = generator.integers(0, 256, (9, 12, 3), dtype=np.uint8)
        soft = np.asarray(Image.fromarray(blots).resize(size, Image.Resampling.BICUBIC), dtype=np.int16)
        grain = generator.integers(-12, 13, soft.shape, dtype=np.int16)
        buffer = io.BytesIO()
        Image.fromarray((soft + grain).clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
        found.append(buffer.getvalue())
    return found


@contextlib.contextmanager
def serving(bundle: str | None) -> Iterator[Running]:
    """Run ``vitshap serve`` at a free port of the loopback."""
    given = [] if bundle is None else ["--bundle", bundle]
    command = [sys.executable, "-m", "vitshap", "serve", "--port", "0", *given]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = next((line for line in process.stderr if line.startswith(("ready: ", "error: "))), "error: it has ended")
        if not line.startswith("ready: "):
            raise ValueError(line.removeprefix("error: ").strip())
        host, _, port = line.split()[1].removeprefix("http://").rpartition(":")
        yield Running(process, host, int(port))
    finally:
        process.terminate()
        process.wait(60)


def measure_latency(server: Running, files: Sequence[bytes], num_players: int, count: int = 30) -> Table:
    """Time what the page does, one request after another: a new photo's map, and the prediction after a brush stroke."""
    rows = (f'["{"1" * player}0{"1" * (num_players - player - 1)}"]' for player in cycle(range(num_players)))
    first = files[0]

    async def run() -> tuple[list[float], list[float]]:
        client = _Client(server)
        maps = [await client.timed(_explanation(files[i % len(files)], "all")) for i in range(count + 2)]
        await client.timed(_explanation(first, "all"))
        brushed = [await client.timed(_prediction(first, next(rows))) for _ in range(count + 2)]
        await client.close()
        return maps[2:], brushed[2:]  # the first requests include work that is done once

    maps, brushed = asyncio.run(run())
    table = Table("The page's requests, one after another", LATENCY_COLUMNS)
    for name, seconds, goal in (("photo to map", maps, PAGE_SECONDS), ("brush to prediction", brushed, BRUSH_SECONDS)):
        table.add(
            request=name,
            median=1e3 * median(seconds),
            p95=1e3 * quantile(seconds, 0.95),
            goal=1e3 * goal,
            requests=len(seconds),
        )
    return table


def measure_load(
    server: Running,
    files: Sequence[bytes],
    source: Source,
    *,
    clients: int,
    seconds: float,
    rounds: int,
    progress: ProgressLines | None = None,
) -> Table:
    """Time ``rounds`` of offline explanations and of load in turn; ``seconds`` is the time of the load altogether."""
    progress = progress or ProgressLines()
    each = seconds / rounds
    offline, online, loads = [], [], []
    for number in range(rounds):
        progress.start(f"round {number + 1} of {rounds}: {each / 2:.0f} s offline, {each:.0f} s with {clients} clients")
        offline.append(offline_throughput(source, files, each / 2))
        load = asyncio.run(_load(server, files, clients, each))
        loads.append(load)
        online.append(len(load.answers) / each)
    ratios = [there / here for there, here in zip(online, offline, strict=True)]
    statuses: Counter[int] = sum((load.statuses for load in loads), Counter())
    broken = sum(load.broken for load in loads)
    answers = [answer for load in loads for answer in load.answers]
    memory = [sample / 2**20 for load in loads for sample in load.memory]
    quarter = max(len(memory) // 4, 1)
    table = Table("Load", LOAD_COLUMNS, notes=LOAD_NOTES)
    table.add(
        clients=clients,
        seconds=seconds,
        online=sum(online) / rounds,
        offline=sum(offline) / rounds,
        ratio=Cell(sum(online) / sum(offline), interval=(min(ratios), max(ratios))),
        p50=quantile([one for one, _ in answers], 0.5),
        p99=quantile([one for one, _ in answers], 0.99),
        p99_with_retries=quantile(
            [*(whole for _, whole in answers), *(one for load in loads for one in load.waiting)], 0.99
        ),
        never_answered=sum(load.never for load in loads),
        statuses=", ".join(f"{status}: {count:,}" for status, count in sorted(statuses.items()))
        + (f"; closed: {broken}" if broken else ""),
        memory=Cell(median(memory[-quarter:]), note=f"first {median(memory[:quarter]):,.0f}, peak {max(memory):,.0f}"),
    )
    return table


def offline_throughput(source: Source, files: Sequence[bytes], seconds: float) -> float:
    """Return photos per second of the stream that ``vitshap explain`` uses, reading included."""
    endless = (InMemory(files[i]) for i in cycle(range(len(files))))
    explained = explain_photos(endless, source, target="predicted", batch=OFFLINE_BATCH)
    count, started = 0, time.perf_counter()
    while (spent := time.perf_counter() - started) < seconds or not count:
        count += sum(isinstance(entry, Explained) for entry in islice(explained, OFFLINE_BATCH))  # whole batches
    del explained  # ends its threads
    return count / spent


def measure(
    bundle: str | None,
    *,
    clients: int = 200,
    seconds: float = 60.0,
    rounds: int = 3,
    size: tuple[int, int] = (500, 375),
) -> tuple[Table, Table]:
    """Start a server and measure the page's latency and the load."""
    progress = ProgressLines()
    files = photos(size=size)
    source = open_bundle(bundle)
    progress.start("starting the server")
    with serving(bundle) as server:
        latency = measure_latency(server, files, source.model.num_players)
        load = measure_load(server, files, source, clients=clients, seconds=seconds, rounds=rounds, progress=progress)
    return latency, load


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile; NaN if there are no values."""
    return float(np.quantile(values, share)) if values else float("nan")


class _Client:
    """One connection that stays open."""

    def __init__(self, server: Running) -> None:
        self._server = server
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> tuple[int, int]:
        """Send a request; return the status and the seconds of Retry-After, 0 if there are none."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._server.host, self._server.port)
        reader, writer = self._streams
        try:
            writer.write(request)
            await writer.drain()
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            names = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
            await reader.readexactly(int(names.get("content-length", 0)))
        except (OSError, asyncio.IncompleteReadError):
            await self.close()
            raise
        return int(head.split()[1]), int(names.get("retry-after", 0))

    async def timed(self, request: bytes) -> float:
        """Send a request that must succeed; return its seconds."""
        started = time.perf_counter()
        status, _ = await self.ask(request)
        if status != 200:
            raise ValueError(f"the server answered {status}")
        return time.perf_counter() - started

    async def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
            with contextlib.suppress(OSError):
                await self._streams[1].wait_closed()
            self._streams = None


async def _load(server: Running, files: Sequence[bytes], clients: int, seconds: float) -> Load:
    """Let clients send photos for some seconds; what is answered later does not count."""
    load, until = Load(), time.perf_counter() + seconds
    turn = cycle([_explanation(file, "predicted") for file in files])
    client_tasks = [asyncio.create_task(_client(_Client(server), turn, load, until)) for _ in range(clients)]
    while (left := until - time.perf_counter()) > 0:
        load.memory.append(server.memory())
        await asyncio.sleep(min(left, 0.5))
    await asyncio.gather(*client_tasks)
    return load


async def _client(client: _Client, turn: Iterator[bytes], load: Load, until: float) -> None:
    answered_any = False
    while (first := time.perf_counter()) < until:
        answered = await _send(client, next(turn), load, first, until)
        answered_any |= answered
        if not answered:
            load.waiting.append(until - first)
    load.never += not answered_any
    await client.close()


async def _send(client: _Client, request: bytes, load: Load, first: float, until: float) -> bool:
    """Send a photo until it is answered or the round is over; return whether it was answered in time."""
    while (started := time.perf_counter()) < until:
        try:
            status, wait = await client.ask(request)
        except (OSError, asyncio.IncompleteReadError):
            load.broken += 1
            continue
        now = time.perf_counter()
        load.statuses[status] += 1
        if status == 200 and now <= until:
            load.answers.append((now - started, now - first))
            return True
        if status not in (200, 429, 503):
            raise ValueError(f"the server answered {status}")
        await asyncio.sleep(min(max(wait, 1), max(until - now, 0)))
    return False


def _explanation(photo: bytes, target: str) -> bytes:
    """Return a whole request, with the photo as its body."""
    return _request(f"/v1/explanations?target={target}", photo, "image/jpeg")


def _prediction(photo: bytes, coalitions: str) -> bytes:
    """Return a whole request, a form with photo and coalitions."""
    part = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{{}}"\r\n\r\n'
    body = part.format("coalitions").encode() + coalitions.encode() + b"\r\n" + part.format("image").encode() + photo
    body += f"\r\n--{_BOUNDARY}--\r\n".encode()
    return _request("/v1/predictions", body, f"multipart/form-data; boundary={_BOUNDARY}")


def _request(path: str, body: bytes, kind: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
