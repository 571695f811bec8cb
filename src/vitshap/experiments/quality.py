"""Images with converged Shapley values to measure an explainer on, and the probability below which its class is doubtful.

The surrogate is the game, so all values are its own. Images are spread evenly over the test split.

A classifier of ten classes assigns one of them to every photo. Its low-confidence threshold is the probability below
which a chosen share of images of its own classes falls; how useful it is shows in the share of other images below it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from vitshap.data import Splits, load_data
from vitshap.estimators import truth
from vitshap.experiments.tables import Column, Table
from vitshap.metrics import agreement as agreement
from vitshap.models import MaskedModel
from vitshap.models.base import evaluating
from vitshap.training.batches import Images, evenly
from vitshap.training.values.store import Evaluator


class ReferenceSet(NamedTuple):
    """Images with known Shapley values."""

    pixels: Tensor
    labels: Tensor
    truth: truth.Truth


def open_data(
    surrogate: MaskedModel,
    source: str | Path,
    *,
    layout: str = "auto",
    split: Literal["own", "authors"] = "own",
    cache: Path | None = None,
) -> Splits:
    """Load the data an explainer is measured on, split as in its training; its classes must be the surrogate's."""
    splits = load_data(source, layout=layout, split=split, cache=cache, channels=surrogate.adapter.channels)
    known = surrogate.class_names
    if known is not None and list(splits.test.class_names) != list(known):
        raise ValueError(f"the data has the classes {list(splits.test.class_names)}, the surrogate {list(known)}")
    return splits


def sample_images(model: MaskedModel, data: Any, count: int) -> tuple[Tensor, Tensor]:
    """Return preprocessed pixels and labels of ``count`` images, spread evenly over the data set."""
    images = Images(model, data, None, seed=0)
    pixels, batch = next(iter(images.views([evenly(len(images), count)], 0)))
    return pixels, batch.labels


def reference_set(
    folder: Path,
    evaluate: Evaluator,
    data: Any,
    *,
    count: int,
    budget: int,
    progress: Callable[[int, int], object] | None = None,
) -> ReferenceSet:
    """Compute reference values of ``count`` images into ``folder``, or load them from there."""
    pixels, labels = sample_images(evaluate.model, data, count)
    known = truth.compute(
        folder,
        lambda part: evaluate.model.game(pixels[part].to(evaluate.dtype)),
        num_inputs=len(pixels),
        surrogate=evaluate.fingerprint(),
        budget=budget,
        batch=4,
        progress=progress,
    )
    return ReferenceSet(pixels, labels, known)


def top_probabilities(model: MaskedModel, data: Any, *, count: int, batch: int = 64) -> Tensor:
    """Compute the largest class probability of ``count`` images, spread evenly over the data set: ``[n]``."""
    if model.unit != "probability" or model.num_classes == 1:
        raise ValueError("a low-confidence threshold needs a model with probabilities of several classes")
    images = Images(model, data, None, seed=0)
    order = evenly(len(images), count).split(batch)  # type: ignore[no-untyped-call]
    with torch.no_grad(), evaluating(model.net):
        return torch.cat([model(pixels).amax(1).cpu() for pixels, _ in images.views(order, 0)])


def low_confidence_threshold(known: Tensor, share: float = 0.05) -> float:
    """Return the threshold, to two decimals, below which at most a share of the probabilities ``known`` falls."""
    return math.floor(float(known.double().quantile(share)) * 100) / 100


def separation(known: Tensor, others: Mapping[str, Tensor], threshold: float) -> Table:
    """Compute how many images of each data set fall below the threshold.

    ``roc_auc`` is the probability that a known image has a larger probability than another one.
    """
    columns = (
        Column("images_of"),
        Column("images", ",.0f"),
        Column("below_threshold", ".1%"),
        Column("roc_auc", ".3f", title="area under the ROC curve"),
    )
    table = Table(f"threshold {threshold:.2f}", columns)
    for name, probabilities in {"known classes": known, **others}.items():
        table.add(
            images_of=name,
            images=len(probabilities),
            below_threshold=float((probabilities < threshold).double().mean()),
            roc_auc=None if probabilities is known else _roc_auc(known, probabilities),
        )
    return table


def _roc_auc(known: Tensor, others: Tensor) -> float:
    from sklearn.metrics import roc_auc_score

    is_known = torch.cat([torch.ones(len(known)), torch.zeros(len(others))])
    return float(roc_auc_score(is_known.numpy(), torch.cat([known, others]).numpy()))
