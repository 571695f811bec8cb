"""A net by its name, with its own classes and their names, ready to be asked about photos."""

from __future__ import annotations

import re
import warnings

import torch

from vitshap.data import ImageData
from vitshap.models import MaskedModel
from vitshap.models.base import unwrapped


def load_model(name: str, weights: str | None = None) -> tuple[MaskedModel, tuple[str, ...]]:
    """The net with its own classes, wrapped, and what should be said about it."""
    from vitshap.training.nets import build_model
    from vitshap.training.recipes import ModelSettings

    if name == "vit":
        raise ValueError(
            '"vit" names a family, not a trained net; give a name of timm, or a hub id or folder of transformers'
        )
    nobody = ImageData(torch.zeros(2, 3, 1, 1), torch.tensor([0, 1]), ("a", "b"))  # the net keeps its own classes
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        try:
            model = build_model(ModelSettings(name=name, weights=weights), nobody, keep_head=True)
        except ValueError as error:
            raise ValueError(_in_our_words(str(error))) from error
    model.class_names = model.adapter.class_names() or _imagenet_names(model)
    said = dict.fromkeys(" ".join(str(one.message).split()) for one in caught)
    return model, tuple(text for text in said if name in text)


def _in_our_words(message: str) -> str:
    """The training's settings under the names of this command's options."""
    message = re.sub(r"give a file with --set .*", "give a file with --weights", message)
    return message.replace("model.weights", "--weights")


def _imagenet_names(model: MaskedModel) -> list[str] | None:
    """timm's nets of 1,000 classes are ImageNet's; timm knows what they are called."""
    net = unwrapped(model.net)
    if model.num_classes != 1000 or not type(net).__module__.startswith("timm."):
        return None
    from timm.data import ImageNetInfo

    info = ImageNetInfo()
    whole = [str(info.index_to_description(index)) for index in range(1000)]  # "tench, Tinca tinca"
    short = [name.partition(",")[0] for name in whole]
    return [first if short.count(first) == 1 else name for first, name in zip(short, whole, strict=True)]
