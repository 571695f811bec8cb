"""A vision transformer with random weights, small enough that all its coalitions are evaluated in a moment."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import ViTConfig, ViTForImageClassification

from vitshap.models import MaskedModel, wrap

SIZE = (24, 16)
PATCH = 8
GRID = (3, 2)
CLASSES = 4
NAMES = ["cat", "dog", "crane", "heron"]
SUPERPIXELS = torch.tensor([[0, 0], [1, -1], [1, 2]])
"""Players of two tokens and of one; a token of no player."""


def small_vit(channels: int = 3, classes: int = CLASSES, **options) -> MaskedModel:
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=SIZE,
        patch_size=PATCH,
        num_channels=channels,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=classes,
    )
    net = ViTForImageClassification(config).eval()
    with torch.no_grad():
        for parameter in net.parameters():  # the library starts heads and biases near zero
            parameter.add_(torch.randn_like(parameter) * 0.3)
    names = NAMES[:classes] if classes > 1 else None
    return wrap(net, class_names=names, check=False, **options)


def random_images(count: int, channels: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(count, channels, *SIZE, generator=torch.Generator().manual_seed(seed))


def patch_sums(pixels: Tensor) -> Tensor:
    """Sums over patches and channels, [B, C, H, W] to float64 [B, tokens]: by unfolding, not as the library does."""
    patches = torch.nn.functional.unfold(pixels.double(), PATCH, stride=PATCH)  # [B, C * 64, tokens]
    return patches.sum(1)
