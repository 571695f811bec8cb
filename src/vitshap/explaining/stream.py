"""Explain photos as a stream, in their order, with memory for a few batches however many there are.

Threads decode and prepare the next photos while the model works on the current batch. Of a photo only a small picture and
the model's input are kept. A photo that cannot be read or explained becomes a failure; the others of its batch are
explained.
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

from vitshap.data.decode import UnreadableImage
from vitshap.explaining.curves import removal_curve
from vitshap.explaining.entries import Explained, Failed
from vitshap.explaining.photos import LARGE, Opened, Photo, photo_pixels, read_photo
from vitshap.explaining.source import Source
from vitshap.explanation import Original
from vitshap.methods import Target
from vitshap.models import MaskedModel, Preprocess
from vitshap.models.base import net_device_dtype

AHEAD = 2
"""Batches that are decoded while one is explained."""
PIXELS_AT_ONCE = 64_000_000
"""Pixels of photos that threads decode at the same time."""
DEFAULT_TARGET = "top-5"


class CannotExplain(ValueError):
    """No image of the first batch could be explained: the method does not suit the model, or memory is short."""


class Prepared(NamedTuple):
    """A photo that is ready to be explained: the model's input, and what is kept of the photo."""

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
    target: Target = DEFAULT_TARGET,
    batch: int = 16,
    threads: int | None = None,
    curves: bool = False,
) -> Iterator[Explained | Failed]:
    """Explain photos, ``batch`` at a time; yield one entry per photo, in their order, as soon as its batch is done.

    ``threads`` is the number of threads that decode (default: one per core, at most 8). ``curves`` also evaluates the
    output while patches are removed, some 65 evaluations per image. If no image of the first batch
    can be explained, the cause is not the images: the error is raised as ``CannotExplain``.
    """
    waiting = iter(photos)
    queue: deque[Future[Prepared | Failed]] = deque()
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
            ready = [entry for entry in entries if isinstance(entry, Prepared)]
            done = iter(_explain_or_fail(ready, source, target, explained_any, curves))
            for entry in entries:
                result = entry if isinstance(entry, Failed) else next(done)
                explained_any = explained_any or isinstance(result, Explained)
                yield result
    finally:
        decoders.shutdown()


class _Decoders:
    """Threads that decode photos; a thread waits as long as its photo and the others' would take too much memory.

    Very large photos have a thread of their own, since memory that a thread frees is kept for the same thread.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="vitshap-decode")
        self._alone = ThreadPoolExecutor(1, thread_name_prefix="vitshap-decode-large")
        self._changed, self._pixels = threading.Condition(), 0

    def submit(self, path: Photo, model: MaskedModel) -> Future[Prepared | Failed]:
        """Start to decode and prepare a photo."""
        return self._pool.submit(self._decode, path, model)

    def shutdown(self) -> None:
        """Decode nothing more."""
        for pool in (self._pool, self._alone):
            pool.shutdown(wait=False, cancel_futures=True)

    def _decode(self, path: Photo, model: MaskedModel) -> Prepared | Failed:
        pixels = photo_pixels(path)
        if pixels > LARGE:
            return self._alone.submit(prepare_photo, path, model).result()
        with self._changed:
            self._changed.wait_for(lambda: not self._pixels or self._pixels + pixels <= PIXELS_AT_ONCE)
            self._pixels += pixels
        try:
            return prepare_photo(path, model)
        finally:
            with self._changed:
                self._pixels -= pixels
                self._changed.notify_all()


def prepare_photo(photo: Photo, model: MaskedModel) -> Prepared | Failed:
    """Read a photo and make the model's input of it; the decoded photo itself is not kept."""
    try:
        opened = read_photo(photo)
    except UnreadableImage as error:
        return Failed(photo, error.reason)
    try:
        pixels, box = model_input(opened, model)
    except Exception as error:  # an error about one image must not end the run
        return Failed(photo, f"it cannot be prepared for the model: {_one_line(error)}")
    return Prepared(photo, pixels, box, opened.picture, opened.size, opened.notes)


def model_input(opened: Opened, model: MaskedModel) -> tuple[Tensor, tuple[float, ...] | None]:
    """Return the model's input ``[C, H, W]``, and the part of the original that it shows, in pixels."""
    pixels = model.preprocess(opened.image)
    if not isinstance(model.preprocess, Preprocess):
        return pixels, None
    box = model.preprocess.box(opened.image)
    scales = [whole / part for whole, part in zip(opened.size, opened.image.size, strict=True)] * 2
    # in pixels of the original, which may have been shrunk
    return pixels, tuple(edge * scale for edge, scale in zip(box, scales, strict=True))


def explain_prepared(
    photos: Sequence[Prepared], source: Source, target: Target = DEFAULT_TARGET, *, curves: bool = False
) -> list[Explained]:
    """Explain one prepared photo or a batch of them: everything that explains photos calls this function."""
    device, dtype = net_device_dtype(source.model.net)
    pixels = torch.stack([photo.pixels for photo in photos]).to(device, dtype)
    explanation = source.method(pixels, target=target)
    if all(photo.box is not None for photo in photos):
        explanation = replace(explanation, image_box=torch.tensor([photo.box for photo in photos], dtype=torch.float32))
    originals = tuple(Original(photo.picture, photo.size) for photo in photos)
    entries = []
    for i, (photo, image) in enumerate(zip(photos, replace(explanation, originals=originals), strict=True)):
        image = image.select(image.classes[0].tolist())  # each class once
        warning = source.low_confidence(image)
        warnings = () if warning is None else (warning,)
        entry = Explained(photo.path, photo.picture, photo.size, image, warnings, photo.notes)
        if curves:
            entry = replace(entry, curve=removal_curve(source.model, pixels[i : i + 1], image, entry.main))
        entries.append(entry)
    return entries


def _explain_or_fail(
    photos: Sequence[Prepared], source: Source, target: Target, explained_any: bool, curves: bool
) -> Sequence[Explained | Failed]:
    """Explain a batch; if that fails, try each half, so that only images that cannot be explained fail."""
    if not photos:
        return []
    try:
        return explain_prepared(photos, source, target, curves=curves)
    except Exception as error:
        results: list[Explained | Failed] = []
        if len(photos) == 1:
            results.append(Failed(photos[0].path, f"not explained: {_one_line(error)}"))
        else:
            half = len(photos) // 2
            for part in (photos[:half], photos[half:]):
                results += _explain_or_fail(part, source, target, True, curves)
        if explained_any or any(isinstance(result, Explained) for result in results):
            return results
        raise CannotExplain(_one_line(error)) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
