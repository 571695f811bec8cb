"""The adapter for any network from images to logits: its layers cannot be masked, but its input can be changed."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from vitshap.models.base import Adapter, CannotMask, evaluating, net_device_dtype, pair
from vitshap.models.preprocess import Preprocess
from vitshap.models.timm import imagenet_names

CELL = 16
"""Side of a patch in pixels for networks without patches."""


class GenericNetwork(Adapter):
    """Knows only the input size, the grid that images are divided into, and the number of classes."""

    prefix = 0
    reads_patches = False

    def __init__(self, net: nn.Module, image_size: tuple[int, int] | None, grid: tuple[int, int] | None) -> None:
        self.net = net
        size = image_size or _own_size(net) or (0, 0)
        self.image_size = size
        self.grid = grid or (size[0] // CELL, size[1] // CELL)
        if 0 in self.grid or any(side % cells for side, cells in zip(size, self.grid, strict=True)):
            raise ValueError(
                f"{type(net).__name__}: images of {size} do not divide into a grid of {self.grid}: give "
                "image_size=(height, width), or players= as a label map whose shape divides it"
            )
        self.channels = _own_channels(net)
        self.num_classes = self._count_classes()

    def _count_classes(self) -> int:
        device, dtype = net_device_dtype(self.net)
        with torch.no_grad(), evaluating(self.net):
            blank = torch.zeros(1, self.channels, *self.image_size, device=device, dtype=dtype)
            return self.predict(blank).shape[1]

    def class_names(self) -> list[str] | None:
        return imagenet_names(self.net) if type(self.net).__module__.startswith("timm.") else None

    def preprocess(self) -> Preprocess | None:
        if type(self.net).__module__.startswith("timm."):
            return Preprocess.from_timm(self.net, self.image_size)
        return None

    def embed(self, images: Tensor) -> NoReturn:
        raise CannotMask(self.net, "only its input and output are known")

    def encode(self, tokens: Tensor, positions: Tensor) -> NoReturn:
        self.embed(tokens)

    def readout(self, tokens: Tensor, valid: Tensor) -> NoReturn:
        self.embed(tokens)

    @property
    def patch_embedding(self) -> NoReturn:
        self.embed(torch.empty(0))

    @property
    def final_norm(self) -> NoReturn:
        self.embed(torch.empty(0))

    @property
    def blocks(self) -> list[nn.Module]:
        return []


def _own_size(net: Any) -> tuple[int, int] | None:
    for holder in (getattr(net, "pretrained_cfg", None), getattr(net, "default_cfg", None)):
        if holder and holder.get("input_size"):
            return pair(holder["input_size"][-2:])
    size = getattr(getattr(net, "config", None), "image_size", None) or getattr(net, "image_size", None)
    return None if size is None else pair(size)


def _own_channels(net: nn.Module) -> int:
    first = next((m for m in net.modules() if isinstance(m, nn.Conv2d)), None)
    return 3 if first is None else first.in_channels
