"""The curves of a comparison, with bands: what ``page`` and ``vitshap.plots`` draw."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitshap.evaluation.result import Evaluation
from vitshap.plots.comparisons import Band, Panel

_X_LABELS = {"insertion": "share of patches inserted", "deletion": "share of patches deleted"}


class Curves(NamedTuple):
    """The curves of one metric."""

    name: str
    """The metric, and what is counted where it has several."""
    panel: Panel


def curves(evaluation: Evaluation) -> list[Curves]:
    """Return the curves of every metric that has some: insertion, deletion, sensitivity by n, ROAR, error."""
    found = []
    output = "probability" if evaluation.about.get("unit") == "probability" else "output"
    accuracy = "accuracy" if evaluation.about.get("target") == "label" else "accuracy for the explained class"
    for metric in evaluation.metrics:
        name = metric.name.partition(":")[0]
        better = f"({'higher' if metric.higher_is_better else 'lower'} is better)"
        path = (_X_LABELS.get(name, "share of patches"), f"{output} of the explained class")
        charts = [
            (f"{metric.name} {better}", path, _bands(evaluation, metric.name, _path)),
            (
                f"{metric.name} {better}",
                ("patches in a subset", "correlation"),
                _bands(evaluation, metric.name, _by_size),
            ),
        ]
        for field in _counted(evaluation, metric.name):
            bands = _bands(evaluation, metric.name, partial(_by_count, field=field))
            charts.append((f"{metric.name}, {field}", (f"patches {field}", accuracy), bands))
        if name == "error":
            labels = ("evaluations per image", "correlation" if metric.higher_is_better else "distance")
            charts.append((f"{metric.name} {better}", labels, _by_evaluations(evaluation, metric.name)))
        for title, (x_label, y_label), bands in charts:
            if bands:
                baselines = tuple(row.name for row in evaluation.rows if not row.competes)
                log = (name == "error", name == "error" and all((band.mean > 0).all() for band in bands.values()))
                panel = Panel(title, x_label, y_label, bands, baselines, log)
                found.append(Curves(title.removesuffix(f" {better}"), panel))
    return found


def _bands(evaluation: Evaluation, metric: str, draw: Callable[[Evaluation, str, str], Band | None]) -> dict[str, Band]:
    return {row.name: band for row in evaluation.rows if (band := draw(evaluation, row.name, metric)) is not None}


def _path(evaluation: Evaluation, row: str, metric: str) -> Band | None:
    points = evaluation.curve(row, metric, "points")
    shares = evaluation.curve(row, metric, "fractions")
    return None if points is None or shares is None else _band(shares[0], *points)


def _by_size(evaluation: Evaluation, row: str, metric: str) -> Band | None:
    points, sizes = evaluation.curve(row, metric, "by_size"), evaluation.shared(row, metric, "sizes")
    return None if points is None or sizes is None else _band(sizes, *points)


def _counted(evaluation: Evaluation, metric: str) -> list[str]:
    """Return what a metric with ``counts`` of patches has for each of them, such as ``inserted`` and ``deleted``."""
    for row in evaluation.rows:
        counts = evaluation.shared(row.name, metric, "counts")
        if counts is not None:
            named = evaluation.scores[row.name, metric].items()
            tensors = {name.removeprefix("image."): tensor for name, tensor in named if name.startswith("image.")}
            found = [name for name, tensor in tensors.items() if tensor.ndim == 2 and tensor.shape[1] == len(counts)]
            return sorted(found, reverse=True)  # inserted before deleted
    return []


def _by_count(evaluation: Evaluation, row: str, metric: str, *, field: str) -> Band | None:
    points, counts = evaluation.curve(row, metric, field), evaluation.shared(row, metric, "counts")
    return None if points is None or counts is None else _band(counts, *points)


def _by_evaluations(evaluation: Evaluation, metric: str) -> dict[str, Band]:
    """Return the error of rows with the same method as one curve over their numbers of evaluations."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    kinds = [row.kind for row in evaluation.rows if row.competes]
    for row in evaluation.rows:
        result, used = evaluation.result(row.name, metric), evaluation.shared(row.name, metric, "evaluations")
        if result is None or used is None or not row.competes or result.undefined == len(result.values):
            continue
        low, high = result.interval()
        name = row.kind if kinds.count(row.kind) > 1 else row.name
        half = (high - low) / 2 if high > low else 0.0  # one image has no interval
        found.setdefault(name, []).append((max(float(used[0]), 1.0), result.mean, half))
    return {
        kind: Band(*(np.array(numbers) for numbers in zip(*sorted(points), strict=True)))
        for kind, points in found.items()
    }


def _band(x: Tensor, mean: Tensor, half: Tensor) -> Band | None:
    known = ~(x.isnan() | mean.isnan())
    return Band(*(_numbers(one[known]) for one in (x, mean, half.nan_to_num(0.0)))) if bool(known.any()) else None


def _numbers(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.to(torch.float64).numpy()
