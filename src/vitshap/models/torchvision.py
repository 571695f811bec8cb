"""The adapter for torchvision's vision transformer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from vitshap.models.base import Adapter, CannotMask, pair, patch_grid, require_size


def adapter_for(net: Any, image_size: tuple[int, int] | None) -> Adapter:
    """Return the adapter for a torchvision model, or raise ``CannotMask``."""
    if obstacle := next(_obstacles(net), None):
        raise CannotMask(net, obstacle)
    return TorchvisionViT(net, image_size)


def _obstacles(net: Any) -> Iterator[str]:
    from torchvision.models.vision_transformer import VisionTransformer

    if not isinstance(net, VisionTransformer):
        yield "it is not a vision transformer, so its layers mix patches outside of attention"
    if not isinstance(net.conv_proj, nn.Conv2d):
        yield "its stem mixes neighbouring patches by convolution"
    if not isinstance(net.heads[-1], nn.Linear):
        yield "its head does not end in a linear layer with one output per class"


class TorchvisionViT(Adapter):
    """``torchvision.models.VisionTransformer``."""

    prefix = 1
    reads_patches = False

    def __init__(self, net: Any, image_size: tuple[int, int] | None) -> None:
        self.net = self._net = net
        self.image_size = (net.image_size, net.image_size)
        require_size(image_size or self.image_size, self.image_size)
        self.grid = patch_grid(self.image_size, pair(net.patch_size))
        self.channels = net.conv_proj.in_channels
        self.num_classes = net.heads[-1].out_features

    @property
    def patch_embedding(self) -> nn.Module:
        module: nn.Module = self._net.conv_proj
        return module

    @property
    def final_norm(self) -> nn.Module:
        module: nn.Module = self._net.encoder.ln
        return module

    @property
    def blocks(self) -> list[nn.Module]:
        return list(self._net.encoder.layers)

    def embed(self, images: Tensor) -> Tensor:
        patches = self._net._process_input(images)
        tokens = torch.cat([self._net.class_token.expand(len(images), -1, -1), patches], dim=1)
        embedded: Tensor = self._net.encoder.dropout(tokens + self._net.encoder.pos_embedding)
        return embedded

    def encode(self, tokens: Tensor, positions: Tensor) -> Tensor:
        encoded: Tensor = self._net.encoder.layers(tokens)
        return encoded

    def readout(self, tokens: Tensor, valid: Tensor) -> Tensor:
        logits: Tensor = self._net.heads(self._net.encoder.ln(tokens)[:, 0])
        return logits
