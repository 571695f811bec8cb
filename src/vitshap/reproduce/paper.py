"""The numbers of the paper's twelve tables, as printed: means, half-widths of 95 % intervals, bold and grey.

They are in ``paper.json``, by table: a block for each data set, model and kind of class, with a row per method under our
names of the methods. The paper's main text leaves out which variant of a method it shows; its longer tables say so:
GradCAM on the layer norm, gradients with respect to embeddings, integrated gradients on either (they are equal). What the
paper shows only as a picture is not here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal, NamedTuple

Classes = Literal["target", "non-target", "all"]
METHODS = {
    "attention-last": "Attention last",
    "attention-rollout": "Attention rollout",
    "gradcam-ln": "GradCAM (LN)",
    "gradcam-attention": "GradCAM (Attn)",
    "integrated-gradients-pixel": "IntGrad (Pixel)",
    "integrated-gradients-embedding": "IntGrad (Embed.)",
    "vanilla-pixel": "Vanilla (Pixel)",
    "vanilla-embedding": "Vanilla (Embed.)",
    "smoothgrad-pixel": "SmoothGrad (Pixel)",
    "smoothgrad-embedding": "SmoothGrad (Embed.)",
    "vargrad-pixel": "VarGrad (Pixel)",
    "vargrad-embedding": "VarGrad (Embed.)",
    "lrp": "LRP",
    "leave-one-out": "Leave-one-out",
    "rise": "RISE",
    "vit-shapley": "ViT Shapley",
    "random": "Random",
}
"""The rows of its longest tables: our names (the explainer is ``vit-shapley``) and the paper's."""


class Number(NamedTuple):
    """One printed number."""

    mean: float
    interval: float | None = None
    """Half-width of the 95 % interval, where one is printed."""
    bold: bool = False
    grey: bool = False


@dataclass(frozen=True)
class Block:
    """The columns of a table that belong to one data set, model and kind of class."""

    data: str
    model: str
    classes: Classes
    metrics: tuple[str, ...]
    cells: Mapping[str, tuple[Number | None, ...]]
    """By row, one number per metric; None where the paper prints a dash."""

    def number(self, row: str, metric: str) -> Number | None:
        """Return a printed number; None for a dash, and for a row or a metric that the block does not have."""
        if row not in self.cells or metric not in self.metrics:
            return None
        return self.cells[row][self.metrics.index(metric)]


@cache
def tables() -> dict[str, tuple[Block, ...]]:
    """Return the blocks of all tables, by ``"table-1"`` to ``"table-12"``."""
    text = (resources.files("vitshap") / "reproduce" / "paper.json").read_text(encoding="utf-8")
    return {name: tuple(_block(one) for one in blocks) for name, blocks in json.loads(text).items()}


def printed(table: str, row: str, metric: str, *, data: str, classes: Classes) -> Number | None:
    """Return the number of a table for a data set and kind of class; None where it prints none."""
    for block in tables().get(table, ()):
        if (block.data, block.classes) == (data, classes):
            return block.number(row, metric)
    return None


def _block(stored: Mapping[str, object]) -> Block:
    cells: Mapping[str, Sequence[Sequence[float | str | None] | None]] = stored["cells"]  # type: ignore[assignment]
    metrics: list[str] = stored["metrics"]  # type: ignore[assignment]
    return Block(
        data=str(stored["data"]),
        model=str(stored["model"]),
        classes=stored["classes"],  # type: ignore[arg-type]
        metrics=tuple(metrics),
        cells={row: tuple(None if one is None else _number(*one) for one in values) for row, values in cells.items()},
    )


def _number(mean: object, interval: object, mark: object = None) -> Number:
    return Number(
        float(mean),  # type: ignore[arg-type]
        None if interval is None else float(interval),  # type: ignore[arg-type]
        bold=mark == "bold",
        grey=mark == "grey",
    )
