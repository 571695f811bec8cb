"""Bundles: an explainer and its surrogate in one folder, with all that is needed to build them without a hub.

Loading builds the surrogate from its description, an explainer on its trunk as at the start of training, and then fills in
the explainer's tensors. So what the trunk still shares with the surrogate (all of it, if only the head was trained) and
what the explainer never reads (the trunk's classification head) need not be stored. A new folder is written beside the
old one and takes its place by renaming when it is complete: a full disk leaves the old one as it was.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Collection
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from vitshap._version import __version__
from vitshap.errors import first_line
from vitshap.explainers.calibration import Calibration
from vitshap.explainers.card import write_card
from vitshap.explainers.explainer import Explainer
from vitshap.explainers.network import ExplainerConfig, probe
from vitshap.files import write_text
from vitshap.models import MaskedModel
from vitshap.models.base import fingerprint, unwrapped
from vitshap.models.hub import HUB_ID, upload
from vitshap.models.stored import (
    CARD,
    CLASSIFIER,
    CONFIG,
    EXPLAINER,
    FORMAT,
    SURROGATE,
    VERSION,
    BundleError,
    as_bundle_error,
    copied,
    describe_model,
    fill,
    find,
    fingerprint_as_loaded,
    load_surrogate,
    read_checked,
    read_config,
    rebuild_model,
    shipped,
    tuples,
)

__all__ = ["BundleError", "load", "load_classifier", "push", "read", "record", "record_calibration", "save", "shipped"]

TRAINED_ON = "trained_on"
"""Entry in the configuration: which images the training held out (``vitshap.data.SplitRecord``). A bundle may lack it."""
NULL_TOLERANCE = {False: 1e-3, True: 1e-2}
"""Largest change of v(0) between machines, by whether the weights have been rounded to 16 bits."""


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
        half: store weights in 16 bits; a loaded explainer still computes in the model's own precision.
        include_classifier: store the explained model too: the one that the explainer was made with (True), or this one.
            Without it only its fingerprint is stored, if it is known.
        quality: measured quality, as plain numbers and text by name; None: what a loaded explainer was stored with.
        overwrite: replace a bundle that is there already.
    """
    final = Path(os.path.expanduser(folder)).resolve()
    _check_free(final, overwrite=overwrite)  # before any work
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
        "format": FORMAT,
        "version": VERSION,
        "versions": _versions(surrogate),
        "surrogate": describe_model(surrogate),
        "explainer": {"config": _fields(explainer.network.config), "left_out": sorted(left_out)},
        "classifier": classifier,
        "half": half,
        "quality": explainer.quality if quality is None else quality,
    }
    if explainer.calibration is not None:
        config["calibration"] = explainer.calibration.to_json()
    if explainer.trained_on is not None:
        config[TRAINED_ON] = explainer.trained_on
    _write(final, tensors, config)
    return final


def push(
    explainer: Explainer,
    name: str,
    /,
    *,
    private: bool = False,
    token: str | None = None,
    message: str = "Upload an explainer",
    **options: Any,
) -> str:
    """Upload ``explainer`` with its surrogate to the Hugging Face hub as ``owner/name``; return the commit's address.

    Args:
        private: whether a repository that is made for it can be read by its owner alone.
        token: access token; default: that of ``hf auth login`` or of the environment variable ``HF_TOKEN``.
        message: commit message.
        options: those of ``save``: ``half``, ``include_classifier`` and ``quality``.
    """
    if not HUB_ID.fullmatch(name):
        raise BundleError(f"a repository of the Hugging Face hub is named owner/name, got {name!r}")
    with tempfile.TemporaryDirectory() as folder:
        written = save(explainer, Path(folder) / "bundle", **options)
        return upload(written, name, replaces=["*.safetensors"], message=message, private=private, token=token)


def load(
    name: str | os.PathLike[str],
    /,
    *,
    classifier: MaskedModel | nn.Module | None = None,
    device: str | torch.device | None = None,
) -> Explainer:
    """Load the explainer of a folder, a shipped one by its name, or one of the Hugging Face hub by ``owner/name``.

    With ``classifier`` it must be the model that the explainer was made for, weight by weight.
    """
    folder = find(name)
    config = read_config(folder)
    with as_bundle_error(folder):
        surrogate = load_surrogate(folder)
        if classifier is not None:
            _check_classifier(folder, config, classifier, surrogate)
        explainer = _explainer(folder, surrogate, config)
        explainer.classifier_as_stored = config["classifier"].get("as_stored")
        explainer.quality = config.get("quality")
        explainer.trained_on = config.get(TRAINED_ON)
        if config.get("calibration") is not None:
            explainer.calibration = Calibration.from_json(
                config["calibration"], surrogate.num_players, surrogate.num_classes
            )
    return explainer.to(device)


def load_classifier(name: str | os.PathLike[str], /, *, device: str | torch.device | None = None) -> MaskedModel:
    """Load the explained model, where it was stored with the explainer."""
    folder = find(name)
    config = read_config(folder)
    with as_bundle_error(folder):
        if "net" not in config["classifier"]:
            raise BundleError(f"{folder} holds no classifier: it was saved without include_classifier")
        return rebuild_model(folder, CLASSIFIER, config["classifier"], config).to(device)


def read(name: str | os.PathLike[str], /) -> dict[str, Any]:
    """Read ``config.json``, for instance for the measured quality; no network is built."""
    return read_config(find(name))


def local_folder(name: str | os.PathLike[str], /) -> Path:
    """Return a bundle's local folder, which can be written to; ``BundleError`` for shipped names and hub ids."""
    place = Path(name)
    read_config(place)
    return place


def record(folder: str | os.PathLike[str], measured: dict[str, Any], /, *, replaces: Collection[str] = ()) -> None:
    """Add measured quality to a bundle's configuration and card; entries other than ``replaces`` are kept."""
    place = local_folder(folder)
    config = read_config(place)
    kept = {name: value for name, value in (config.get("quality") or {}).items() if name not in replaces}
    config["quality"] = {**kept, **measured}
    for name, text in ((CONFIG, _as_json(config)), (CARD, write_card(config))):
        write_text(place / name, text)


def record_calibration(folder: str | os.PathLike[str], calibration: Calibration, /) -> None:
    """Store a calibration in a bundle's configuration; its weights and its card stay as they are."""
    place = local_folder(folder)
    write_text(place / CONFIG, _as_json({**read_config(place), "calibration": calibration.to_json()}))


def _explainer(folder: Path, surrogate: MaskedModel, config: dict[str, Any]) -> Explainer:
    tensors = read_checked(folder, EXPLAINER, config)
    given = config["explainer"]["config"]
    rounded = bool(config["half"]) or config["surrogate"]["net"]["dtype"] in ("float16", "bfloat16")
    unknown = sorted(set(given) - {field.name for field in dataclasses.fields(ExplainerConfig)})
    if unknown:
        made = config["versions"]["vitshap"]
        raise BundleError(
            f"{folder} was made with vitshap {made}; this is {__version__}, which knows no {unknown[0]!r}"
        )
    settings = ExplainerConfig(**tuples(given))
    # Where training started is history: a file that it names is not read, and no weights are drawn for the trunk.
    explainer = Explainer(surrogate, dataclasses.replace(settings, init="surrogate"))
    explainer.network.config = settings
    stored, rebuilt = tensors.get("null_values"), explainer.null_values
    if stored is not None and stored.shape == rebuilt.shape:
        moved = float((stored - rebuilt).abs().max() / stored.abs().max().clamp(min=1))
        if not moved <= NULL_TOLERANCE[rounded]:
            raise BundleError(
                f"the surrogate in {folder} has other outputs here: v(0) changed by {moved:.1e} "
                f"(made with {config['versions']}, here {_versions(surrogate)})"
            )
        if rounded:
            tensors["null_values"] = rebuilt.clone()  # v(0) of the game as it is played here, with rounded weights
    fill(explainer, tensors, set(config["explainer"]["left_out"]), folder / EXPLAINER)
    return explainer.eval()


def _left_out(explainer: Explainer) -> set[str]:
    """Return the names of tensors that a new explainer on this surrogate has already, or never uses."""
    network = explainer.network
    if network.adapter is None:  # a U-Net shares nothing with the surrogate
        return set()
    trunk, given = network.trunk, unwrapped(explainer.surrogate.net).state_dict()
    trained = [(parameter, parameter.requires_grad) for parameter in trunk.parameters()]
    try:
        _, read = probe(trunk, network.adapter)
    finally:
        for parameter, flag in trained:
            parameter.requires_grad_(flag)
    return {
        f"network.trunk.{name}"
        for name, tensor in trunk.state_dict().items()
        if name not in read or (name in given and torch.equal(tensor, given[name]))
    }


def _included(explainer: Explainer, wanted: MaskedModel | bool) -> MaskedModel:
    """Return the explained model that is to be stored."""
    net = explainer.classifier if wanted is True else wanted
    known = {explainer.classifier_fingerprint, explainer.classifier_as_stored} - {None}
    if isinstance(net, MaskedModel) and (not known or net.fingerprint() in known):
        return net
    raise BundleError(
        "include_classifier is not the model that this explainer was made for: its weights differ"
        if isinstance(net, MaskedModel)
        else "include_classifier: the explained model is not known; give the wrapped model itself in place of True, or "
        "classifier= when the explainer is made"
    )


def _check_classifier(
    folder: Path, config: dict[str, Any], given: MaskedModel | nn.Module, surrogate: MaskedModel
) -> None:
    known = config["classifier"]["fingerprint"]
    # The surrogate itself will do: a classifier trained with masking is its own. Stored weights may have been rounded.
    ours = {known, config["classifier"].get("as_stored"), config["surrogate"]["fingerprint"], surrogate.fingerprint()}
    net = given.net if isinstance(given, MaskedModel) else given
    theirs = fingerprint(unwrapped(net).state_dict())
    if theirs not in ours:
        expected = "unknown: it was not stored" if known is None else f"{known[:12]}..."
        raise BundleError(
            f"{folder} was made for another model: the weights given have the fingerprint {theirs[:12]}..., "
            f"expected {expected}"
        )


def _fields(config: ExplainerConfig) -> dict[str, Any]:
    fields = dataclasses.asdict(config)
    here = os.path.expanduser(config.init)
    if os.path.exists(here) or not HUB_ID.fullmatch(config.init):
        fields["init"] = Path(here).name  # no paths of this machine
    return fields


def _versions(model: MaskedModel) -> dict[str, str]:
    library = type(unwrapped(model.net)).__module__.partition(".")[0]
    return {"vitshap": __version__, **{name: version(name) for name in sorted({"torch", "transformers", library})}}


def _as_json(config: dict[str, Any]) -> str:
    try:
        return json.dumps(config, indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise BundleError(f"quality must be finite numbers and text by name: {first_line(error)}") from error


def _check_free(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that exists; nothing but a bundle is ever replaced."""
    if folder.exists() and not (folder.is_dir() and overwrite):
        hint = "give overwrite=True to replace it, or another folder" if folder.is_dir() else "a bundle is a folder"
        raise BundleError(f"{folder} exists already: {hint}")
    if folder.exists() and any(folder.iterdir()):
        read_config(folder)


def _write(final: Path, tensors: dict[str, dict[str, Tensor]], config: dict[str, Any]) -> None:
    """Write a complete folder (tensors by file name), or change nothing."""
    partial = final.parent / f".{final.name}.{os.getpid()}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        for file, named in tensors.items():
            save_file(named, partial / file)
        hashes = {file: hashlib.sha256((partial / file).read_bytes()).hexdigest() for file in tensors}
        (partial / CONFIG).write_text(_as_json({**config, "sha256": hashes}), encoding="utf-8")
        (partial / CARD).write_text(write_card(config), encoding="utf-8")
        for file in tensors:
            shutil.copymode(partial / CONFIG, partial / file)  # safetensors lets nobody but its owner read
        _replace_folder(partial, final)
    except (OSError, SafetensorError) as error:
        raise OSError(f"{final} could not be written ({first_line(error)}); what was there is unchanged") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _replace_folder(partial: Path, final: Path) -> None:
    """Rename ``partial`` to ``final``; an old folder is renamed first, and renamed back if that fails."""
    aside = final.parent / f".{final.name}.{os.getpid()}.old"
    if final.exists():
        os.replace(final, aside)
    try:
        os.replace(partial, final)
    finally:
        if aside.exists() and not final.exists():
            os.replace(aside, final)
    shutil.rmtree(aside, ignore_errors=True)
