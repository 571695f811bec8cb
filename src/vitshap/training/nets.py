"""From a recipe's model settings and data to a wrapped model."""

from __future__ import annotations

from dataclasses import fields

from torch import Tensor

from vitshap.data import ImageData
from vitshap.models import MaskedModel
from vitshap.models.load import ModelSpec, load_model
from vitshap.training.recipes import ModelSettings


def build_model(settings: ModelSettings, data: ImageData, *, keep_head: bool = False) -> MaskedModel:
    """Load the model for these images and wrap it, on the CPU.

    ``keep_head`` leaves a pre-trained model its own classes, for it is not going to be trained.
    """
    shared = {field.name for field in fields(ModelSpec)} & {field.name for field in fields(settings)}
    return load_model(
        ModelSpec(
            **{name: getattr(settings, name) for name in shared},
            class_names=_class_names(settings, data),
            keep_head=keep_head,
            channels=data.channels,
            raw_pixels=isinstance(data.images, Tensor),  # pixels that come as numbers are the input as they are
            option="model.{}",
        )
    )


def _class_names(settings: ModelSettings, data: ImageData) -> tuple[str, ...]:
    """Return one name per output; two classes under a sigmoid are one logit, that of the second."""
    names = tuple(data.class_names)
    if settings.output != "sigmoid":
        return names
    if len(names) != 2:
        raise ValueError(
            f"model.output sigmoid: images in folders have one class each, so it suits 2 classes, not {len(names)}"
        )
    return names[1:]
