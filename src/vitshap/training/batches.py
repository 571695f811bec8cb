"""Images of a data set as a model's input: augmented, normalised, on its device."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from vitshap.data import Augmentation, Batch, CachedPixels, PixelSource, centre, normalised, open_pixels
from vitshap.data.decode import kept_size, require_unit_range
from vitshap.models import MaskedModel, Preprocess
from vitshap.training import compilation, processes


class Images:
    """A data set opened for a model; an augmented view is a function of (seed, view number, sample index)."""

    def __init__(
        self,
        model: MaskedModel,
        data: Any,
        augmentation: Augmentation | None,
        *,
        seed: int,
        weak_from: int | None = None,
        compiled: bool = False,
    ) -> None:
        """``augmentation`` None: every view is the original image. Views from ``weak_from`` on are weakly augmented.

        ``compiled``: compile the augmentation where networks are compiled too.
        """
        processes.join(model.device)
        how = decoding(model)
        channels = model.adapter.channels
        self.mean = how.mean if how else (0.0,) * channels
        self.std = how.std if how else (1.0,) * channels
        self.size = (
            how.size if how is not None and kept_size(how) != how.size else None
        )  # of the crop, where images are kept larger
        self.augmentation, self.seed, self.weak_from = augmentation, seed, weak_from
        self._view = compilation.compiled_view() if compiled and compilation.can_compile(model.device) else None
        # All processes agree on the memory limit, except for a source that is open already: it may belong to one of them.
        limit = None if isinstance(data, PixelSource) else processes.memory_limit(model.device)
        self.source: PixelSource = open_pixels(data, how, device=model.device, memory_limit=limit)
        if augmentation is not None and isinstance(self.source, CachedPixels):
            require_unit_range(self.source.pixels)

    def __len__(self) -> int:
        return len(self.source)

    def views(self, order: Iterable[Tensor], view: int) -> Iterator[tuple[Tensor, Batch]]:
        """For every tensor of positions, yield the model's input in that view, and the batch it comes from."""
        how = self._augmentation(view)
        if how is None or not how.paste:
            for batch in self.source.batches(order, fill=True):
                yield self._augmented(batch, view), batch
            return
        own, again = itertools.tee(order)
        partners = (self.positions(self._partners(self.indices(positions), view)) for positions in again)
        others = self.source.batches(partners, fill=True)
        for batch, other in zip(self.source.batches(own, fill=True), others, strict=True):
            yield self._augmented(batch, view, self._partner_pixels(batch, other, view)), batch

    def in_order(self, size: int) -> Iterator[tuple[Tensor, Batch]]:
        """Yield all images without augmentation, ``size`` at a time."""
        for batch in self.source.batches(chunks(len(self), size)):
            yield self._plain(batch.pixels), batch

    def indices(self, positions: Tensor) -> Tensor:
        """Return the sample indices of positions; unreadable images have no position in a cached source."""
        return (
            self.source.kept[positions.to(self.source.kept.device, non_blocking=True)]
            if isinstance(self.source, CachedPixels)
            else positions
        )

    def positions(self, indices: Tensor) -> Tensor:
        """Return the positions of sample indices; an unreadable image gets that of another, in a cached source."""
        source = self.source
        if not isinstance(source, CachedPixels) or len(source) == source.total:
            return indices
        return torch.searchsorted(source.kept, indices.to(source.kept.device)).clamp(max=len(source) - 1)

    def _augmentation(self, view: int) -> Augmentation | None:
        if self.augmentation is None or self.weak_from is None or view < self.weak_from:
            return self.augmentation
        return self.augmentation.weak()

    def _partners(self, indices: Tensor, view: int) -> Tensor:
        """Return the sample indices of the images to paste into these samples; some may be unreadable."""
        assert self.augmentation is not None
        return self.augmentation.partners(indices, self.source.total, seed=self.seed, epoch=view)

    def _partner_pixels(self, batch: Batch, others: Batch, view: int) -> Tensor:
        """Return the pixels of every sample's partner, or of the sample itself if its partner is unreadable."""
        wanted = self._partners(batch.indices, view).to(others.indices.device)
        found = wanted[:, None] == others.indices  # [B, B']
        return torch.where(found.any(1)[:, None, None, None], others.pixels[found.long().argmax(1)], batch.pixels)

    def _augmented(self, batch: Batch, view: int, partners: Tensor | None = None) -> Tensor:
        how = self._augmentation(view)
        if how is None:
            return self._plain(batch.pixels)
        if not isinstance(self.source, CachedPixels):  # cached pixels were checked when they were opened
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
            view=self._view,
        )

    def _plain(self, pixels: Tensor) -> Tensor:
        """Normalise images, cropped to their centre if they are kept with a margin."""
        return normalised(centre(pixels, self.size) if self.size else pixels, self.mean, self.std)


def decoding(model: MaskedModel) -> Preprocess | None:
    """Return how files become pixels of the model's size; None if unknown, or if preprocessing is an opaque function."""
    return model.preprocess if isinstance(model.preprocess, Preprocess) else None


def evenly(n: int, count: int) -> Tensor:
    """Return ``count`` of the positions 0 to n - 1, evenly spaced, or all if there are fewer."""
    return torch.linspace(0, n - 1, min(count, n)).long()


def chunks(n: int, size: int) -> list[Tensor]:
    """Split the positions 0 to n - 1 into chunks of ``size``."""
    return list(torch.arange(n).split(size))  # type: ignore[no-untyped-call]
