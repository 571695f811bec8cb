"""What this machine is and how fast it can possibly be: the limits that every measurement stands beside."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

import torch

from vitshap._version import __version__


class Limits(NamedTuple):
    """Measured ceilings of a device."""

    flops: float
    """Multiply-adds of a large matrix product, counted as two operations, per second."""
    bytes: float
    """Bytes read and written by a large copy, per second."""


def seconds(work: Callable[[], object], device: torch.device, *, at_least: float = 0.5, rounds: int = 3) -> float:
    """Median time of one call of ``work``, after one call to warm up; a round lasts ``at_least`` seconds or one call."""
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


def limits(device: torch.device) -> Limits:
    """Measure the ceilings: bfloat16 on a GPU, float32 on a CPU."""
    cuda = device.type == "cuda"
    side = 8192 if cuda else 1536
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16 if cuda else torch.float32) for _ in range(2))
    product = seconds(lambda: a @ b, device, at_least=0.3)
    source = torch.randn((1 << 30 if cuda else 1 << 26), device=device)
    target = torch.empty_like(source)
    copy = seconds(lambda: target.copy_(source), device, at_least=0.3)
    return Limits(2 * side**3 / product, 2 * source.numel() * source.element_size() / copy)


def describe(device: torch.device) -> str:
    """Date, hardware and versions, in one line."""
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
    """Run with so many CPU threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
