"""What ``vitshap evaluate`` compares: the models of a bundle or by name, test images, methods and metrics."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console

from vitshap.data import UNLABELLED, ImageData
from vitshap.data.archives import is_archive, unpacked
from vitshap.errors import OptionError, did_you_mean
from vitshap.estimators.truth import Truth
from vitshap.evaluation.columns import SUPPLIED, Column, parse_options
from vitshap.evaluation.result import RANDOM, TRUTH
from vitshap.evaluation.rows import MethodSpec
from vitshap.explainers import Explainer, bundle
from vitshap.explaining.photos import SUFFIXES
from vitshap.methods import TokenMethod, list_methods, method
from vitshap.methods.registry import METHODS
from vitshap.metrics import list_metrics
from vitshap.metrics.base import METRICS
from vitshap.models import MaskedModel
from vitshap.models.load import ModelSpec, load_with_warnings
from vitshap.models.stored import is_bundle
from vitshap.training.values import reference

EXPLAINER = "explainer"
DEFAULT_METHODS = (
    "attention-rollout",
    "gradcam-ln",
    "attnlrp",
    "integrated-gradients-embedding",
    "leave-one-out",
    "rise",
    RANDOM,
)
DEFAULT_METRICS = ("insertion", "deletion", "sensitivity-n", "faithfulness")
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "bool": ((bool,), "true or false"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "str": ((str,), "text"),
}
"""What a value on the command line may be, by the type of its option, and in words."""
_NO_TEXT = ("Callable", "ExplainableModel", "Sequence", "Tensor", "slice")
"""Types of options that only Python can give."""
MOST_EXACT = 20
"""Players up to which "all" includes exact values."""


@dataclass(frozen=True)
class Options:
    """What the user asked for; the help of ``vitshap evaluate`` describes the fields."""

    bundle: str | None
    data: str
    model: str | None = None
    weights: str | None = None
    layout: str = "auto"
    split: Literal["own", "authors"] = "own"
    cache: Path | None = None
    methods: str = ""
    metrics: str = ""
    images: int = 1000
    where: str | None = None
    target: str | None = None
    classes: Literal["target", "all"] = "target"
    truth: Path | None = None
    truth_images: int = 100
    budget: int = 65_536
    against: str | None = None
    batch: int | None = None
    device: str = "auto"
    compiled: bool = True
    out: Path = Path("vitshap-evaluation")
    dry_run: bool = False


@dataclass(frozen=True, eq=False)
class Loaded:
    """The models of a comparison."""

    surrogate: MaskedModel
    classifier: MaskedModel | None
    explainer: Explainer | None
    name: str


def load_models(options: Options, device: torch.device) -> Loaded:
    """Load surrogate, classifier and explainer of a bundle, or a model that is all that is known."""
    if options.bundle is None and options.model is None:
        raise ValueError("name what is compared on: a BUNDLE (folder, shipped name or hub id), or --model NAME")
    if options.weights is not None and options.model is None:
        raise ValueError("--weights are those of a model: name it with --model")
    given: MaskedModel | None = None
    if options.model is not None:
        given, _ = load_with_warnings(ModelSpec(options.model, weights=options.weights, option="--{}"))
        given = given.to(device)
    if options.bundle is None:
        assert given is not None
        return Loaded(given, None, None, f"model {options.model}")
    explainer = Explainer.from_pretrained(options.bundle, classifier=given, device=device)
    if given is None and "net" in bundle.read(options.bundle)["classifier"]:
        given = bundle.load_classifier(options.bundle, device=device)
    return Loaded(explainer.surrogate, given, explainer, f"bundle {options.bundle}")


def open_data(loaded: Loaded, options: Options) -> ImageData:
    """Open the test images; their classes must be the model's where labels are used.

    Without a bundle and where no label is used, all images of one folder without class folders are taken.
    """
    surrogate, explainer = loaded.surrogate, loaded.explainer
    by_label = options.target == "label" or (options.where or "").startswith("label=")
    how: dict[str, Any] = {"layout": options.layout, "split": options.split, "cache": options.cache}
    if explainer is not None:
        record = explainer.trained_on
        return reference.open_data(surrogate, options.data, **how, trained_on=record, labels=by_label).test
    if options.model is not None and is_bundle(options.model):  # its surrogate was trained on these images too
        how["trained_on"] = bundle.read(options.model).get(bundle.TRAINED_ON)
    try:
        any_classes = not by_label and surrogate.num_classes > 1
        return reference.open_data(surrogate, options.data, **how, any_classes=any_classes).test
    except ValueError:
        path = Path(options.data).expanduser()
        asked = by_label or options.layout != "auto" or options.split != "own"
        if asked or not (path.is_dir() or is_archive(path)):
            raise
        found = unlabelled_images(path, cache=options.cache, channels=surrogate.adapter.channels)
        if len({file.parent for file in found.images if isinstance(file, Path)}) > 1:
            raise
        return found


def unlabelled_images(path: Path, *, cache: Path | None = None, channels: int = 3) -> ImageData:
    """Return all images of a folder or archive, however they are laid out; their labels mean nothing."""
    path = path.expanduser()
    if not path.is_dir() and not is_archive(path):
        raise ValueError(f"{path} is neither a folder of images nor an archive (.tar, .tgz, .zip)")
    listed = unpacked(path, cache).rglob("*")
    files = sorted(one for one in listed if one.suffix.lower() in SUFFIXES and not one.name.startswith("."))
    if not files:
        raise ValueError(f"{path} holds no images")
    labels = torch.zeros(len(files), dtype=torch.long)
    return ImageData(files, labels, UNLABELLED, channels=channels, name=path.name)


def choose_methods(options: Options, loaded: Loaded, notes: Console) -> dict[str, MethodSpec]:
    """Return the rows that were asked for; random scores are always one of them."""
    known = [name for name in list_methods() if name != "exact" or loaded.surrogate.num_players <= MOST_EXACT]
    asked = options.methods.strip()
    words = known if asked == "all" else [word.strip() for word in asked.split(",") if word.strip()]
    if not words:
        words = [EXPLAINER, *DEFAULT_METHODS]
    if loaded.explainer is None and asked in ("", "all"):
        words = [word for word in words if word != EXPLAINER]
    rows: dict[str, MethodSpec] = {}
    model = loaded.classifier or loaded.surrogate
    for word in words:
        name, settings = _parsed(word)
        if name == EXPLAINER:
            rows[word] = _explainer(loaded)
        elif asked in ("", "all") and (reason := _unsuitable(name, model)):
            notes.print(f"{name} is left out: {reason}")
        else:
            rows[word] = (name, settings)
    if not any(word.partition(":")[0] == RANDOM for word in rows):
        rows[RANDOM] = RANDOM
    return rows


def _explainer(loaded: Loaded) -> Explainer:
    if loaded.explainer is None:
        raise ValueError("the method explainer needs a stored explainer: give a BUNDLE")
    return loaded.explainer


def _unsuitable(name: str, model: MaskedModel) -> str:
    """Return why a method that reads the network cannot explain this model; empty if it can."""
    try:
        made = method(name, model)
        if not isinstance(made, TokenMethod):
            return ""
        blank = torch.zeros(1, model.adapter.channels, *model.image_size, device=model.device)
        made(blank.to(next(model.net.parameters()).dtype), target=0)
    except (ValueError, TypeError, RuntimeError, NotImplementedError, AttributeError) as error:
        return " ".join(str(error).split())[:200] or type(error).__name__
    return ""


def choose_metrics(options: Options, truth: Truth | None) -> list[str]:
    known = list_metrics()
    if options.metrics.strip():
        return [word.strip() for word in options.metrics.split(",") if word.strip()]
    return [*(name for name in DEFAULT_METRICS if name in known), *(["error"] if truth and "error" in known else [])]


def check_words(options: Options) -> None:
    """Raise for unknown names before anything is loaded."""
    for word in options.metrics.split(","):
        name = word.strip().partition(":")[0]
        if name and name not in list_metrics():
            raise ValueError(f'no metric is named "{name}"{did_you_mean(name, list_metrics())}')
        if name:
            _check_values(METRICS.load(name), name, Column.parse(word).options)
    for word in options.methods.split(","):
        name, settings = _parsed(word.strip())
        if name == EXPLAINER and settings:
            raise ValueError(f'the method explainer has no options, got "{word.strip()}"')
        if name not in ("", "all"):
            _check_values(METHODS.load(name, settings), name, settings)


def check_against(options: Options, methods: Mapping[str, MethodSpec]) -> None:
    """Raise for a row of ``--against`` that the table is not going to have, before anything is computed."""
    rows = [*methods, *([] if options.truth is None else [TRUTH])]
    if options.against is not None and options.against not in rows:
        raise ValueError(f'no row is named "{options.against}"{did_you_mean(options.against, rows)}')


def _parsed(word: str) -> tuple[str, dict[str, Any]]:
    """Return name and options of a method."""
    name, *given = word.split(":")
    settings = parse_options(given, default="")
    if "" in settings:
        raise ValueError(f'options of a method are NAME:OPTION=VALUE, got "{word}"')
    return name, settings


def _check_values(found: Callable[..., Any], name: str, options: Mapping[str, Any]) -> None:
    """Raise for values of another type than the options'; names of types (``Precision``) are left to the methods."""
    for option, value in options.items():
        hint = inspect.signature(found).parameters[option].annotation
        text = hint if isinstance(hint, str) else inspect.formatannotation(hint)
        words = text.split(" | ")
        if option in SUPPLIED or text.startswith(_NO_TEXT):
            raise OptionError(f"{name}: {option} cannot be given on the command line")
        known = [_KINDS[word] for word in words if word in _KINDS]
        exact = all(word in _KINDS or word == "None" for word in words)
        if exact and not any(type(value) in kinds for kinds, _ in known):
            raise OptionError(f'{name}: {option} is {" or ".join(text for _, text in known)}, got "{value}"')
