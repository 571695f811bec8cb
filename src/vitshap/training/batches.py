"""Training and validation images of a model, as it takes them: varied, normalised, on its device."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from vitshap.data import Augmentation, Batch, CachedPixels, PixelSource, centre, normalised, open_pixels
from vitshap.data.decode import kept_size, require_unit_range
from vitshap.models import MaskedModel, Preprocess
from vitshap.training import processes


class Images:
    """A data set opened for a model; a sample's view is a function of (seed, view number, sample index)."""

    def __init__(
        self,
        model: MaskedModel,
        data: Any,
        augmentation: Augmentation | None,
        *,
        seed: int,
        milder_from: int | None = None,
    ) -> None:
        """``augmentation`` None: every view is the image itself. From view ``milder_from`` on images are varied less."""
        processes.join(model.device)
        how = decodes_by(model)
        channels = model.adapter.channels
        self.mean = how.mean if how else (0.0,) * channels
        self.std = how.std if how else (1.0,) * channels
        self.size = how.size if how is not None and kept_size(how) != how.size else None  # of what is cut here
        self.augmentation, self.seed, self.milder_from = augmentation, seed, milder_from
        # Processes agree on what is kept; what is open already may be of one of them alone.
        limit = None if isinstance(data, PixelSource) else processes.memory_limit(model.device)
        self.source: PixelSource = open_pixels(data, how, device=model.device, memory_limit=limit)
        if augmentation is not None and isinstance(self.source, CachedPixels):
            require_unit_range(self.source.pixels)

    def __len__(self) -> int:
        return len(self.source)

    def views(self, order: Iterable[Tensor], view: int) -> Iterator[tuple[Tensor, Batch]]:
        """For every tensor of positions: pixels of that view as the net takes them, and the batch they come from."""
        how = self._augmentation(view)
        if how is None or not how.paste:
            for batch in self.source.batches(order, fill=True):
                yield self._varied(batch, view), batch
            return
        own, of_others = itertools.tee(order)
        partners = (self.positions(self._partners(self.indices(positions), view)) for positions in of_others)
        others = self.source.batches(partners, fill=True)
        for batch, other in zip(self.source.batches(own, fill=True), others, strict=True):
            yield self._varied(batch, view, self._partners_of(batch, other, view)), batch

    def in_order(self, size: int) -> Iterator[tuple[Tensor, Batch]]:
        """All images as they are, ``size`` at a time."""
        for batch in self.source.batches(chunks(len(self), size)):
            yield self._as_they_are(batch.pixels), batch

    def indices(self, positions: Tensor) -> Tensor:
        """Sample indices of positions; images that cannot be read have no position in a cached source."""
        return (
            self.source.kept[positions.to(self.source.kept.device, non_blocking=True)]
            if isinstance(self.source, CachedPixels)
            else positions
        )

    def positions(self, indices: Tensor) -> Tensor:
        """Positions of sample indices; of an image that cannot be read that of another, in a cached source."""
        source = self.source
        if not isinstance(source, CachedPixels) or len(source) == source.total:
            return indices
        return torch.searchsorted(source.kept, indices.to(source.kept.device)).clamp(max=len(source) - 1)

    def _augmentation(self, view: int) -> Augmentation | None:
        if self.augmentation is None or self.milder_from is None or view < self.milder_from:
            return self.augmentation
        return self.augmentation.milder()

    def _partners(self, indices: Tensor, view: int) -> Tensor:
        """Sample indices of the images that are pasted into these samples; some may turn out not to be readable."""
        assert self.augmentation is not None
        return self.augmentation.partners(indices, self.source.total, seed=self.seed, epoch=view)

    def _partners_of(self, batch: Batch, others: Batch, view: int) -> Tensor:
        """Pixels of every sample's partner; of the sample itself where its partner cannot be read."""
        wanted = self._partners(batch.indices, view).to(others.indices.device)
        found = wanted[:, None] == others.indices  # [B, B']
        return torch.where(found.any(1)[:, None, None, None], others.pixels[found.long().argmax(1)], batch.pixels)

    def _varied(self, batch: Batch, view: int, partners: Tensor | None = None) -> Tensor:
        how = self._augmentation(view)
        if how is None:
            return self._as_they_are(batch.pixels)
        if not isinstance(self.source, CachedPixels):  # what is kept was looked at once
            require_unit_range(batch.pixels)
        return how(
            batch.pixels,
            batch.indices,
            seed=self.seed,
            epoch=view,
            mean=self.mean,
            std=self.std,
            partners=partners,
            size=self.size,
        )

    def _as_they_are(self, pixels: Tensor) -> Tensor:
        """The centre of images that are kept with a margin, normalised."""
        return normalised(centre(pixels, self.size) if self.size else pixels, self.mean, self.std)


def decodes_by(model: MaskedModel) -> Preprocess | None:
    """How files become pixels of the net's size; None where it is not said, or by a function that cannot be taken apart."""
    return model.preprocess if isinstance(model.preprocess, Preprocess) else None


def evenly(n: int, count: int) -> Tensor:
    """``count`` of the positions 0 to n - 1, or all if there are fewer, at equal distances."""
    return torch.linspace(0, n - 1, min(count, n)).long()


def chunks(n: int, size: int) -> list[Tensor]:
    """Positions 0 to n - 1, ``size`` at a time."""
    return list(torch.arange(n).split(size))  # type: ignore[no-untyped-call]
