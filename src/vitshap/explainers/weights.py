"""Initial weights of an explainer: the surrogate's, the classifier's, a file's, another pre-trained model's, the authors'.

Which of the trunk's parameters the explainer uses is found by gradients, not by names: a classification head, whatever a
library calls it, has none. It is not trained, and a file may lack it or have one for other classes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from vitshap.files import read_tensors
from vitshap.models import MaskedModel
from vitshap.models.base import Adapter, unwrapped
from vitshap.models.load import is_name, pretrained_state

SOURCES = ("surrogate", "scratch", "classifier")
"""What ``ExplainerConfig.init`` may name; anything else is a file or a pre-trained model."""
AUTHORS_BLOCK = {
    "attn.qkv": "qkv",
    "attn.proj": "project",
    "norm1": "norm1",
    "norm2": "norm2",
    "mlp.fc1": "mlp.0",
    "mlp.fc2": "mlp.2",
}
"""Layers of the extra block: the authors' names and those of ``network.AttentionBlock``."""


def start(
    trunk: nn.Module, adapter: Adapter | None, init: str, read: set[str], classifier: MaskedModel | None = None
) -> None:
    """Load the weights that ``init`` names into ``trunk``; those in ``read``, which the explainer uses, must be there.

    ``adapter``: of a trunk that is a copy of the surrogate's network; None: a U-Net, which has no pre-trained models.
    """
    if init == "scratch":
        reinitialise(trunk)
    elif init == "classifier":
        if not isinstance(classifier, MaskedModel):
            raise ValueError(
                'init="classifier" needs the classifier, wrapped by vitshap.wrap: Explainer(surrogate, config, '
                f"classifier=...); got {type(classifier).__name__}"
            )
        load(trunk, unwrapped(classifier.net).state_dict(), read, "the classifier")
    elif init != "surrogate":
        path = Path(os.path.expanduser(init))
        if path.is_file() or adapter is None:
            stored = read_tensors(path)
        elif is_name(init):
            stored = pretrained_state(init, adapter, read)
        else:
            raise ValueError(
                f"init is {', '.join(SOURCES)}, the path of a safetensors file, a timm name, or a folder or hub id of "
                f"transformers; there is no {init!r}"
            )
        load(trunk, stored, read, init)


def convert_authors_state(state: Mapping[str, Tensor], /) -> dict[str, Tensor]:
    """Rename the tensors of the authors' explainer to those of an ``ExplainerNetwork`` on timm's ViT.

    The network is that of ``ExplainerConfig(block_norm=False)``. Their file lacks the trunk's classification head, which
    is never used: ``explainer.network.load_state_dict(converted, strict=False)`` leaves it as it is.
    """
    linear = sorted({int(name.split(".")[1]) for name in state if name.startswith("mlps.") and state[name].ndim == 2})
    normed = {int(name.split(".")[1]) for name in state if name.startswith("mlps.")} - set(linear)
    places = dict(zip(linear, (1, 3, 5), strict=False)) | dict.fromkeys(normed, 0)
    found = {_authors_name(name, places): tensor for name, tensor in state.items()}
    if None in found or len(linear) != 3:
        odd = next((name for name in state if _authors_name(name, places) is None), f"a head of {len(linear)} layers")
        raise ValueError(
            f"{odd} is no part of the authors' explainer: it has 3 linear layers and at most 1 extra block"
        )
    return {str(name): tensor for name, tensor in found.items()}


def _authors_name(name: str, places: Mapping[int, int]) -> str | None:
    part, _, rest = name.partition(".")
    layer, _, kind = rest.rpartition(".")
    if part == "backbone":
        return f"trunk.{rest}"
    if part == "mlps" and int(layer) in places:
        return f"head.layers.{places[int(layer)]}.{kind}"
    if part == "attention_blocks" and layer.startswith("0.") and layer[2:] in AUTHORS_BLOCK:
        return f"head.block.{AUTHORS_BLOCK[layer[2:]]}.{kind}"
    return None


def load(trunk: nn.Module, given: Mapping[str, Tensor], read: set[str], source: str) -> None:
    """Copy ``given`` into ``trunk``. All names in ``read`` must be there and fit; others are copied if they fit."""
    own = trunk.state_dict()
    problems = [f"{name} is missing" for name in own if name in read and name not in given]
    problems += [f"{name} is unexpected" for name in given if name not in own]
    problems += [
        f"{name} has shape {list(given[name].shape)} instead of {list(tensor.shape)}"
        for name, tensor in own.items()
        if name in read and name in given and given[name].shape != tensor.shape
    ]
    learned = [
        name for name, _ in trunk.named_parameters() if name in read and name in given
    ]  # buffers may be infinite
    problems += [f"{name} is not finite" for name in learned if not bool(torch.isfinite(given[name]).all())]
    if problems:
        more = f", and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise ValueError(f"the weights of {source} do not fit {type(trunk).__name__}: {', '.join(problems[:3])}{more}")
    fitting = {name: tensor for name, tensor in given.items() if tensor.shape == own[name].shape}
    trunk.load_state_dict(fitting, strict=False)


def reinitialise(net: nn.Module) -> None:
    """Initialise all weights: modules by ``reset_parameters``, other parameters (class token, positions) by a normal."""
    bare = {id(p): p for p in net.parameters()}
    for module in net.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
            for parameter in module.parameters(recurse=False):
                bare.pop(id(parameter), None)
    for parameter in bare.values():
        nn.init.trunc_normal_(parameter, std=0.02)
