"""What the tests of comparisons share: a small network of digits, and data."""

from __future__ import annotations

import torch
from transformers import ViTConfig, ViTForImageClassification

from vitshap.data import ImageData, load_digits
from vitshap.explainers import Explainer
from vitshap.models import MaskedModel, wrap


def digits_net(seed: int = 0, classes: int = 10) -> MaskedModel:
    """Return a network of 4 x 4 patches for digits, with random weights."""
    torch.manual_seed(seed)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=classes, initializer_range=0.5, **size)
    names = list(load_digits().test.class_names)[:classes] if classes > 1 else None
    output = "softmax" if classes > 1 else "sigmoid"
    return wrap(ViTForImageClassification(config).eval(), class_names=names, output=output)


def digits_explainer(surrogate: MaskedModel) -> Explainer:
    """Return an explainer that was never trained."""
    torch.manual_seed(1)
    return Explainer(surrogate).eval()


def some_digits(count: int = 12) -> ImageData:
    """Return the first digits of the test split."""
    return load_digits().test.subset(range(count))
