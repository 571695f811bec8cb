"""torchvision's vision transformer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vitshap.models.base import Adapter, CannotMask


def adapter_for(net: Any, image_size: tuple[int, int] | None) -> Adapter:
    """The adapter for a torchvision net, or ``CannotMask``."""
    from torchvision.models.vision_transformer import VisionTransformer

    if not isinstance(net, VisionTransformer):
        raise CannotMask(net, "it is not a vision transformer, so its layers mix patches besides attention")
    return TorchvisionViT(net, image_size)


class TorchvisionViT(Adapter):
    """``torchvision.models.VisionTransformer``."""

    prefix = 1
    reads_patches = False

    def __init__(self, net: Any, image_size: tuple[int, int] | None) -> None:
        self.net = self._net = net
        if not isinstance(net.conv_proj, nn.Conv2d):
            raise CannotMask(net, "its stem mixes neighbouring patches by convolution")
        self.image_size = (net.image_size, net.image_size)
        if image_size not in (None, self.image_size):
            raise ValueError(f"this net takes images of {self.image_size}, not {image_size}")
        self.grid = (net.image_size // net.patch_size, net.image_size // net.patch_size)
        self.channels = net.conv_proj.in_channels
        last = net.heads[-1]
        if not isinstance(last, nn.Linear):
            raise CannotMask(net, "its head does not end in a linear layer with one output per class")
        self.num_classes = last.out_features

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
