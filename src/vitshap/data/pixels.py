"""Batches of decoded pixels (of size ``decode.kept_size``) from any data set of (image, label).

A GPU trains a ViT faster than a CPU decodes JPEGs. So images are decoded once, by threads, into one uint8 tensor on the
training device (ImageNette at 224 pixels: 1.4 GB), which every epoch indexes (``CachedPixels``). A data set that does
not fit is decoded again in each epoch, a few batches ahead (``StreamedPixels``). Augmentation comes after, on the
device.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset

from vitshap.data.decode import Batch, Decoded, MapStyle, Unreadable, decoded, kept_size, readable, stacked
from vitshap.models.base import gpu_memory_left
from vitshap.models.preprocess import Preprocess

_CHUNK = 256
_AHEAD = 3


class CachedPixels:
    """A whole data set on the device; an image may have several positions in it, each with an index of its own."""

    def __init__(
        self, pixels: Tensor, labels: Tensor, kept: Tensor, *, total: int | None = None, rows: Tensor | None = None
    ) -> None:
        if not len(kept):
            raise ValueError("the data set has no images that can be read")
        self.pixels = pixels  # [r, C, H, W]
        self.labels = labels  # [n] or [n, ...]
        self.kept = kept  # int64 [n], increasing: positions in the data set of the images that could be read
        self.total = int(kept[-1]) + 1 if total is None else total  # positions, with those that could not be read
        self.rows = rows  # int64 [n]: row of ``pixels`` of each position; None: the same

    def __len__(self) -> int:
        return len(self.kept)

    def repeated(self, positions: Tensor) -> CachedPixels:
        """Return the data set with these positions repeated at its end; pixels are not copied."""
        again = positions.to(self.kept.device)
        rows = torch.arange(len(self), device=again.device) if self.rows is None else self.rows
        places = self.total + torch.arange(len(again), device=again.device)
        return CachedPixels(
            self.pixels,
            torch.cat([self.labels, self.labels[again]]),
            torch.cat([self.kept, places]),
            total=self.total + len(again),
            rows=torch.cat([rows, rows[again]]),
        )

    def batches(self, order: Iterable[Tensor], *, fill: bool = False) -> Iterator[Batch]:
        """Yield a batch for each tensor of positions (int64 ``[B]``, 0 to ``len(self) - 1``); none is empty."""
        for positions in order:
            chosen = positions.to(self.pixels.device, non_blocking=True)  # without waiting for a GPU
            row = chosen if self.rows is None else self.rows[chosen]
            yield Batch(self.pixels[row], self.labels[chosen], self.kept[chosen])


class StreamedPixels:
    """A data set that is decoded again in each epoch, by threads, a few batches ahead."""

    def __init__(
        self,
        data: MapStyle,
        preprocess: Preprocess | None,
        *,
        device: torch.device | str,
        workers: int | None = None,
        unreadable: Unreadable | None = None,
    ) -> None:
        self.data, self.preprocess, self.device = data, preprocess, torch.device(device)
        self.workers = workers or _default_workers()
        self.unreadable = unreadable or Unreadable(len(data))

    def __len__(self) -> int:
        return len(self.data)

    @property
    def total(self) -> int:
        """Number of positions in the data set, with those of images that cannot be read."""
        return len(self.data)

    def repeated(self, positions: Tensor) -> StreamedPixels:
        """Return the data set with these positions repeated at its end."""
        places = [*range(len(self)), *positions.tolist()]
        some = Subset(cast("Dataset[Any]", self.data), places)
        return StreamedPixels(
            some, self.preprocess, device=self.device, workers=self.workers, unreadable=self.unreadable
        )

    def batches(self, order: Iterable[Tensor], *, fill: bool = False) -> Iterator[Batch]:
        """Yield a batch for each tensor of positions, without the images that cannot be read.

        If none of a batch can be read, the batch is left out, or with ``fill`` replaced by the next image that can.
        """
        with ThreadPoolExecutor(self.workers) as pool:
            waiting: deque[list[Future[Decoded]]] = deque()
            for positions in order:
                waiting.append([pool.submit(decoded, self.data, i, self.preprocess) for i in positions.tolist()])
                if len(waiting) > _AHEAD:
                    yield from self._gathered(waiting.popleft(), fill)
            while waiting:
                yield from self._gathered(waiting.popleft(), fill)
        self.unreadable.warn()

    def _gathered(self, futures: list[Future[Decoded]], fill: bool) -> Iterator[Batch]:
        items = [future.result() for future in futures]
        read = readable(items, self.unreadable)
        if not read and fill:
            read = [next(self._readable_from(items[0][2]))]
        if read:
            yield stacked(read, self.device)

    def _readable_from(self, index: int) -> Iterator[tuple[Tensor, Any, int]]:
        n = len(self.data)
        for other in (i % n for i in range(index + 1, index + n)):
            yield from readable([decoded(self.data, other, self.preprocess)], self.unreadable)
        raise ValueError("the data set has no images that can be read")


PixelSource = CachedPixels | StreamedPixels


def cache_bytes(count: int, preprocess: Preprocess) -> int:
    """Return the memory of ``count`` decoded images in bytes."""
    height, width = kept_size(preprocess)
    return count * len(preprocess.mean) * height * width


def cache_pixels(
    data: MapStyle,
    preprocess: Preprocess | None,
    *,
    device: torch.device | str = "cpu",
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
    unreadable: Unreadable | None = None,
) -> CachedPixels:
    """Decode a data set once; ``progress`` is called after each chunk with the number of decoded images."""
    unreadable = unreadable or Unreadable(len(data))
    labels, kept, filled = [], [], 0
    pixels: Tensor | None = None
    with ThreadPoolExecutor(workers or _default_workers()) as pool:
        for start in range(0, len(data), _CHUNK):
            places = range(start, min(start + _CHUNK, len(data)))
            read = readable(pool.map(lambda i: decoded(data, i, preprocess), places), unreadable)
            if read:
                block = stacked(read, torch.device(device))
                if pixels is None:  # all of it at once: growing would need it twice
                    pixels = block.pixels.new_empty(len(data), *block.pixels.shape[1:])
                pixels[filled : filled + len(read)] = block.pixels
                filled += len(read)
                labels.append(block.labels)
                kept.append(block.indices)
            if progress is not None:
                progress(places.stop)
    unreadable.warn()
    none = torch.empty(0)
    found = (pixels[:filled], torch.cat(labels), torch.cat(kept)) if pixels is not None else (none, none, none)
    return CachedPixels(*found, total=len(data))


def open_pixels(
    data: MapStyle | Iterable[Any] | PixelSource,
    preprocess: Preprocess | None,
    *,
    device: torch.device | str = "cpu",
    memory_limit: int | None = None,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
    unreadable: Unreadable | None = None,
) -> PixelSource:
    """Cache a data set on the device, or stream it if it needs more than ``memory_limit`` bytes (half of the free memory).

    A ``PixelSource`` is returned as it is. A data set that can only be iterated over is read once and cached.
    ``unreadable`` counts images that cannot be read, for callers who open several parts of a data set.
    """
    if isinstance(data, CachedPixels | StreamedPixels):
        return data
    if not isinstance(data, MapStyle) or isinstance(data, IterableDataset):  # those may have a length
        return _gathered(data, preprocess, device)
    limit = free_bytes(device) // 2 if memory_limit is None else memory_limit
    first = next((item[0] for item in _walk(data, preprocess) if isinstance(item[0], Tensor)), None)
    if first is not None and len(data) * first.nbytes > limit:
        return StreamedPixels(data, preprocess, device=device, workers=workers, unreadable=unreadable)
    return cache_pixels(data, preprocess, device=device, workers=workers, progress=progress, unreadable=unreadable)


def iterate_pixels(
    data: Iterable[Any], preprocess: Preprocess | None, *, batch_size: int, device: torch.device | str = "cpu"
) -> Iterator[Batch]:
    """Yield batches of a data set that can only be iterated over; a sample's index is its position in the iteration."""
    unreadable, read, index = Unreadable(), [], -1
    for index, item in enumerate(data):
        read += readable([decoded({index: item}, index, preprocess)], unreadable)
        if len(read) == batch_size:
            yield stacked(read, torch.device(device))
            read = []
    if read:
        yield stacked(read, torch.device(device))
    unreadable.total = index + 1
    unreadable.check()
    unreadable.warn()


def _gathered(data: Iterable[Any], preprocess: Preprocess | None, device: torch.device | str) -> CachedPixels:
    blocks = list(iterate_pixels(data, preprocess, batch_size=_CHUNK, device=device))
    none = Batch(torch.empty(0), torch.empty(0), torch.empty(0))
    return CachedPixels(*(torch.cat(parts) for parts in zip(*(blocks or [none]), strict=True)))


def free_bytes(device: torch.device | str) -> int:
    """Return the free memory of the device in bytes."""
    if torch.device(device).type == "cuda":
        return gpu_memory_left(torch.device(device))
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 4 << 30  # a system that does not report it


def _default_workers() -> int:
    return min(8, os.cpu_count() or 1)


def _walk(data: MapStyle, preprocess: Preprocess | None) -> Iterator[Decoded]:
    return (decoded(data, index, preprocess) for index in range(len(data)))
