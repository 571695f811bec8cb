"""What explains: a stored explainer, or any model with a method that evaluates it on many coalitions of patches."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitshap._version import __version__
from vitshap.explainers import Explainer, bundle
from vitshap.explainers.card import measured
from vitshap.explaining.budget import LADDER
from vitshap.explaining.entries import Summary
from vitshap.explaining.text import percent
from vitshap.methods import MethodLike, SamplingMethod, method
from vitshap.methods.registry import METHODS
from vitshap.models import MaskedModel
from vitshap.models.base import unwrapped
from vitshap.models.load import ModelSpec, load_with_warnings
from vitshap.models.stored import is_bundle
from vitshap.players import resolve

CONFIDENCE_THRESHOLD = 0.5
"""Confidence is low if the largest probability is below this, unless the bundle holds a measured threshold."""
NOT_FINE_TUNED = (
    "this model was not fine-tuned with withheld patches: its output for them, and so the values, may be unreliable"
)
RANDOM_VALUES = (
    "the method random explains nothing: its values are random numbers, a baseline that other methods are compared with"
)
EXPLAINER, RANDOM, REFINE = Explainer.name, "random", "refine"
NEEDS_REFERENCES = "expected-gradients"
"""A method that cannot work without images that only Python can give it."""
DEFAULT_METHOD = REFINE
"""Of models without an explainer, and for a requested accuracy."""
EXPLAINERS_VALUES = "the explainer's values"
"""What refine corrects with a bundle."""


@dataclass(frozen=True, eq=False)
class Source:
    """What explains the images, and what users should know about it."""

    model: MaskedModel
    method: MethodLike
    name: str
    """The bundle or the model, in words."""
    warnings: tuple[str, ...] = ()
    confidence_threshold: float | None = None
    """Confidence is low if the largest probability is below this; None: never."""
    settings: Mapping[str, str] = field(default_factory=dict)
    prior: str | None = None
    """What evaluations correct, in words, if the method is refine."""

    def low_confidence(self, prediction: Tensor) -> str | None:
        """Return the warning for one image if the largest of its outputs is a probability below the threshold."""
        best = float(prediction.max())
        if self.confidence_threshold is None or best >= self.confidence_threshold:
            return None
        count, threshold = self.model.num_classes, percent(self.confidence_threshold)
        return f"low confidence: best of {count} classes {percent(best, 1)} (threshold {threshold})"

    @property
    def budget(self) -> int | None:
        """Evaluations per image; None if the method does not sample."""
        return self.method.budget if isinstance(self.method, SamplingMethod) else None

    def with_budget(self, budget: int) -> Source:
        """Return the same source with this many evaluations per image; its method must sample."""
        assert isinstance(self.method, SamplingMethod)
        return replace(self, method=self.method.with_budget(budget))

    def with_method(self, name: str, players: int | None = None) -> Source:
        """Return the same model with another registered method; refine corrects an explainer's values."""
        corrects = name == REFINE and self.method.name == EXPLAINER and players is None
        options: dict[str, Any] = {"prior": self.method} if corrects else {}
        prior = EXPLAINERS_VALUES if corrects else _prior(name)
        return replace(self, method=_method(name, self.model, None, players, **options), prior=prior)

    @property
    def method_text(self) -> str:
        """The method's name, with the prior that it corrects if it has one."""
        return self.method.name if self.prior is None else f"{self.method.name}, prior: {self.prior}"

    @property
    def held_out(self) -> int | None:
        """Images that a stored explainer's standard errors were calibrated on; None without a calibration."""
        calibration = self.method.calibration if isinstance(self.method, Explainer) else None
        return None if calibration is None else calibration.images

    def with_progress(self, progress: Callable[[Any], None]) -> Source:
        """Return the same source, which calls ``progress`` with every partial estimate if its method samples."""
        if not isinstance(self.method, SamplingMethod):
            return self
        return replace(self, method=self.method.with_progress(progress))

    def summary(self, settings: Mapping[str, str]) -> Summary:
        """Return the facts for the head of a report."""
        names = self.model.class_names
        return Summary(
            source=self.name,
            method=self.method.name,
            outputs=self.model.unit,
            num_classes=self.model.num_classes,
            class_names=None if names is None else tuple(names),
            settings={**self.settings, **settings},
            versions=_versions(self.model),
            warnings=self.warnings,
        )


def open_bundle(
    name: str | None = None,
    /,
    *,
    method_name: str | None = None,
    budget: int | None = None,
    players: int | None = None,
    accuracy: float | None = None,
    classifier: MaskedModel | None = None,
    device: str | torch.device = "cpu",
) -> Source:
    """Load a stored explainer by name or folder (default: the first one shipped), or its surrogate with another method.

    ``accuracy`` is the estimated correlation with the exact values at which a sampling method stops, by default refine.
    """
    known = bundle.shipped()
    if name is None and not known:
        raise ValueError(
            "no explainer is shipped with this installation: name one with --bundle FOLDER, or explain any model with "
            "--model NAME (of timm, or a hub id or folder of transformers)"
        )
    name = known[0] if name is None else name
    method_name = method_name or (EXPLAINER if accuracy is None else DEFAULT_METHOD)
    if method_name != EXPLAINER:
        METHODS.load(method_name)  # an unknown name is an error before the bundle is loaded
    config = bundle.read(name)
    explainer = bundle.load(name, classifier=classifier, device=device)
    _require_preprocess(explainer.surrogate, f"the bundle {name}")
    quality = config.get("quality") or {}
    stored = config["surrogate"]["net"]
    source = Source(
        explainer.surrogate,
        explainer,
        f"bundle {name}: {stored['name']} of {stored['library']}",
        confidence_threshold=_threshold(quality, explainer.surrogate),
        settings={f"measured: {what}": value for what, value in measured(quality)},
    )
    if method_name == EXPLAINER:
        given = {"--budget": budget, "--accuracy": accuracy, "--players": players}
        option = next((name for name, value in given.items() if value is not None), None)
        if option is not None:
            raise ValueError(
                f"{option} belongs to other methods, such as --method kernelshap: an explainer needs no budget, and has "
                "the players that it was trained for"
            )
        return source
    own = {"prior": explainer} if method_name == REFINE and players is None else {}
    options = {"prediction_by": "surrogate", **own}
    chosen = _method(method_name, explainer.surrogate, budget, players, accuracy, **options)
    prior = EXPLAINERS_VALUES if own else _prior(method_name)
    settings = {} if prior is None else {"prior": prior}  # what was measured was the explainer
    return replace(source, method=chosen, settings=settings, prior=prior, warnings=_about(method_name))


def open_model(
    name: str,
    /,
    *,
    weights: str | None = None,
    method_name: str | None = None,
    budget: int | None = None,
    players: int | None = None,
    accuracy: float | None = None,
    device: str | torch.device = "cpu",
) -> Source:
    """Load any model of timm (``weights``: a safetensors file) or transformers, with a registered method.

    ``accuracy`` is the estimated correlation with the exact values at which a sampling method stops.
    """
    method_name = method_name or DEFAULT_METHOD
    if method_name == EXPLAINER:
        raise ValueError("--method explainer needs a stored explainer: give --bundle too, or another method")
    METHODS.load(method_name)
    model, messages = load_with_warnings(ModelSpec(name, weights=weights, option="--{}"))
    _require_preprocess(model, f"the model {name}")
    model.to(device)
    doubts = () if is_bundle(name) else (NOT_FINE_TUNED,)  # a bundle's surrogate was fine-tuned
    given = "" if weights is None else f", weights {Path(weights).name}"
    prior = _prior(method_name)
    return Source(
        model,
        _method(method_name, model, budget, players, accuracy),
        f"model {name}{given}",
        warnings=(*_about(method_name), *doubts, *messages),
        settings={} if prior is None else {"prior": prior},
        prior=prior,
    )


def open_source(
    bundle_name: str | None = None, model_name: str | None = None, *, weights: str | None = None, **options: Any
) -> Source:
    """Open a bundle, a model, or a bundle that must have been made for this model.

    ``options`` are those that ``open_bundle`` and ``open_model`` share.
    """
    if model_name is None:
        if weights is not None:
            raise ValueError("--weights are those of a model: name it with --model")
        return open_bundle(bundle_name, **options)
    if bundle_name is None:
        return open_model(model_name, weights=weights, **options)
    classifier, _ = load_with_warnings(ModelSpec(model_name, weights=weights, option="--{}"))
    return open_bundle(bundle_name, classifier=classifier, **options)


def source_of(model: MaskedModel, method: MethodLike | str | None, name: str) -> Source:
    """Return a source of a wrapped network and a method, or the method's name (default: refine)."""
    prior = None
    if method is None or isinstance(method, str):
        if method == EXPLAINER:
            raise ValueError("the method explainer needs an Explainer, or the name or folder of a bundle")
        prior = _prior(method or DEFAULT_METHOD)
        method = _method(method or DEFAULT_METHOD, model, None, None)
    threshold = _threshold(method.quality or {}, model) if isinstance(method, Explainer) else None
    return Source(model, method, name, warnings=_about(method.name), confidence_threshold=threshold, prior=prior)


def _about(method_name: str) -> tuple[str, ...]:
    return (RANDOM_VALUES,) if method_name == RANDOM else ()


def _prior(method_name: str) -> str | None:
    """Return what ``REFINE`` corrects for a model without an explainer."""
    return "patches with similar tokens have similar values" if method_name == REFINE else None


def _method(
    name: str,
    model: MaskedModel,
    budget: int | None,
    players: int | None,
    accuracy: float | None = None,
    **options: Any,
) -> MethodLike:
    if name == NEEDS_REFERENCES:
        raise ValueError(
            f"the method {name} compares with reference images, which cannot be given here: make it in Python, with "
            f'vitshap.method("{name}", model, references=images)'
        )
    if players is not None:
        if resolve(players, model.grid).num_players < 2:
            raise ValueError(f"--players {players} makes one player of all patches: give a smaller side")
        options["players"] = players
    if budget is not None:
        options["budget"] = budget
    if accuracy is not None:
        options["accuracy"] = accuracy
    try:
        made = method(name, model, **options)
    except TypeError as error:  # an option that this method does not have
        raise ValueError(str(error)) from error
    return made.with_budget(LADDER[0]) if isinstance(made, SamplingMethod) and budget is None else made


def _threshold(quality: Mapping[str, Any], model: MaskedModel) -> float | None:
    """Return the measured threshold, or the default; None for outputs that are not probabilities of several classes."""
    if model.unit != "probability" or model.num_classes == 1:
        return None
    threshold = quality.get("unknown_threshold", CONFIDENCE_THRESHOLD)
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
        raise ValueError(f"the bundle's unknown_threshold must be a probability, got {threshold!r}")
    return float(threshold)


def _require_preprocess(model: MaskedModel, what: str) -> None:
    if model.preprocess is None:
        raise ValueError(
            f"{what} does not say how to prepare photos: use it from Python, with wrap(net, preprocess=...)"
        )


def _versions(model: MaskedModel) -> dict[str, str]:
    library = type(unwrapped(model.net)).__module__.partition(".")[0]
    found = {"vitshap": __version__, "Python": platform.python_version()}
    for name in sorted({"torch", "transformers", library}):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a network of the user's own module
            continue
    return found
