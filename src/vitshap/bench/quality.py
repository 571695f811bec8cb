"""How good an explainer is: agreement with converged Shapley values, insertion and deletion, on test images.

The surrogate is the game, so all of it is measured with the surrogate. Images are spread evenly over the test split.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from vitshap.data import Splits, load_data
from vitshap.estimators import truth
from vitshap.estimators.reliability import correlation
from vitshap.explainers import Explainer
from vitshap.methods import method
from vitshap.metrics import deletion, insertion
from vitshap.models import MaskedModel
from vitshap.training.batches import Images, evenly
from vitshap.training.values.store import Evaluator

LEAST_RELIABILITY = 0.1
"""Below it a truth is nearly all noise, and a correlation cannot be corrected for that."""
TOGETHER = 250
"""Images whose curves are computed at once."""


class Judged(NamedTuple):
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
    """The data that an explainer is measured on, in the split of its training; its classes must be the surrogate's."""
    splits = load_data(source, layout=layout, split=split, cache=cache, channels=surrogate.adapter.channels)
    known = surrogate.class_names
    if known is not None and list(splits.test.class_names) != list(known):
        raise ValueError(f"the data has the classes {list(splits.test.class_names)}, the surrogate {list(known)}")
    return splits


def spread_out(model: MaskedModel, data: Any, count: int) -> tuple[Tensor, Tensor]:
    """Pixels as the net takes them and labels of ``count`` images, evenly over the data set."""
    images = Images(model, data, None, seed=0)
    pixels, batch = next(iter(images.views([evenly(len(images), count)], 0)))
    return pixels, batch.labels


def judge_by(
    folder: Path,
    evaluate: Evaluator,
    data: Any,
    *,
    count: int,
    budget: int,
    progress: Callable[[int, int], object] | None = None,
) -> Judged:
    """The truth of some images, computed into ``folder`` or found there."""
    pixels, labels = spread_out(evaluate.model, data, count)
    known = truth.compute(
        folder,
        lambda part: evaluate.model.game(pixels[part].to(evaluate.dtype)),
        num_inputs=len(pixels),
        surrogate=evaluate.fingerprint(),
        budget=budget,
        batch=4,
        progress=progress,
    )
    return Judged(pixels, labels, known)


def agreement(values: Tensor, known: truth.Truth, labels: Tensor) -> dict[str, float | None]:
    """Mean Pearson correlation over players of values ``[N, d, K]`` with the truth, for the images' own classes
    (``labels`` ``[N]``) and for the others; also divided by the square root of the truth's reliability, or None where
    that is below ``LEAST_RELIABILITY``."""
    found = correlation(values.double().cpu(), known.values)  # [N, K]
    own = torch.zeros_like(found, dtype=torch.bool).scatter(1, labels.cpu()[:, None], True)
    scores: dict[str, float | None] = {}
    for name, where in (("target", own), ("others", ~own)):
        reliability = known.reliability[where].clamp(min=0)
        scores[f"reliability_{name}"] = float(reliability.mean())
        scores[f"raw_{name}"] = float(found[where].mean())
        enough = float(reliability.mean()) >= LEAST_RELIABILITY
        scores[name] = float(found[where].mean() / reliability.sqrt().mean()) if enough else None
    return scores


def areas(evaluate: Evaluator, explainer: Explainer, pixels: Tensor, labels: Tensor) -> dict[str, float]:
    """Mean insertion and deletion of the images' own classes, insertion of the others; and both for random orders."""
    totals: dict[str, float] = {}
    for some, own in zip(pixels.split(TOGETHER), labels.split(TOGETHER), strict=True):  # type: ignore[no-untyped-call]
        half, target = some.to(evaluate.dtype), own[:, None]
        inserted = insertion(evaluate.model, half, explainer(some))
        deleted = deletion(evaluate.model, half, explainer(some, target=target))
        chance = method("random", explainer.surrogate)(some, target=target)
        found = {
            "insertion": inserted.target_area(own),
            "others_insertion": inserted.nontarget_area(own),
            "deletion": deleted.target_area(own),
            "random_insertion": insertion(evaluate.model, half, chance).target_area(own),
            "random_deletion": deletion(evaluate.model, half, chance).target_area(own),
        }
        for name, area in found.items():
            totals[name] = totals.get(name, 0.0) + float(area.sum())
    return {name: total / len(pixels) for name, total in totals.items()}
