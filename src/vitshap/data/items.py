"""One item of a data set: from (image, label) to pixels at the net's size, or to a named complaint.

Images come as paths, PIL images, arrays or tensors, from this package's data sets or from the user's own. Geometry is
that of ``Preprocess``, so that training sees what explaining will see; normalisation waits until after augmentation. So
does the cut of images that are squashed to a larger square than the net's: random crops come from all of it.

An image that cannot be read is named, left out and counted; when more than 1 % cannot be read, the data set is broken
and that is an error.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitshap.data.decode import READ_ERRORS, UnreadableImage, as_picture, as_tensor, read_image
from vitshap.models.preprocess import Preprocess, eight_bit

_TOLERATED = 0.01
_NAMED = 5
_ROUNDING = 1e-3


@runtime_checkable
class MapStyle(Protocol):
    """A data set whose items are (image, label): a PIL image, a path, an array ``[H, W, C]`` or a tensor ``[C, H, W]``."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class Batch(NamedTuple):
    """Images as they come from the data set: neither varied nor normalised."""

    pixels: Tensor
    """uint8 ``[B, C, H, W]``, or the data set's own floats."""
    labels: Tensor
    """``[B]``, or ``[B, ...]`` where labels are vectors."""
    indices: Tensor
    """Places in the data set, int64 ``[B]``: what augmentation and coalitions are drawn from."""


class Unreadable:
    """Counts what cannot be read; an error as soon as it is more than 1 % of the data set.

    One may count for several parts of a data set; ``total`` is then of all of them.
    """

    def __init__(self, total: int | None = None, *, quiet: bool = False) -> None:
        self.total = total  # None, and so no error, until a walk through an iterable has ended
        self.quiet = quiet
        self.found: dict[str, UnreadableImage] = {}
        self._told = 0

    def add(self, error: UnreadableImage) -> None:
        """Count one; the same one again (in the next epoch) is not counted twice."""
        self.found[str(error)] = error
        self.check()

    def check(self) -> None:
        """An error if there are too many; where the total is not known yet there cannot be."""
        if self.total is not None and len(self.found) > _TOLERATED * self.total:
            raise ValueError(f"at least {self._counted()} cannot be read, which is more than 1 %: {self._named()}")

    def warn(self) -> None:
        """Say once what was left out."""
        if len(self.found) > self._told and not self.quiet:
            self._told = len(self.found)
            warnings.warn(f"{self._counted()} cannot be read and were left out: {self._named()}", stacklevel=3)

    def _counted(self) -> str:
        return (
            f"{len(self.found):,} of {self.total:,} images" if self.total is not None else f"{len(self.found):,} images"
        )

    def _named(self) -> str:
        named = "; ".join(str(error) for error in islice(self.found.values(), _NAMED))
        return named + (f"; and {len(self.found) - _NAMED:,} more" if len(self.found) > _NAMED else "")


def kept_size(preprocess: Preprocess) -> tuple[int, int]:
    """Height and width that images are kept at: the net's, or the larger one that they are squashed to."""
    larger = all(whole >= seen for whole, seen in zip(preprocess.resize, preprocess.size, strict=True))
    return preprocess.resize if preprocess.squash and larger else preprocess.size


def to_pixels(image: Any, preprocess: Preprocess | None) -> Tensor:
    """One image at ``kept_size``, uint8 ``[C, H, W]``; float tensors are taken as the net's input and never altered."""
    if isinstance(image, Tensor) and (preprocess is None or image.is_floating_point()):
        if preprocess is not None and image.shape[-2:] != preprocess.size:
            raise ValueError(
                f"float images are taken as they are: {list(image.shape)} is not of size {preprocess.size}"
            )
        return image
    if preprocess is None:
        raise ValueError(
            f"to turn a {type(image).__name__} into the net's input, training needs wrap(net, preprocess=Preprocess(...)): "
            "a function cannot be taken apart, and images are varied before they are normalised"
        )
    channels = len(preprocess.mean)
    # The size of images that are neither scaled nor cut
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
"""Pixels (or why there are none), label and place of one item."""


def decoded(data: MapStyle, index: int, preprocess: Preprocess | None) -> Decoded:
    """One item, read; what cannot be read is returned, not raised: threads hand it on.

    A user's own data set opens its files itself, or hands out PIL images not loaded yet: its complaints count too.
    """
    try:
        item = data[index]
    except UnreadableImage as error:
        return error, 0, index
    except READ_ERRORS as error:
        return _not_read(index, error), 0, index
    image, label = _pair(item, index)
    try:
        if isinstance(image, Image.Image) and preprocess is not None:
            image = _loaded(image, index, len(preprocess.mean))
        pixels = to_pixels(image, preprocess)
        if pixels.is_floating_point() and not bool(torch.isfinite(pixels).all()):
            # Looked at here, once and on the host: training does not make a GPU wait for it in every step.
            raise UnreadableImage(f"item {index}", "its pixels are not finite (NaN or infinity)")
    except UnreadableImage as error:
        return error, 0, index
    return pixels, label, index


def _loaded(image: Image.Image, index: int, channels: int) -> Image.Image:
    """A picture that may not have been read from its file yet."""
    try:
        return eight_bit(image, channels=channels)
    except Exception as error:  # as in read_image
        raise _not_read(index, error) from error


def _not_read(index: int, error: BaseException) -> UnreadableImage:
    return UnreadableImage(f"item {index}", f"{type(error).__name__}: {error}")


def _pair(item: Any, index: int) -> tuple[Any, Any]:
    """Image and label; an image alone has none."""
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    if isinstance(item, Tensor | np.ndarray | Image.Image | str | Path):
        return item, None
    raise TypeError(f"items of a data set are pairs (image, label), item {index} is a {type(item).__name__}")


def _label(label: Any, index: int) -> Tensor:
    """A number or a vector of numbers; NaN where there is none."""
    try:
        return torch.as_tensor(math.nan if label is None else label)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"labels are numbers, item {index} has {label!r}") from error


def require_unit_range(pixels: Tensor) -> None:
    """Refuse float pixels that are not between 0 and 1: varying images would cut them off there."""
    if not pixels.is_floating_point() or not pixels.numel():
        return
    least, most = float(pixels.amin()), float(pixels.amax())
    if least < -_ROUNDING or most > 1 + _ROUNDING:
        raise ValueError(
            f"images are varied as pixels between 0 and 1, these reach from {least:.3g} to {most:.3g}: give pixels and "
            "wrap(net, preprocess=Preprocess(...)) with the mean and deviation that the net wants, or augmentation=None"
        )


def readable(items: Iterable[Decoded], unreadable: Unreadable) -> list[tuple[Tensor, Any, int]]:
    """The items that have pixels; the others are counted."""
    read = []
    for pixels, label, index in items:
        if isinstance(pixels, UnreadableImage):
            unreadable.add(pixels)
        else:
            read.append((pixels, label, index))
    return read


def stacked(read: list[tuple[Tensor, Any, int]], device: torch.device) -> Batch:
    """Items as one batch on the device."""
    shapes = {tuple(pixels.shape) for pixels, _, _ in read}
    if len(shapes) > 1:
        raise ValueError(f"images of one batch have unequal shapes: {sorted(shapes)}")
    pixels = torch.stack([item[0] for item in read])
    labels = torch.stack([_label(label, index) for _, label, index in read])
    indices = torch.tensor([item[2] for item in read])
    return Batch(pixels.to(device), labels.to(device), indices.to(device))
