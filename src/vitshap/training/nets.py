"""From a recipe's model settings and data to a wrapped net: the right classes, names, channels and preprocessing."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from vitshap.data import ImageData
from vitshap.errors import first_line
from vitshap.models import MaskedModel, Preprocess, wrap
from vitshap.training.given_weights import keep_rows, load_state, read_state
from vitshap.training.processes import kept_random_state
from vitshap.training.recipes import ModelSettings

SIZES = {"tiny": (192, 12, 3), "small": (384, 12, 6), "base": (768, 12, 12), "large": (1024, 24, 16)}
"""Width, blocks and heads of plain vision transformers."""


@kept_random_state()
def build_model(settings: ModelSettings, data: ImageData, *, keep_head: bool = False) -> MaskedModel:
    """The net for these images, wrapped, on the CPU.

    ``keep_head`` leaves a pre-trained net its own classes, for it is not going to be trained.
    """
    names = _class_names(settings, data)
    torch.default_generator.manual_seed(settings.seed)
    preprocess: Preprocess | None
    if settings.name == "vit":
        net, preprocess = _plain_vit(settings, data, names)
    elif _library(settings) == "timm":
        net, preprocess = _timm(settings, data, names, keep_head)
    else:
        with _read_by_transformers(settings.name):
            net, preprocess = _transformers(settings, data, names, keep_head)
    preprocess = _fitted(preprocess, settings, data.channels)
    size = preprocess.size if preprocess is not None and _library(settings) == "transformers" else None
    model = wrap(net, preprocess=preprocess, output=settings.output, image_size=size, removal=settings.removal)
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
    if settings.library != "auto" and settings.name != "vit":  # whatever a recipe says of the net that it had before
        return settings.library
    if settings.name.startswith(("hf_hub:", "hf-hub:")):  # timm's own way to the hub
        return "timm"
    local = Path(os.path.expanduser(settings.name)).is_dir()
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
    name = settings.name
    if not timm.is_model(settings.name.partition(".")[0]) and not settings.name.startswith(("hf_hub:", "hf-hub:")):
        near = timm.list_models(f"*{settings.name.partition('.')[0]}*")[:3]
        hint = f"; near: {', '.join(near)}" if near else ""
        raise ValueError(f"timm has no model {settings.name!r}{hint}; a hub id of transformers is written owner/name")
    if settings.tag is not None and "." not in name and timm.is_model(name):
        if timm.list_models(f"{name}.{settings.tag}", pretrained=True):
            name = f"{name}.{settings.tag}"
        elif settings.pretrained and settings.weights is None:
            warnings.warn(f"timm has no weights {settings.tag} of {name}: its usual ones are taken", stacklevel=2)
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
        net = timm.create_model(name, pretrained=pretrained, in_chans=data.channels, **options)
    except Exception as error:  # a download that fails comes as one of many types
        if not pretrained:
            raise
        raise ValueError(
            f"the pre-trained weights of {name} cannot be had ({first_line(error)}): give a file with "
            "--set model.weights=PATH, or begin with random ones with --set model.pretrained=false"
        ) from error
    if settings.fresh_head == "torch" and not keep_head and rows is None:
        _redraw_head(net, settings)
    if state is not None:  # with the head, if it is of the same classes
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
    if settings.name.startswith(("/", ".", "~")) and not Path(os.path.expanduser(settings.name)).is_dir():
        raise ValueError(f"there is no folder {settings.name}")
    labels = {} if keep_head else _labels(names)
    place = os.path.expanduser(settings.name)
    try:
        config = AutoConfig.from_pretrained(place, trust_remote_code=False, **labels)
        if settings.pretrained:
            net, loaded = AutoModelForImageClassification.from_pretrained(
                place,
                config=config,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,
                use_safetensors=True,
                output_loading_info=True,
            )
            _require_weights(net, loaded, keep_head)
        else:
            net = AutoModelForImageClassification.from_config(config, trust_remote_code=False)
        side = settings.image_size
        preprocess = _processor(settings.name, (side, side) if side else None, _pair(config.image_size))
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, SafetensorError) as error:
        own_code = "trust_remote_code" in str(error)
        why = "it needs Python code of its own, which is never run" if own_code else first_line(error)
        raise ValueError(f"the model {settings.name!r} cannot be loaded with transformers: {why}") from error
    if getattr(config, "num_channels", data.channels) != data.channels:
        raise ValueError(
            f"{settings.name} takes {config.num_channels} channels: --set data.channels={config.num_channels}"
        )
    return net, preprocess


@contextmanager
def _read_by_transformers(name: str) -> Iterator[None]:
    """No progress bars and tables of its own, and whatever a configuration leads it to is a ``ValueError``."""
    from transformers.utils import logging

    _check_depth(Path(os.path.expanduser(name)))
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {first_line(error)}"
        raise ValueError(f"the model {name!r} cannot be loaded with transformers: {why}") from error
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _check_depth(folder: Path) -> None:
    """Before a net is built: a configuration may claim any number of blocks, the tensors are there."""
    config, weights = folder / "config.json", folder / "model.safetensors"
    if not (config.is_file() and weights.is_file()):
        return
    try:
        depth = json.loads(config.read_text()).get("num_hidden_layers", 0)
        with safe_open(weights, "pt") as stored:
            tensors = len(stored.keys())
    except (OSError, ValueError, AttributeError, RecursionError, SafetensorError):
        return  # transformers says what is wrong with it
    if isinstance(depth, int | float) and depth > tensors:
        raise ValueError(f"the configuration in {folder} has {depth:,} blocks, and its file {tensors} tensors")


def _require_weights(net: nn.Module, loaded: dict[str, Any], keep_head: bool) -> None:
    """A head for other classes is drawn anew if it is going to be trained; anything else of another shape is not."""
    for name, stored, own in loaded["mismatched_keys"]:
        if keep_head or tuple(own) != (_outputs(net), *tuple(stored)[1:]):
            raise ValueError(f"its weights do not fit its configuration: {name} is {list(stored)}, not {list(own)}")
    missing = sorted(loaded["missing_keys"])
    if keep_head and missing:
        raise ValueError(
            f"it has no weights for {missing[0]}: it was not trained to classify, and would answer at random"
        )
    if blocks := [name for name in missing if re.search(r"\.(layers?|blocks?)\.\d+\.", name)]:
        raise ValueError(f"its file has no weights for {len(blocks)} tensors of its blocks, {blocks[0]} first")


def _processor(name: str, wanted: tuple[int, int] | None, usual: tuple[int, int]) -> Preprocess:
    """What the net's ``preprocessor_config.json`` says, read without the image classes, which need torchvision.

    ``wanted``: size of images; None: what the file says, which for some nets is not the ``usual`` size of the net
    (DINOv2 was trained at 518 pixels and is used at 224), or else that.
    """
    from transformers.utils import cached_file

    try:
        path = cached_file(os.path.expanduser(name), "preprocessor_config.json")
        said = {key: value for key, value in json.loads(Path(path).read_text()).items() if value is not None}
    except (OSError, TypeError, ValueError, AttributeError):
        warnings.warn(f"{name} does not say how it wants its images: mean and deviation .5 are used", stacklevel=2)
        size = wanted or usual
        return Preprocess(size, size, (0.5,) * 3, (0.5,) * 3)
    crops = bool(said.get("do_center_crop"))
    stated = _sides(said.get("crop_size" if crops else "size")) or usual
    size = wanted or stated
    if size != usual and not wanted:
        sizes = f"{usual[0]} x {usual[1]} pixels, and its preprocessor_config.json makes {size[0]} x {size[1]}"
        warnings.warn(f"{name} was made for images of {sizes}: these are used", stacklevel=2)
    resize = _resized(said.get("size"), size, stated) if crops else {"height": size[0], "width": size[1]}
    processor = SimpleNamespace(
        size=resize,
        do_center_crop=crops,
        crop_size={"height": size[0], "width": size[1]},
        resample=said.get("resample", 2),
        do_rescale=said.get("do_rescale", True),
        rescale_factor=said.get("rescale_factor", 1 / 255),
        do_normalize=said.get("do_normalize", True),
        image_mean=_per_channel(said.get("image_mean", 0.5)),
        image_std=_per_channel(said.get("image_std", 0.5)),
    )
    return Preprocess.from_image_processor(processor, size)


def _sides(given: Any) -> tuple[int, int] | None:
    """Height and width, where an image processor states both."""
    if isinstance(given, int):
        return given, given
    if isinstance(given, dict) and {"height", "width"} <= given.keys():
        return int(given["height"]), int(given["width"])
    return None


def _resized(given: Any, size: tuple[int, int], stated: tuple[int, int]) -> dict[str, int]:
    """What is cut from: as much larger than ``size`` as it is stated for ``stated``."""
    if isinstance(given, int):
        given = {"shortest_edge": given}
    elif not isinstance(given, dict):
        given = {"height": stated[0], "width": stated[1]}
    along = {"shortest_edge": 0, "height": 0, "width": 1}
    return {key: max(size[i], round(given[key] * size[i] / stated[i])) for key, i in along.items() if key in given}


def _fitted(preprocess: Preprocess | None, settings: ModelSettings, channels: int) -> Preprocess | None:
    """With what the settings say of it, and one mean per channel."""
    given = {key: getattr(settings, key) for key in ("squash", "interpolation", "mean", "std")}
    given = {key: value for key, value in given.items() if value is not None}
    if preprocess is None:
        if given or settings.resize or settings.crop:
            raise ValueError(
                f"how {settings.name} wants its images is not known: leave out model.{next(iter([*given, 'resize']))}"
            )
        return None
    preprocess = replace(preprocess, **{key: _to(value, len(preprocess.mean)) for key, value in given.items()})
    if len(preprocess.mean) != channels:
        mean, std = (sum(v) / len(v) for v in (preprocess.mean, preprocess.std))
        preprocess = replace(preprocess, mean=(mean,) * channels, std=(std,) * channels)
    if settings.crop is not None:
        if not 0 < settings.crop <= 1:
            raise ValueError(f"model.crop is a share between 0 and 1, got {settings.crop}")
        height, width = (int(side / settings.crop) for side in preprocess.size)
        preprocess = replace(preprocess, resize=(height, width))
    if settings.resize is not None:
        if settings.resize < max(preprocess.size):
            sides = f"{preprocess.size[0]} x {preprocess.size[1]}"
            raise ValueError(f"model.resize must be at least what the net takes ({sides}), got {settings.resize}")
        preprocess = replace(preprocess, resize=(settings.resize, settings.resize))
    return preprocess


def _to(value: Any, channels: int) -> Any:
    """A mean or deviation with as many numbers as there are channels."""
    if not isinstance(value, tuple) or len(value) == channels:
        return value
    return value * channels if len(value) == 1 else (sum(value) / len(value),) * channels


def _redraw_head(net: Any, settings: ModelSettings) -> None:
    """A fresh head with the weights that PyTorch gives a new linear layer."""
    head = net.get_classifier()
    if type(head) is not nn.Linear:
        raise ValueError(f"model.fresh_head torch: the head of {settings.name} is not one linear layer")
    head.reset_parameters()


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
