"""Where an explainer's weights come from: the surrogate, the classifier, a file, another pre-trained net, the authors.

What the explainer reads of the trunk is found by asking for gradients, not by names: a classification head, whatever a
library calls it, is what gets none. It is not trained, and a file may lack it or have one for other classes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from vitshap.compat import make_torchvision_importable
from vitshap.errors import first_line
from vitshap.explainers.folders import CONFIG, HUB_ID
from vitshap.models import MaskedModel
from vitshap.models.base import Adapter, evaluating, unwrapped
from vitshap.models.convert import as_transformers

SOURCES = ("surrogate", "scratch", "classifier")
"""What ``ExplainerConfig.init`` may name; anything else is a file or a pre-trained net."""
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
    """Give ``trunk`` the weights that ``init`` names; what is ``read`` of it must be among them.

    ``adapter``: of a trunk that is a copy of the surrogate's net; None: a U-Net, which no pre-trained net fits.
    """
    if init == "scratch":
        forget(trunk)
    elif init == "classifier":
        if classifier is None:
            raise ValueError('init="classifier" needs the classifier: Explainer(surrogate, config, classifier=...)')
        if not isinstance(classifier, MaskedModel):
            raise TypeError(f"the classifier is a MaskedModel (vitshap.wrap makes it), got {type(classifier).__name__}")
        load(trunk, unwrapped(classifier.net).state_dict(), read, "the classifier")
    elif init != "surrogate":
        path = Path(os.path.expanduser(init))
        stored = read_file(path) if path.is_file() or adapter is None else pretrained(init, trunk, adapter, read)
        load(trunk, stored, read, init)


def pretrained(name: str, trunk: nn.Module, adapter: Adapter, read: set[str]) -> dict[str, Tensor]:
    """Weights of another pre-trained net (a name of timm, a folder or hub id of transformers) under ``trunk``'s names."""
    make_torchvision_importable()
    place = os.path.expanduser(name)
    folder = Path(place).is_dir()
    if folder and not (Path(place) / CONFIG).is_file():
        raise ValueError(f"init: the folder {name!r} holds no net of transformers: there is no {CONFIG} in it")
    of_timm = not folder and _is_timm(name)
    if not (folder or of_timm or (HUB_ID.fullmatch(name) and not name.endswith(".safetensors"))):
        raise ValueError(
            f"init is {', '.join(SOURCES)}, the path of a safetensors file, a name of timm, or a folder or hub id of "
            f"transformers; there is no {name!r}"
        )
    try:
        with torch.random.fork_rng(devices=[]):  # a fresh classification head is drawn and not used
            return _timm_weights(name, trunk, adapter) if of_timm else _transformers_weights(place, read)
    except Exception as error:  # a download that fails comes as one of many types
        own_code = "trust_remote_code" in str(error)
        why = "it needs Python code of its own, which is never run" if own_code else first_line(error)
        raise ValueError(f"init: the pre-trained net {name!r} cannot be loaded: {why}") from error


def _is_timm(name: str) -> bool:
    try:
        import timm
    except ImportError:
        return False
    return bool(timm.is_model(name.partition(".")[0]))


def _timm_weights(name: str, trunk: nn.Module, adapter: Adapter) -> dict[str, Tensor]:
    import timm

    options = {"img_size": adapter.image_size, "in_chans": adapter.channels, "num_classes": adapter.num_classes}
    converted = type(trunk).__module__.startswith("transformers.")
    if converted:
        options["dynamic_img_size"] = False  # which no net of transformers has
    net = timm.create_model(name, pretrained=True, **options)
    state: dict[str, Tensor] = (as_transformers(net) if converted else net).state_dict()
    return state


def _transformers_weights(place: str, read: set[str]) -> dict[str, Tensor]:
    from transformers import AutoModelForImageClassification

    net, loaded = AutoModelForImageClassification.from_pretrained(
        place, trust_remote_code=False, use_safetensors=True, output_loading_info=True
    )
    missing = sorted(read & set(loaded["missing_keys"]))
    if missing:
        raise ValueError(f"its file has no weights for {missing[0]}")
    state: dict[str, Tensor] = net.state_dict()
    return state


def convert_authors_state(state: Mapping[str, Tensor], /) -> dict[str, Tensor]:
    """The authors' explainer (their names of tensors) as the state of an ``ExplainerNetwork`` on timm's ViT.

    The network is that of ``ExplainerConfig(block_norm=False)``. Their file lacks the trunk's classification head, which
    is never used: ``explainer.network.load_state_dict(converted, strict=False)`` leaves it as it is.
    """
    state = dict(state)
    linear = sorted({int(name.split(".")[1]) for name in state if name.startswith("mlps.") and state[name].ndim == 2})
    normed = {int(name.split(".")[1]) for name in state if name.startswith("mlps.")} - set(linear)
    places = dict(zip(linear, (1, 3, 5), strict=False)) | dict.fromkeys(normed, 0)
    if len(linear) != 3 or len(normed) > 1:
        raise ValueError(
            f"the authors' head has a norm or none and 3 linear layers; got {len(normed)} and {len(linear)}"
        )
    found = {}
    for name, tensor in state.items():
        part, _, rest = name.partition(".")
        layer, _, kind = rest.rpartition(".")
        if part == "backbone":
            new = f"trunk.{rest}"
        elif part == "mlps":
            new = f"head.layers.{places[int(layer)]}.{kind}"
        elif part == "attention_blocks" and layer.startswith("0.") and layer[2:] in AUTHORS_BLOCK:
            new = f"head.block.{AUTHORS_BLOCK[layer[2:]]}.{kind}"
        else:
            raise ValueError(f"{name} is no tensor of the authors' explainer with at most one extra block")
        found[new] = tensor
    return found


def read_file(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or a ``ValueError`` that says what is wrong with it."""
    if not path.is_file():
        raise ValueError(f"a U-Net starts from scratch or from a safetensors file; there is no file {str(path)!r}")
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
