"""Measure evaluations of coalitions per second and their memory, with the machine's limits; and time in general.

Ways to evaluate are compared within one run: full length with a mask, and packed.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from vitshap._version import __version__
from vitshap.coalitions import shapley_kernel
from vitshap.experiments.tables import Column, Table
from vitshap.models import MaskedModel, linear, wrap
from vitshap.models.base import attributes_set
from vitshap.models.load import SIZES, ModelSpec, load_model

LIMIT = 40.0
"""Seconds that all evaluations on a CPU may take, without building the network and measuring the machine's limits."""
CALLS = 4
"""Fewest calls of a measurement: one to warm up, three that are timed."""
MOST_ON_CPU = 96
Arch = Literal["tiny", "small", "base", "large"]
Library = Literal["timm", "transformers"]


class Way(NamedTuple):
    """One way to evaluate."""

    name: str
    evaluation: Literal["packed", "full", "explicit"]
    dtype: torch.dtype
    autocast: torch.dtype | None = None
    compiled: bool = False
    mkl: bool = False
    """Whether fully connected layers are left to MKL."""


def build_net(library: Library, arch: Arch, num_classes: int = 10) -> nn.Module:
    """A plain ViT/16 for 224 x 224 images with random weights."""
    name = f"vit_{arch}_patch16_224" if library == "timm" else "vit"
    names = tuple(f"class {i}" for i in range(num_classes))
    return load_model(ModelSpec(name, pretrained=False, size=arch, class_names=names)).net.eval()


def measure(
    library: Library,
    arch: Arch,
    device: torch.device,
    *,
    coalitions: int | None = None,
    images: int = 4,
    compiled: bool = True,
    limit: float = LIMIT,
    note: Callable[[str], object] = lambda text: None,
) -> Table:
    """Time every way on the same coalitions from p_Sh, ``coalitions`` for each of ``images`` images.

    By default as many as suit a GPU; on a CPU as many, of as many images, as are expected to take ``limit`` seconds in
    all. ``note`` is called with what is measured next. Ratios are to the first way with the same number of threads.
    """
    torch.manual_seed(0)
    model = wrap(build_net(library, arch).to(device))
    cuda = device.type == "cuda"
    counts: list[int | None] = [None] if cuda else [1, 2]
    if coalitions is None and cuda:
        coalitions = 16384
    elif coalitions is None:
        images, coalitions = _affordable(model, images, limit, runs=len(counts) * len(list(_ways(cuda, compiled))))
    note(f"{coalitions:,} coalitions of each of {images} images")
    pixels = torch.randn(images, 3, 224, 224, device=device)
    # In pairs as many tokens are kept as withheld, so that runs differ less.
    drawn = shapley_kernel(model.num_players).sample(images * coalitions, paired=True, device=device)
    drawn = drawn.view(images, coalitions, -1)
    columns = (
        Column("way"),
        Column("threads", "d"),
        Column("per_second", ",.1f", "evaluations/s"),
        Column("ratio", ".2f"),
    )
    table = Table(f"{library} ViT-{arch}, {describe(device)}", columns)
    for count in counts:
        with threads(count) if count else nullcontext():
            first = None
            for way in _ways(cuda, compiled):
                note(way.name + ("" if count is None else f", threads: {count}"))
                rate = images * coalitions / _time(model, way, pixels, drawn)
                first = first or rate
                table.add(way=way.name, threads=count, per_second=rate, ratio=rate / first)
            flops, moved = limits(device)
        flops_each, bytes_each = work_per_evaluation(arch, model.num_players, 2 if cuda else 4)
        named = f"limit by operations, {flops / 1e12:.3g} TFLOP/s", f"limit by bytes, {moved / 1e12:.3g} TB/s"
        table.add(way=named[0], threads=count, per_second=flops / flops_each)
        table.add(way=named[1], threads=count, per_second=moved / bytes_each)
    return table


def _affordable(model: MaskedModel, images: int, limit: float, *, runs: int) -> tuple[int, int]:
    """Return how many images, and coalitions of each, ``runs`` measurements evaluate in ``limit`` seconds on one thread."""
    everyone = torch.ones(1, 2, model.num_players, dtype=torch.bool)
    pixels = torch.randn(1, 3, 224, 224)
    with threads(1):
        model.game(pixels)(everyone)  # the first call includes one-time set-up
        started = time.perf_counter()
        model.game(pixels)(everyone)
        spent = time.perf_counter() - started
    evaluations = int(limit / (runs * CALLS * spent / 2))
    images = max(1, min(images, evaluations // 2))
    return images, max(2, min(MOST_ON_CPU, evaluations // images // 2 * 2))


def _ways(cuda: bool, compiled: bool) -> Iterator[Way]:
    fast = torch.bfloat16 if cuda else torch.float32
    half = torch.float16 if cuda else None
    named = ", fp16 autocast" if cuda else ""
    yield Way(f"full length, explicit mask{named}", "explicit", torch.float32, autocast=half)
    yield Way("full length, fused attention with a mask", "full", fast)
    if not cuda and linear.onednn_is_faster():
        yield Way("packed, MKL", "packed", fast, mkl=True)
    yield Way("packed", "packed", fast)
    if compiled and cuda:
        yield Way("packed and compiled", "packed", fast, compiled=True)


def _time(model: MaskedModel, way: Way, pixels: torch.Tensor, drawn: torch.Tensor) -> float:
    model.to(way.dtype)
    pixels = pixels.to(way.dtype)
    model.evaluation = way.evaluation
    if way.compiled:
        model.compile()
    cast: Any = torch.autocast("cuda", way.autocast) if way.autocast else nullcontext()
    with cast, attributes_set([(linear, "SMALLEST", math.inf)] if way.mkl else []):
        return seconds(lambda: model.game(pixels)(drawn), pixels.device)


def work_per_evaluation(arch: Arch, d: int, itemsize: int) -> tuple[float, float]:
    """Count operations and bytes that one coalition from p_Sh needs on average, kept tokens only.

    Bytes: every matrix product and attention reads its inputs and writes its outputs once, everything else is fused
    into them: 22 arrays of a token's width per block.
    """
    width, depth, _ = SIZES[arch]
    probability = shapley_kernel(d).size_probabilities
    tokens = torch.arange(d + 1, dtype=torch.float64) + 1
    mean, square = float((probability * tokens).sum()), float((probability * tokens**2).sum())
    flops = depth * (24 * width**2 * mean + 4 * width * square)
    return flops, depth * 22 * width * itemsize * mean


def measure_memory(library: Library, arch: Arch, device: torch.device, coalitions: int) -> Table:
    """Measure peak GPU memory of many coalitions of one image beyond the network, its input and its output."""
    if device.type != "cuda":
        raise ValueError("peak memory is measured on a GPU: give --device cuda")
    model = wrap(build_net(library, arch).to(device, torch.bfloat16))
    pixels = torch.randn(1, 3, 224, 224, device=device, dtype=torch.bfloat16)
    table = Table(
        f"{library} ViT-{arch}, {describe(device)}",
        (Column("coalitions", ",.0f"), Column("peak", ",.0f", "MiB")),
        notes=["peak memory beyond the network, its input and its output"],
    )
    for n in (coalitions // 10, coalitions):
        drawn = shapley_kernel(model.num_players).sample(n, device=device)[None]
        game = model.game(pixels)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        values = game(drawn)
        output = values.numel() * values.element_size()
        table.add(coalitions=n, peak=(torch.cuda.max_memory_allocated(device) - before - output) / 2**20)
        del drawn, game, values
    return table


def seconds(work: Callable[[], object], device: torch.device, *, at_least: float = 0.5, rounds: int = 3) -> float:
    """Return the median time of one call of ``work``, after one call to warm up.

    A round lasts ``at_least`` seconds, or one call.
    """
    work()
    synchronize(device)
    times = []
    for _ in range(rounds):
        calls, start = 0, time.perf_counter()
        while calls == 0 or time.perf_counter() - start < at_least:
            work()
            synchronize(device)
            calls += 1
        times.append((time.perf_counter() - start) / calls)
    return sorted(times)[rounds // 2]


def limits(device: torch.device) -> tuple[float, float]:
    """Measure the device's ceilings in bfloat16 on a GPU and float32 on a CPU.

    Operations per second of a large matrix product (a multiply-add counts as two), and bytes read and written per second
    by a large copy.
    """
    cuda = device.type == "cuda"
    side = 8192 if cuda else 1536
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16 if cuda else torch.float32) for _ in range(2))
    with linear.fast_linear(device):
        product = seconds(lambda: F.linear(a, b), device, at_least=0.3)
    source = torch.randn((1 << 30 if cuda else 1 << 26), device=device)
    target = torch.empty_like(source)
    copy = seconds(lambda: target.copy_(source), device, at_least=0.3)
    return 2 * side**3 / product, 2 * source.numel() * source.element_size() / copy


def describe(device: torch.device) -> str:
    """Return date, hardware and versions in one line."""
    hardware = f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    if device.type == "cuda":
        hardware = torch.cuda.get_device_name(device)
    packages = []
    for name in ("torch", "timm", "transformers"):
        try:
            packages.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return (
        f"{date.today()}, {hardware}, Python {platform.python_version()}, vitshap {__version__}, {', '.join(packages)}"
    )


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run with ``count`` CPU threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
