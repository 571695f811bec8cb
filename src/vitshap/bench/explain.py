"""What an explanation costs beside the two forward passes that nobody can do without: the net's and the surrogate's.

An explainer evaluates the surrogate once, for v(1), and its own network once: the trunk, one more block and three layers.
The three calls are timed in turn, round by round, and compared within a round, because machines that others use as well
change their speed from second to second; medians over rounds are reported.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from statistics import median
from typing import Any, NamedTuple

import torch
from rich.table import Table
from torch import Tensor, nn

from vitshap.bench.coalitions import Arch, build_net
from vitshap.bench.machine import threads
from vitshap.explainers import Explainer, ExplainerConfig, bundle
from vitshap.models import wrap
from vitshap.models.base import unwrapped

ASKED = 1.35
"""Most that explaining may cost, in units of one forward of the net and one of the surrogate."""
BATCHES = (1, 64)
CALLS = ("net", "surrogate", "explain")


class Line(NamedTuple):
    """One batch size and number of threads; seconds are per call, medians over rounds."""

    batch: int
    threads: int | None
    net: float
    """A plain forward of the net, by its own library."""
    surrogate: float
    """A forward of the surrogate: the net, its link, and checks of the images."""
    explain: float
    """``explainer(images)``, values of all classes."""
    ratio: float
    """explain / (net + surrogate): the median of the rounds' own ratios."""
    spread: tuple[float, float]
    """Quarter and three quarters of the rounds' ratios."""
    own_pass: float
    """(explain - surrogate) / net, likewise: what the explainer's own network costs."""
    rounds: int

    @property
    def images_per_second(self) -> dict[str, float]:
        """Of each call."""
        return {name: self.batch / getattr(self, name) for name in CALLS}


def load(name: str | None, device: torch.device) -> tuple[Explainer, str]:
    """A stored explainer (default: the first that is shipped), and what it is called."""
    known = bundle.shipped()
    if name is None and not known:
        raise ValueError("no explainer is shipped with this installation: give --bundle FOLDER, or --arch")
    name = known[0] if name is None else name
    return bundle.load(name, device=device), f"bundle {name}"


def build(arch: Arch, device: torch.device) -> tuple[Explainer, str]:
    """An explainer of a plain ViT/16 with random weights, ten classes."""
    torch.manual_seed(0)
    surrogate = wrap(build_net("transformers", arch).to(device))
    config = ExplainerConfig(tanh=False, output_scale=2 / surrogate.num_players, magnitudes=True)
    return Explainer(surrogate, config).eval(), f"random ViT-{arch}"


def measure_all(
    explainer: Explainer, *, thread_counts: Sequence[int] = (1, 2), half: bool = False, **options: Any
) -> list[Line]:
    """``measure`` once on a GPU (``half``: under bfloat16 autocast), on a CPU for each number of threads."""
    if explainer.surrogate.device.type == "cuda":
        return measure(explainer, autocast=torch.bfloat16 if half else None, **options)
    lines = []
    for count in thread_counts:
        with threads(count):
            lines += measure(explainer, autocast=torch.bfloat16 if half else None, thread_count=count, **options)
    return lines


def measure(
    explainer: Explainer,
    *,
    batches: Sequence[int] = BATCHES,
    thread_count: int | None = None,
    autocast: torch.dtype | None = None,
    rounds: int = 15,
    at_least: float = 0.2,
) -> list[Line]:
    """Time the three calls for each batch size; a part of a round lasts ``at_least`` seconds or one call.

    ``autocast``: compute in this precision (CUDA). ``thread_count`` is noted, and set elsewhere.
    """
    surrogate = explainer.surrogate
    device = surrogate.device
    if autocast is not None and device.type != "cuda":
        raise ValueError("half precision is measured on a GPU: on some CPUs it ends the process")
    # A bundle rarely holds the classifier, which is a net like the surrogate's: its copy costs the same.
    net = copy.deepcopy(unwrapped(surrogate.net)).eval()
    cast: Any = nullcontext() if autocast is None else torch.autocast(device.type, autocast)
    lines = []
    with torch.no_grad(), cast:
        for batch in batches:
            pixels = _pixels(explainer, batch, device)
            calls = _calls(net, explainer, pixels)
            found = _rounds(calls, device, rounds, at_least)
            lines.append(_line(found, batch, thread_count))
    return lines


def table(lines: Sequence[Line], title: str) -> Table:
    """For a terminal."""
    made = Table(title=title, title_justify="left")
    for heading in ("batch", "threads", *CALLS, "ratio (quartiles)", "own pass"):
        made.add_column(heading, justify="right")
    for line in lines:
        rates = line.images_per_second
        speeds = [
            f"{getattr(line, name) * 1e3:,.1f} ms" if line.batch == 1 else f"{rates[name]:,.1f}/s" for name in CALLS
        ]
        low, high = line.spread
        ratios = (f"{line.ratio:.2f} ({low:.2f}-{high:.2f})", f"{line.own_pass:.2f}")
        made.add_row(str(line.batch), str(line.threads or ""), *speeds, *ratios)
    made.caption = (
        f"/s: images per second. ratio: explain / (net + surrogate), asked: at most {ASKED}. "
        "own pass: (explain - surrogate) / net"
    )
    return made


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
    """Seconds per call, round by round."""
    for work in calls.values():
        _seconds(work, device, 0)  # the first call of anything is slow
    repeats = {name: max(1, round(at_least / _seconds(work, device, 1))) for name, work in calls.items()}
    fewest = min(repeats.values())  # equally many of each, so that a slow moment hits them alike
    return [{name: _seconds(work, device, fewest) for name, work in calls.items()} for _ in range(rounds)]


def _seconds(work: Callable[[], object], device: torch.device, calls: int) -> float:
    """Mean of so many calls; 0: one call to warm up."""
    _wait(device)
    start = time.perf_counter()
    for _ in range(max(calls, 1)):
        work()
    _wait(device)
    return (time.perf_counter() - start) / max(calls, 1)


def _line(found: list[dict[str, float]], batch: int, thread_count: int | None) -> Line:
    ratios = sorted(one["explain"] / (one["net"] + one["surrogate"]) for one in found)
    quarter = len(ratios) // 4
    return Line(
        batch=batch,
        threads=thread_count,
        **{name: median(one[name] for one in found) for name in CALLS},
        ratio=median(ratios),
        spread=(ratios[quarter], ratios[-1 - quarter]),
        own_pass=median((one["explain"] - one["surrogate"]) / one["net"] for one in found),
        rounds=len(found),
    )


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
