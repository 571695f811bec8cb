"""Time every method on one network: milliseconds per image for all classes, and the ratio to the plain gradient."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from vitshap.bench import speed
from vitshap.bench.speed import Arch, Library, build_net, describe, seconds, threads
from vitshap.experiments.tables import Cell, Column, Table
from vitshap.methods import MethodLike, method
from vitshap.models import wrap
from vitshap.reproduce.paper import printed

REFERENCE = "vanilla-embedding"
"""The method that ratios are to: the gradient of all classes in one vectorised backward pass."""
METHODS = (
    *(REFERENCE, "vanilla-pixel", "smoothgrad-pixel", "smoothgrad-embedding", "vargrad-pixel", "vargrad-embedding"),
    *("integrated-gradients-pixel", "integrated-gradients-embedding", "attention-last", "attention-rollout"),
    *("generic-attention", "gradcam-attention", "gradcam-ln", "lrp", "attnlrp", "libragrad", "leave-one-out", "rise"),
)
OCCLUSION = {"leave-one-out", "rise"}
"""Methods whose time is that of evaluations of coalitions."""


def measure(
    library: Library,
    arch: Arch,
    device: torch.device,
    *,
    batch: int,
    names: Sequence[str] = METHODS,
    rise_masks: int = 2000,
    note: Callable[[str], object] = lambda text: None,
) -> Table:
    """Time each method for all ten classes of ``batch`` random images; on a CPU with one thread.

    On a GPU, rates of leave-one-out and RISE are also given relative to those of ``bench coalitions``, measured in the
    same run: packed (for RISE compiled) for attention masking, full length for zeroed pixels.
    """
    torch.manual_seed(0)
    model = wrap(build_net(library, arch).to(device))
    images = torch.randn(batch, 3, 224, 224, device=device)
    columns = (
        Column("method"),
        Column("milliseconds", ",.2f", "ms/image"),
        Column("ratio", ".2f", title="ratio to vanilla-embedding"),
        Column("evaluations", ",.0f", "1/s"),
        Column("share", ".0%", title="share of the rate of bench coalitions"),
        Column("paper", ",.1f", "ms/image"),
    )
    table = Table(f"{library} ViT-{arch}, ten classes, batch {batch}, {describe(device)}", columns)
    reference = None

    def row(name: str, made: MethodLike, shown: str, asked: int | None = None, rate: float | None = None) -> None:
        nonlocal reference
        note(shown)
        spent = seconds(lambda: made(images), device, at_least=0.3, rounds=3) / batch
        reference = reference or spent
        table.add(
            method=shown,
            milliseconds=spent * 1e3,
            ratio=spent / reference,
            evaluations=None if asked is None else asked / spent,
            share=None if asked is None or rate is None else asked / spent / rate,
            paper=_paper(name) if name != "rise" or rise_masks == 2000 else Cell(_paper(name), note="2,000 masks"),
        )

    with nullcontext() if device.type == "cuda" else threads(1):
        for name in (REFERENCE, *(one for one in names if one != REFERENCE)):
            if name not in OCCLUSION:
                row(name, method(name, model), name)
        if OCCLUSION & set(names):
            rates = _rates(library, arch, device, note)
            asked = {"leave-one-out": model.num_players, "rise": rise_masks}
            for name, removal in itertools.product(sorted(OCCLUSION & set(names)), ("attention", "pixels")):
                options: dict[str, Any] = {"masks": rise_masks} if name == "rise" else {}
                compiled = removal == "attention" and device.type == "cuda"
                if compiled:
                    model.compile()
                shown = f"{name}, {removal}{', compiled' if compiled else ''}"
                row(name, method(name, model, removal=removal, **options), shown, asked[name], rates.get(removal))
    table.notes.append("paper: ViT-Base on the authors' GPU, one image at a time")
    return table


def _rates(library: Library, arch: Arch, device: torch.device, note: Callable[[str], object]) -> dict[str, float]:
    """Return evaluations per second by ``bench coalitions`` on a GPU, by removal; empty on a CPU."""
    if device.type != "cuda":
        return {}
    table = speed.measure(library, arch, device, note=note)
    found = dict(zip(table.values("way"), table.values("per_second"), strict=True))
    return {
        "attention": found["packed and compiled"],
        "pixels": found["full length, fused attention with a mask"],
    }


def _paper(name: str) -> float | None:
    """Return the paper's milliseconds per image: ViT-Base, ImageNette's ten classes; the same for variants of a method."""
    family = name.rpartition("-")[0]
    for row in (name, f"{family}-embedding", f"{family}-pixel", f"{family}-ln"):
        if number := printed("table-11", row, "milliseconds", data="imagenette", classes="all"):
            return number.mean
    return None
