"""Decode one item of a data set: from a file or (image, label) to eight-bit pixels of the size that the network takes.

Images are paths, PIL images, arrays or tensors, from this package's data sets or from the user's own. They are resized
and cropped as by ``Preprocess``, so that training sees what an explanation will see; normalisation comes after
augmentation. Images that ``Preprocess`` resizes to a larger square than the network's are kept at that size: random
crops use all of it.

An image that cannot be read is reported, left out and counted. If more than 1 % of a data set cannot be read, that is
an error.
"""

from __future__ import annotations

import math
import struct
import warnings
import zlib
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitshap.models.preprocess import Preprocess, eight_bit, open_image

READ_ERRORS = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    IndexError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,  # where warnings are errors
)
"""Raised by Pillow for damaged files, also within a user's own data set."""
_TOLERATED = 0.01
_NAMED = 5
_ROUNDING = 1e-3


class UnreadableImage(ValueError):
    """An image that cannot be decoded, with the reason."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def read_image(path: str | PathLike[str], *, channels: int = 3) -> Image.Image:
    """Read an image file, upright, in mode L (1 channel) or RGB (3)."""
    try:
        with open_image(path) as image:
            image.load()
            return eight_bit(image, channels=channels)
    except Exception as error:  # a damaged file may raise anything in Pillow's plugins
        raise UnreadableImage(str(path), f"{type(error).__name__}: {error}") from error


def as_tensor(image: Image.Image) -> Tensor:
    """Return the pixels of an L or RGB image, uint8 ``[C, H, W]``."""
    pixels = np.array(image, dtype=np.uint8)  # [H, W] or [H, W, C]
    # numpy copies in this thread; torch would use all of its threads for every image, and decoding threads would wait for
    # each other.
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def as_picture(pixels: Tensor) -> Image.Image:
    """Return the L or RGB image of uint8 pixels ``[C, H, W]``."""
    array = pixels.cpu().numpy()
    return Image.fromarray(array[0] if len(array) == 1 else np.ascontiguousarray(array.transpose(1, 2, 0)))


@runtime_checkable
class MapStyle(Protocol):
    """A data set whose items are (image, label): a PIL image, a path, an array ``[H, W, C]`` or a tensor ``[C, H, W]``."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class Batch(NamedTuple):
    """Images as they come from the data set: neither augmented nor normalised."""

    pixels: Tensor
    """uint8 ``[B, C, H, W]``, or the data set's own floats."""
    labels: Tensor
    """``[B]``, or ``[B, ...]`` where labels are vectors."""
    indices: Tensor
    """Positions in the data set, int64 ``[B]``: augmentation and coalitions are functions of them."""


class Unreadable:
    """Count the images that cannot be read; raise an error as soon as they are more than 1 % of the data set.

    One object may count for several parts of a data set; ``total`` is then the size of all of them.
    """

    def __init__(self, total: int | None = None, *, quiet: bool = False) -> None:
        self.total = total  # None, and so no error, until an iterable has ended
        self.quiet = quiet
        self.found: dict[str, UnreadableImage] = {}
        self._warned = 0

    def add(self, error: UnreadableImage) -> None:
        """Count an image once, also if it is read again in the next epoch."""
        self.found[str(error)] = error
        self.check()

    def check(self) -> None:
        """Raise an error if there are too many and the total is known."""
        if self.total is not None and len(self.found) > _TOLERATED * self.total:
            raise ValueError(f"at least {self._counted()} cannot be read, which is more than 1 %: {self._named()}")

    def warn(self) -> None:
        """Warn once about the images left out."""
        if len(self.found) > self._warned and not self.quiet:
            self._warned = len(self.found)
            warnings.warn(f"{self._counted()} cannot be read and were left out: {self._named()}", stacklevel=3)

    def _counted(self) -> str:
        return (
            f"{len(self.found):,} of {self.total:,} images" if self.total is not None else f"{len(self.found):,} images"
        )

    def _named(self) -> str:
        named = "; ".join(str(error) for error in islice(self.found.values(), _NAMED))
        return named + (f"; and {len(self.found) - _NAMED:,} more" if len(self.found) > _NAMED else "")


def kept_size(preprocess: Preprocess) -> tuple[int, int]:
    """Return height and width of decoded images: the network's, or the larger size that ``Preprocess`` squashes them to."""
    larger = all(whole >= seen for whole, seen in zip(preprocess.resize, preprocess.size, strict=True))
    return preprocess.resize if preprocess.squash and larger else preprocess.size


def to_pixels(image: Any, preprocess: Preprocess | None) -> Tensor:
    """Return an image at ``kept_size``, uint8 ``[C, H, W]``.

    Float tensors are taken as the network's input and returned unchanged.
    """
    if isinstance(image, Tensor) and (preprocess is None or image.is_floating_point()):
        if preprocess is not None and image.shape[-2:] != preprocess.size:
            raise ValueError(f"float images are not resized: {list(image.shape)} is not of size {preprocess.size}")
        return image
    if preprocess is None:
        raise ValueError(
            f"to turn a {type(image).__name__} into the network's input, training needs "
            "wrap(net, preprocess=Preprocess(...)): with a function, images cannot be augmented before normalisation"
        )
    channels = len(preprocess.mean)
    # The size of images that are neither resized nor cropped
    size = kept_size(preprocess) if kept_size(preprocess) == preprocess.resize else None
    if isinstance(image, Tensor) and image.dtype == torch.uint8 and size and image.shape == (channels, *size):
        return image
    if isinstance(image, str | Path):
        picture = read_image(image, channels=channels)
    elif isinstance(image, Image.Image):
        picture = eight_bit(image, channels=channels)
    elif isinstance(image, Tensor) and image.dtype == torch.uint8 and image.ndim == 3:
        picture = eight_bit(as_picture(image), channels=channels)
    elif isinstance(image, np.ndarray) and image.dtype == np.uint8:
        picture = eight_bit(Image.fromarray(image), channels=channels)
    else:
        kind = f"{type(image).__name__} of {getattr(image, 'dtype', 'unknown type')}"
        raise ValueError(f"an image is a path, a PIL image, an array or a tensor (uint8 or float), got {kind}")
    if (picture.height, picture.width) == size:
        return as_tensor(picture)
    neutral = replace(preprocess, size=kept_size(preprocess), mean=(0.0,) * channels, std=(1.0,) * channels)
    return (neutral(picture) * 255).round().to(torch.uint8)


Decoded = tuple[Tensor | UnreadableImage, Any, int]
"""Pixels (or the reason why there are none), label and position of one item."""


def decoded(data: MapStyle, index: int, preprocess: Preprocess | None) -> Decoded:
    """Read one item. An error of reading is returned, not raised, because threads call this.

    A user's own data set opens its files itself, or returns PIL images that are not loaded yet: their errors count too.
    """
    try:
        item = data[index]
    except UnreadableImage as error:
        return error, 0, index
    except READ_ERRORS as error:
        return _not_read(index, error), 0, index
    image, label = _pair(item, index)
    if isinstance(image, Image.Image) and preprocess is not None:
        try:
            image = eight_bit(image, channels=len(preprocess.mean))  # may be the first time that its file is read
        except Exception as error:  # as in read_image
            return _not_read(index, error), 0, index
    try:
        pixels = to_pixels(image, preprocess)
    except UnreadableImage as error:
        return error, 0, index
    if pixels.is_floating_point() and not bool(torch.isfinite(pixels).all()):
        # Checked here, once and on the CPU, so that no training step waits for the GPU to check it
        return UnreadableImage(f"item {index}", "its pixels are not finite (NaN or infinity)"), 0, index
    return pixels, label, index


def _not_read(index: int, error: BaseException) -> UnreadableImage:
    return UnreadableImage(f"item {index}", f"{type(error).__name__}: {error}")


def _pair(item: Any, index: int) -> tuple[Any, Any]:
    """Return image and label; the label of an image alone is None."""
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    if isinstance(item, Tensor | np.ndarray | Image.Image | str | Path):
        return item, None
    raise TypeError(f"items of a data set are pairs (image, label), item {index} is a {type(item).__name__}")


def _label(label: Any, index: int) -> Tensor:
    """Return a label, a number or a vector of numbers, as a tensor; NaN if it is None."""
    try:
        return torch.as_tensor(math.nan if label is None else label)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"labels are numbers, item {index} has {label!r}") from error


def require_unit_range(pixels: Tensor) -> None:
    """Raise an error for float pixels outside of 0 to 1, which augmentation would clip."""
    if not pixels.is_floating_point() or not pixels.numel():
        return
    least, most = float(pixels.amin()), float(pixels.amax())
    if least < -_ROUNDING or most > 1 + _ROUNDING:
        raise ValueError(
            f"augmentation needs pixels between 0 and 1, these are between {least:.3g} and {most:.3g}: give pixels and "
            "wrap(net, preprocess=Preprocess(...)) with the network's mean and standard deviation, or augmentation=None"
        )


def readable(items: Iterable[Decoded], unreadable: Unreadable) -> list[tuple[Tensor, Any, int]]:
    """Return the items that could be read, and count the others."""
    read = []
    for pixels, label, index in items:
        if isinstance(pixels, UnreadableImage):
            unreadable.add(pixels)
        else:
            read.append((pixels, label, index))
    return read


def stacked(read: list[tuple[Tensor, Any, int]], device: torch.device) -> Batch:
    """Stack items into one batch on the device."""
    pixels = torch.stack([item[0] for item in read])
    labels = torch.stack([_label(label, index) for _, label, index in read])
    indices = torch.tensor([item[2] for item in read])
    return Batch(pixels.to(device), labels.to(device), indices.to(device))
