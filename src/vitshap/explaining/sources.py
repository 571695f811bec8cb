"""What explains: a stored explainer, or any net with a method that asks it about many sets of patches."""

from __future__ import annotations

import difflib
import inspect
import platform
from collections.abc import Mapping
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
from vitshap.explaining.nets import load_model, reachable_hub
from vitshap.explaining.wanted import Wanted
from vitshap.explanation import Explanation
from vitshap.methods import MethodLike, Target, list_methods, method
from vitshap.models import MaskedModel
from vitshap.models.base import unwrapped
from vitshap.players import resolve
from vitshap.report import Summary
from vitshap.report.words import output_text

UNKNOWN_THRESHOLD = 0.5
"""Below this largest probability no class is said to fit, where the bundle does not say what was measured for it."""
NOT_FINE_TUNED = (
    "this net was not fine-tuned for missing patches: what it answers when patches are withheld, and so the values, "
    "may be odd"
)
BY_CHANCE = (
    "the method random explains nothing: its values are drawn by chance, whatever the net and the photo are; it is there "
    "for other methods to be compared with"
)
EXPLAINER, CHANCE = "explainer", "random"


@dataclass(frozen=True, eq=False)
class Source:
    """What explains, and what is to be said of it."""

    model: MaskedModel
    method: Explainer | MethodLike
    method_name: str
    name: str
    """The bundle or the net, in words."""
    warnings: tuple[str, ...] = ()
    unknown_below: float | None = None
    """No class fits where the largest probability is below this; None where nobody can say."""
    settings: Mapping[str, str] = field(default_factory=dict)

    def explain(self, pixels: Tensor, wanted: Wanted) -> Explanation:
        """Explain prepared images for at least the classes that are wanted."""
        if not wanted.depends_on_image:
            return self._call(pixels, wanted.fixed)
        if isinstance(self.method, Explainer):  # all classes come in the one pass, the prediction too
            return self._call(pixels, None)
        return self._call(pixels, wanted.choose)  # of the prediction that the method computes anyway

    def _call(self, pixels: Tensor, target: Target) -> Explanation:
        explanation: Explanation = self.method(pixels, target=target)
        return explanation

    def doubts(self, explanation: Explanation) -> tuple[str, ...]:
        """What makes the explanation of one image doubtful."""
        best = float(explanation.prediction.max())
        if self.unknown_below is None or best >= self.unknown_below:
            return ()
        said = output_text(best, "probability")
        return (
            f"none of the {self.model.num_classes} classes that it knows seems to fit this image: the best has {said}, "
            f"below {self.unknown_below:.0%}",
        )

    @property
    def budget(self) -> int | None:
        """Evaluations per image, where the method has a budget."""
        return getattr(self.method, "budget", None)

    def summary(self, settings: Mapping[str, str]) -> Summary:
        """For the head of a report."""
        names = self.model.class_names
        return Summary(
            source=self.name,
            method=self.method_name,
            outputs=self.model.unit,
            num_classes=self.model.num_classes,
            class_names=None if names is None else tuple(names),
            settings={**self.settings, **settings},
            versions=_versions(self.model),
            warnings=self.warnings,
        )

    def with_budget(self, budget: int) -> Source:
        """The same with so many evaluations per image."""
        return replace(self, method=replace(self.method, budget=budget))  # type: ignore[type-var]


def open_bundle(
    name: str | None = None,
    /,
    *,
    method_name: str | None = None,
    budget: int | None = None,
    players: int | None = None,
    classifier: MaskedModel | None = None,
    device: str | torch.device = "cpu",
) -> Source:
    """A stored explainer by name or folder (default: the first that is shipped), or its surrogate with another method."""
    known = bundle.shipped()
    if name is None and not known:
        raise ValueError(
            "no explainer is shipped with this installation: name one with --bundle FOLDER, or explain any net with "
            "--model NAME (of timm, or a hub id or folder of transformers)"
        )
    name = known[0] if name is None else name
    if method_name is not None:
        _known_method(method_name, list_methods())
    with reachable_hub(None if name in known else name):
        config = bundle.read(name)
        explainer = bundle.load(name, classifier=classifier, device=device)
    _need_preprocess(explainer.surrogate, f"the bundle {name}")
    quality = config.get("quality") or {}
    source = Source(
        explainer.surrogate,
        explainer,
        EXPLAINER,
        f"bundle {name}: {config['surrogate']['net']['name']} of {config['surrogate']['net']['library']}",
        unknown_below=_threshold(quality, explainer.surrogate),
        settings={f"measured: {what}": value for what, value in measured(quality)},
    )
    if method_name in (None, EXPLAINER):
        if budget is not None:
            raise ValueError(
                "--budget belongs to methods that sample, such as --method kernelshap: an explainer needs none"
            )
        if players is not None:
            raise ValueError(
                "--players belongs to other methods, such as --method kernelshap: an explainer has the players that it was "
                "trained for"
            )
        return source
    chosen = _method(str(method_name), explainer.surrogate, budget, players, prediction_by="surrogate")
    return replace(  # what was measured is of the explainer
        source, method=chosen, method_name=str(method_name), settings={}, warnings=_about(str(method_name))
    )


def open_model(
    name: str,
    /,
    *,
    weights: str | None = None,
    method_name: str | None = None,
    budget: int | None = None,
    players: int | None = None,
    device: str | torch.device = "cpu",
) -> Source:
    """Any net of timm (``weights``: a safetensors file) or transformers with a registered method."""
    if method_name == EXPLAINER:
        raise ValueError("--method explainer needs a stored explainer: give --bundle too, or another method")
    method_name = method_name or "kernelshap"
    _known_method(method_name, list_methods())
    model, said = load_model(name, weights)
    _need_preprocess(model, f"the model {name}")
    model.to(device)
    given = "" if weights is None else f", weights {Path(weights).name}"
    return Source(
        model,
        _method(method_name, model, budget, players),
        method_name,
        f"model {name}{given}",
        warnings=(*_about(method_name), NOT_FINE_TUNED, *said),
    )


def _about(method_name: str) -> tuple[str, ...]:
    return (BY_CHANCE,) if method_name == CHANCE else ()


def _known_method(name: str, known: list[str]) -> None:
    """Raise for a name that is unknown, with the known one that it resembles in letters or beginning, if any does."""
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.75) or [k for k in known if k[:4] == name[:4]]
    hint = f'did you mean "{near[0]}"?' if near else f"there are: {', '.join(known)}"
    raise ValueError(f'no method is named "{name}"; {hint}')


def _method(name: str, model: MaskedModel, budget: int | None, players: int | None, **options: Any) -> MethodLike:
    if players is not None:
        if resolve(players, model.grid).num_players < 2:
            raise ValueError(f"--players {players} makes one player of all patches: give a smaller side")
        options["players"] = players
    try:
        made = method(name, model, **options)
        if budget is not None or hasattr(made, "budget"):
            made = method(name, model, budget=budget or LADDER[0], **options)
    except TypeError as error:  # an option that this method does not have
        raise ValueError(str(error)) from error
    return made


def watched(source: Source, progress: Any) -> Source:
    """The same source, telling ``progress`` of every partial estimate, where its method can."""
    if "progress" not in inspect.signature(type(source.method)).parameters:
        return source
    return replace(source, method=replace(source.method, progress=progress))  # type: ignore[type-var]


def _threshold(quality: Mapping[str, Any], model: MaskedModel) -> float | None:
    """The measured threshold, or the stated constant; none for a single output, which fits or does not by its value."""
    if model.unit != "probability" or model.num_classes == 1:
        return None
    measured = quality.get("unknown_threshold", UNKNOWN_THRESHOLD)
    if isinstance(measured, bool) or not isinstance(measured, int | float) or not 0 <= measured <= 1:
        raise ValueError(f"the bundle's unknown_threshold must be a probability, got {measured!r}")
    return float(measured)


def _need_preprocess(model: MaskedModel, what: str) -> None:
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
        except PackageNotFoundError:  # a net of the user's own module
            continue
    return found
