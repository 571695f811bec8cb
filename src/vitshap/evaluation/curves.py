"""The curves of a comparison, with bands: what ``page`` and ``vitshap.plots`` draw."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitshap.evaluation.result import RANDOM, TRUTH, Evaluation
from vitshap.plots.comparisons import Band, Panel

_X_LABELS = {"insertion": "share of patches inserted", "deletion": "share of patches deleted"}


class Curves(NamedTuple):
    """The curves of one metric."""

    metric: str
    panel: Panel


def curves(evaluation: Evaluation) -> list[Curves]:
    """Return the curves of every metric that has some: insertion, deletion, sensitivity by n, ROAR, error."""
    found = []
    for metric in evaluation.metrics:
        name = metric.name.partition(":")[0]
        for draw in (_path, _by_size, _by_count):
            bands = {row.name: band for row in evaluation.rows if (band := draw(evaluation, row.name, metric.name))}
            if bands:
                found.append(Curves(metric.name, _panel(evaluation, metric.name, name, bands, draw.__name__)))
                break
        else:
            if name == "error" and (bands := _by_evaluations(evaluation, metric.name)):
                found.append(Curves(metric.name, _panel(evaluation, metric.name, name, bands, "_by_evaluations")))
    return found


def _panel(evaluation: Evaluation, title: str, name: str, bands: dict[str, Band], kind: str) -> Panel:
    better = next(one.higher_is_better for one in evaluation.metrics if one.name == title)
    output = "probability" if evaluation.about.get("unit") == "probability" else "output"
    labels = {
        "_path": (_X_LABELS.get(name, "share of patches"), f"{output} of the explained class"),
        "_by_size": ("patches in a subset", "correlation"),
        "_by_count": ("patches", "accuracy"),
        "_by_evaluations": ("evaluations per image", "error"),
    }
    x_label, y_label = labels[kind]
    return Panel(
        title=f"{title} ({'higher' if better else 'lower'} is better)",
        x_label=x_label,
        y_label=y_label,
        bands=bands,
        baselines=tuple(row.name for row in evaluation.rows if row.kind in (RANDOM, TRUTH)),
        log=kind == "_by_evaluations",
    )


def _path(evaluation: Evaluation, row: str, metric: str) -> Band | None:
    points = evaluation.curve(row, metric, "points")
    shares = evaluation.curve(row, metric, "fractions")
    return None if points is None or shares is None else _band(shares[0], *points)


def _by_size(evaluation: Evaluation, row: str, metric: str) -> Band | None:
    points, sizes = evaluation.curve(row, metric, "by_size"), evaluation.shared(row, metric, "sizes")
    return None if points is None or sizes is None else _band(sizes, *points)


def _by_count(evaluation: Evaluation, row: str, metric: str) -> Band | None:
    """A metric with ``counts`` has a value of every image for each of them."""
    counts = evaluation.shared(row, metric, "counts")
    if counts is None:
        return None
    for name, tensor in evaluation.scores[row, metric].items():
        if name.startswith("image.") and tensor.ndim == 2 and tensor.shape[1] == len(counts):
            points = evaluation.curve(row, metric, name.removeprefix("image."))
            return None if points is None else _band(counts, *points)
    return None


def _by_evaluations(evaluation: Evaluation, metric: str) -> dict[str, Band]:
    """Return the error of rows with the same method as one curve over their numbers of evaluations."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for row in evaluation.rows:
        result, used = evaluation.result(row.name, metric), evaluation.shared(row.name, metric, "evaluations")
        if result is None or used is None or not row.competes or result.undefined == len(result.values):
            continue
        low, high = result.interval()
        found.setdefault(row.kind, []).append((max(float(used[0]), 1.0), result.mean, (high - low) / 2))
    return {
        kind: Band(*(np.array(numbers) for numbers in zip(*sorted(points), strict=True)))
        for kind, points in found.items()
    }


def _band(x: Tensor, mean: Tensor, half: Tensor) -> Band | None:
    known = ~(x.isnan() | mean.isnan())
    return Band(*(_numbers(one[known]) for one in (x, mean, half.nan_to_num(0.0)))) if bool(known.any()) else None


def _numbers(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.to(torch.float64).numpy()
