"""What all metrics share: the registry and the result type.

A metric is a function ``(surrogate, images, explanation, /, **options) -> MetricResult``. To add one, write it in a file
of this package and add a line to ``METRICS``. A metric that needs training takes the training function as an option:
this package never imports ``vitshap.training``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from vitshap.explanation import Explanation
from vitshap.game import Game
from vitshap.methods import ExplainableModel, MethodLike, list_methods, method
from vitshap.metrics.intervals import LEVEL, mean_interval
from vitshap.players import Players
from vitshap.registry import Registry


@dataclass(frozen=True, eq=False, kw_only=True)
class MetricResult:
    """Values of one metric for ``B`` images and ``T`` explained classes, with their mean and its standard error."""

    metric: str
    values: Tensor
    """float64 ``[B, T]``; NaN where the metric is not defined."""
    classes: Tensor
    """Explained classes, int64 ``[B, T]``."""
    higher_is_better: bool
    class_specific: bool = True
    """False when the explanation is the same for every class."""

    @property
    def per_image(self) -> Tensor:
        """Mean over the explained classes, float64 ``[B]``; NaN where no class has a value."""
        return self.values.nanmean(1)

    @property
    def undefined(self) -> int:
        """Number of images without a value."""
        return int(self.per_image.isnan().sum())

    @property
    def mean(self) -> float:
        """Mean over the images that have a value."""
        return float(self.per_image.nanmean())

    @property
    def stderr(self) -> float:
        """Standard error of the mean, from the spread over images; NaN for fewer than two."""
        found = self.per_image[~self.per_image.isnan()]
        return float(found.std() / len(found) ** 0.5) if len(found) > 1 else float("nan")

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Confidence interval of the mean, see ``vitshap.metrics.intervals``; NaN for fewer than two images."""
        return mean_interval(self.per_image, level=level)

    def target(self, labels: Tensor) -> MetricResult:
        """Return the same metric for each image's own classes, undefined for images without one.

        ``labels``: the class of each image, int64 ``[B]``, or which classes are its own, bool ``[B, K]``
        (``own_classes`` makes it from the labels of any output).
        """
        return self._where(self._own(labels))

    def others(self, labels: Tensor) -> MetricResult:
        """Return the same metric for the other explained classes of each image; undefined if there are none."""
        return self._where(~self._own(labels, complete=False))

    def _own(self, labels: Tensor, complete: bool = True) -> Tensor:
        """Return which explained classes are the image's own, bool ``[B, T]``; ``complete``: each label must be one."""
        labels = labels.cpu()
        if labels.shape[:1] != self.classes.shape[:1]:
            raise ValueError(f"{len(self.classes)} images were measured, but there are {len(labels)} labels")
        if labels.dtype == torch.bool:
            return labels.gather(1, self.classes)
        own = self.classes == labels[:, None]
        if complete and not bool(own.any(1).all()):
            image = int((~own.any(1)).nonzero()[0])
            raise ValueError(f"class {int(labels[image])} was not explained for image {image}")
        return own

    def _where(self, counted: Tensor) -> MetricResult:
        return MetricResult(
            metric=self.metric,
            values=self.values.masked_fill(~counted, torch.nan),
            classes=self.classes,
            higher_is_better=self.higher_is_better,
            class_specific=self.class_specific,
        )


class Metric(Protocol):
    """What ``metric`` returns."""

    def __call__(self, surrogate: ExplainableModel, images: Any, explanation: Explanation, /) -> MetricResult: ...


METRICS: Registry[MetricResult] = Registry(
    "metric",
    {
        "insertion": "vitshap.metrics.insertion_deletion:insertion",
        "deletion": "vitshap.metrics.insertion_deletion:deletion",
        "sensitivity-n": "vitshap.metrics.correlations:sensitivity_n",
        "faithfulness": "vitshap.metrics.correlations:faithfulness",
        "roar": "vitshap.metrics.roar:roar",
        "error": "vitshap.metrics.truth_error:error",
        "saco": "vitshap.metrics.saco:saco",
        "grid-pointing": "vitshap.metrics.grid_pointing:grid_pointing",
        "single-patch": "vitshap.metrics.correlations:single_patch",
        "randomisation": "vitshap.metrics.randomisation:randomisation",
        "shapley-error": "vitshap.metrics.bound:shapley_error",
    },
)


def list_metrics() -> list[str]:
    """Return the names that ``metric`` knows."""
    return METRICS.names()


def metric(name: str, /, **options: Any) -> Metric:
    """Return the metric of this name; call it with a model, images and an explanation of them."""
    return functools.partial(METRICS.load(name, options, skip=3), **options)


def game_of(surrogate: ExplainableModel, pixels: Tensor, explanation: Explanation) -> Game:
    """Return the surrogate's game of the explained images, with the explanation's players."""
    check_matches(surrogate, pixels, explanation)
    return surrogate.game(pixels, players=Players(explanation.players, explanation.values.shape[1]))


def check_matches(surrogate: ExplainableModel, pixels: Tensor, explanation: Explanation) -> None:
    """Raise ``ValueError`` unless the explanation is of that many images, and of the surrogate's classes and grid."""
    if len(pixels) != len(explanation):
        raise ValueError(f"the explanation is of {len(explanation)} images, but {len(pixels)} are given")
    if explanation.prediction.shape[1] != surrogate.num_classes:
        known = explanation.prediction.shape[1]
        raise ValueError(f"the explanation has {known} classes, the surrogate {surrogate.num_classes}")
    if explanation.grid != tuple(surrogate.adapter.grid):
        raise ValueError(f"the explanation has a grid of {explanation.grid}, the surrogate {surrogate.adapter.grid}")


def named_method(explanation: Explanation, model: ExplainableModel, /) -> MethodLike | None:
    """Return the method that made the explanation, with default options and its players, for a model.

    None if the explanation's method has no such name, or needs more than a model, as a trained explainer does.
    """
    if explanation.method not in list_methods() or explanation.method == "explainer":
        return None
    shared = {} if explanation.players.shape[0] > 1 else {"players": explanation.players}
    return method(explanation.method, model, **shared)


def own_classes(labels: Tensor, model: ExplainableModel, /) -> Tensor:
    """Return which outputs are each image's own classes (its targets), bool ``[B, K]``, by the kind of output.

    Softmax: the class that is the label, int64 ``[B]``. Sigmoid with several outputs: the classes whose label is 1,
    ``[B, K]``; none, one or several per image. One logit: the output is the probability of label 1, so images of label 1
    (``[B]``) have a target and those of label 0 have none. Regression (identity): every output, whatever the labels.
    """
    labels, outputs = labels.cpu(), model.num_classes
    if model.output == "identity":
        return torch.ones(len(labels), outputs, dtype=torch.bool)
    if model.output == "softmax":
        if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
            given = f"{labels.dtype} {list(labels.shape)}"
            raise ValueError(f"labels of a softmax output are whole numbers [B], one class per image; got {given}")
        if not 0 <= int(labels.min()) <= int(labels.max()) < outputs:
            span = f"{int(labels.min())} to {int(labels.max())}"
            raise ValueError(f"labels of {outputs} classes are 0 to {outputs - 1}, got {span}")
        return torch.zeros(len(labels), outputs, dtype=torch.bool).scatter(1, labels[:, None], True)
    if labels.numel() != len(labels) * outputs or not bool(((labels == 0) | (labels == 1)).all()):
        shape = "[B]" if outputs == 1 else f"[B, {outputs}]"
        raise ValueError(f"labels of a sigmoid output are 0 or 1, {shape}; got {list(labels.shape)}")
    return labels.view(len(labels), outputs) == 1


def predicted_classes(prediction: Tensor, model: ExplainableModel, /) -> Tensor:
    """Return labels as ``own_classes`` takes them from predictions ``[B, K]``: the most probable class, or p >= 0.5."""
    if model.output == "identity":
        return prediction.cpu()
    if model.output == "softmax":
        return prediction.argmax(1).cpu()
    return (prediction >= 0.5).long().cpu()
