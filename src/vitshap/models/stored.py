"""Bundles as folders: found by name, read only when every byte is what was written, and turned into wrapped models.

``config.json`` names the format, its version and the SHA-256 of each safetensors file. File names are this module's own,
never the configuration's, so that no configuration can point outside of its folder. There is no pickle, and a network is
built only from a description that ``architecture`` allows and that fits the stored tensors.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor, nn

from vitshap._version import __version__
from vitshap.errors import first_line
from vitshap.files import read_json
from vitshap.models.architecture import build, describe, shapes
from vitshap.models.base import fingerprint, pair, unwrapped
from vitshap.models.hub import HUB_ID, fetch, reason
from vitshap.models.masked import MaskedModel
from vitshap.models.preprocess import Preprocess
from vitshap.models.wrap import wrap
from vitshap.players import patches

FORMAT = "vitshap.explainer"
VERSION = 1
CONFIG, CARD = "config.json", "README.md"
SURROGATE, EXPLAINER, CLASSIFIER = "surrogate.safetensors", "explainer.safetensors", "classifier.safetensors"
QUALITY_LEVELS = 8
MOST_PIXELS = 1 << 24
"""Largest image size of a stored model, in pixels: v(0) is evaluated when it is loaded."""


class BundleError(ValueError):
    """A bundle that is missing, damaged, of another format or made for another model; the message is one line."""


def shipped() -> list[str]:
    """Return the names of the bundles in this package."""
    place = _shipped_folder()
    return sorted(path.parent.name for path in place.glob(f"*/{CONFIG}")) if place.is_dir() else []


def find(name: str | os.PathLike[str]) -> Path:
    """Return the folder of a shipped bundle, of a local one, or of a copy of a repository of the Hugging Face hub."""
    if name in shipped():
        return _shipped_folder() / str(name)
    path = Path(os.path.expanduser(name))
    if path.is_dir():
        return path
    why = f"{path} is a file, and a bundle is a folder" if path.exists() else "nor is it a hub id owner/name"
    if not path.exists() and isinstance(name, str) and HUB_ID.fullmatch(name):
        try:
            return fetch(name, [CONFIG, CARD, SURROGATE, EXPLAINER, CLASSIFIER])
        except Exception as error:  # the hub's client raises its own errors, its HTTP library's and the system's
            why = f"and it cannot be fetched from the Hugging Face hub: {reason(error)}"
    known = ", ".join(shipped()) or "there are none"
    raise BundleError(f"{str(name)!r} is neither a folder here nor a shipped bundle ({known}); {why}")


def is_bundle(name: str) -> bool:
    """Return whether this is the name or folder of a local bundle."""
    path = Path(os.path.expanduser(name)) / CONFIG
    if name in shipped():
        return True
    try:
        config = read_json(path) if path.is_file() else None
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("format") == FORMAT


def read_config(folder: Path) -> dict[str, Any]:
    """Read and check the configuration of a bundle."""
    config: dict[str, Any] = {}
    problem: str | None = f"{folder} holds no bundle: {CONFIG} is missing or not a regular file"
    if (folder / CONFIG).is_file():
        try:
            config = read_json(folder / CONFIG)
            problem = next(_config_problems(folder, config), None)
        except (OSError, ValueError) as error:
            problem = first_line(error)
    if problem is not None:
        raise BundleError(problem)
    return config


def _config_problems(folder: Path, config: Any) -> Iterator[str]:
    given = config if isinstance(config, dict) else {}
    if (kind := given.get("format")) != FORMAT:
        what = given.get("architectures") or given.get("model_type") or kind or "something else"
        yield f"{folder} is not a vitshap bundle: its {CONFIG} is of {what}"
    version = given.get("version")
    if not isinstance(version, int) or version < 1:
        yield f"{folder / CONFIG} has no format version, got {version!r}"
    elif version > VERSION:
        yield f"{folder} has format version {version}, vitshap {__version__} reads up to {VERSION}: upgrade vitshap"
    quality = given.get("quality")
    if not isinstance(quality, dict | None) or not _is_shallow(quality, QUALITY_LEVELS):
        yield f"{folder / CONFIG}: quality must be numbers and text by name, in at most {QUALITY_LEVELS} levels"


def read_checked(folder: Path, file: str, config: dict[str, Any]) -> dict[str, Tensor]:
    """Read the tensors of one of the three files after checking its hash."""
    path, hashes = folder / file, config.get("sha256")
    expected = hashes.get(file) if isinstance(hashes, dict) else None
    regular = path.is_file()  # reading a pipe or a device might never end
    data = path.read_bytes() if regular else b""  # read once, so that the bytes used are the bytes checked
    got = hashlib.sha256(data).hexdigest()
    if got != expected:
        why = f"is damaged: its SHA-256 is {got[:12]}..., expected {str(expected)[:12]}..."
        raise BundleError(f"{path} {why if regular else 'is missing or not a regular file'}")
    return load(data)


def load_surrogate(name: str | os.PathLike[str]) -> MaskedModel:
    """Return the surrogate of a bundle: the model whose values its explainer predicts."""
    folder = find(name)
    config = read_config(folder)
    with as_bundle_error(folder):
        surrogate = rebuild_model(folder, SURROGATE, config["surrogate"], config)
        surrogate.classifier_fingerprint = config["classifier"]["fingerprint"]
    return surrogate


@contextmanager
def as_bundle_error(folder: Path) -> Iterator[None]:
    """Convert the errors of a wrong configuration (a missing entry, a wrong type, an unknown class) to ``BundleError``."""
    try:
        with torch.random.fork_rng(devices=[]):  # drawing weights must not change the caller's random state
            yield
    except BundleError:
        raise
    except Exception as error:  # libraries raise errors of many types while building networks
        what = f"there is no entry {error}" if isinstance(error, KeyError) else first_line(error)
        raise BundleError(f"what {folder} describes cannot be built: {what}") from error


def describe_model(model: MaskedModel) -> dict[str, Any]:
    """Describe how the network is built and wrapped, with the fingerprint of its weights; ready for JSON."""
    players, preprocess = model.players, model.preprocess
    if model.removal == "random" or players.per_image:
        what = 'removal="random"' if model.removal == "random" else "players that differ between images"
        raise BundleError(f"{what} cannot be stored in a bundle: wrap the network with other options")
    if preprocess is not None and not isinstance(preprocess, Preprocess):
        warnings.warn(
            "preprocess is a function and cannot be stored: the loaded explainer takes tensors, not photos "
            "(a vitshap.models.Preprocess can be stored)",
            stacklevel=4,
        )
        preprocess = None
    plain = torch.equal(players.labels.cpu(), patches(model.grid).labels)
    wrapping = {
        "output": model.output,
        "removal": model.removal,
        "image_size": list(model.image_size),
        "players": "patch" if plain else players.labels[0].tolist(),
        "preprocess": None if preprocess is None else dataclasses.asdict(preprocess),
        "class_names": model.class_names,
    }
    return {"net": describe(unwrapped(model.net)), "wrap": wrapping, "fingerprint": model.fingerprint()}


def rebuild_model(folder: Path, file: str, entry: dict[str, Any], config: dict[str, Any]) -> MaskedModel:
    """Build the model that ``describe_model`` described, with the weights of ``file``."""
    tensors = read_checked(folder, file, config)
    # Before anything is allocated: a description may claim any size, but the tensors are known.
    check_fit(shapes(entry["net"], most_blocks=len(tensors)), tensors, set(), folder / file)
    given = entry["wrap"]
    if problem := next(_wrap_problems(given), None):
        raise BundleError(f"{folder / CONFIG}: {problem}")
    net = build(entry["net"]).eval()
    fill(net, tensors, set(), folder / file)
    model = wrap(
        net,
        output=given["output"],
        removal=given["removal"],
        image_size=pair(given["image_size"]),
        players=given["players"] if given["players"] == "patch" else torch.tensor(given["players"]),
        class_names=given["class_names"],
        check=False,  # it was checked when it was first wrapped
    )
    # Set after wrap, for which None means the network's own names and preprocessing.
    model.class_names = given["class_names"]
    fields = given["preprocess"]
    model.preprocess = None if fields is None else Preprocess(**tuples(fields))
    return model


def _wrap_problems(given: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a stored ``wrap`` entry before anything is allocated for it."""
    height, width = given["image_size"]
    if height * width > MOST_PIXELS:
        yield f"images of {height} x {width} pixels: more than {MOST_PIXELS:,} are not read"
    if given["players"] != "patch":
        labels = torch.tensor(given["players"])
        if int(labels.max()) >= labels.numel():
            yield f"the label map has {labels.numel()} patches and a player {int(labels.max())}"
    names = given["class_names"]
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        yield f"class_names must be a list of names, got {type(names).__name__}"
    fields = given["preprocess"]
    if fields is not None and list(fields["size"]) != [height, width]:
        yield f"photos are prepared as {fields['size']} pixels for a model of {[height, width]}"


def copied(module: nn.Module, state: Mapping[str, Tensor] | None = None, *, half: bool) -> dict[str, Tensor]:
    """Copy tensors of ``module`` (all, or ``state``) to the CPU.

    With ``half`` its parameters are rounded to 16 bits; buffers (scales, tables) are few and stay as they are.
    """
    learned = {name for name, _ in module.named_parameters()}
    copies = {}
    for name, tensor in (module.state_dict() if state is None else state).items():
        copy = tensor.detach().cpu()
        if half and name in learned:
            copy = copy.half()
            if not bool(copy.isfinite().all()):
                raise BundleError(f"{name} has values that 16 bits cannot hold: save with half=False")
        copies[name] = copy.contiguous().clone()  # safetensors refuses tensors that share memory
    return copies


def fill(module: nn.Module, tensors: dict[str, Tensor], may_lack: set[str], file: Path) -> None:
    """Load ``tensors`` into ``module``; every name and shape must fit."""
    own = {name: list(tensor.shape) for name, tensor in module.state_dict().items()}
    check_fit(own, tensors, may_lack, file)
    module.load_state_dict(tensors, strict=False)


def check_fit(own: Mapping[str, list[int]], tensors: Mapping[str, Tensor], may_lack: set[str], file: Path) -> None:
    """Raise ``BundleError`` unless ``tensors`` have the names and shapes of a network."""
    problems = [f"{name} is unexpected" for name in tensors if name not in own]
    problems += [f"{name} is missing" for name in own if name not in tensors and name not in may_lack]
    problems += [
        f"{name} is {list(tensors[name].shape)}, not {shape}"
        for name, shape in own.items()
        if name in tensors and list(tensors[name].shape) != shape
    ]
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise BundleError(f"the tensors of {file} do not fit the network that is described: {problems[0]}{more}")


def fingerprint_as_loaded(net: nn.Module, stored: Mapping[str, Tensor]) -> str:
    """Return the fingerprint that ``net`` will have when it is loaded from these tensors, which may be rounded."""
    own = unwrapped(net).state_dict()
    return fingerprint({name: stored[name].to(own[name].dtype) for name in own})


def tuples(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields of a dataclass read from JSON, which has no tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def _is_shallow(value: Any, levels: int) -> bool:
    """Return whether lists and mappings are nested at most ``levels`` deep."""
    if not isinstance(value, dict | list):
        return True
    return levels > 0 and all(
        _is_shallow(item, levels - 1) for item in (value.values() if isinstance(value, dict) else value)
    )


def _shipped_folder() -> Path:
    return Path(str(files("vitshap"))) / "bundles"
