"""Architectures as plain data: a description from which an equal network can be built, without a hub and without pickle.

A description may come from an untrusted source: it names a class of a fixed list (or a model of timm's own registry) and
arguments of a fixed list, and nothing else in it is ever looked up, called or downloaded. A network whose layers were
replaced by hand is not what its constructor makes, so ``describe`` builds the described network at once and compares
every module and number.
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
"""Of the fields common to all transformers configurations, those that are stored; the others vary between releases."""
ATTENTIONS = ("sdpa", "eager")
"""Other implementations of attention are installed separately or downloaded from a hub."""
DEPTHS = ("num_hidden_layers", "depth", "num_layers")
"""Names of the number of blocks in the libraries' configurations."""
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
"""Arguments of ``timm.create_model`` that may be described, and how they are read from a network."""

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
    """Build a described network, with arbitrary weights; ``ValueError`` for anything that ``describe`` never writes."""
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
    """Return the shapes of the tensors that a described network has, by name, without allocating them.

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
        return (
            _transformers_arguments(getattr(import_library(library), name).config_class) if name in ADAPTERS else None
        )
    if library == "timm":  # is_model also excludes names that timm would download ("hf-hub:...")
        return set(TIMM_ARGUMENTS) if import_library(library).is_model(name) else None
    return set(TORCHVISION_ARGUMENTS) if name == "VisionTransformer" else None


def _classes(library: str) -> Any:
    return import_library("torchvision").models if library == "torchvision" else import_library(library)


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
    net_class = getattr(import_library("transformers"), name)
    arguments = _selected(net_class.config_class, arguments)
    labels = {int(key): label for key, label in (arguments.get("id2label") or {}).items()}  # JSON's keys are text
    net: nn.Module = net_class(net_class.config_class.from_dict({**arguments, "id2label": labels}))
    return net


def _transformers_arguments(config_class: Any) -> set[str]:
    common = set(import_library("transformers").PreTrainedConfig().to_dict())
    return (set(config_class().to_dict()) - common - {"text_config"}) | set(LABELS)


def _describe_timm(net: Any) -> dict[str, Any]:
    timm = import_library("timm")
    # A network that was made by its class and not by its name is described as a modified vit_base_patch16_224.
    name = (getattr(net, "pretrained_cfg", None) or {}).get("architecture") or "vit_base_patch16_224"
    usual = _found(_without_weights(lambda: timm.create_model(name, pretrained=False)), TIMM_ARGUMENTS)
    arguments = {key: value for key, value in _found(net, TIMM_ARGUMENTS).items() if usual.get(key, ...) != value}
    return {"name": name, "arguments": arguments}


def _build_timm(name: str, arguments: dict[str, Any]) -> nn.Module:
    sizes = {key: tuple(value) for key, value in arguments.items() if isinstance(value, list)}  # JSON has no tuples
    net: nn.Module = import_library("timm").create_model(name, pretrained=False, **{**arguments, **sizes})
    return net


def _describe_torchvision(net: Any) -> dict[str, Any]:
    return {"name": type(net).__name__, "arguments": _found(net, TORCHVISION_ARGUMENTS)}


def _build_torchvision(name: str, arguments: dict[str, Any]) -> nn.Module:
    net: nn.Module = import_library("torchvision").models.VisionTransformer(**arguments)
    return net


_DESCRIBED = {"transformers": _describe_transformers, "timm": _describe_timm, "torchvision": _describe_torchvision}
_BUILT = {"transformers": _build_transformers, "timm": _build_timm, "torchvision": _build_torchvision}


def import_library(name: str) -> Any:
    """Import timm, transformers or torchvision; a ``ValueError`` says what to install if it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        extra = "vitshap[timm]" if name in ("timm", "torchvision") else name
        raise ValueError(
            f'this model is of {name}, which cannot be imported ({error}): pip install "{extra}"'
        ) from error


def _found(net: nn.Module, arguments: dict[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """Return the arguments that can be read from this network, with lists in place of tuples as in JSON."""
    found = {}
    for name, find in arguments.items():
        try:
            value = find(net)
        except (AttributeError, IndexError, TypeError):
            continue
        found[name] = list(value) if isinstance(value, tuple) else value
    return found


def _ratio(hidden: int, width: int) -> float:
    """Return the ratio from which timm, which rounds down, computes this hidden width."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else (hidden + 0.5) / width


def _without_weights(make: Callable[[], nn.Module]) -> nn.Module:
    """Build a network on the meta device, without memory, or on the CPU if its constructor needs values."""
    try:
        with torch.device("meta"):
            return make()
    except (RuntimeError, NotImplementedError):
        return make()


def _difference(net: nn.Module, other: nn.Module) -> str | None:
    """Return the first module, attribute or shape that differs; dropout and the like, used in training only, is ignored."""
    ours, theirs = _modules(net), _modules(other)
    ours |= {f"{name}'s shape": list(tensor.shape) for name, tensor in net.state_dict().items()}
    theirs |= {f"{name}'s shape": list(tensor.shape) for name, tensor in other.state_dict().items()}
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            return f"{name.removeprefix('.')} is {ours.get(name, 'absent')} instead of {theirs.get(name, 'absent')}"
    return None


def _modules(net: nn.Module) -> dict[str, Any]:
    """Return the class and the plain attributes (number of heads, eps, kind of pooling) of every module."""
    # Attributes that do not change the result; the number of classes is the shape of the head.
    ignored = {"training", "fused_attn", "grad_checkpointing", "gradient_checkpointing", "weight_init_mode", "fix_init"}
    ignored |= {"name_or_path", "num_classes"}
    found: dict[str, Any] = {}
    for name, module in net.named_modules():
        kind = type(module).__name__
        if isinstance(module, nn.Identity) or "Drop" in kind:
            continue
        found[f"{name}'s class"] = kind
        for key, value in vars(module).items():
            if key[0] == "_" or key in ignored or "drop" in key:
                continue
            if type(value) in (int, float, str, bool, tuple, list):
                found[f"{name}.{key}"] = list(value) if isinstance(value, tuple) else value
    return found
