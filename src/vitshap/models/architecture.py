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
    """What ``build`` makes an equal net from, ready for JSON; ``ValueError`` where there is no such thing."""
    library = type(net).__module__.partition(".")[0]
    if library not in _DESCRIBED:
        raise ValueError(
            f"{type(net).__name__} is of none of {', '.join(_DESCRIBED)}: it cannot be built from a description"
        )
    dtype = str(net_device_dtype(net)[1]).removeprefix("torch.")
    description = {"library": library, **_DESCRIBED[library](net), "dtype": dtype}
    difference = _difference(net, _without_weights(lambda: build(description)))
    if difference is not None:
        raise ValueError(
            f"{type(net).__name__} was changed since {library} built it and cannot be built again: {difference}"
        )
    return description


def build(description: dict[str, Any], /) -> nn.Module:
    """The net that ``describe`` described, with any weights; ``ValueError`` for whatever it never writes."""
    library, name, dtype = description["library"], description["name"], description["dtype"]
    if library not in _BUILT or dtype not in DTYPES:
        raise ValueError(f"nets are of {', '.join(_BUILT)} and of {', '.join(DTYPES)}; got {library!r}, {dtype!r}")
    package = _package(library)
    net: nn.Module = _BUILT[library](package, name, description["arguments"])
    if library == "transformers":
        if description["attention"] not in ATTENTIONS:
            raise ValueError(f"attention is one of {', '.join(ATTENTIONS)}; got {description['attention']!r}")
        net.config._attn_implementation = description["attention"]  # type: ignore[union-attr]
    return net.to(getattr(torch, dtype))


def shapes(description: dict[str, Any], /, *, most_blocks: int) -> dict[str, list[int]]:
    """Shapes of the tensors that a described net has, by name, without memory for them.

    ``ValueError`` where more than ``most_blocks`` blocks are described, before a module is made.
    """
    for key in DEPTHS:
        depth = description["arguments"].get(key, 0)
        if isinstance(depth, int | float) and depth > most_blocks:
            raise ValueError(f"{key} is {depth}, but there are {most_blocks} tensors")
    net = _without_weights(lambda: build(description))
    return {name: list(tensor.shape) for name, tensor in net.state_dict().items()}


def _describe_transformers(net: Any) -> dict[str, Any]:
    name = type(net).__name__
    if name not in ADAPTERS or getattr(_package("transformers"), name, None) is not type(net):
        raise ValueError(f"{name} is not one of transformers' own {', '.join(sorted(ADAPTERS))}")
    known = _transformers_arguments(type(net).config_class)
    arguments = {key: value for key, value in net.config.to_dict().items() if key in known}
    attention = net.config._attn_implementation
    return {"name": name, "arguments": arguments, "attention": attention if attention in ATTENTIONS else "sdpa"}


def _build_transformers(package: Any, name: str, arguments: dict[str, Any]) -> nn.Module:
    if name not in ADAPTERS:
        raise ValueError(f"{name!r} is not one of {', '.join(sorted(ADAPTERS))}")
    net_class = getattr(package, name)
    _check_names(arguments, _transformers_arguments(net_class.config_class), f"{name}'s configuration")
    labels = {int(key): label for key, label in (arguments.get("id2label") or {}).items()}  # JSON's keys are text
    net: nn.Module = net_class(net_class.config_class.from_dict({**arguments, "id2label": labels}))
    return net


def _transformers_arguments(config_class: Any) -> set[str]:
    common = set(_package("transformers").PreTrainedConfig().to_dict())
    return (set(config_class().to_dict()) - common) | set(LABELS)


def _describe_timm(net: Any) -> dict[str, Any]:
    timm = _package("timm")
    # A net that was made by its class and not by its name is described as a changed vit_base_patch16_224.
    name = (getattr(net, "pretrained_cfg", None) or {}).get("architecture") or "vit_base_patch16_224"
    if not timm.is_model(name):
        raise ValueError(f"timm {timm.__version__} has no model {name!r}")
    usual = _found(_without_weights(lambda: timm.create_model(name, pretrained=False)), TIMM_ARGUMENTS)
    arguments = {key: value for key, value in _found(net, TIMM_ARGUMENTS).items() if usual.get(key, ...) != value}
    return {"name": name, "arguments": arguments}


def _build_timm(package: Any, name: str, arguments: dict[str, Any]) -> nn.Module:
    if not package.is_model(name):  # also keeps names out that timm would fetch ("hf-hub:...")
        raise ValueError(f"timm {package.__version__} has no model {name!r}")
    _check_names(arguments, set(TIMM_ARGUMENTS), name)
    sizes = {key: tuple(value) for key, value in arguments.items() if isinstance(value, list)}  # JSON has no tuples
    net: nn.Module = package.create_model(name, pretrained=False, **{**arguments, **sizes})
    return net


def _describe_torchvision(net: Any) -> dict[str, Any]:
    if type(net) is not _package("torchvision").models.VisionTransformer:
        raise ValueError(f"of torchvision only VisionTransformer can be described, not {type(net).__name__}")
    return {"name": "VisionTransformer", "arguments": _found(net, TORCHVISION_ARGUMENTS)}


def _build_torchvision(package: Any, name: str, arguments: dict[str, Any]) -> nn.Module:
    if name != "VisionTransformer":
        raise ValueError(f"of torchvision only VisionTransformer is built, not {name!r}")
    _check_names(arguments, set(TORCHVISION_ARGUMENTS), name)
    net: nn.Module = package.models.VisionTransformer(**arguments)
    return net


_DESCRIBED = {"transformers": _describe_transformers, "timm": _describe_timm, "torchvision": _describe_torchvision}
_BUILT = {"transformers": _build_transformers, "timm": _build_timm, "torchvision": _build_torchvision}


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        extra = "vitshap[timm]" if name in ("timm", "torchvision") else name
        raise ValueError(f'this net is of {name}, which cannot be imported ({error}): pip install "{extra}"') from error


def _check_names(given: dict[str, Any], known: set[str], what: str) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        raise ValueError(f"{what} has no {', '.join(map(repr, unknown))}")


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
