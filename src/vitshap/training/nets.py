"""From a recipe's model settings and data to a wrapped net: the right classes, names, channels and preprocessing."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from vitshap.compat import make_torchvision_importable
from vitshap.data import ImageData
from vitshap.models import MaskedModel, Preprocess, wrap
from vitshap.training.given_weights import keep_rows, load_state, one_line, read_state
from vitshap.training.recipes import ModelSettings

SIZES = {"tiny": (192, 12, 3), "small": (384, 12, 6), "base": (768, 12, 12), "large": (1024, 24, 16)}
"""Width, blocks and heads of plain vision transformers."""


def build_model(settings: ModelSettings, data: ImageData, *, keep_head: bool = False) -> MaskedModel:
    """The net for these images, wrapped, on the CPU.

    ``keep_head`` leaves a pre-trained net its own classes, for it is not going to be trained.
    """
    make_torchvision_importable()
    names = _class_names(settings, data)
    torch.manual_seed(settings.seed)
    preprocess: Preprocess | None
    if settings.name == "vit" and settings.library != "timm":
        net, preprocess = _plain_vit(settings, data, names)
    elif _library(settings) == "timm":
        net, preprocess = _timm(settings, data, names, keep_head)
    else:
        net, preprocess = _transformers(settings, data, names, keep_head)
    preprocess = _fitted(preprocess, settings, data.channels)
    size = settings.image_size if _library(settings) == "transformers" else None
    model = wrap(net, preprocess=preprocess, output=settings.output, image_size=size)
    # A net that is not trained here has classes of its own, in its own order, whatever the folders are called.
    unnamed = model.class_names is None or not keep_head
    if unnamed and model.num_classes == len(names):
        model.class_names = names
    return model


def _class_names(settings: ModelSettings, data: ImageData) -> list[str]:
    """One name per output; two classes under a sigmoid are one logit, that of the second."""
    names = list(data.class_names)
    if settings.output != "sigmoid":
        return names
    if len(names) != 2:
        raise ValueError(
            f"model.output sigmoid: images in folders have one class each, so it suits 2 classes, not {len(names)}"
        )
    return names[1:]


def _library(settings: ModelSettings) -> str:
    if settings.library != "auto":
        return settings.library
    if settings.name.startswith(("hf_hub:", "hf-hub:")):  # timm's own way to the hub
        return "timm"
    local = Path(settings.name).expanduser().is_dir()
    return "transformers" if settings.name == "vit" or "/" in settings.name or local else "timm"


def _plain_vit(settings: ModelSettings, data: ImageData, names: list[str]) -> tuple[nn.Module, Preprocess]:
    from transformers import ViTConfig, ViTForImageClassification

    _refuse(settings, "vit", "weights", "head_rows", "as_transformers")
    width, layers, heads = SIZES[settings.size]
    width = settings.hidden_size or width
    side = settings.image_size or 224
    config = ViTConfig(
        image_size=side,
        patch_size=settings.patch_size,
        num_channels=data.channels,
        hidden_size=width,
        num_hidden_layers=settings.layers or layers,
        num_attention_heads=settings.heads or heads,
        intermediate_size=settings.mlp_size or 4 * width,
        **_labels(names),
    )
    # Pixels that come as numbers are the net's input as they are; photos are centred.
    mean, std = (0.0, 1.0) if isinstance(data.images, Tensor) else (0.5, 0.5)
    preprocess = Preprocess((side, side), (side, side), (mean,) * data.channels, (std,) * data.channels)
    return ViTForImageClassification(config), preprocess


def _timm(
    settings: ModelSettings, data: ImageData, names: list[str], keep_head: bool
) -> tuple[nn.Module, Preprocess | None]:
    try:
        import timm
    except ImportError as error:
        raise ValueError(f"model {settings.name}: timm is not installed; pip install vitshap[timm]") from error
    if not timm.is_model(settings.name.partition(".")[0]) and not settings.name.startswith(("hf_hub:", "hf-hub:")):
        near = timm.list_models(f"*{settings.name.partition('.')[0]}*")[:3]
        hint = f"; near: {', '.join(near)}" if near else ""
        raise ValueError(f"timm has no model {settings.name!r}{hint}; a hub id of transformers is written owner/name")
    state = None if settings.weights is None else read_state(settings.weights)
    rows = settings.head_rows
    classes: int | None = len(names)
    if keep_head or rows is not None:  # as many as there are, first
        classes = len(state["head.weight"]) if state is not None and "head.weight" in state else None
    options: dict[str, Any] = {} if classes is None else {"num_classes": classes}
    if settings.image_size is not None:
        options["img_size"] = settings.image_size
    pretrained = settings.pretrained and state is None
    try:
        net = timm.create_model(settings.name, pretrained=pretrained, in_chans=data.channels, **options)
    except Exception as error:  # a download that fails comes as one of many types
        if not pretrained:
            raise
        raise ValueError(
            f"the pre-trained weights of {settings.name} cannot be had ({one_line(error)}): give a file with "
            "--set model.weights=PATH, or begin with random ones with --set model.pretrained=false"
        ) from error
    if state is not None:
        load_state(net, state, settings)
    if rows is not None:
        keep_rows(net, rows, len(names))
    side = net.patch_embed.img_size if hasattr(net, "patch_embed") else (224, 224)
    preprocess = Preprocess.from_timm(net, (int(side[0]), int(side[1])))
    if settings.as_transformers:
        from vitshap.models.convert import as_transformers

        return as_transformers(net, id2label=names if _outputs(net) == len(names) else None), preprocess
    return net, preprocess


def _transformers(
    settings: ModelSettings, data: ImageData, names: list[str], keep_head: bool
) -> tuple[nn.Module, Preprocess]:
    from transformers import AutoConfig, AutoModelForImageClassification

    _refuse(settings, "a transformers net", "weights", "head_rows", "as_transformers")
    labels = {} if keep_head else _labels(names)
    try:
        config = AutoConfig.from_pretrained(settings.name, **labels)
        if settings.pretrained:
            net, loaded = AutoModelForImageClassification.from_pretrained(
                settings.name,
                config=config,
                ignore_mismatched_sizes=True,
                use_safetensors=True,
                output_loading_info=True,
            )
            _require_all_but_the_head(net, loaded["mismatched_keys"])
        else:
            net = AutoModelForImageClassification.from_config(config)
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(
            f"the model {settings.name!r} cannot be loaded with transformers: {one_line(error)}"
        ) from error
    if getattr(config, "num_channels", data.channels) != data.channels:
        raise ValueError(
            f"{settings.name} takes {config.num_channels} channels: --set data.channels={config.num_channels}"
        )
    side = settings.image_size
    size = (side, side) if side else _pair(config.image_size)
    return net, _processor(settings.name, size)


def _require_all_but_the_head(net: nn.Module, mismatched: Iterable[Any]) -> None:
    """A head for other classes is drawn anew; anything else of another shape means another net."""
    for name, stored, own in mismatched:
        if tuple(own) != (_outputs(net), *tuple(stored)[1:]):
            raise ValueError(f"its weights do not fit its configuration: {name} is {list(stored)}, not {list(own)}")


def _processor(name: str, size: tuple[int, int]) -> Preprocess:
    """What the net's ``preprocessor_config.json`` says, read without the image classes, which need torchvision."""
    from transformers.utils import cached_file

    try:
        path = cached_file(name, "preprocessor_config.json")
        said = json.loads(Path(path).read_text())
    except (OSError, TypeError, ValueError):
        warnings.warn(f"{name} does not say how it wants its images: mean and deviation .5 are used", stacklevel=2)
        return Preprocess(size, size, (0.5,) * 3, (0.5,) * 3)
    height, width = size
    resize = said.get("size", {})
    if isinstance(resize, int):
        resize = {"shortest_edge": resize}
    if "shortest_edge" in resize and not said.get("do_center_crop"):
        resize = {"height": height, "width": width}
    processor = SimpleNamespace(
        size=resize or {"height": height, "width": width},
        do_center_crop=bool(said.get("do_center_crop")),
        crop_size={"height": height, "width": width},
        resample=said.get("resample", 2),
        do_normalize=said.get("do_normalize", True),
        image_mean=_per_channel(said.get("image_mean", 0.5)),
        image_std=_per_channel(said.get("image_std", 0.5)),
    )
    if not processor.do_center_crop:  # another size than the net was published with
        processor.size = {"height": height, "width": width}
    return Preprocess.from_image_processor(processor, size)


def _fitted(preprocess: Preprocess | None, settings: ModelSettings, channels: int) -> Preprocess | None:
    """With the crop that the settings want, and one mean per channel."""
    if preprocess is None:
        return None
    if len(preprocess.mean) != channels:
        mean, std = (sum(v) / len(v) for v in (preprocess.mean, preprocess.std))
        preprocess = replace(preprocess, mean=(mean,) * channels, std=(std,) * channels)
    if settings.crop is not None:
        if not 0 < settings.crop <= 1:
            raise ValueError(f"model.crop is a share between 0 and 1, got {settings.crop}")
        height, width = (int(side / settings.crop) for side in preprocess.size)
        preprocess = replace(preprocess, resize=(height, width))
    return preprocess


def _refuse(settings: ModelSettings, what: str, *keys: str) -> None:
    for key in keys:
        if getattr(settings, key):
            raise ValueError(f"model.{key} belongs to timm's nets, not to {what} ({settings.name})")


def _labels(names: list[str]) -> dict[str, Any]:
    return {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}


def _outputs(net: Any) -> int:
    return int(net.config.num_labels if hasattr(net, "config") else net.num_classes)


def _per_channel(given: Any) -> list[float]:
    return [float(number) for number in given] if isinstance(given, list | tuple) else [float(given)] * 3


def _pair(size: Any) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    return int(height), int(width)
