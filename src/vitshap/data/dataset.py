"""One map-style data set for everything: files or arrays, their labels, and the patients they come from.

It is small and holds no pixels of files, so that it can be sent to other processes; decoding many images fast is the
work of ``pixels.py``, which takes any other map-style data set of (image, label) just as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from vitshap.data.decode import as_tensor, read_image


@dataclass(frozen=True)
class ImageData:
    """Images with labels: ``data[i]`` is (pixels ``[C, H, W]``, label)."""

    images: Sequence[Path] | Tensor
    """Files, each read when asked for (uint8), or pixels ``[n, C, H, W]``, uint8 or float in 0..1."""
    labels: Tensor
    """Numbers of classes, int64 ``[n]``."""
    class_names: tuple[str, ...]
    groups: tuple[str, ...] | None = None
    """For each image what must not be torn apart by a split: the patient."""
    channels: int = 3
    """1 (grey) or 3: what files are read as."""
    name: str = "images"

    def __post_init__(self) -> None:
        n, classes = len(self.images), len(self.class_names)
        if self.labels.shape != (n,) or self.labels.is_floating_point():
            given = f"{self.labels.dtype} {list(self.labels.shape)}"
            raise ValueError(f"{self.name}: {n} images need as many whole numbers as labels, got {given}")
        if classes < 2:
            raise ValueError(f"{self.name}: a classifier needs at least two classes, got {list(self.class_names)}")
        require_labels(self.labels, classes, self.name)
        if self.groups is not None and len(self.groups) != n:
            raise ValueError(f"{self.name}: {n} images need as many groups, got {len(self.groups)}")
        if isinstance(self.images, Tensor) and self.images.ndim != 4:
            raise ValueError(f"{self.name}: pixels are [n, C, H, W], got {list(self.images.shape)}")

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.name}: index {index} of {len(self)} images")
        image = self.images[index]
        pixels = image if isinstance(image, Tensor) else as_tensor(read_image(image, channels=self.channels))
        return pixels, int(self.labels[index])

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return (self[index] for index in range(len(self)))

    def subset(self, indices: Sequence[int] | Tensor) -> ImageData:
        """The images of these indices, in their order."""
        chosen = torch.as_tensor(indices, dtype=torch.long)
        images = self.images[chosen] if isinstance(self.images, Tensor) else [self.images[i] for i in chosen.tolist()]
        groups = None if self.groups is None else tuple(self.groups[i] for i in chosen.tolist())
        return replace(self, images=images, labels=self.labels[chosen], groups=groups)

    def class_counts(self) -> Tensor:
        """Images of each class, int64 ``[K]``."""
        return torch.bincount(self.labels, minlength=len(self.class_names))


class Splits(NamedTuple):
    """What is learned from, what models are selected on, what is measured on."""

    train: ImageData
    val: ImageData
    test: ImageData


def require_labels(labels: Tensor, classes: int, name: str = "the data set") -> None:
    """Refuse labels that are not the number of a class."""
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        span = f"{int(labels.min())} to {int(labels.max())}"
        raise ValueError(f"{name}: labels of {classes} classes are 0 to {classes - 1}, got {span}")


def require_a_batch(count: int, batch_size: int, name: str = "the data set", *, set_by: str = "") -> None:
    """Refuse to train on fewer images than one batch; ``set_by`` tells how its size is set."""
    if batch_size < 1:
        raise ValueError(f"the batch size must be at least 1, got {batch_size}")
    if count < batch_size:
        raise ValueError(
            f"{name} has {count:,} images, fewer than one batch of {batch_size:,}: "
            f"use a batch size of at most {count:,}, or more images" + (f" ({set_by})" if set_by else "")
        )
