"""The rows of a comparison: methods by the name they have in the table, made for the model that they explain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

from torch import Tensor

from vitshap.errors import OptionError
from vitshap.estimators.truth import Truth
from vitshap.evaluation.result import RANDOM, TRUTH
from vitshap.evaluation.store import code_version, tensor_digest
from vitshap.explainers import Explainer
from vitshap.methods import Method, MethodLike, method
from vitshap.methods.registry import METHODS
from vitshap.models import MaskedModel
from vitshap.models.base import fingerprint
from vitshap.players import Players

MethodSpec: TypeAlias = MethodLike | Explainer | str | tuple[str, Mapping[str, Any]]
"""A method as ``vitshap.method`` returns it, an explainer, a method's name, or its name and options."""
RunsOn: TypeAlias = Literal["classifier", "surrogate", "itself"]
RANDOM_SEEDS = 10
"""Random scores of these many seeds, 0 and up: their mean per image is the image's value."""
_NOT_OPTIONS = ("model", "progress")


@dataclass(frozen=True, eq=False)
class Row:
    """One row of the table."""

    name: str
    methods: tuple[MethodLike, ...]
    """One, or random scores of several seeds; none for stored reference values."""
    runs_on: RunsOn
    """The model that is explained; "itself": the explainer of a surrogate, or stored values of it."""
    identity: Mapping[str, Any] | None
    """JSON: what the explanations depend on besides the images; None if that is not known."""
    class_specific: bool = True

    @property
    def is_random(self) -> bool:
        """Whether these are random scores, which other rows are compared with."""
        return bool(self.methods) and self.methods[0].name == RANDOM

    @property
    def is_truth(self) -> bool:
        """Whether these are stored reference values."""
        return not self.methods


def make_rows(methods: Mapping[str, MethodSpec], surrogate: MaskedModel, classifier: MaskedModel | None) -> list[Row]:
    """Make methods for the classifier, or for the surrogate where there is no classifier."""
    if not methods:
        raise ValueError("there is nothing to compare: give at least one method")
    return [_row(name, given, surrogate, classifier) for name, given in methods.items()]


def truth_row(surrogate: MaskedModel, truth: Truth) -> Row:
    """Return the row of stored reference values."""
    stored = {"surrogate": surrogate.fingerprint(), "values": tensor_digest(truth.values)}
    return Row(TRUTH, (), "itself", {"kind": TRUTH, **stored})


def _row(name: str, given: MethodSpec, surrogate: MaskedModel, classifier: MaskedModel | None) -> Row:
    if isinstance(given, Explainer):
        if given.surrogate.grid != surrogate.grid or given.surrogate.num_classes != surrogate.num_classes:
            raise ValueError(
                f"{name} explains {shape_of(given.surrogate)}, but the surrogate has {shape_of(surrogate)}: "
                "an explainer is compared on its own surrogate"
            )
        return Row(name, (given,), "itself", _identity(given))
    if not isinstance(given, str | tuple):
        model = getattr(given, "model", None)
        on: RunsOn = "classifier" if classifier is not None and model is classifier else "surrogate"
        return Row(name, (given,), on, _identity(given), getattr(given, "class_specific", True))
    known, options = (given, {}) if isinstance(given, str) else (given[0], dict(given[1]))
    model, on = (surrogate, "surrogate") if classifier is None else (classifier, "classifier")
    METHODS.load(known, options)
    if known == "explainer":
        raise ValueError(f"{name}: give the Explainer itself, not its name")
    seeds = range(RANDOM_SEEDS) if known == RANDOM and "seed" not in options else ()
    try:
        made = tuple(method(known, model, seed=seed, **options) for seed in seeds) or (method(known, model, **options),)
    except TypeError as error:  # the value of an option
        raise OptionError(f"{name}: {error}") from error
    return Row(name, made, on, _identity(*made), getattr(made[0], "class_specific", True))


def _identity(*methods: MethodLike | Explainer) -> dict[str, Any] | None:
    first = methods[0]
    if isinstance(first, Explainer):
        weights, game = fingerprint(first.state_dict()), first.surrogate.fingerprint()
        return {"kind": "explainer", "weights": weights, "surrogate": game, "code": code_version(type(first.network))}
    if not isinstance(first, Method) or not isinstance(first.model, MaskedModel):
        return None  # what it depends on is not known: nothing is stored
    options = [
        {field.name: _plain(getattr(one, field.name)) for field in fields(one) if field.name not in _NOT_OPTIONS}
        for one in methods
        if isinstance(one, Method)
    ]
    weights = first.model.fingerprint()
    about = {"weights": weights, "players": _plain(first.model.players), "removal": first.model.removal}
    return {
        "kind": first.name,
        **about,
        "output": first.model.output,
        "options": options,
        "code": code_version(type(first)),
    }


def _plain(value: Any) -> Any:
    """Return an option as JSON, tensors by their digest."""
    if isinstance(value, Tensor):
        return tensor_digest(value)
    if isinstance(value, Players):
        return tensor_digest(value.labels)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if isinstance(value, int | float | str | bool | None) else repr(value)


def shape_of(model: MaskedModel) -> str:
    """Return grid and classes of a model in words."""
    return f"a grid of {' x '.join(map(str, model.grid))} and {model.num_classes} classes"
