"""Explanations of a batch: computed once by each method, or read from the store, and used by all metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, get_args

import torch
from torch import Tensor

from vitshap.estimators.truth import Truth
from vitshap.evaluation.result import TRUTH
from vitshap.evaluation.rows import Row, shape_of
from vitshap.evaluation.selection import Part
from vitshap.evaluation.store import Store
from vitshap.explanation import Explanation, Unit
from vitshap.methods import MethodLike
from vitshap.models import MaskedModel
from vitshap.models.base import net_device_dtype

_UNITS = get_args(Unit)
_TENSORS = ("values", "classes", "prediction", "players", "player_mask", "stderr", "base_values", "full_values")
"""What is stored of an explanation, where it has it."""


class Explanations:
    """The explanations of one batch of images."""

    def __init__(
        self,
        surrogate: MaskedModel,
        part: Part,
        targets: Tensor,
        *,
        others: Callable[[Row], bool],
        sampled: Tensor | None,
        describe: Callable[[Row], dict[str, Any] | None],
        store: Store,
        truth: tuple[Truth, Tensor] | None,
    ) -> None:
        """``targets``: the class of each image to explain; ``others``: whether a row explains other classes too;
        ``sampled``: which (None: all); ``describe``: what its explanations depend on; ``truth``: reference values, and the
        place of each image in them."""
        self.part, self.targets, self._sampled = part, targets, sampled
        self._surrogate, self._others, self._describe = surrogate, others, describe
        self._store, self._truth = store, truth
        self._kept: dict[tuple[str, int], Explanation] = {}

    def of(self, row: Row) -> Iterator[tuple[Explanation, MethodLike | None]]:
        """Yield the explanation of every seed, one for most methods, with the method that made it."""
        if row.is_truth:
            assert self._truth is not None
            truth, places = self._truth
            yield explanation_of_truth(truth, places.clamp(min=0), self._target(row), self._surrogate), None
            return
        for number, method in enumerate(row.methods):
            key = (row.name, number)
            if key not in self._kept:  # random scores of several seeds cost less than reading them
                self._kept[key] = self._stored(row) if len(row.methods) == 1 else self._explain(row, method)
            yield self._kept[key], method

    def _target(self, row: Row) -> Tensor | None:
        own = self.targets[:, None]
        if not self._others(row):
            return own
        return None if self._sampled is None else torch.cat([own, self._sampled], 1)

    def _stored(self, row: Row) -> Explanation:
        about = self._describe(row)
        about = None if about is None else {**about, "what": "explanation"}
        found = self._store.load(about)
        if found is not None:
            return _from_tensors(found, row.methods[0].name)
        explanation = self._explain(row, row.methods[0])
        self._store.save(about, _to_tensors(explanation))
        return explanation

    def _explain(self, row: Row, method: MethodLike) -> Explanation:
        pixels = self.part.explained if row.runs_on == "classifier" else self.part.pixels
        model = getattr(method, "model", self._surrogate)
        explanation = method(pixels.to(net_device_dtype(model.net)[1]), target=self._target(row))
        check_explanation(row.name, explanation, self._surrogate, len(self.targets))
        return explanation


def _to_tensors(explanation: Explanation) -> dict[str, Tensor]:
    """Return what metrics read of an explanation."""
    kept = {name: tensor for name in _TENSORS if (tensor := getattr(explanation, name)) is not None}
    numbers = (
        _UNITS.index(explanation.unit),
        explanation.class_specific,
        explanation.evaluations,
        explanation.seconds,
        explanation.posterior,
    )
    return {**kept, "numbers": torch.tensor(numbers, dtype=torch.float64)}


def _from_tensors(tensors: Mapping[str, Tensor], method: str) -> Explanation:
    unit, class_specific, evaluations, seconds, *more = tensors["numbers"].tolist()  # parts written before have four
    stored: dict[str, Any] = {name: tensor for name, tensor in tensors.items() if name != "numbers"}
    return Explanation(
        **stored,
        additive="base_values" in stored,
        unit=_UNITS[int(unit)],
        prediction_by="classifier",
        method=method,
        class_specific=bool(class_specific),
        evaluations=int(evaluations),
        seconds=seconds,
        posterior=bool(more and more[0]),
    )


def some_images(explanation: Explanation, rows: Tensor) -> Explanation:
    """Return the explanation of some of its images."""
    if len(rows) == len(explanation):
        return explanation
    parts: dict[str, Any] = {
        field.name: value[rows]
        for field in fields(explanation)
        if isinstance(value := getattr(explanation, field.name), Tensor)
        and not (field.name == "players" and len(value) == 1)
    }
    return replace(explanation, **parts)


def constant_images(explanation: Explanation, targets: Tensor) -> Tensor:
    """Return which images have the same value for all players, for the target class: bool ``[B]``."""
    column = (explanation.classes == targets[:, None]).long().argmax(1)
    values = explanation.values[torch.arange(len(explanation)), :, column]  # [B, d]
    if explanation.player_mask is None:
        return values.amax(1) == values.amin(1)
    highest = values.masked_fill(~explanation.player_mask, -torch.inf).amax(1)
    return highest == values.masked_fill(~explanation.player_mask, torch.inf).amin(1)


def explanation_of_truth(truth: Truth, places: Tensor, targets: Tensor | None, surrogate: MaskedModel) -> Explanation:
    """Return stored reference values of some images as an explanation; ``targets`` int64 ``[B, T]``, None: all classes."""
    values = truth.values[places].float()  # [B, d, K]
    classes = torch.arange(values.shape[2]).expand(len(values), -1) if targets is None else targets.cpu()
    return Explanation(
        values=values.gather(2, classes[:, None].expand(-1, values.shape[1], -1)),
        classes=classes,
        additive=False,
        unit=surrogate.unit,
        prediction=truth.full_values[places].float(),
        prediction_by="surrogate",
        players=surrogate.players.labels.cpu(),
        method=TRUTH,
        evaluations=truth.specification.budget,
        class_names=None if surrogate.class_names is None else tuple(surrogate.class_names),
    )


def check_explanation(name: str, explanation: Explanation, surrogate: MaskedModel, images: int) -> None:
    """Raise ``ValueError`` unless the explanation is of these images, this grid and these classes."""
    classes = explanation.prediction.shape[1]
    if len(explanation) != images:
        raise ValueError(f"{name} explained {len(explanation)} images instead of {images}")
    if tuple(explanation.grid) != tuple(surrogate.grid) or classes != surrogate.num_classes:
        given = f"a grid of {' x '.join(map(str, explanation.grid))} and {classes} classes"
        raise ValueError(f"{name} explains {given}, but the surrogate has {shape_of(surrogate)}")
