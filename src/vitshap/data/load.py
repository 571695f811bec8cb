"""Load a data set (``digits``, a folder, an archive) as training, validation and test images."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections import defaultdict
from os import PathLike
from pathlib import Path
from typing import Literal

import torch

from vitshap.data.archives import is_archive, unpacked
from vitshap.data.dataset import ImageData, Splits, load_digits
from vitshap.data.layouts import Entry, Listing, grouped, list_images
from vitshap.data.published import AUTHORS, authors_split, check_published
from vitshap.data.splits import divide, warn_of_divided_groups

_NAMED = 3
_IN_WORDS = {"val": "validation", "test": "test"}


def load_data(
    source: str | PathLike[str] = "digits",
    *,
    layout: str = "auto",
    split: Literal["own", "authors"] = "own",
    groups: str | None = None,
    cache: str | PathLike[str] | None = None,
    unpack_limit: float | None = None,
    channels: int = 3,
    seed: int = 0,
    strict: bool = False,
) -> Splits:
    """Load training, validation and test images.

    Args:
        source: ``"digits"`` (embedded), a folder, an archive (.tar, .tgz, .zip) or a folder of archives.
        layout: ``"auto"`` recognises it; or ``"folder"`` (a folder per class, possibly within train, val and test),
            ``"imagenette"``, ``"pets"``, ``"mura"`` or ``"chest"``.
        split: ``"own"``: the folder's own parts, and the missing ones split off by ``seed``; ``"authors"``: the split of
            ImageNette, Pets or MURA, and the order of classes, of the paper's authors.
        groups: images that must not be divided among the three parts, such as those of a patient: a regular expression
            whose group is searched for in an image's path, or a csv file of (file, group).
        cache: where archives are unpacked; next to them if not given.
        unpack_limit: GiB that an archive may unpack to; by default 20 times its size, and no more than 256.
        channels: 1 reads images as grey, 3 as red, green and blue. Digits have 1.
        seed: decides which images are split off where the data set has no official split.
        strict: raise an error instead of a warning if the split (seed 0) of a known data set is not the known one.
    """
    if channels not in (1, 3):
        raise ValueError(f"images are read with 1 or 3 channels, got {channels}")
    if str(source) == "digits":
        if split != "own" or groups is not None:
            raise ValueError("digits have one split and no groups: do not set data.split and data.groups")
        return load_digits(seed=seed)
    path = Path(os.path.expanduser(source))
    if not path.is_dir() and not is_archive(path):
        missing = "" if path.exists() else "there is no such file or folder; "
        raise ValueError(
            f"{path} is not a data set: {missing}give a folder of images, an archive (.tar, .tgz, .zip) or digits"
        )
    place = None if cache is None else Path(os.path.expanduser(cache))
    limit = None if unpack_limit is None else int(unpack_limit * 2**30)
    listing = list_images(unpacked(path, place, limit=limit), layout)
    listing = listing if groups is None else grouped(listing, groups)
    if split == "authors":
        listing, parts = authors_split(listing)
        check_published(listing, parts, AUTHORS, strict=strict)
    else:
        parts = divide(listing, seed=seed)
        if seed == 0:
            check_published(listing, parts, strict=strict)
    if groups is not None:
        warn_of_divided_groups(parts)
    splits = Splits(*(_image_data(listing, parts[part], channels) for part in ("train", "val", "test")))
    _warn_of_doubtful_parts(splits)
    return splits


def _warn_of_doubtful_parts(splits: Splits) -> None:
    """Warn about what makes validation or test results doubtful: training images among them, classes without images."""
    for part, words in _IN_WORDS.items():
        data: ImageData = getattr(splits, part)
        if same := identical_files(data, splits.train):
            named = ", ".join(path.name for path in same[:_NAMED]) + (", ..." if len(same) > _NAMED else "")
            warnings.warn(
                f"{len(same):,} of {len(data):,} {words} images are identical to training images ({named}): results on "
                "them are too good",
                stacklevel=3,
            )
        without = [name for name, n in zip(data.class_names, data.class_counts().tolist(), strict=True) if not n]
        if without:
            warnings.warn(f"there are no {words} images of {', '.join(without)}", stacklevel=3)


def identical_files(some: ImageData, others: ImageData) -> list[Path]:
    """Return the files of ``some`` that are identical to one of ``others``; only files of equal size are read."""
    by_size: dict[int, tuple[list[Path], list[Path]]] = defaultdict(lambda: ([], []))
    for which, data in enumerate((some, others)):
        for path in data.images:
            if isinstance(path, Path):
                by_size[path.stat().st_size][which].append(path)
    found = set()
    for ours, theirs in by_size.values():
        known = {_digest(path) for path in theirs} if ours else set()
        found |= {path for path in ours if known and _digest(path) in known}
    return sorted(found)


def _digest(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:  # reported when it is read as an image
        return str(path).encode()


def _image_data(listing: Listing, entries: list[Entry], channels: int) -> ImageData:
    return ImageData(
        images=[listing.root / entry.path for entry in entries],
        labels=torch.tensor([entry.label for entry in entries], dtype=torch.long),
        class_names=listing.class_names,
        groups=tuple(entry.group for entry in entries) if any(entry.group for entry in entries) else None,
        channels=channels,
        name=listing.name,
    )
