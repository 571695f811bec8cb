"""A wrapped net as data and tensors, and back."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitshap.errors import first_line
from vitshap.explainers.folders import BundleError, read_tensors
from vitshap.models import MaskedModel, Preprocess, wrap
from vitshap.models.architecture import build, describe, shapes
from vitshap.models.base import fingerprint, unwrapped
from vitshap.players import patches

MOST_PIXELS = 1 << 24
"""Of the images that a stored net takes; its first answer, v(0), is asked for when it is loaded."""


def describe_model(model: MaskedModel) -> dict[str, Any]:
    """How the net is built and wrapped, and the fingerprint of its weights; ready for JSON."""
    if model.removal == "random":
        raise BundleError('removal="random" cannot be stored: its patches come from a batch of images')
    players = model.players
    if players.per_image:
        raise BundleError("players that differ between images cannot be stored: wrap the net with one label map")
    preprocess = model.preprocess
    if preprocess is not None and not isinstance(preprocess, Preprocess):
        warnings.warn(
            "preprocess is a function and cannot be stored: the loaded explainer takes tensors, not photos "
            "(a vitshap.models.Preprocess can be stored)",
            stacklevel=4,
        )
        preprocess = None
    try:
        net = describe(unwrapped(model.net))
    except ValueError as error:
        raise BundleError(first_line(error)) from error
    plain = torch.equal(players.labels.cpu(), patches(model.grid).labels)
    wrapping = {
        "output": model.output,
        "removal": model.removal,
        "image_size": list(model.image_size),
        "players": "patch" if plain else players.labels[0].tolist(),
        "preprocess": None if preprocess is None else dataclasses.asdict(preprocess),
        "class_names": model.class_names,
    }
    return {"net": net, "wrap": wrapping, "fingerprint": model.fingerprint()}


def rebuild_model(folder: Path, file: str, entry: dict[str, Any], config: dict[str, Any]) -> MaskedModel:
    """The wrapped net that ``describe_model`` described, with the weights of ``file``."""
    tensors = read_tensors(folder, file, config)
    # Before anything of that size is built: a description may claim any size, the tensors are there.
    check_fit(shapes(entry["net"], most_blocks=len(tensors)), tensors, set(), folder / file)
    given = entry["wrap"]
    height, width = given["image_size"]
    if height * width > MOST_PIXELS:
        raise BundleError(
            f"{folder} is for images of {height} x {width} pixels: more than {MOST_PIXELS:,} are not read"
        )
    net = build(entry["net"]).eval()
    fill(net, tensors, set(), folder / file)
    model = wrap(
        net,
        output=given["output"],
        removal=given["removal"],
        image_size=(height, width),
        players=_players(given["players"]),
        check=False,  # it was checked when it was wrapped first
    )
    # Not by wrap, for which None means what the net itself says.
    model.class_names = _class_names(given["class_names"], model.num_classes, folder)
    fields = given["preprocess"]
    model.preprocess = None if fields is None else Preprocess(**tuples(fields))
    if model.preprocess is not None and model.preprocess.size != model.image_size:
        raise BundleError(f"{folder} prepares photos of {model.preprocess.size} pixels for a net of {model.image_size}")
    return model


def _players(given: Any) -> Any:
    if given == "patch":
        return given
    labels = torch.tensor(given)
    if int(labels.max()) >= labels.numel():  # before anything is allocated for that many
        raise BundleError(f"the label map has {labels.numel()} patches and a player {int(labels.max())}")
    return labels


def _class_names(given: Any, count: int, folder: Path) -> list[str] | None:
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != count or not all(isinstance(name, str) for name in given):
        many = f"{len(given)} entries" if isinstance(given, list) else type(given).__name__
        raise BundleError(f"class_names of {folder} must be {count} names, one per output; got {many}")
    return given


def copied(module: nn.Module, state: Mapping[str, Tensor] | None = None, *, half: bool) -> dict[str, Tensor]:
    """Tensors of ``module`` (all, or ``state``) copied to the CPU.

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
        copies[name] = copy.contiguous().clone()  # safetensors takes no shared memory
    return copies


def fill(module: nn.Module, tensors: dict[str, Tensor], may_lack: set[str], file: Path) -> None:
    """Load ``tensors`` into ``module``; every name and shape must fit."""
    own = {name: list(tensor.shape) for name, tensor in module.state_dict().items()}
    check_fit(own, tensors, may_lack, file)
    module.load_state_dict(tensors, strict=False)


def check_fit(own: Mapping[str, list[int]], tensors: Mapping[str, Tensor], may_lack: set[str], file: Path) -> None:
    """Compare ``tensors`` with the shapes that a net has, name by name."""
    problems = [f"{name} is unexpected" for name in tensors if name not in own]
    problems += [f"{name} is missing" for name in own if name not in tensors and name not in may_lack]
    problems += [
        f"{name} is {list(tensors[name].shape)}, not {shape}"
        for name, shape in own.items()
        if name in tensors and list(tensors[name].shape) != shape
    ]
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise BundleError(f"the tensors of {file} do not fit the net that is described: {problems[0]}{more}")


def fingerprint_as_loaded(net: nn.Module, stored: Mapping[str, Tensor]) -> str:
    """The fingerprint that ``net`` will have when it is loaded from these tensors, which may be rounded."""
    own = unwrapped(net).state_dict()
    return fingerprint({name: stored[name].to(own[name].dtype) for name in own})


def tuples(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of a dataclass after JSON, which has no tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
