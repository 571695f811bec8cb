"""A wrapped net as data and tensors, and back."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitshap.explainers.folders import BundleError, one_line, read_tensors
from vitshap.models import MaskedModel, Preprocess, wrap
from vitshap.models.architecture import build, describe
from vitshap.models.base import fingerprint, unwrapped
from vitshap.players import patches


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
        raise BundleError(one_line(error)) from error
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
    net = build(entry["net"]).eval()
    fill(net, tensors, set(), folder / file)
    given = entry["wrap"]
    model = wrap(
        net,
        output=given["output"],
        removal=given["removal"],
        image_size=tuple(given["image_size"]),
        players="patch" if given["players"] == "patch" else torch.tensor(given["players"]),
        check=False,  # it was checked when it was wrapped first
    )
    # Not by wrap, for which None means what the net itself says.
    model.class_names = given["class_names"]
    fields = given["preprocess"]
    model.preprocess = None if fields is None else Preprocess(**tuples(fields))
    return model


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
    own = module.state_dict()
    problems = [f"{name} is unexpected" for name in tensors if name not in own]
    problems += [f"{name} is missing" for name in own if name not in tensors and name not in may_lack]
    problems += [
        f"{name} is {list(tensors[name].shape)}, not {list(tensor.shape)}"
        for name, tensor in own.items()
        if name in tensors and tensors[name].shape != tensor.shape
    ]
    if problems:
        more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise BundleError(f"the tensors of {file} do not fit the net that is described: {problems[0]}{more}")
    module.load_state_dict(tensors, strict=False)


def fingerprint_as_loaded(net: nn.Module, stored: Mapping[str, Tensor]) -> str:
    """The fingerprint that ``net`` will have when it is loaded from these tensors, which may be rounded."""
    own = unwrapped(net).state_dict()
    return fingerprint({name: stored[name].to(own[name].dtype) for name in own})


def tuples(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of a dataclass after JSON, which has no tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
