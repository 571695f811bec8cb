"""Images with converged Shapley values: to measure an explainer on, and to learn how far its values are off.

The surrogate is the game, so all values are its own. Images are spread evenly over their part of the data.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from rich.console import Console
from torch import Tensor

from vitshap.data import UNLABELLED, SplitRecord, Splits, load_data
from vitshap.data.held_out import ALL, describe
from vitshap.estimators import truth
from vitshap.explainers import Explainer
from vitshap.explainers.calibration import FEWEST, Calibration, calibrate
from vitshap.game import Game
from vitshap.models import MaskedModel
from vitshap.training.batches import Images, evenly
from vitshap.training.configs import CalibrationConfig
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
    trained_on: Mapping[str, Any] | None = None,
    any_classes: bool = False,
    labels: bool = True,
) -> Splits:
    """Load the data an explainer is measured on, split as in its training; its classes must be the surrogate's.

    Folders of a data set are sorted by name: classes in another order are numbered as the surrogate numbers them. Of two
    classes under a single logit, label 1 is the one that the surrogate names.

    Args:
        layout: "auto": as in the training, if that is known; otherwise recognised.
        split: "own": as in the training, if that is known; otherwise the data set's own.
        trained_on: the entry of this name in a bundle's configuration, which says how its images were divided.
        any_classes: the classes need not be the surrogate's, and stay as they are.
        labels: whether they are used. If not, images may have other classes than the surrogate, and have no labels then, if
            it is a regression or these are the images of its training: it was explained as it is.
    """
    how: dict[str, Any] = {"layout": layout, "split": split, "cache": cache, "channels": surrogate.adapter.channels}
    record = None if trained_on is None else SplitRecord.from_json(trained_on)
    splits = load_data(source, **how) if record is None else record.load(source, **how)
    if any_classes:
        return splits
    own = surrogate.output == "identity" or (record is not None and describe(splits)[ALL] == record.parts[ALL])
    if own and not labels and surrogate.num_classes > 1 and not _same_classes(surrogate, splits):
        return Splits(*(replace(one, labels=0 * one.labels, class_names=UNLABELLED) for one in splits))
    return _numbered(surrogate, splits)


def _same_classes(surrogate: MaskedModel, splits: Splits) -> bool:
    return surrogate.class_names is None or sorted(splits.test.class_names) == sorted(surrogate.class_names)


def _numbered(surrogate: MaskedModel, splits: Splits) -> Splits:
    """Return the images with the surrogate's order of classes."""
    found, known = splits.test.class_names, surrogate.class_names
    if surrogate.num_classes == 1:
        return _of_one_logit(surrogate, splits)
    if known is None or list(found) == list(known):
        return splits
    if sorted(found) != sorted(known) or len(set(known)) < len(known):
        raise ValueError(
            f"the data has the classes {list(found)}, the surrogate {list(known)}: folders must be named as these, in any "
            "order"
        )
    numbers = torch.tensor([known.index(name) for name in found])
    return Splits(*(replace(part, labels=numbers[part.labels], class_names=tuple(known)) for part in splits))


def _of_one_logit(surrogate: MaskedModel, splits: Splits) -> Splits:
    """Return the images of two classes with the one that the logit stands for as label 1; others as they are."""
    found, known = splits.test.class_names, tuple(surrogate.class_names or ())
    if len(found) != 2 or surrogate.output != "sigmoid" or found[1:] == known:
        return splits
    if found[:1] == known:
        return Splits(*(replace(part, labels=1 - part.labels, class_names=found[::-1]) for part in splits))
    named = f"is of {known[0]}, which is neither" if known else "has no name"
    warnings.warn(
        f"the images are of {found[0]} and {found[1]}, and the model's output {named}: {found[1]} counts as 1",
        stacklevel=3,
    )
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
    replace_others: bool = False,
) -> ReferenceSet:
    """Compute reference values of ``count`` images into ``folder``, or load them from there.

    ``replace_others``: remove what is there of another number of images or evaluations, which is an error otherwise.
    """
    pixels, labels = sample_images(evaluate.model, data, count)
    before = truth.specification_of(folder) if replace_others else None
    if before is not None and (before.num_inputs, before.budget) != (len(pixels), budget):
        shutil.rmtree(folder)

    def game_of(part: slice) -> Game:
        return evaluate.game(pixels[part])

    surrogate, probability = evaluate.fingerprint(), evaluate.model.unit == "probability"
    truth.require_same(folder, game_of, num_inputs=len(pixels), surrogate=surrogate, probability=probability)
    known = truth.compute(
        folder,
        game_of,
        num_inputs=len(pixels),
        surrogate=surrogate,
        budget=budget,
        batch=4,
        progress=progress,
    )
    return ReferenceSet(pixels, labels, known)


def calibrate_on_validation(
    explainer: Explainer, val: Any, folder: Path, config: CalibrationConfig, console: Console
) -> Calibration | None:
    """Learn the standard errors of an explainer's values from validation images; None if these are too few.

    Reference values are stored in ``folder``, so that an interrupted calibration continues. Those of another configuration
    are replaced.
    """
    count = min(config.images, len(val))
    if count < FEWEST:
        console.print(
            f"no standard errors: {count} validation images are fewer than the {FEWEST} that a calibration needs",
            highlight=False,
        )
        return None
    console.print(
        f"learning the errors of the values on {count} validation images, {config.evaluations:,} evaluations each",
        highlight=False,
    )
    evaluate, budget = Evaluator(explainer.surrogate), config.evaluations
    known = reference_set(folder, evaluate, val, count=count, budget=budget, replace_others=True)
    return calibrate(explainer, known.pixels, known.truth)
