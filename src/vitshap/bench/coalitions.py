"""Evaluations of coalitions per second: full length against packed, in one run, beside the machine's limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from vitshap.bench.machine import Limits, limits, seconds, threads
from vitshap.coalitions import shapley_kernel
from vitshap.models import MaskedModel, wrap
from vitshap.models.load import SIZES, ModelSpec, load_model

LIMIT = 40.0
"""Seconds that the evaluations on a CPU may take in all; building the net and the machine's limits come on top."""
CALLS = 4
"""Calls that a measurement takes at least: one to warm up, three that are timed."""
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


class Measured(NamedTuple):
    """One line of the table."""

    way: str
    threads: int | None
    per_second: float
    ratio: float
    """To the first way of the same run and number of threads."""


class Result(NamedTuple):
    """All lines, and what the machine allows."""

    lines: list[Measured]
    limits: dict[int | None, Limits]
    flop_limit: dict[int | None, float]
    byte_limit: dict[int | None, float]


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
) -> Result:
    """Time every way on the same coalitions from p_Sh, ``coalitions`` for each of ``images`` images.

    None: as many as suit a GPU; on a CPU as many (and of as many images) as are expected to take ``limit`` seconds in
    all. ``note`` is called with what comes next.
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
    # Paired: as many tokens are kept as withheld, so that a run is not lucky with its sizes.
    asked = shapley_kernel(model.num_players).sample(images * coalitions, paired=True, device=device)
    asked = asked.view(images, coalitions, -1)
    lines: list[Measured] = []
    result = Result(lines, {}, {}, {})
    for count in counts:
        with threads(count) if count else nullcontext():
            first = None
            for way in _ways(cuda, compiled):
                note(way.name + ("" if count is None else f", threads: {count}"))
                rate = images * coalitions / _time(model, way, pixels, asked)
                first = first or rate
                lines.append(Measured(way.name, count, rate, rate / first))
            ceiling = limits(device)
        result.limits[count] = ceiling
        flops, moved = work_per_evaluation(arch, model.num_players, 2 if cuda else 4)
        result.flop_limit[count] = ceiling.flops / flops
        result.byte_limit[count] = ceiling.bytes / moved
    return result


def _affordable(model: MaskedModel, images: int, limit: float, *, runs: int) -> tuple[int, int]:
    """Images and coalitions of each that ``runs`` measurements evaluate in ``limit`` seconds, on one thread."""
    everyone = torch.ones(1, 2, model.num_players, dtype=torch.bool)
    pixels = torch.randn(1, 3, 224, 224)
    with threads(1):
        model.game(pixels)(everyone)  # the first call pays for what is set up once
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
    yield Way("packed", "packed", fast)
    if compiled and cuda:
        yield Way("packed and compiled", "packed", fast, compiled=True)


def _time(model: MaskedModel, way: Way, pixels: torch.Tensor, asked: torch.Tensor) -> float:
    model.to(way.dtype)
    pixels = pixels.to(way.dtype)
    model.evaluation = way.evaluation
    if way.compiled:
        model.compile()
    cast: Any = torch.autocast("cuda", way.autocast) if way.autocast else nullcontext()
    with cast:
        return seconds(lambda: model.game(pixels)(asked), pixels.device)


def work_per_evaluation(arch: Arch, d: int, itemsize: int) -> tuple[float, float]:
    """Operations and bytes that one coalition from p_Sh needs on average, kept tokens only.

    Bytes: every matrix product and attention reads its inputs and writes its outputs once, everything else is fused
    into them: 22 arrays of a token's width per block.
    """
    width, depth, _ = SIZES[arch]
    chance = shapley_kernel(d).size_probabilities
    tokens = torch.arange(d + 1, dtype=torch.float64) + 1
    mean, square = float((chance * tokens).sum()), float((chance * tokens**2).sum())
    flops = depth * (24 * width**2 * mean + 4 * width * square)
    return flops, depth * 22 * width * itemsize * mean


def measure_memory(library: Library, arch: Arch, device: torch.device, coalitions: int) -> dict[str, float]:
    """Peak memory of many coalitions of one image beyond net, input and output, in MiB; CUDA only."""
    if device.type != "cuda":
        raise ValueError("peak memory is measured on a GPU: give --device cuda")
    model = wrap(build_net(library, arch).to(device, torch.bfloat16))
    pixels = torch.randn(1, 3, 224, 224, device=device, dtype=torch.bfloat16)
    found: dict[str, float] = {}
    for n in (coalitions // 10, coalitions):
        asked = shapley_kernel(model.num_players).sample(n, device=device)[None]
        game = model.game(pixels)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        values = game(asked)
        output = values.numel() * values.element_size()
        found[f"{n:,} coalitions"] = (torch.cuda.max_memory_allocated(device) - before - output) / 2**20
        del asked, game, values
    return found
