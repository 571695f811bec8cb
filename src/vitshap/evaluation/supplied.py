"""What a metric is given besides the explanation, and what its values depend on because of that.

A metric asks for something by the name of an option (``columns.SUPPLIED``). What is supplied is part of the description
of a stored result, so that the result is found for the same labels, reference values and other images only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from vitshap.estimators.truth import Truth
from vitshap.evaluation.columns import Column
from vitshap.evaluation.rows import Row
from vitshap.evaluation.selection import Part, Selection
from vitshap.evaluation.store import digest, tensor_digest
from vitshap.explanation import Explanation
from vitshap.methods import MethodLike
from vitshap.metrics.base import own_classes, predicted_classes
from vitshap.metrics.grid_pointing import Candidates
from vitshap.models import MaskedModel
from vitshap.models.base import net_device_dtype
from vitshap.players import Players
from vitshap.training.values.store import Evaluator

Classes: TypeAlias = Literal["target", "all"]


@dataclass(eq=False)
class Supplied:
    """What metrics need of one comparison."""

    surrogate: MaskedModel
    evaluate: Evaluator
    selection: Selection
    target: str
    classes: Classes
    truth: Truth | None
    truth_places: Tensor
    """Of each selected image in the reference values, -1 where there is none, int64 ``[N]``."""

    def of(
        self,
        row: Row,
        column: Column,
        pixels: Tensor,
        places: Tensor,
        explanation: Explanation,
        method: MethodLike | None,
        shared: dict[str, Any],
    ) -> dict[str, Any]:
        """Return what the metric needs for some images; ``shared`` keeps what other methods need too."""
        supplied: dict[str, Any] = {}
        if "labels" in column.needs:
            supplied["labels"] = self._labels(places)
        if "method" in column.needs and method is not None:
            supplied["method"] = method
        if "candidates" in column.needs:
            supplied["candidates"] = self._candidates(row, column, places)
        if "truth" in column.needs:
            if self.truth is None:
                raise ValueError(f"the metric {column.name} needs reference values: give truth (--truth FOLDER)")
            supplied["truth"] = _truth_of(self.truth, self.truth_places[places])
        if "responses" in column.needs:
            players = Players(explanation.players, explanation.values.shape[1])
            key = digest([column.responses_key, explanation.players.tolist(), players.num_players, places.tolist()])
            if key not in shared:
                classes = None if self.classes == "all" else self.selection.targets[places][:, None]
                shared[key] = column.responses_of(self.evaluate.model, pixels, players, classes)
            supplied["responses"] = shared[key]
        return supplied

    def describe(self, column: Column, places: Tensor) -> dict[str, Any]:
        """Return what the values of a metric depend on besides model, options, images and explanation, as JSON."""
        needs = column.needs
        about: dict[str, Any] = {"truth": None}
        if "truth" in needs:
            about["truth"] = [self._truth_digest, self.truth_places[places].tolist()]
        if "labels" in needs:
            labels = self._labels(places)
            about["labels"] = None if labels is None else labels.tolist()
        if "candidates" in needs:
            about["candidates"] = [*self._candidates_digests, places.tolist()]
        return about

    def evaluated(self, row: Row, column: Column, part: Part, rows: Tensor) -> tuple[MaskedModel, Tensor]:
        """Return the surrogate as metrics evaluate it, and some images; a metric that explains other images gets both in
        the precision of the method's model."""
        if "method" not in column.needs:
            pixels = part.pixels[rows.to(part.pixels.device)]
            return self.evaluate.model, pixels.to(self.evaluate.dtype)
        pixels = part.explained if row.runs_on == "classifier" else part.pixels
        return self.surrogate, pixels[rows.to(pixels.device)].to(net_device_dtype(self.surrogate.net)[1])

    @cached_property
    def _truth_digest(self) -> str | None:
        return None if self.truth is None else tensor_digest(self.truth.values)

    @cached_property
    def _own_classes(self) -> Tensor:
        """The own classes of all images, bool ``[N, K]``."""
        labels = self._labels(torch.arange(len(self.selection)))
        labels = predicted_classes(self.selection.prediction, self.surrogate) if labels is None else labels
        return own_classes(labels, self.surrogate)

    @cached_property
    def _candidates_digests(self) -> list[str]:
        """Digests of own classes and outputs of all images: other images have others."""
        return [tensor_digest(self._own_classes), tensor_digest(self.selection.prediction)]

    def _labels(self, places: Tensor) -> Tensor | None:
        """Return labels as metrics read them, None: what was predicted. A single probability has the labels 0 and 1."""
        if self.surrogate.output == "softmax":
            return self.selection.targets[places]
        known = self.selection.labels if self.target == "label" and self.surrogate.num_classes == 1 else None
        return None if known is None else known[places]

    def _candidates(self, row: Row, column: Column, places: Tensor) -> Candidates:
        """Return all images of the comparison, which are read where they are needed."""

        def load(some: Tensor) -> Tensor:
            return self.evaluated(row, column, self.selection.load(some), torch.arange(len(some)))[1]

        return Candidates(self._own_classes, places, load)


def _truth_of(truth: Truth, places: Tensor) -> Truth:
    """Return the reference values of some images."""
    parts = ("values", "stderr", "base_values", "full_values", "reliability")
    some = {name: getattr(truth, name)[places] for name in parts}
    return replace(truth, specification=replace(truth.specification, num_inputs=len(places)), **some)
