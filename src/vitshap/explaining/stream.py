"""Explain photos as a stream, in their order, with memory for a few batches however many there are.

Threads decode and prepare the next photos while the model works on the current batch. Of a photo only a small picture and
the model's input are kept. A photo that cannot be read or explained becomes a failure; the others of its batch are
explained.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

import torch
from PIL import Image
from torch import Tensor

from vitshap.data.decode import UnreadableImage
from vitshap.explaining.curves import removal_curves
from vitshap.explaining.entries import Explained, Failed
from vitshap.explaining.photos import LARGE, Opened, Photo, photo_pixels, read_photo
from vitshap.explaining.source import Source
from vitshap.explanation import Explanation, Original, stderr_from
from vitshap.methods import Target
from vitshap.models import MaskedModel, Preprocess
from vitshap.models.base import net_device_dtype

AHEAD = 2
"""Batches that are decoded while one is explained."""
PIXELS_AT_ONCE = 64_000_000
"""Pixels of photos that threads decode at the same time."""
DEFAULT_TARGET = "top-5"
NO_PICTURE = Image.new("RGB", (1, 1))
"""In place of a photo's picture where nobody looks at it."""
Result = TypeVar("Result")


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
    curves: int = 0,
) -> Iterator[Explained | Failed]:
    """Explain photos, ``batch`` at a time; yield one entry per photo, in their order, as soon as its batch is done.

    ``threads`` is the number of threads that decode (default: one per core, at most 8). ``curves`` is the number of
    classes for which the output is also evaluated while patches are removed in the order of their values: some 65
    evaluations of an image for the first class, 30 for each further one. If no image of the first batch can be explained,
    the cause is not the images: the error is raised as ``CannotExplain``.
    """
    explained_any = False
    prepare = partial(prepare_photo, model=source.model)
    explain = partial(explain_prepared, source=source, target=target, curves=curves)
    for entries in prepared_batches(photos, prepare, batch=batch, threads=threads):
        ready = [entry for entry in entries if isinstance(entry, Prepared)]
        done = iter(explain_or_fail(ready, explain, explained_any))
        for entry in entries:
            result = entry if isinstance(entry, Failed) else next(done)
            explained_any = explained_any or isinstance(result, Explained)
            yield result


def prepared_batches(
    photos: Iterable[Photo | Failed],
    prepare: Callable[[Photo], Prepared | Failed],
    *,
    batch: int,
    threads: int | None = None,
) -> Iterator[list[Prepared | Failed]]:
    """Decode and prepare photos in threads, ``AHEAD`` batches ahead of the caller; yield ``batch`` at a time, in order."""
    waiting = iter(photos)
    queue: deque[Future[Prepared | Failed] | Failed] = deque()
    decoders = _Decoders(prepare, threads or min(8, os.cpu_count() or 1))

    def refill() -> None:
        for photo in islice(waiting, AHEAD * batch + batch - len(queue)):
            queue.append(photo if isinstance(photo, Failed) else decoders.submit(photo))

    try:
        refill()
        while queue:
            taken = [queue.popleft() for _ in range(min(batch, len(queue)))]
            entries = [one if isinstance(one, Failed) else one.result() for one in taken]
            refill()
            yield entries
    finally:
        decoders.shutdown()


class _Decoders:
    """Threads that decode photos; a thread waits as long as its photo and the others' would take too much memory.

    Very large photos have a thread of their own, since memory that a thread frees is kept for the same thread.
    """

    def __init__(self, prepare: Callable[[Photo], Prepared | Failed], threads: int) -> None:
        self._prepare = prepare
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="vitshap-decode")
        self._alone = ThreadPoolExecutor(1, thread_name_prefix="vitshap-decode-large")
        self._changed, self._pixels = threading.Condition(), 0

    def submit(self, photo: Photo) -> Future[Prepared | Failed]:
        """Start to decode and prepare a photo."""
        return self._pool.submit(self._decode, photo)

    def shutdown(self) -> None:
        """Decode nothing more."""
        for pool in (self._pool, self._alone):
            pool.shutdown(wait=False, cancel_futures=True)

    def _decode(self, photo: Photo) -> Prepared | Failed:
        pixels = photo_pixels(photo)
        if pixels > LARGE:
            return self._alone.submit(self._prepare, photo).result()
        with self._changed:
            self._changed.wait_for(lambda: not self._pixels or self._pixels + pixels <= PIXELS_AT_ONCE)
            self._pixels += pixels
        try:
            return self._prepare(photo)
        finally:
            with self._changed:
                self._pixels -= pixels
                self._changed.notify_all()


def prepare_photo(photo: Photo, model: MaskedModel, *, picture: bool = True) -> Prepared | Failed:
    """Read a photo and make the model's input of it; the decoded photo itself is not kept, only a small ``picture``."""
    try:
        opened = read_photo(photo)
    except UnreadableImage as error:
        return Failed(photo, error.reason)
    try:
        pixels, box = model_input(opened, model)
    except Exception as error:  # an error about one image must not end the run
        return Failed(photo, f"it cannot be prepared for the model: {_one_line(error)}")
    shown = opened.picture if picture else NO_PICTURE
    return Prepared(photo, pixels, box, shown, opened.size, opened.notes)


def model_input(opened: Opened, model: MaskedModel) -> tuple[Tensor, tuple[float, ...] | None]:
    """Return the model's input ``[C, H, W]``, and the part of the original that it shows, in pixels."""
    pixels = model.preprocess(opened.image)
    if not isinstance(model.preprocess, Preprocess):
        return pixels, None
    box = model.preprocess.box(opened.image)
    scales = [whole / part for whole, part in zip(opened.size, opened.image.size, strict=True)] * 2
    # in pixels of the original, which may have been shrunk
    return pixels, tuple(edge * scale for edge, scale in zip(box, scales, strict=True))


def model_batch(photos: Sequence[Prepared], source: Source) -> Tensor:
    """Return the model's input of a batch, on its device."""
    device, dtype = net_device_dtype(source.model.net)
    return torch.stack([photo.pixels for photo in photos]).to(device, dtype)


def explain_batch(photos: Sequence[Prepared], source: Source, target: Target, pixels: Tensor) -> Explanation:
    """Explain a batch of prepared photos; everything that explains photos calls this function."""
    explanation = source.method(pixels, target=target)
    if all(photo.box is not None for photo in photos):
        explanation = replace(explanation, image_box=torch.tensor([photo.box for photo in photos], dtype=torch.float32))
    return explanation


def explain_prepared(
    photos: Sequence[Prepared], source: Source, target: Target = DEFAULT_TARGET, *, curves: int = 0
) -> list[Explained]:
    """Explain one prepared photo or a batch of them: an entry for each."""
    pixels = model_batch(photos, source)
    explanation = explain_batch(photos, source, target, pixels)
    originals = tuple(Original(photo.picture, photo.size) for photo in photos)
    entries = []
    for i, (photo, image) in enumerate(zip(photos, replace(explanation, originals=originals), strict=True)):
        image = image.select(image.classes[0].tolist())  # each class once
        warning = source.low_confidence(image.prediction)
        warnings = () if warning is None else (warning,)
        errors = stderr_from(image, source.held_out)
        entry = Explained(
            photo.path,
            photo.picture,
            photo.size,
            image,
            warnings,
            photo.notes,
            stderr_from=errors,
            outputs=source.model.unit,
        )
        if curves:
            found = removal_curves(source.model, pixels[i : i + 1], image, entry.main, classes=curves)
            entry = replace(entry, curves=found)
        entries.append(entry)
    return entries


def explain_or_fail(
    photos: Sequence[Prepared], explain: Callable[[Sequence[Prepared]], Sequence[Result]], explained_any: bool
) -> Sequence[Result | Failed]:
    """Explain a batch; if that fails, try each half, so that only images that cannot be explained fail.

    If all fail and none was explained before (``explained_any``), the cause is not the images: ``CannotExplain``.
    """
    if not photos:
        return []
    try:
        return explain(photos)
    except Exception as error:
        # Otherwise the error would keep the batch's tensors alive, beside which the rest may not fit into memory.
        traceback.clear_frames(error.__traceback__)
        results: list[Result | Failed] = []
        if len(photos) == 1:
            results.append(Failed(photos[0].path, f"not explained: {_one_line(error)}"))
        else:
            half = len(photos) // 2
            for part in (photos[:half], photos[half:]):
                results += explain_or_fail(part, explain, True)
        if explained_any or not all(isinstance(result, Failed) for result in results):
            return results
        raise CannotExplain(_one_line(error)) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
