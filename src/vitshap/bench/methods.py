"""Time every method on one network: milliseconds per image for all classes, and the ratio to the plain gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from vitshap.bench.speed import Arch, Library, build_net, describe, seconds, threads
from vitshap.experiments.tables import Cell, Column, Table
from vitshap.methods import method
from vitshap.models import wrap
from vitshap.reproduce.paper import printed

REFERENCE = "vanilla-embedding"
"""The method that ratios are to: the gradient of all classes in one vectorised backward pass."""
METHODS = (
    *(REFERENCE, "vanilla-pixel", "smoothgrad-pixel", "smoothgrad-embedding", "vargrad-pixel", "vargrad-embedding"),
    *("integrated-gradients-pixel", "integrated-gradients-embedding", "attention-last", "attention-rollout"),
    *("generic-attention", "gradcam-attention", "gradcam-ln", "lrp", "attnlrp", "libragrad", "leave-one-out", "rise"),
)


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
    """Time each method for all ten classes of ``batch`` random images; on a CPU with one thread."""
    torch.manual_seed(0)
    model = wrap(build_net(library, arch).to(device))
    images = torch.randn(batch, 3, 224, 224, device=device)
    columns = (
        Column("method"),
        Column("milliseconds", ",.2f", "ms/image"),
        Column("ratio", ".2f", title="ratio to vanilla-embedding"),
        Column("evaluations", ",.0f", "1/s"),
        Column("paper", ",.1f", "ms/image"),
    )
    table = Table(f"{library} ViT-{arch}, ten classes, batch {batch}, {describe(device)}", columns)
    options: dict[str, dict[str, Any]] = {"rise": {"masks": rise_masks}}
    reference = None
    with nullcontext() if device.type == "cuda" else threads(1):
        for name in (REFERENCE, *(one for one in names if one != REFERENCE)):
            note(name)
            made = method(name, model, **options.get(name, {}))
            spent = seconds(lambda made=made: made(images), device, at_least=0.3, rounds=3) / batch  # type: ignore[misc]
            reference = reference or spent
            paper = _paper(name)
            asked = {"leave-one-out": model.num_players, "rise": rise_masks}.get(name)
            table.add(
                method=name,
                milliseconds=spent * 1e3,
                ratio=spent / reference,
                evaluations=None if asked is None else asked / spent,
                paper=paper if name != "rise" or rise_masks == 2000 else Cell(paper, note="2,000 masks"),
            )
    table.notes.append("paper: ViT-Base on the authors' GPU, one image at a time")
    return table


def _paper(name: str) -> float | None:
    """Return the paper's milliseconds per image: ViT-Base, ImageNette's ten classes; the same for variants of a method."""
    family = name.rpartition("-")[0]
    for row in (name, f"{family}-embedding", f"{family}-pixel", f"{family}-ln"):
        if number := printed("table-11", row, "milliseconds", data="imagenette", classes="all"):
            return number.mean
    return None
