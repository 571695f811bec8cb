"""The columns of a comparison: metrics by name and definition, and what each of them is given besides the explanation.

A metric says by the names of its options what it needs: ``responses`` (outputs for coalitions that do not depend on the
explanation, evaluated once for all methods), ``truth`` (reference values of these images), ``labels`` (the explained
classes), ``method`` (to explain other images) or ``candidates`` (all images of the comparison).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from vitshap import metrics
from vitshap.evaluation.store import code_version
from vitshap.metrics.base import METRICS, MetricResult

SUPPLIED = ("responses", "truth", "labels", "method", "candidates")
"""Options that the comparison gives, not the user."""
_BASE = {field.name for field in fields(MetricResult)}


@dataclass(frozen=True)
class Column:
    """A metric with its options."""

    name: str
    """As the user wrote it, and as it stands in the table."""
    metric: str
    options: Mapping[str, Any]

    @classmethod
    def parse(cls, text: str, /) -> Column:
        """Read ``NAME``, ``NAME:DEFINITION`` or ``NAME:OPTION=VALUE``, with any number of options."""
        name, *words = text.strip().split(":")
        column = cls(text.strip(), name, parse_options(words, default="definition"))
        METRICS.load(name, column.options, skip=3)
        return column

    @property
    def needs(self) -> set[str]:
        """What the comparison has to give it."""
        return set(inspect.signature(METRICS.load(self.metric)).parameters) & set(SUPPLIED)

    @property
    def identity(self) -> dict[str, Any]:
        """JSON: what its values depend on besides images and explanation."""
        code = [code_version(METRICS.load(self.metric)), code_version(MetricResult)]
        return {"metric": self.metric, "options": dict(self.options), "code": code}

    def __call__(
        self, surrogate: Any, pixels: Tensor, explanation: Any, supplied: Mapping[str, Any], /
    ) -> MetricResult:
        """Compute the metric."""
        return metrics.metric(self.metric, **self.options, **supplied)(surrogate, pixels, explanation)

    def responses_of(self, surrogate: Any, pixels: Tensor, players: Any, classes: Tensor | None) -> Any:
        """Evaluate the coalitions of a metric that has its own, once for all methods; ``classes`` None: all outputs."""
        known = inspect.signature(metrics.coalition_responses).parameters
        options = {name: value for name, value in {**self.options, "classes": classes}.items() if name in known}
        return metrics.coalition_responses(surrogate, pixels, self.metric, players=players, **options)  # type: ignore[arg-type]

    @property
    def responses_key(self) -> str:
        """What the coalitions depend on: definitions of a metric share them, unless the sizes of subsets are given."""
        options = {
            name: value for name, value in self.options.items() if "sizes" in self.options or name != "definition"
        }
        return f"{self.metric} {sorted(options.items())}"


def parse_options(words: list[str], *, default: str) -> dict[str, Any]:
    """Read ``NAME=VALUE`` words; a word without ``=`` is the value of ``default``."""
    options: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        options[name.strip() if equals else default] = _value(value if equals else name)
    return options


def _value(text: str) -> Any:
    text = text.strip()
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def per_image(result: MetricResult, targets: Tensor, *, others: bool) -> dict[str, Tensor]:
    """Return what is kept of a result: a value per image for its target class and for the mean of the others, and curves.

    Further tensors of a result are kept for the target class, and as the mean over the others, if they start with images
    and classes; as they are if they start with images; and once if they have one dimension (``sizes``, ``counts``). A field
    with another dimension after the images says so by ``field(metadata={"per_class": False})``: the number of its columns
    may be that of the classes.
    """
    targets = targets.cpu()
    kept = {"target": result.target(targets).per_image.double()}
    if others and result.classes.shape[1] > 1:
        kept["others"] = result.others(targets).per_image.double()
    batch, classes = result.values.shape
    column = (result.classes == targets[:, None]).long().argmax(1)
    for field in fields(result):
        value = getattr(result, field.name)
        if field.name in _BASE or not isinstance(value, Tensor):
            continue
        shared = value.ndim < 2 or len(value) != batch
        if field.metadata.get("per_class", True) and value.shape[:2] == (batch, classes):
            if "others" in kept:
                own = torch.arange(classes) == column[:, None]  # [B, T]
                own = own.view(batch, classes, *[1] * (value.ndim - 2))
                kept[f"others.{field.name}"] = value.double().cpu().masked_fill(own, torch.nan).nanmean(1)
            value = value[torch.arange(batch), column]
        kept[f"{'shared' if shared else 'image'}.{field.name}"] = value.double().cpu()
    kept["shared.higher_is_better"] = torch.tensor([float(result.higher_is_better)], dtype=torch.float64)
    return kept


def mean_over(results: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of several seeds, of each image's defined values."""
    if len(results) == 1:
        return results[0]
    return {name: torch.stack([one[name] for one in results]).nanmean(0) for name in results[0]}
