"""Load models by name: a timm name, a folder or hub id of transformers, a plain ViT, or a bundle's surrogate.

Only this module and ``load_timm`` create networks by name. Python code in a folder is never run
(``trust_remote_code=False``), weights are read from safetensors files, and a folder whose configuration has more blocks
than its file has tensors is refused before anything is built.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from torch import Tensor, nn

from vitshap.compat import make_torchvision_importable
from vitshap.files import read_json
from vitshap.models.architecture import declared_depth
from vitshap.models.base import Adapter, pair
from vitshap.models.hub import HUB_ID, reachable_hub, reason
from vitshap.models.load_timm import TIMM_HUB, load_timm, timm_state
from vitshap.models.masked import MaskedModel
from vitshap.models.preprocess import Preprocess, read_processor
from vitshap.models.wrap import wrap

SIZES = {"tiny": (192, 12, 3), "small": (384, 12, 6), "base": (768, 12, 12), "large": (1024, 24, 16)}
"""Width, blocks and heads of plain vision transformers."""
PLAIN = "vit"
"""Name of transformers' plain ViT with random weights and the sizes in ``ModelSpec``."""


@dataclass(frozen=True)
class ModelSpec:
    """Which model to load, and how. By default the model is loaded as it is stored, with its own classes."""

    name: str
    """A timm name, a folder or hub id of transformers, a bundle (shipped name or folder: its surrogate), or "vit"."""
    library: Literal["auto", "transformers", "timm"] = "auto"
    """Library of the name; "auto": transformers for folders and for names with a slash, else timm."""
    pretrained: bool = True
    tag: str | None = None
    """Tag of timm's pre-trained weights, for names without one; None: timm's default."""
    weights: str | None = None
    """Safetensors file with the weights of a timm network; a head of another size is replaced."""
    class_names: tuple[str, ...] | None = None
    """Classes of the data; None: the model keeps its own head and classes."""
    keep_head: bool = False
    """Keep the model's own head although ``class_names`` are given, which then only name its outputs."""
    head_rows: tuple[int, ...] | None = None
    """Rows of the pre-trained head of a timm network that are kept, in this order."""
    fresh_head: Literal["library", "torch"] = "library"
    """How a new head of a timm network is initialised: as timm does, or as ``nn.Linear`` does."""
    channels: int | None = None
    """Channels of the images; None: the model's own."""
    image_size: int | None = None
    as_transformers: bool = False
    """Convert timm's network to the equal one of transformers, so that it loads without timm."""
    output: Literal["auto", "softmax", "sigmoid", "identity"] = "auto"
    removal: Literal["attention", "softmax", "pixels", "embeddings"] = "attention"
    crop: float | None = None
    resize: int | None = None
    squash: bool | None = None
    interpolation: str | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    """``crop`` to ``std`` override the model's own preprocessing."""
    seed: int = 0
    """Seed of randomly initialised weights."""
    size: str = "tiny"
    patch_size: int = 16
    hidden_size: int | None = None
    layers: int | None = None
    heads: int | None = None
    mlp_size: int | None = None
    raw_pixels: bool = False
    """``size`` to ``raw_pixels`` belong to "vit"; ``raw_pixels``: the input is not normalised."""
    option: str = "{}"
    """Format of option names in error messages: "--{}" for a command, "model.{}" for a recipe."""

    def option_name(self, key: str) -> str:
        """Return the name of an option for an error message."""
        return self.option.format(key)

    @property
    def own_head(self) -> bool:
        """Whether the model keeps its own head."""
        return self.keep_head or self.class_names is None


def load_model(spec: ModelSpec | str, /) -> MaskedModel:
    """Load a model and wrap it, on the CPU; the caller's random state does not change."""
    spec = ModelSpec(spec) if isinstance(spec, str) else spec
    library = _library(spec)
    if spec.own_head and spec.class_names is None and (surrogate := _surrogate(spec)) is not None:
        return surrogate
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(spec.seed)
        preprocess: Preprocess | None
        if spec.name == PLAIN:
            net, preprocess = _plain_vit(spec)
        elif library == "timm":
            net, preprocess = load_timm(spec)
        else:
            net, preprocess = _transformers(spec)
        preprocess = _adjusted(preprocess, spec)
        size = preprocess.size if preprocess is not None and library == "transformers" else None
        model = wrap(net, preprocess=preprocess, output=spec.output, image_size=size, removal=spec.removal)
    # A model that keeps its head has its own classes, in its own order, whatever the data's class names are.
    unnamed = model.class_names is None or not spec.own_head
    if spec.class_names is not None and unnamed and model.num_classes == len(spec.class_names):
        model.class_names = list(spec.class_names)
    return model


def load_with_warnings(spec: ModelSpec, /) -> tuple[MaskedModel, tuple[str, ...]]:
    """Load a model; return it with the texts of the warnings that concern it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        model = load_model(spec)
    package = Path(__file__).parents[1]
    texts = [(one, " ".join(str(one.message).split())) for one in caught]
    ours = [text for one, text in texts if Path(one.filename).is_relative_to(package) or spec.name in text]
    return model, tuple(dict.fromkeys(ours))


def pretrained_state(name: str, like: Adapter, needed: set[str], /) -> dict[str, Tensor]:
    """Return the weights of a pre-trained network of timm or transformers under the names of ``like.net``.

    ``needed``: names that must be in the file; all others may be initialised at random.
    """
    make_torchvision_importable()
    try:
        with torch.random.fork_rng(devices=[]), reachable_hub(name):
            if _library(ModelSpec(name)) == "timm":
                return timm_state(name, like)
            return _transformers_state(os.path.expanduser(name), needed)
    except Exception as error:  # a failed download raises one of many types
        raise ValueError(f"the pre-trained model {name!r} cannot be loaded: {reason(error)}") from error


def is_name(name: str, /) -> bool:
    """Return whether this can be the name of a model: a folder, a hub id or a timm name."""
    if Path(os.path.expanduser(name)).is_dir() or (HUB_ID.fullmatch(name) and not name.endswith(".safetensors")):
        return True
    try:
        import timm
    except ImportError:
        return False
    return bool(timm.is_model(name.partition(".")[0]))


def _library(spec: ModelSpec) -> str:
    if (
        spec.library != "auto" and spec.name != PLAIN
    ):  # "vit" replaces another model of a recipe, whatever its library was
        return spec.library
    if spec.name.startswith(TIMM_HUB):
        return "timm"
    local = Path(os.path.expanduser(spec.name)).is_dir()
    return "transformers" if spec.name == PLAIN or "/" in spec.name or local else "timm"


def _surrogate(spec: ModelSpec) -> MaskedModel | None:
    """Return the surrogate if the name is that of a local bundle."""
    from vitshap.models import stored

    return stored.load_surrogate(spec.name) if stored.is_bundle(spec.name) else None


def _plain_vit(spec: ModelSpec) -> tuple[nn.Module, Preprocess]:
    from transformers import ViTConfig, ViTForImageClassification

    if spec.class_names is None:
        raise ValueError(
            '"vit" names a family, not a trained model; give a name of timm, or a hub id or folder of transformers'
        )
    _refuse_timm_options(spec)
    width, layers, heads = SIZES[spec.size]
    width = spec.hidden_size or width
    side, channels = spec.image_size or 224, spec.channels or 3
    config = ViTConfig(
        image_size=side,
        patch_size=spec.patch_size,
        num_channels=channels,
        hidden_size=width,
        num_hidden_layers=spec.layers or layers,
        num_attention_heads=spec.heads or heads,
        intermediate_size=spec.mlp_size or 4 * width,
        **_labels(spec),
    )
    mean, std = (0.0, 1.0) if spec.raw_pixels else (0.5, 0.5)
    preprocess = Preprocess((side, side), (side, side), (mean,) * channels, (std,) * channels)
    return ViTForImageClassification(config), preprocess


def _transformers(spec: ModelSpec) -> tuple[nn.Module, Preprocess]:
    _refuse_timm_options(spec)
    place = os.path.expanduser(spec.name)
    with _quiet_transformers(), reachable_hub(spec.name):
        try:
            return _from_transformers(spec, place)
        except Exception as error:  # transformers raises errors of many types
            raise ValueError(f"the model {spec.name!r} cannot be loaded with transformers: {reason(error)}") from error


def _from_transformers(spec: ModelSpec, place: str) -> tuple[nn.Module, Preprocess]:
    from transformers import AutoConfig, AutoModelForImageClassification

    if problem := _folder_problem(spec.name, Path(place)):
        raise ValueError(problem)
    config = AutoConfig.from_pretrained(place, trust_remote_code=False, **({} if spec.own_head else _labels(spec)))
    vision = getattr(config, "vision_config", config)  # CLIP and SigLIP have a text encoder too
    channels = getattr(vision, "num_channels", spec.channels) or 3
    loaded: Mapping[str, Any] = {"mismatched_keys": (), "missing_keys": ()}
    if spec.pretrained:
        net, loaded = AutoModelForImageClassification.from_pretrained(
            place,
            config=config,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    else:
        net = AutoModelForImageClassification.from_config(config, trust_remote_code=False)
    if problem := next(_unfit(spec, loaded, net.config.num_labels, channels), None):
        raise ValueError(problem)
    side = None if spec.image_size is None else pair(spec.image_size)
    return net, read_processor(spec.name, side, pair(vision.image_size), channels)


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Suppress transformers' progress bars and tables for the duration of the context."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _folder_problem(name: str, folder: Path) -> str | None:
    """Return why a folder cannot be loaded, for example because there are fewer tensors than configured blocks."""
    if name.startswith(("/", ".", "~")) and not folder.is_dir():
        return f"there is no folder {name}"
    config, weights = folder / "config.json", folder / "model.safetensors"
    if not (config.is_file() and weights.is_file()):
        return None
    with safe_open(weights, "pt") as stored:
        tensors = len(stored.keys())
    depth = declared_depth(read_json(config))
    return f"its configuration has {depth:,} blocks, and its file {tensors} tensors" if depth > tensors else None


def _unfit(spec: ModelSpec, loaded: Mapping[str, Any], outputs: int, channels: int) -> Iterator[str]:
    """Yield why stored weights cannot be used. Only a head that is going to be trained may be missing or differ in size."""
    if spec.channels not in (None, channels):
        yield f"it takes {channels} channels: --set data.channels={channels}"
    for name, stored, own in loaded["mismatched_keys"]:
        if spec.own_head or tuple(own) != (outputs, *tuple(stored)[1:]):
            yield f"its weights do not fit its configuration: {name} is {list(stored)}, not {list(own)}"
    missing = sorted(loaded["missing_keys"])
    if spec.own_head and missing:
        yield f"it has no weights for {missing[0]}: it was not trained to classify, and its predictions would be random"
    if blocks := [name for name in missing if re.search(r"\.(layers?|blocks?)\.\d+\.", name)]:
        yield f"its file has no weights for {len(blocks)} tensors of its blocks, {blocks[0]} first"


def _transformers_state(place: str, needed: set[str]) -> dict[str, Tensor]:
    from transformers import AutoModelForImageClassification

    net, loaded = AutoModelForImageClassification.from_pretrained(
        place, trust_remote_code=False, use_safetensors=True, output_loading_info=True
    )
    if missing := sorted(needed & set(loaded["missing_keys"])):
        raise ValueError(f"its file has no weights for {missing[0]}")
    state: dict[str, Tensor] = net.state_dict()
    return state


def _adjusted(preprocess: Preprocess | None, spec: ModelSpec) -> Preprocess | None:
    """Return the preprocessing with the options' changes, and with one mean per channel."""
    keys = ("crop", "resize", "squash", "interpolation", "mean", "std")
    given = {key: getattr(spec, key) for key in keys if getattr(spec, key) is not None}
    if preprocess is not None:
        return preprocess.adjusted(spec.channels or len(preprocess.mean), **given)
    if given:
        raise ValueError(f"the preprocessing of {spec.name} is unknown: omit {spec.option_name(next(iter(given)))}")
    return None


def _refuse_timm_options(spec: ModelSpec) -> None:
    for key in ("weights", "head_rows", "as_transformers"):
        if getattr(spec, key):
            raise ValueError(f"{spec.option_name(key)} is for models of timm, not of transformers ({spec.name})")


def _labels(spec: ModelSpec) -> dict[str, Any]:
    names = spec.class_names or ()
    return {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
