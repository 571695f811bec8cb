"""An explainer as a folder that anyone can load: two nets, and all it takes to build them without asking a hub.

Loading builds the surrogate from its description, an explainer on its trunk as at the start of training, and then fills in
the explainer's tensors. So what the trunk still shares with the surrogate (all of it, if only the head was trained) and
what the explainer never reads (the trunk's classification head) need not be stored: the copy has it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitshap._version import __version__
from vitshap.errors import first_line
from vitshap.explainers import folders, weights
from vitshap.explainers.card import write_card
from vitshap.explainers.explainer import Explainer
from vitshap.explainers.folders import CLASSIFIER, EXPLAINER, SURROGATE, BundleError, shipped
from vitshap.explainers.network import ExplainerConfig
from vitshap.explainers.stored import (
    copied,
    describe_model,
    fill,
    fingerprint_as_loaded,
    rebuild_model,
    tuples,
)
from vitshap.models import MaskedModel
from vitshap.models.base import fingerprint, unwrapped

__all__ = ["BundleError", "load", "load_classifier", "read", "record", "save", "shipped"]

NULL_TOLERANCE = {False: 1e-3, True: 1e-2}
"""How far v(0) may move between machines, by whether the weights have been rounded to 16 bits."""


def save(
    explainer: Explainer,
    folder: str | os.PathLike[str],
    /,
    *,
    half: bool = False,
    include_classifier: MaskedModel | bool = False,
    quality: dict[str, Any] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write ``explainer`` with its surrogate into ``folder``: all of it, or nothing.

    Args:
        half: store weights in 16 bits; what is loaded computes in the net's own precision all the same.
        include_classifier: store the explained net too: the one that the explainer was made with (True), or this one.
            Without it its fingerprint alone is stored, if it is known.
        quality: what was measured, as plain numbers and text by name; None: what a loaded explainer was stored with.
        overwrite: replace a stored explainer that is there already.
    """
    folders.check_free(Path(os.path.expanduser(folder)).resolve(), overwrite=overwrite)  # before any work
    surrogate = explainer.surrogate
    left_out = _left_out(explainer)
    own = {name: tensor for name, tensor in explainer.state_dict().items() if name not in left_out}
    tensors = {SURROGATE: copied(unwrapped(surrogate.net), half=half), EXPLAINER: copied(explainer, own, half=half)}
    classifier: dict[str, Any] = {"fingerprint": explainer.classifier_fingerprint}
    if include_classifier:
        net = _included(explainer, include_classifier)
        tensors[CLASSIFIER] = copied(unwrapped(net.net), half=half)
        described = describe_model(net)
        classifier = {
            **described,
            "fingerprint": explainer.classifier_fingerprint or described["fingerprint"],
            "as_stored": fingerprint_as_loaded(net.net, tensors[CLASSIFIER]),
        }
    config = {
        "versions": _versions(surrogate),
        "surrogate": describe_model(surrogate),
        "explainer": {"config": _fields(explainer.network.config), "left_out": sorted(left_out)},
        "classifier": classifier,
        "half": half,
        "quality": explainer.quality if quality is None else quality,
    }
    try:
        return folders.write(folder, tensors, config, write_card(config), overwrite=overwrite)
    except (TypeError, ValueError) as error:
        if isinstance(error, BundleError):
            raise
        raise BundleError(f"quality must be finite numbers and text by name: {first_line(error)}") from error


def load(
    name: str | os.PathLike[str],
    /,
    *,
    classifier: MaskedModel | nn.Module | None = None,
    device: str | torch.device | None = None,
) -> Explainer:
    """The explainer of a folder, a shipped one by its name, or one of the Hugging Face hub by ``owner/name``.

    With ``classifier`` it must be the net that the explainer was made for, weight by weight.
    """
    if not isinstance(classifier, nn.Module | None):
        raise TypeError(f"classifier is a net, wrapped or not; got {type(classifier).__name__}")
    folder = folders.find(name)
    config = folders.read_config(folder)
    with _as_bundle_error(folder):
        surrogate = rebuild_model(folder, SURROGATE, config["surrogate"], config)
        if classifier is not None:
            _check_classifier(folder, config, classifier, surrogate)
        surrogate.classifier_fingerprint = config["classifier"]["fingerprint"]
        explainer = _explainer(folder, surrogate, config)
        explainer.classifier_as_stored = config["classifier"].get("as_stored")
        explainer.quality = config.get("quality")
    return explainer.to(device)


def load_classifier(name: str | os.PathLike[str], /, *, device: str | torch.device | None = None) -> MaskedModel:
    """The explained net, where it was stored with the explainer."""
    folder = folders.find(name)
    config = folders.read_config(folder)
    with _as_bundle_error(folder):
        if "net" not in config["classifier"]:
            raise BundleError(f"{folder} holds no classifier: it was saved without include_classifier")
        return rebuild_model(folder, CLASSIFIER, config["classifier"], config).to(device)


def read(name: str | os.PathLike[str], /) -> dict[str, Any]:
    """What ``config.json`` says, of the measured quality for one; no net is built."""
    return folders.read_config(folders.find(name))


def own_folder(name: str | os.PathLike[str], /) -> Path:
    """A stored explainer's folder that can be written to; a shipped name or a hub id is none."""
    place = Path(name)
    if not place.is_dir():
        raise BundleError(f"{place} is no folder: what was measured is recorded in a stored explainer's own folder")
    return place


def record(folder: str | os.PathLike[str], measured: dict[str, Any], /) -> None:
    """Write what was measured into a stored explainer's configuration and card; other entries stay."""
    place = own_folder(folder)
    config = folders.read_config(place)
    config["quality"] = {**(config.get("quality") or {}), **measured}
    try:
        folders.rewrite(place, config, write_card(config))
    except (TypeError, ValueError) as error:
        raise BundleError(f"quality must be finite numbers and text by name: {first_line(error)}") from error


@contextmanager
def _as_bundle_error(folder: Path) -> Iterator[None]:
    """Whatever a configuration can be wrong in (a missing entry, a type, an unknown class) is one kind of error."""
    try:
        with torch.random.fork_rng(devices=[]):  # weights are drawn and thrown away: the user's numbers stay in order
            yield
    except BundleError:
        raise
    except KeyError as error:
        raise BundleError(f"{folder / folders.CONFIG} is incomplete: there is no {error}") from error
    except Exception as error:  # libraries that build nets have errors of their own
        raise BundleError(f"what {folder} describes cannot be built: {first_line(error)}") from error


def _explainer(folder: Path, surrogate: MaskedModel, config: dict[str, Any]) -> Explainer:
    tensors = folders.read_tensors(folder, EXPLAINER, config)
    given = config["explainer"]["config"]
    rounded = bool(config["half"]) or config["surrogate"]["net"]["dtype"] in ("float16", "bfloat16")
    unknown = sorted(set(given) - {field.name for field in dataclasses.fields(ExplainerConfig)})
    if unknown:
        made = config["versions"]["vitshap"]
        raise BundleError(
            f"{folder} was made with vitshap {made}; this is {__version__}, which knows no {unknown[0]!r}"
        )
    settings = ExplainerConfig(**tuples(given))
    # Where training began is history: a file that it names is not read, and no weights are drawn for the trunk.
    explainer = Explainer(surrogate, dataclasses.replace(settings, init="surrogate"))
    explainer.network.config = settings
    stored, rebuilt = tensors.get("null_values"), explainer.null_values
    if stored is not None and stored.shape == rebuilt.shape:
        moved = float((stored - rebuilt).abs().max() / stored.abs().max().clamp(min=1))
        if not moved <= NULL_TOLERANCE[rounded]:
            raise BundleError(
                f"the surrogate in {folder} answers differently here: v(0) moved by {moved:.1e} "
                f"(made with {config['versions']}, here {_versions(surrogate)})"
            )
        if rounded:
            tensors["null_values"] = rebuilt.clone()  # v(0) of the game as it is played here, with rounded weights
    fill(explainer, tensors, set(config["explainer"]["left_out"]), folder / EXPLAINER)
    return explainer.eval()


def _left_out(explainer: Explainer) -> set[str]:
    """Names of tensors that a fresh explainer on this surrogate has already, or never reads."""
    network = explainer.network
    if network.adapter is None:  # a U-Net shares nothing with the surrogate
        return set()
    trunk, given = network.trunk, unwrapped(explainer.surrogate.net).state_dict()
    trained = [(parameter, parameter.requires_grad) for parameter in trunk.parameters()]
    try:
        _, read = weights.probe(trunk, network.adapter)
    finally:
        for parameter, flag in trained:
            parameter.requires_grad_(flag)
    return {
        f"network.trunk.{name}"
        for name, tensor in trunk.state_dict().items()
        if name not in read or (name in given and torch.equal(tensor, given[name]))
    }


def _included(explainer: Explainer, wanted: MaskedModel | bool) -> MaskedModel:
    """The explained net that is to be stored."""
    net = explainer.classifier if wanted is True else wanted
    if not isinstance(net, MaskedModel):
        raise BundleError(
            "include_classifier: the explained net is not known; give the wrapped net itself in place of True, or "
            "classifier= when the explainer is made"
        )
    known = {explainer.classifier_fingerprint, explainer.classifier_as_stored} - {None}
    if known and net.fingerprint() not in known:
        raise BundleError("include_classifier is not the net that this explainer was made for: its weights differ")
    return net


def _check_classifier(
    folder: Path, config: dict[str, Any], given: MaskedModel | nn.Module, surrogate: MaskedModel
) -> None:
    known = config["classifier"]["fingerprint"]
    # The surrogate itself will do: a classifier trained with masking is its own. Stored nets may have been rounded.
    ours = {known, config["classifier"].get("as_stored"), config["surrogate"]["fingerprint"], surrogate.fingerprint()}
    net = given.net if isinstance(given, MaskedModel) else given
    theirs = fingerprint(unwrapped(net).state_dict())
    if theirs in ours:
        return
    if known is None:
        raise BundleError(f"{folder} does not say which net it was made for, and its surrogate has other weights")
    raise BundleError(
        f"{folder} was made for another model: the weights given have the fingerprint {theirs[:12]}..., "
        f"expected {known[:12]}..."
    )


def _fields(config: ExplainerConfig) -> dict[str, Any]:
    fields = dataclasses.asdict(config)
    here = os.path.expanduser(config.init)
    if os.path.exists(here) or not folders.HUB_ID.fullmatch(config.init):
        fields["init"] = Path(here).name  # folders of this machine are nobody's business
    return fields


def _versions(model: MaskedModel) -> dict[str, str]:
    library = type(unwrapped(model.net)).__module__.partition(".")[0]
    return {"vitshap": __version__, **{name: version(name) for name in sorted({"torch", "transformers", library})}}
