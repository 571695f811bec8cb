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
from vitshap.methods import ExplainableModel
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

    def interval(self, z: float = 1.96) -> tuple[float, float]:
        """Confidence interval of the mean; ``z = 1.96`` for 95 %."""
        return self.mean - z * self.stderr, self.mean + z * self.stderr

    def target(self, labels: Tensor) -> MetricResult:
        """Return the same metric for each image's own class, ``labels`` int64 ``[B]``."""
        own = self.classes == labels.cpu()[:, None]
        if not bool(own.any(1).all()):
            image = int((~own.any(1)).nonzero()[0])
            raise ValueError(f"class {int(labels[image])} was not explained for image {image}")
        return self._where(own)

    def others(self, labels: Tensor) -> MetricResult:
        """Return the same metric for the other explained classes of each image; undefined if there are none."""
        return self._where(self.classes != labels.cpu()[:, None])

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
    batch, d, _ = explanation.values.shape
    if len(pixels) != batch:
        raise ValueError(f"the explanation is of {batch} images, but {len(pixels)} are given")
    if explanation.prediction.shape[1] != surrogate.num_classes:
        known = explanation.prediction.shape[1]
        raise ValueError(f"the explanation has {known} classes, the surrogate {surrogate.num_classes}")
    return surrogate.game(pixels, players=Players(explanation.players, d))
