"""Images with converged Shapley values to measure an explainer on.

The surrogate is the game, so all values are its own. Images are spread evenly over the test split.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor

from vitshap.data import Splits, load_data
from vitshap.estimators import truth
from vitshap.metrics import agreement as agreement
from vitshap.models import MaskedModel
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
