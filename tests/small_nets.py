"""Wrapped vision transformers with random weights, of any grid, small enough to be asked anything in a moment."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import ViTConfig, ViTForImageClassification

from vitshap.models import MaskedModel, wrap

PATCH = 2
ROUNDING = 2e-7
"""How far two ways to one probability may differ: the nets are float64, but a wrapped net answers in float32."""


def small_net(grid: tuple[int, int] = (3, 3), num_classes: int = 4, **options: Any) -> MaskedModel:
    """A net for images of ``grid`` patches; ``options`` are those of ``wrap``."""
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=(grid[0] * PATCH, grid[1] * PATCH),
        patch_size=PATCH,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=num_classes,
        initializer_range=0.5,  # the library's 0.02 would leave every patch next to no influence
    )
    return wrap(ViTForImageClassification(config).double().eval(), **options)


def random_images(model: MaskedModel, count: int, seed: int = 0) -> Tensor:
    """Images as this net takes them."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, *model.image_size, generator=generator, dtype=torch.float64)
