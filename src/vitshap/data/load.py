"""From what a user names (``digits``, a folder, an archive) to training, validation and test images."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path

import torch

from vitshap.data.archives import is_archive, unpacked
from vitshap.data.dataset import ImageData, Splits
from vitshap.data.digits import load_digits
from vitshap.data.layouts import Entry, Listing, list_images
from vitshap.data.splits import check_published, divide


def load_data(
    source: str | PathLike[str] = "digits",
    *,
    layout: str = "auto",
    cache: str | PathLike[str] | None = None,
    channels: int = 3,
    seed: int = 0,
    strict: bool = False,
) -> Splits:
    """Training, validation and test images.

    Args:
        source: ``"digits"`` (embedded), a folder, an archive (.tar, .tgz, .zip) or a folder of archives.
        layout: ``"auto"`` looks at the folder's shape; else ``"folder"`` (a folder per class, perhaps within train, val and
            test), ``"imagenette"``, ``"pets"``, ``"mura"`` or ``"chest"``.
        cache: where archives are unpacked; next to them if not given.
        channels: 1 reads images as grey, 3 as red, green and blue. Digits have 1.
        seed: which images are set aside where the data set does not say.
        strict: refuse a copy of a known data set whose split (seed 0) is not the one on record, instead of warning.
    """
    if channels not in (1, 3):
        raise ValueError(f"images are read with 1 or 3 channels, got {channels}")
    if str(source) == "digits":
        return load_digits(seed=seed)
    path = Path(os.path.expanduser(source))
    if not path.exists():
        raise ValueError(f"there is no data set {str(source)!r}: name a folder, an archive, or digits")
    if path.is_file() and not is_archive(path):
        raise ValueError(f"{path} is neither a folder of images nor an archive (.tar, .tgz, .zip)")
    listing = list_images(unpacked(path, None if cache is None else Path(os.path.expanduser(cache))), layout)
    parts = divide(listing, seed=seed)
    if seed == 0:
        check_published(listing, parts, strict=strict)
    return Splits(*(_image_data(listing, parts[part], channels) for part in ("train", "val", "test")))


def _image_data(listing: Listing, entries: list[Entry], channels: int) -> ImageData:
    return ImageData(
        images=[listing.root / entry.path for entry in entries],
        labels=torch.tensor([entry.label for entry in entries], dtype=torch.long),
        class_names=listing.class_names,
        groups=tuple(entry.group for entry in entries) if any(entry.group for entry in entries) else None,
        channels=channels,
        name=listing.name,
    )
