"""Training and validation images of a model, as it takes them: varied, normalised, on its device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from vitshap.data import Augmentation, Batch, PixelSource, normalised, open_pixels
from vitshap.models import MaskedModel, Preprocess


class Images:
    """A data set opened for a model; a sample's view is a function of (seed, view number, sample index)."""

    def __init__(self, model: MaskedModel, data: Any, augmentation: Augmentation | None, *, seed: int) -> None:
        """``augmentation`` None: every view is the image itself."""
        how = model.preprocess if isinstance(model.preprocess, Preprocess) else None
        channels = model.adapter.channels
        self.mean = how.mean if how else (0.0,) * channels
        self.std = how.std if how else (1.0,) * channels
        self.augmentation, self.seed = augmentation, seed
        self.source: PixelSource = open_pixels(data, how, device=model.device)

    def __len__(self) -> int:
        return len(self.source)

    def views(self, order: Iterable[Tensor], view: int) -> Iterator[tuple[Tensor, Batch]]:
        """For every tensor of positions: pixels of that view as the net takes them, and the batch they come from."""
        for batch in self.source.batches(order):
            yield self._varied(batch, view), batch

    def in_order(self, size: int) -> Iterator[tuple[Tensor, Batch]]:
        """All images as they are, ``size`` at a time."""
        for batch in self.source.batches(chunks(len(self), size)):
            yield normalised(batch.pixels, self.mean, self.std), batch

    def _varied(self, batch: Batch, view: int) -> Tensor:
        if self.augmentation is None:
            return normalised(batch.pixels, self.mean, self.std)
        return self.augmentation(batch.pixels, batch.indices, seed=self.seed, epoch=view, mean=self.mean, std=self.std)


def chunks(n: int, size: int) -> list[Tensor]:
    """Positions 0 to n - 1, ``size`` at a time."""
    return list(torch.arange(n).split(size))  # type: ignore[no-untyped-call]
