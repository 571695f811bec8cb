"""A net without its weights, as plain data: enough to build an equal one anywhere, without a hub and without pickle.

Data from somewhere cannot be trusted: a description names a class of a fixed list (or a model of timm's own registry) and
arguments of a fixed list, and nothing else in it is ever looked up, called or downloaded. And it can lie by omission: a net
whose layers were exchanged by hand is not what its constructor made. So what is described is built again at once, and
every module and number of the two nets is compared.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from vitshap.models.base import net_device_dtype
from vitshap.models.huggingface import ADAPTERS

LABELS = ("id2label", "label2id", "problem_type")
"""Of what all transformers configurations have, only this belongs to the net; the rest changes from release to release."""
ATTENTIONS = ("sdpa", "eager")
"""Other kinds of attention are installed apart or fetched from a hub."""
DEPTHS = ("num_hidden_layers", "depth", "num_layers")
"""What the libraries call the number of blocks."""
DTYPES = ("float32", "float64", "bfloat16", "float16")

TIMM_ARGUMENTS: dict[str, Callable[[Any], Any]] = {
    "num_classes": attrgetter("num_classes"),
    "img_size": attrgetter("patch_embed.img_size"),
    "patch_size": attrgetter("patch_embed.patch_size"),
    "in_chans": attrgetter("patch_embed.proj.in_channels"),
    "global_pool": attrgetter("global_pool"),
    "embed_dim": attrgetter("embed_dim"),
    "depth": lambda net: len(net.blocks),
    "num_heads": lambda net: net.blocks[0].attn.num_heads,
    "mlp_ratio": lambda net: _ratio(net.blocks[0].mlp.fc2.in_features, net.embed_dim),
    "qkv_bias": lambda net: net.blocks[0].attn.qkv.bias is not None,
    "qk_norm": lambda net: not isinstance(net.blocks[0].attn.q_norm, nn.Identity),
    "init_values": lambda net: getattr(net.blocks[0].ls1, "init_values", None),
    "class_token": lambda net: net.cls_token is not None,
    "reg_tokens": attrgetter("num_reg_tokens"),
    "no_embed_class": attrgetter("no_embed_class"),
    "pre_norm": lambda net: not isinstance(net.norm_pre, nn.Identity),
    "pool_include_prefix": attrgetter("pool_include_prefix"),
    "dynamic_img_size": attrgetter("dynamic_img_size"),
}
"""Arguments of ``timm.create_model`` that may be described, and how they are found in a net."""

TORCHVISION_ARGUMENTS: dict[str, Callable[[Any], Any]] = {
    **{name: attrgetter(name) for name in ("image_size", "patch_size", "hidden_dim", "mlp_dim")},
    **{name: attrgetter(name) for name in ("dropout", "attention_dropout")},
    "num_layers": lambda net: len(net.encoder.layers),
    "num_heads": lambda net: net.encoder.layers[0].num_heads,
    "num_classes": lambda net: net.heads[-1].out_features,
    "representation_size": lambda net: net.heads[0].out_features if len(net.heads) > 1 else None,
}


def describe(net: nn.Module, /) -> dict[str, Any]:
    """Describe a network as ``build`` takes it, ready for JSON; ``ValueError`` if it cannot be built from a description."""
    kind = type(net)
    library = kind.__module__.partition(".")[0]
    own = library in _DESCRIBED and (library == "timm" or getattr(_classes(library), kind.__name__, None) is kind)
    if not own:
        raise ValueError(
            f"{kind.__name__} is not a class of {', '.join(_DESCRIBED)} itself: it cannot be built from a description"
        )
    dtype = str(net_device_dtype(net)[1]).removeprefix("torch.")
    description = {"library": library, **_DESCRIBED[library](net), "dtype": dtype}
    difference = _difference(net, _without_weights(lambda: build(description)))
    if difference is not None:
        raise ValueError(
            f"{kind.__name__} was changed since {library} built it and cannot be built again: {difference}"
        )
    return description


def build(description: dict[str, Any], /) -> nn.Module:
    """Build the network that ``describe`` described, with any weights; ``ValueError`` for what it never writes."""
    library, name, arguments = description["library"], description["name"], description["arguments"]
    attention = description["attention"] if library == "transformers" else None
    for given, known in ((library, _BUILT), (description["dtype"], DTYPES), (attention, (None, *ATTENTIONS))):
        if given not in known:
            raise ValueError(f"a stored network is described by one of {', '.join(map(str, known))}; got {given!r}")
    allowed = _arguments(library, name)
    unknown = f"{library} has no model {name!r} that can be stored" if allowed is None else None
    if allowed is not None and (odd := sorted(set(arguments) - allowed)):
        unknown = f"{name} has no argument {', '.join(map(repr, odd))}"
    if unknown is not None:
        raise ValueError(unknown)
    net: nn.Module = _BUILT[library](name, arguments)
    if attention is not None:
        net.config._attn_implementation = attention  # type: ignore[union-attr]
    return net.to(getattr(torch, description["dtype"]))


def shapes(description: dict[str, Any], /, *, most_blocks: int) -> dict[str, list[int]]:
    """Return the shapes of the tensors that a described network has, by name, without memory for them.

    ``ValueError`` where more than ``most_blocks`` blocks are described, before a module is made.
    """
    depth = declared_depth(description["arguments"])
    if depth > most_blocks:
        raise ValueError(f"there are {depth} blocks, but only {most_blocks} tensors")
    net = _without_weights(lambda: build(description))
    return {name: list(tensor.shape) for name, tensor in net.state_dict().items()}


def declared_depth(config: Any, /) -> int:
    """Return the largest number of blocks that a configuration names, in its sections too."""
    if not isinstance(config, dict):
        return 0
    named = [int(config[key]) for key in DEPTHS if isinstance(config.get(key), int | float)]
    return max([0, *named, *(declared_depth(value) for value in config.values())])


def _arguments(library: str, name: str) -> set[str] | None:
    """Return the arguments that a network of this name may be described with; None if the library has none of that name."""
    if library == "transformers":
        return _transformers_arguments(getattr(_package(library), name).config_class) if name in ADAPTERS else None
    if library == "timm":  # is_model also keeps names out that timm would download ("hf-hub:...")
        return set(TIMM_ARGUMENTS) if _package(library).is_model(name) else None
    return set(TORCHVISION_ARGUMENTS) if name == "VisionTransformer" else None


def _classes(library: str) -> Any:
    return _package("torchvision").models if library == "torchvision" else _package(library)


def _describe_transformers(net: Any) -> dict[str, Any]:
    arguments = _selected(type(net).config_class, net.config.to_dict())
    attention = net.config._attn_implementation
    return {
        "name": type(net).__name__,
        "arguments": arguments,
        "attention": attention if attention in ATTENTIONS else "sdpa",
    }


def _selected(config_class: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Return what may be described of a transformers configuration; of CLIP and SigLIP the text encoder is left out."""
    known = _transformers_arguments(config_class)
    sections = config_class.sub_configs
    return {
        key: _selected(sections[key], value) if key in sections else value
        for key, value in given.items()
        if key in known
    }


def _build_transformers(name: str, arguments: dict[str, Any]) -> nn.Module:
    net_class = getattr(_package("transformers"), name)
    arguments = _selected(net_class.config_class, arguments)
    labels = {int(key): label for key, label in (arguments.get("id2label") or {}).items()}  # JSON's keys are text
    net: nn.Module = net_class(net_class.config_class.from_dict({**arguments, "id2label": labels}))
    return net


def _transformers_arguments(config_class: Any) -> set[str]:
    common = set(_package("transformers").PreTrainedConfig().to_dict())
    return (set(config_class().to_dict()) - common - {"text_config"}) | set(LABELS)


def _describe_timm(net: Any) -> dict[str, Any]:
    timm = _package("timm")
    # A network that was made by its class and not by its name is described as a changed vit_base_patch16_224.
    name = (getattr(net, "pretrained_cfg", None) or {}).get("architecture") or "vit_base_patch16_224"
    usual = _found(_without_weights(lambda: timm.create_model(name, pretrained=False)), TIMM_ARGUMENTS)
    arguments = {key: value for key, value in _found(net, TIMM_ARGUMENTS).items() if usual.get(key, ...) != value}
    return {"name": name, "arguments": arguments}


def _build_timm(name: str, arguments: dict[str, Any]) -> nn.Module:
    sizes = {key: tuple(value) for key, value in arguments.items() if isinstance(value, list)}  # JSON has no tuples
    net: nn.Module = _package("timm").create_model(name, pretrained=False, **{**arguments, **sizes})
    return net


def _describe_torchvision(net: Any) -> dict[str, Any]:
    return {"name": type(net).__name__, "arguments": _found(net, TORCHVISION_ARGUMENTS)}


def _build_torchvision(name: str, arguments: dict[str, Any]) -> nn.Module:
    net: nn.Module = _package("torchvision").models.VisionTransformer(**arguments)
    return net


_DESCRIBED = {"transformers": _describe_transformers, "timm": _describe_timm, "torchvision": _describe_torchvision}
_BUILT = {"transformers": _build_transformers, "timm": _build_timm, "torchvision": _build_torchvision}


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        extra = "vitshap[timm]" if name in ("timm", "torchvision") else name
        raise ValueError(f'this net is of {name}, which cannot be imported ({error}): pip install "{extra}"') from error


def _found(net: nn.Module, arguments: dict[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """Those of the arguments that this kind of net has, lists in place of tuples as JSON has them."""
    found = {}
    for name, find in arguments.items():
        try:
            value = find(net)
        except (AttributeError, IndexError, TypeError):
            continue
        found[name] = list(value) if isinstance(value, tuple) else value
    return found


def _ratio(hidden: int, width: int) -> float:
    """The ratio that timm, which rounds down, makes this hidden width from."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else (hidden + 0.5) / width


def _without_weights(make: Callable[[], nn.Module]) -> nn.Module:
    """The net on the meta device, where large ones cost nothing, or a real one where its constructor reads numbers."""
    try:
        with torch.device("meta"):
            return make()
    except (RuntimeError, NotImplementedError):
        return make()


def _difference(net: nn.Module, other: nn.Module) -> str | None:
    """The first module, number or tensor that the two nets do not share; what acts in training only is passed over."""
    ours, theirs = _modules(net), _modules(other)
    ours |= {f"{name}'s shape": list(tensor.shape) for name, tensor in net.state_dict().items()}
    theirs |= {f"{name}'s shape": list(tensor.shape) for name, tensor in other.state_dict().items()}
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            return f"{name.removeprefix('.')} is {ours.get(name, 'absent')} instead of {theirs.get(name, 'absent')}"
    return None


def _modules(net: nn.Module) -> dict[str, Any]:
    """Class and plain attributes (numbers of heads, eps, kinds of pooling) of every module."""
    # Switches that change how the same numbers are computed; the number of classes is the shape of the head.
    passing = {"training", "fused_attn", "grad_checkpointing", "gradient_checkpointing", "weight_init_mode", "fix_init"}
    passing |= {"name_or_path", "num_classes"}
    found: dict[str, Any] = {}
    for name, module in net.named_modules():
        kind = type(module).__name__
        if isinstance(module, nn.Identity) or "Drop" in kind:
            continue
        found[f"{name}'s class"] = kind
        for key, value in vars(module).items():
            if key[0] == "_" or key in passing or "drop" in key:
                continue
            if type(value) in (int, float, str, bool, tuple, list):
                found[f"{name}.{key}"] = list(value) if isinstance(value, tuple) else value
    return found
