"""Where the weights of an explainer's trunk come from: the surrogate, the classifier, a file, or nowhere.

What the explainer reads of the trunk is found by asking for gradients, not by names: a classification head, whatever a
library calls it, is what gets none. It is not trained, and a file may lack it or have one for other classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from vitshap.models import MaskedModel
from vitshap.models.base import Adapter, evaluating, unwrapped

SOURCES = ("surrogate", "scratch", "classifier")
"""What ``ExplainerConfig.init`` may name; anything else is a path."""


def start(trunk: nn.Module, init: str, read: set[str], classifier: MaskedModel | None) -> None:
    """Give ``trunk`` (a copy of the surrogate's net) the weights that ``init`` names; ``read`` must be given by a file."""
    if init == "scratch":
        forget(trunk)
    elif init == "classifier":
        if classifier is None:
            raise ValueError('init="classifier" needs the classifier: Explainer(surrogate, config, classifier=...)')
        if not isinstance(classifier, MaskedModel):
            raise TypeError(f"the classifier is a MaskedModel (vitshap.wrap makes it), got {type(classifier).__name__}")
        load(trunk, unwrapped(classifier.net).state_dict(), read, "the classifier")
    elif init != "surrogate":
        load(trunk, read_file(init), read, init)


def read_file(path: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or a ``ValueError`` that says what is wrong with it."""
    if not Path(path).is_file():
        raise ValueError(f"init is {', '.join(SOURCES)} or the path of a safetensors file; there is no file {path!r}")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged or not a safetensors file: {error}") from error


def load(trunk: nn.Module, given: Mapping[str, Tensor], read: set[str], source: str) -> None:
    """Copy ``given`` into ``trunk``. All that is ``read`` must be there and fit; the rest is copied where it fits."""
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


def forget(net: nn.Module) -> None:
    """Draw all weights anew: modules by their own rule, bare parameters (class token, positions) by a narrow normal."""
    bare = {id(p): p for p in net.parameters()}
    for module in net.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
            for parameter in module.parameters(recurse=False):
                bare.pop(id(parameter), None)
    for parameter in bare.values():
        nn.init.trunc_normal_(parameter, std=0.02)


def encoded(adapter: Adapter, images: Tensor) -> Tensor:
    """Tokens of whole images after the final norm, ``[B, prefix + N, D]``."""
    tokens = adapter.embed(images)
    positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
    normed: Tensor = adapter.final_norm(adapter.encode(tokens, positions))
    return normed


def probe(trunk: nn.Module, adapter: Adapter) -> tuple[int, set[str]]:
    """The trunk's width, and the names of the parameters and buffers that its encoded tokens can depend on."""
    names, parameters = zip(*trunk.named_parameters(), strict=True)
    with torch.enable_grad(), evaluating(trunk):
        trunk.requires_grad_(True)
        tokens = encoded(adapter, parameters[0].new_ones(1, adapter.channels, *adapter.image_size))
        gradients = torch.autograd.grad(tokens[:, adapter.prefix :].float().sum(), parameters, allow_unused=True)
    read = {name for name, gradient in zip(names, gradients, strict=True) if gradient is not None}
    # Buffers have no gradients: they are taken to be read.
    return tokens.shape[-1], read | (trunk.state_dict().keys() - set(names))
