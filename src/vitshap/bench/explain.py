"""Time of an explanation, compared with one forward pass of the explained model and one of the surrogate.

An explainer evaluates the surrogate once, for v(1), and its own network once: the trunk, one more block and three layers.
The three calls are timed in turn, round by round, and compared within a round, because the speed of a shared machine
changes from second to second; medians over rounds are reported.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from vitshap.bench.speed import Arch, build_net, synchronize, threads
from vitshap.experiments.tables import Cell, Column, Table
from vitshap.explainers import Explainer, ExplainerConfig, bundle
from vitshap.models import wrap
from vitshap.models.base import unwrapped

MAX_RATIO = 1.35
"""Goal: largest cost of an explanation, in units of one forward pass of the model and one of the surrogate."""
BATCHES = (1, 64)
CALLS = ("net", "surrogate", "explain")


COLUMNS = (
    Column("batch", "d"),
    Column("threads", "d"),
    *(Column(name, ",.1f", "ms") for name in CALLS),
    Column("throughput", ",.1f", "images/s"),
    Column("ratio", ".2f"),
    Column("own_pass", ".2f"),
    Column("rounds", "d"),
)
NOTES = [
    "net: a plain forward pass by its own library; surrogate: the same with its link and checks of the images; explain: "
    "explainer(images), values of all classes. Milliseconds per call, medians over rounds; throughput: of explain",
    f"ratio: explain / (net + surrogate), median of the rounds (quartiles); the goal is at most {MAX_RATIO}. "
    "own pass: (explain - surrogate) / net, the cost of the explainer's own network",
]


def load(name: str | None, device: torch.device) -> tuple[Explainer, str]:
    """Load a stored explainer (by default the first shipped one); return it and its name."""
    known = bundle.shipped()
    if name is None and not known:
        raise ValueError("no explainer is shipped with this installation: give --bundle FOLDER, or --arch")
    name = known[0] if name is None else name
    return bundle.load(name, device=device), f"bundle {name}"


def build(arch: Arch, device: torch.device) -> tuple[Explainer, str]:
    """Build an explainer of a plain ViT/16 with random weights and ten classes; return it and its name."""
    torch.manual_seed(0)
    surrogate = wrap(build_net("transformers", arch).to(device))
    config = ExplainerConfig(tanh=False, output_scale=2 / surrogate.num_players, magnitudes=True)
    return Explainer(surrogate, config).eval(), f"random ViT-{arch}"


def measure_all(
    explainer: Explainer, *, thread_counts: Sequence[int] = (1, 2), half: bool = False, title: str = "", **options: Any
) -> Table:
    """``measure`` once on a GPU (``half``: under bfloat16 autocast), on a CPU for each number of threads."""
    table = Table(title, COLUMNS, notes=NOTES)
    autocast = torch.bfloat16 if half else None
    if explainer.surrogate.device.type == "cuda":
        measure(explainer, table, autocast=autocast, **options)
        return table
    for count in thread_counts:
        with threads(count):
            measure(explainer, table, autocast=autocast, thread_count=count, **options)
    return table


def measure(
    explainer: Explainer,
    table: Table,
    *,
    batches: Sequence[int] = BATCHES,
    thread_count: int | None = None,
    autocast: torch.dtype | None = None,
    rounds: int = 15,
    at_least: float = 0.2,
) -> None:
    """Time the three calls for each batch size and add rows; a part of a round lasts ``at_least`` seconds or one call.

    ``autocast``: compute in this precision (CUDA). ``thread_count`` is only reported, and set by the caller.
    """
    surrogate = explainer.surrogate
    device = surrogate.device
    if autocast is not None and device.type != "cuda":
        raise ValueError("half precision is measured on a GPU: on some CPUs it ends the process")
    # A bundle rarely holds the classifier, which has the surrogate's architecture: a copy of the latter costs the same.
    net = copy.deepcopy(unwrapped(surrogate.net)).eval()
    cast: Any = nullcontext() if autocast is None else torch.autocast(device.type, autocast)
    with torch.no_grad(), cast:
        for batch in batches:
            calls = _calls(net, explainer, _pixels(explainer, batch, device))
            table.add(**_row(_rounds(calls, device, rounds, at_least), batch, thread_count))


def _pixels(explainer: Explainer, batch: int, device: torch.device) -> Tensor:
    surrogate = explainer.surrogate
    shape = (batch, surrogate.adapter.channels, *surrogate.image_size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device)


def _calls(net: nn.Module, explainer: Explainer, pixels: Tensor) -> dict[str, Callable[[], object]]:
    surrogate = explainer.surrogate
    return {"net": lambda: net(pixels), "surrogate": lambda: surrogate(pixels), "explain": lambda: explainer(pixels)}


def _rounds(
    calls: dict[str, Callable[[], object]], device: torch.device, rounds: int, at_least: float
) -> list[dict[str, float]]:
    """Return seconds per call, round by round."""
    for work in calls.values():
        _seconds(work, device, 0)  # first calls are slow
    repeats = {name: max(1, round(at_least / _seconds(work, device, 1))) for name, work in calls.items()}
    fewest = min(repeats.values())  # equally many of each, so that a slow moment affects all equally
    return [{name: _seconds(work, device, fewest) for name, work in calls.items()} for _ in range(rounds)]


def _seconds(work: Callable[[], object], device: torch.device, calls: int) -> float:
    """Return the mean time of ``calls`` calls; 0: one call to warm up."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(max(calls, 1)):
        work()
    synchronize(device)
    return (time.perf_counter() - start) / max(calls, 1)


def _row(found: list[dict[str, float]], batch: int, thread_count: int | None) -> dict[str, Cell | float | None]:
    ratios = sorted(one["explain"] / (one["net"] + one["surrogate"]) for one in found)
    quarter = len(ratios) // 4
    return {
        "batch": batch,
        "threads": thread_count,
        **{name: 1e3 * median(one[name] for one in found) for name in CALLS},
        "throughput": batch / median(one["explain"] for one in found),
        "ratio": Cell(median(ratios), interval=(ratios[quarter], ratios[-1 - quarter])),
        "own_pass": median((one["explain"] - one["surrogate"]) / one["net"] for one in found),
        "rounds": len(found),
    }
