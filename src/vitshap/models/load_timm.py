"""Load timm models by name, with downloaded weights or a weights file, and with a head for the data's classes."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vitshap.files import read_tensors, state_difference
from vitshap.models.architecture import import_library
from vitshap.models.base import Adapter
from vitshap.models.convert import as_transformers
from vitshap.models.hub import reachable_hub, reason
from vitshap.models.preprocess import Preprocess

if TYPE_CHECKING:
    from vitshap.models.load import ModelSpec

TIMM_HUB = ("hf_hub:", "hf-hub:")
"""Prefixes of timm's names of models on the hub."""


def load_timm(spec: ModelSpec) -> tuple[nn.Module, Preprocess | None]:
    """Create the network of ``spec`` with its weights and head; return it with its preprocessing."""
    name, state = _timm_name(spec), None if spec.weights is None else _given_weights(spec)
    options: dict[str, Any] = {"img_size": spec.image_size, "in_chans": spec.channels}
    if spec.class_names is not None and not spec.own_head and spec.head_rows is None:
        options["num_classes"] = len(spec.class_names)
    elif state is not None and "head.weight" in state:  # the head of the file
        options["num_classes"] = len(state["head.weight"])
    options = {key: value for key, value in options.items() if value is not None}
    net = _create_timm(spec, name, state is None, options)
    if spec.fresh_head == "torch" and not spec.own_head and spec.head_rows is None:
        _linear_head(net, spec, "fresh_head").reset_parameters()
    if state is not None:
        _load_given(net, state, spec)
    if spec.head_rows is not None:
        _keep_rows(net, spec, spec.head_rows)
    side = net.patch_embed.img_size if hasattr(net, "patch_embed") else (224, 224)
    preprocess = Preprocess.from_timm(net, (int(side[0]), int(side[1])))
    if spec.as_transformers:
        names = spec.class_names
        return as_transformers(net, id2label=names if names and net.num_classes == len(names) else None), preprocess
    return net, preprocess


def _timm_name(spec: ModelSpec) -> str:
    """Return timm's name with its tag; ``ValueError`` if timm has no such model."""
    name, plain = spec.name, spec.name.partition(".")[0]
    timm = import_library("timm")
    if not timm.is_model(plain) and not name.startswith(TIMM_HUB):
        near = timm.list_models(f"*{plain}*")[:3]
        hint = f"; near: {', '.join(near)}" if near else ""
        raise ValueError(f"timm has no model {name!r}{hint}; a hub id of transformers is written owner/name")
    if spec.tag is None or "." in name or not timm.is_model(name):
        return name
    if timm.list_models(f"{name}.{spec.tag}", pretrained=True):
        return f"{name}.{spec.tag}"
    if spec.pretrained and spec.weights is None:
        warnings.warn(f"timm has no weights {spec.tag} of {name}: the default ones are used", stacklevel=2)
    return name


def _create_timm(spec: ModelSpec, name: str, download: bool, options: dict[str, Any]) -> Any:
    import timm

    if not (download and spec.pretrained):
        return timm.create_model(name, pretrained=False, **options)
    try:
        with reachable_hub(name):
            return timm.create_model(name, pretrained=True, **options)
    except Exception as error:  # a failed download raises one of many types
        random = "" if spec.own_head else f", or start from random ones with {spec.option_name('pretrained')} false"
        raise ValueError(
            f"the pre-trained weights of {name} cannot be loaded ({reason(error)}): "
            f"give a file with {spec.option_name('weights')}{random}"
        ) from error


def _given_weights(spec: ModelSpec) -> dict[str, Tensor]:
    """Read the weights file in float32; ``best.safetensors`` of a training prefixes names with "net."."""
    state = read_tensors(Path(os.path.expanduser(str(spec.weights))))
    ours = all(name.startswith("net.") for name in state)
    return {name.removeprefix("net.") if ours else name: value.float() for name, value in state.items()}


def _load_given(net: nn.Module, state: dict[str, Tensor], spec: ModelSpec) -> None:
    """Load all weights of the file; a head of another size is not loaded."""
    own = net.state_dict()
    for name in [name for name in state if name.startswith(("head.", "head_dist."))]:
        if name in own and own[name].shape != state[name].shape:
            state[name] = own[name]
    if difference := state_difference(own, state):
        weights = spec.option_name("weights")
        raise ValueError(f"{weights}: {spec.weights} does not hold the weights of {spec.name}: {difference}")
    net.load_state_dict(state)


def _keep_rows(net: Any, spec: ModelSpec, rows: tuple[int, ...]) -> None:
    """Reduce a pre-trained head to the rows of the data's classes."""
    head = _linear_head(net, spec, "head_rows")
    weight, bias = head.weight.detach(), head.bias.detach()
    many = len(spec.class_names or rows)
    if len(rows) != many or not all(0 <= row < len(weight) for row in rows):
        raise ValueError(
            f"{spec.option_name('head_rows')} must be {many} rows, one per class, of the head's "
            f"rows 0 to {len(weight) - 1}; got {list(rows)}"
        )
    net.reset_classifier(len(rows))
    with torch.no_grad():
        net.head.weight.copy_(weight[list(rows)])
        net.head.bias.copy_(bias[list(rows)])


def _linear_head(net: Any, spec: ModelSpec, key: str) -> nn.Linear:
    head = net.get_classifier()
    if type(head) is not nn.Linear:
        raise ValueError(f"{spec.option_name(key)}: the head of {spec.name} is not one linear layer")
    return head


def timm_state(name: str, like: Adapter) -> dict[str, Tensor]:
    """Return the pre-trained weights of a timm model under the names of ``like.net``."""
    import timm

    options = {"img_size": like.image_size, "in_chans": like.channels, "num_classes": like.num_classes}
    converted = type(like.net).__module__.startswith("transformers.")
    if converted:
        options["dynamic_img_size"] = False  # transformers' models have no such option
    net = timm.create_model(name, pretrained=True, **options)
    if converted:
        net = as_transformers(net)
    state: dict[str, Tensor] = net.state_dict()
    return state
