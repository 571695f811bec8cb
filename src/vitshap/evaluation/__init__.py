"""Compare methods on a model and images: ``evaluate`` computes, ``Evaluation`` holds a value per image and draws tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitshap.estimators.truth import Truth
from vitshap.evaluation.columns import Column
from vitshap.evaluation.compare import BATCHES, MOST_VALUES, RESPONSES, Comparison, StepTime
from vitshap.evaluation.marks import Mark, Measured, mark
from vitshap.evaluation.result import Evaluation, Summary
from vitshap.evaluation.rows import MethodSpec, Row, make_rows, truth_row
from vitshap.evaluation.selection import Chosen, Where, check_reference, reference_positions, select
from vitshap.evaluation.store import Store
from vitshap.evaluation.supplied import Classes
from vitshap.game import ClassLike
from vitshap.models import MaskedModel
from vitshap.training.values.store import Evaluator

__all__ = [
    "Comparison",
    "Evaluation",
    "Mark",
    "Measured",
    "MethodSpec",
    "StepTime",
    "Summary",
    "Where",
    "evaluate",
    "mark",
    "prepare",
]


def evaluate(
    surrogate: MaskedModel,
    data: Any,
    /,
    *,
    methods: Mapping[str, MethodSpec],
    metrics: Sequence[str] = ("insertion", "deletion"),
    classifier: MaskedModel | None = None,
    images: Chosen = None,
    where: str | Where | None = None,
    target: ClassLike = "predicted",
    classes: Classes = "target",
    others: int | None = None,
    truth: Truth | tuple[Truth, Sequence[int]] | None = None,
    folder: str | Path | None = None,
    batch: int | None = None,
    compiled: bool = False,
    progress: Callable[[str, int, int], object] | None = None,
) -> Evaluation:
    """Compare methods by metrics that are all measured with the surrogate.

    Args:
        surrogate: the model whose outputs the metrics read; on a GPU it is evaluated in half precision.
        data: images with labels, for example ``vitshap.data.load_data(...).test``.
        methods: a row of the table for each: an ``Explainer``, a method, a method's name, or its name and options.
        metrics: names, each with a definition or options if need be: ``"faithfulness:authors"``.
        classifier: the model that methods by name explain; None: the surrogate.
        images: how many, spread evenly; or positions in the data; or file names; None: all.
        where: only images ``predicted=CLASS`` or ``label=CLASS``.
        target: the explained class of each image: ``"predicted"`` (by the classifier), ``"label"``, or a class.
        classes: ``"all"`` also measures the mean over all other classes.
        others: so many of the other classes of each image, drawn once for all methods; None: all of them.
        truth: reference values, a further row; of images spread evenly over the data, or of those at the positions given.
        folder: where finished parts are stored, and found again; None: nothing is stored.
        batch: images at a time; None: by device and number of classes.
        compiled: compile the surrogate's evaluation (GPU).
        progress: called with a row's name, the images done and all images.
    """
    return prepare(
        surrogate,
        data,
        methods=methods,
        metrics=metrics,
        classifier=classifier,
        images=images,
        where=where,
        target=target,
        classes=classes,
        others=others,
        truth=truth,
        folder=folder,
        batch=batch,
        compiled=compiled,
    ).run(progress)


def prepare(
    surrogate: MaskedModel,
    data: Any,
    /,
    *,
    methods: Mapping[str, MethodSpec],
    metrics: Sequence[str] = ("insertion", "deletion"),
    classifier: MaskedModel | None = None,
    images: Chosen = None,
    where: str | Where | None = None,
    target: ClassLike = "predicted",
    classes: Classes = "target",
    others: int | None = None,
    truth: Truth | tuple[Truth, Sequence[int]] | None = None,
    folder: str | Path | None = None,
    batch: int | None = None,
    compiled: bool = False,
) -> Comparison:
    """Open the images and make the methods, with the arguments of ``evaluate``; ``run`` computes, ``estimate`` times."""
    columns = _columns(metrics)
    if classifier is not None:
        _check_classifier(surrogate, classifier)
    known, positions = _reference(surrogate, data, truth)
    rows = make_rows(methods, surrogate, classifier)
    if known is not None:
        rows.append(truth_row(surrogate, known))
    _check_names(rows)
    if known is None and (lacking := [column.name for column in columns if "truth" in column.needs]):
        raise ValueError(f"the metric {lacking[0]} compares with reference values: give truth (--truth FOLDER)")
    condition = Where.parse(where) if isinstance(where, str) else where
    selection = select(surrogate, classifier, data, images=images, where=condition, target=target, first=positions)
    place = {position: number for number, position in enumerate(positions)}
    places = torch.tensor([place.get(position, -1) for position in selection.positions.tolist()], dtype=torch.long)
    comparison = Comparison(
        surrogate=surrogate,
        classifier=classifier,
        selection=selection,
        rows=rows,
        columns=columns,
        classes=classes,
        sampled=_sampled(selection.targets, surrogate.num_classes, others),
        target=str(target),
        truth=known,
        truth_places=places,
        store=Store(None if folder is None else Path(folder)),
        evaluate=Evaluator(surrogate, compiled=compiled),
        batch=batch or _batch(surrogate, rows, columns, classes),
    )
    if known is not None:
        check_reference(comparison.selection, known, places, surrogate)
    return comparison


def _sampled(targets: Tensor, classes: int, others: int | None) -> Tensor | None:
    """Return the other classes of each image that are explained, int64 ``[N, others]``; None: all."""
    if others is not None and others < 1:
        raise ValueError(f"others is a number of classes, at least 1; got {others}")
    if others is None or others >= classes - 1:
        return None
    scores = torch.rand(len(targets), classes, generator=torch.Generator().manual_seed(0))
    return scores.scatter(1, targets[:, None], 2.0).argsort(1)[:, :others]  # the target comes last


def _columns(metrics: Sequence[str]) -> list[Column]:
    columns = [Column.parse(name) for name in dict.fromkeys(metrics)]
    if not columns:
        raise ValueError("there is nothing to measure: give at least one metric")
    return columns


def _check_classifier(surrogate: MaskedModel, classifier: MaskedModel) -> None:
    sizes = [(model.image_size, model.grid, model.num_classes) for model in (surrogate, classifier)]
    if sizes[0] != sizes[1]:
        words = [f"images of {size}, a grid of {grid} and {classes} classes" for size, grid, classes in sizes]
        raise ValueError(f"the classifier has {words[1]}, but the surrogate {words[0]}")


def _check_names(rows: Sequence[Row]) -> None:
    names = [row.name for row in rows]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f'two rows are named "{name}": rows need different names')


def _reference(
    surrogate: MaskedModel, data: Any, truth: Truth | tuple[Truth, Sequence[int]] | None
) -> tuple[Truth | None, list[int]]:
    """Return reference values and the positions of their images in the data."""
    if truth is None:
        return None, []
    known, positions = (truth, None) if isinstance(truth, Truth) else truth
    if known.specification.surrogate != surrogate.fingerprint():
        raise ValueError("the reference values belong to another surrogate: a new surrogate needs new ones")
    if tuple(known.values.shape[1:]) != (surrogate.num_players, surrogate.num_classes):
        raise ValueError(
            f"the reference values have the shape {list(known.values.shape)}, which is not the surrogate's"
        )
    listed = reference_positions(known, data) if positions is None else [int(one) for one in positions]
    if len(listed) != len(known.values):
        raise ValueError(
            f"the reference values are of {len(known.values)} images, but {len(listed)} positions are given"
        )
    return known, listed


def _batch(surrogate: MaskedModel, rows: Sequence[Row], columns: Sequence[Column], classes: Classes) -> int:
    """Return images at a time: fewer if what a batch needs in memory would be large."""
    explained = surrogate.num_classes if classes == "all" else 1
    responses = RESPONSES if any("responses" in column.needs for column in columns) else 0
    explanations = sum(max(len(row.methods), 1) for row in rows)
    most = MOST_VALUES // (explained * max(surrogate.num_players * explanations, responses))
    return max(1, min(BATCHES[surrogate.device.type], most))
