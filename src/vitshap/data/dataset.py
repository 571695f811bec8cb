"""The package's map-style data set: files or arrays, their labels, and groups such as patients; and the digits.

``ImageData`` holds no pixels of files, so that it can be sent to other processes. ``pixels.py`` decodes many images
fast, of ``ImageData`` and of any other map-style data set of (image, label).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from vitshap.counter_rng import shuffled
from vitshap.data.decode import as_tensor, read_image

_DIGIT_COUNTS = (1257, 180, 360)
"""Training, validation and test images."""
UNLABELLED = ("unlabelled",)
"""Classes of images whose labels mean nothing."""


@dataclass(frozen=True)
class ImageData:
    """Images with labels: ``data[i]`` is (pixels ``[C, H, W]``, label)."""

    images: Sequence[Path] | Tensor
    """Files, each read on access (uint8), or pixels ``[n, C, H, W]``, uint8 or float in 0..1."""
    labels: Tensor
    """Class of each image, int64 ``[n]``."""
    class_names: tuple[str, ...]
    groups: tuple[str, ...] | None = None
    """Group of each image, such as its patient; a split never divides a group."""
    channels: int = 3
    """1 (grey) or 3 (colour): how files are read."""
    name: str = "images"

    def __post_init__(self) -> None:
        n, groups = len(self.images), len(self.images) if self.groups is None else len(self.groups)
        if self.labels.shape != (n,) or self.labels.is_floating_point() or groups != n:
            given = f"{self.labels.dtype} {list(self.labels.shape)} and {groups} groups"
            raise ValueError(f"{self.name}: {n} images need as many whole numbers as labels, and groups; got {given}")
        require_labels(self.labels, len(self.class_names), self.name)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        pixels = image if isinstance(image, Tensor) else as_tensor(read_image(image, channels=self.channels))
        return pixels, int(self.labels[index])

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return (self[index] for index in range(len(self)))

    def subset(self, indices: Sequence[int] | Tensor) -> ImageData:
        """Return the images with these indices, in their order."""
        chosen = torch.as_tensor(indices, dtype=torch.long)
        images = self.images[chosen] if isinstance(self.images, Tensor) else [self.images[i] for i in chosen.tolist()]
        groups = None if self.groups is None else tuple(self.groups[i] for i in chosen.tolist())
        return replace(self, images=images, labels=self.labels[chosen], groups=groups)

    def class_counts(self) -> Tensor:
        """Count the images of each class, int64 ``[K]``."""
        return torch.bincount(self.labels, minlength=len(self.class_names))


class Splits(NamedTuple):
    """Images to train on, to select models by, and to measure with."""

    train: ImageData
    val: ImageData
    test: ImageData


def require_labels(labels: Tensor, classes: int, name: str = "the data set") -> None:
    """Raise an error for labels that are not the number of a class."""
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        span = f"{int(labels.min())} to {int(labels.max())}"
        raise ValueError(f"{name}: labels of {classes} classes are 0 to {classes - 1}, got {span}")


def require_a_batch(count: int, batch_size: int, name: str = "the data set", *, set_by: str = "") -> None:
    """Raise an error if there are fewer images than one batch; ``set_by`` says how the batch size is set."""
    if count < batch_size:
        raise ValueError(
            f"{name} has {count:,} images, fewer than one batch of {batch_size:,}: "
            f"use a batch size of at most {count:,}, or more images" + (f" ({set_by})" if set_by else "")
        )


def load_digits(*, seed: int = 0) -> Splits:
    """Load scikit-learn's handwritten digits: 1,257 / 180 / 360 images, pixels in 0..1, float32 ``[n, 1, 8, 8]``.

    With 4 x 4 = 16 players all 65,536 coalitions can be evaluated, so that estimates can be compared with exact values
    without a download.
    """
    from sklearn.datasets import load_digits as load

    bunch = load()
    pixels = torch.from_numpy(bunch.images).float()[:, None] / 16
    labels = torch.from_numpy(bunch.target).long()
    order = shuffled(len(labels), seed=seed, epoch=0)  # no generator: the same split with every version of torch
    names = tuple(str(digit) for digit in range(10))
    parts = torch.split_with_sizes(order, _DIGIT_COUNTS)
    return Splits(*(ImageData(pixels[part], labels[part], names, channels=1, name="digits") for part in parts))
