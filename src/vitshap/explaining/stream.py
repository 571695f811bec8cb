"""Photos in, explanations out, in the order given, with memory for a few batches whatever their number.

Threads decode and prepare what comes next while the net works on the current batch. Of a photo only a small picture and
the net's input are kept. What cannot be read or explained comes out as a failure; the others of its batch are explained.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from vitshap.data import UnreadableImage
from vitshap.explaining.photos import LARGE, Photo, photo_pixels, read_photo
from vitshap.explaining.sources import Source
from vitshap.explaining.wanted import Wanted, only
from vitshap.models import MaskedModel, Preprocess
from vitshap.models.base import net_device_dtype
from vitshap.report import Explained, Failed

AHEAD = 2
"""Batches that are decoded while one is explained."""
PIXELS_AT_ONCE = 64_000_000
"""Pixels of photos that threads decode at the same time."""


class CannotExplain(ValueError):
    """Not one image of the first batch could be explained: the method does not suit the net, or memory is short."""


class _Ready(NamedTuple):
    """A photo that is ready to be explained."""

    path: Photo
    pixels: Tensor  # [C, H, W]
    box: tuple[float, ...] | None
    picture: Image.Image
    size: tuple[int, int]
    notes: tuple[str, ...]


def explain_photos(
    photos: Iterable[Photo],
    source: Source,
    /,
    *,
    wanted: Wanted | None = None,
    batch: int = 16,
    threads: int | None = None,
) -> Iterator[Explained | Failed]:
    """Explain photos, ``batch`` at a time; one entry per photo, in their order, as soon as its batch is done.

    ``threads`` decode (default: one per core, at most 8). An error that hits the whole first batch is raised as
    ``CannotExplain``: then it is not the images' fault.
    """
    if batch < 1:
        raise ValueError(f"a batch holds at least one image, got {batch}")
    wanted = wanted or Wanted()
    waiting = iter(photos)
    queue: deque[Future[_Ready | Failed]] = deque()
    decoders = _Decoders(threads or min(8, os.cpu_count() or 1))
    explained_any = False

    def refill() -> None:
        for path in islice(waiting, AHEAD * batch + batch - len(queue)):
            queue.append(decoders.submit(path, source.model))

    try:
        refill()
        while queue:
            entries = [queue.popleft().result() for _ in range(min(batch, len(queue)))]
            refill()
            ready = [entry for entry in entries if isinstance(entry, _Ready)]
            done = iter(_explain(ready, source, wanted, explained_any))
            for entry in entries:
                result = entry if isinstance(entry, Failed) else next(done)
                explained_any = explained_any or isinstance(result, Explained)
                yield result
    finally:
        decoders.shutdown()


class _Decoders:
    """Threads that decode; a thread waits while the others' photos and its own would take too much memory.

    Very large photos have a thread of their own: memory that a thread gives back is kept for the same thread.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="vitshap-decode")
        self._alone = ThreadPoolExecutor(1, thread_name_prefix="vitshap-decode-large")
        self._changed, self._pixels = threading.Condition(), 0

    def submit(self, path: Photo, model: MaskedModel) -> Future[_Ready | Failed]:
        """Decode a photo and make the net's input of it."""
        return self._pool.submit(self._decode, path, model)

    def shutdown(self) -> None:
        """Nothing more is decoded."""
        for pool in (self._pool, self._alone):
            pool.shutdown(wait=False, cancel_futures=True)

    def _decode(self, path: Photo, model: MaskedModel) -> _Ready | Failed:
        pixels = photo_pixels(path)
        if pixels > LARGE:
            return self._alone.submit(_prepare, path, model).result()
        with self._changed:
            self._changed.wait_for(lambda: not self._pixels or self._pixels + pixels <= PIXELS_AT_ONCE)
            self._pixels += pixels
        try:
            return _prepare(path, model)
        finally:
            with self._changed:
                self._pixels -= pixels
                self._changed.notify_all()


def _prepare(path: Photo, model: MaskedModel) -> _Ready | Failed:
    """In a thread: decode and make the net's input; the photo itself is gone afterwards."""
    try:
        opened = read_photo(path)
    except UnreadableImage as error:
        return Failed(path, error.reason)
    try:
        pixels = model.preprocess(opened.image)
        box = model.preprocess.box(opened.image) if isinstance(model.preprocess, Preprocess) else None
    except Exception as error:  # an error about one image is never one of the run
        said = " ".join(str(error).split()) or type(error).__name__
        return Failed(path, f"it cannot be prepared for the net: {said}")
    scales = [whole / part for whole, part in zip(opened.size, opened.image.size, strict=True)] * 2
    # in pixels of the original, which may have been shrunk
    edges = None if box is None else tuple(edge * scale for edge, scale in zip(box, scales, strict=True))
    return _Ready(path, pixels, edges, opened.picture, opened.size, opened.notes)


def _explain(ready: Sequence[_Ready], source: Source, wanted: Wanted, explained_any: bool) -> list[Explained | Failed]:
    """Explain a batch; one that fails is tried in halves, so that an image which cannot be explained stands alone."""
    if not ready:
        return []
    try:
        return list(_explained(ready, source, wanted))
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__
        if len(ready) == 1:
            results: list[Explained | Failed] = [Failed(ready[0].path, f"not explained: {said}")]
        else:
            half = len(ready) // 2
            parts = (ready[:half], ready[half:])
            results = [result for part in parts for result in _explain(part, source, wanted, True)]
        if explained_any or any(isinstance(result, Explained) for result in results):
            return results
        raise CannotExplain(said) from error


def _explained(ready: Sequence[_Ready], source: Source, wanted: Wanted) -> Iterator[Explained]:
    device, dtype = net_device_dtype(source.model.net)
    pixels = torch.stack([one.pixels for one in ready]).to(device, dtype)
    explanation = source.explain(pixels, wanted)
    if all(one.box is not None for one in ready):
        explanation = replace(explanation, image_box=torch.tensor([one.box for one in ready], dtype=torch.float32))
    chosen = wanted.choose(explanation.prediction)
    for one, image, classes in zip(ready, explanation, chosen, strict=True):
        own = only(image, list(dict.fromkeys(classes.tolist())))
        yield Explained(one.path, one.picture, one.size, own, source.doubts(own), one.notes)
