"""Which photos are meant, and what is in them: names, folders and patterns to files, files to pictures.

A file that cannot be read is an answer, not an accident: the reason is one line in plain words.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from PIL import Image, UnidentifiedImageError

from vitshap.data.decode import UnreadableImage
from vitshap.models.preprocess import eight_bit
from vitshap.report import Failed

_KINDS = (
    "jpg",
    "jpeg",
    "jpe",
    "jfif",
    "png",
    "webp",
    "gif",
    "bmp",
    "tif",
    "tiff",
    "avif",
    "jp2",
    "ppm",
    "pgm",
    "tga",
    "mpo",
)
SUFFIXES = frozenset(f".{kind}" for kind in _KINDS)
"""What is taken from a folder; a file that is named is tried whatever it is called."""
SHOWN = 800
"""Longest side of the picture that is kept for drawing."""


@dataclass(frozen=True)
class Found:
    """Files to explain, and what was asked for but is not there."""

    photos: list[Path]
    missing: list[Failed]


class Opened(NamedTuple):
    """A photo as the file has it, and what to show of it."""

    image: Image.Image
    """Loaded, of any mode, as the camera held it: preprocessing sets it upright."""
    picture: Image.Image
    """Upright, RGB, at most ``SHOWN`` pixels a side."""
    size: tuple[int, int]
    """Width and height of the upright original."""
    notes: tuple[str, ...]


def find_photos(names: Iterable[str], /, *, leave_out: Path | None = None) -> Found:
    """Files named, files in folders named (and in folders within), files that patterns match; each once, in order.

    ``leave_out`` is a folder whose files are nobody's photos: the one that results are written to.
    """
    photos: dict[Path, None] = {}
    missing = []
    for name in names:
        found = _found(name, leave_out)
        if isinstance(found, Failed):
            missing.append(found)
        else:
            photos.update(dict.fromkeys(found))
    return Found(list(photos), missing)


def read_photo(path: str | os.PathLike[str], /) -> Opened:
    """The photo of a file, its first frame if there are several; ``UnreadableImage`` with a reason in plain words."""
    try:
        with Image.open(path) as image:
            notes = tuple(_notes(image))
            image.load()
            upright = eight_bit(image)
            return Opened(image, _small(upright), upright.size, notes)
    except Exception as error:  # Pillow's plugins raise whatever a damaged file leads them to
        raise UnreadableImage(str(path), _reason(path, error)) from error


def _found(name: str, leave_out: Path | None) -> list[Path] | Failed:
    path = Path(os.path.expanduser(name))
    if path.is_dir():
        _refuse_own_folder(path, leave_out)
        photos = sorted(_within(path, leave_out))
        return photos or Failed(name, f"the folder holds no image ({', '.join(_KINDS)})")
    if path.exists():
        return [path]
    if any(letter in name for letter in "*?["):
        matched = sorted(Path(one) for one in glob.iglob(str(path), recursive=True))
        matched = [one for one in matched if not _inside(one, leave_out)]
        inside = [sorted(_within(one, leave_out)) if one.is_dir() else [one] for one in matched]
        return [file for files in inside for file in files] or Failed(name, "no file matches this pattern")
    return Failed(name, "there is no such file or folder")


def _within(folder: Path, leave_out: Path | None) -> Iterator[Path]:
    for here, folders, files in os.walk(folder):
        folders[:] = [one for one in folders if not one.startswith(".") and not _inside(Path(here, one), leave_out)]
        for file in files:
            if not file.startswith(".") and os.path.splitext(file)[1].lower() in SUFFIXES:
                yield Path(here, file)


def _refuse_own_folder(folder: Path, leave_out: Path | None) -> None:
    if leave_out is not None and folder.resolve() == leave_out.resolve():
        raise ValueError(
            f"results cannot go to the folder that is searched for photos ({folder}): the next run would explain the "
            "heatmaps of this one; give another with --out"
        )


def _inside(path: Path, folder: Path | None) -> bool:
    return folder is not None and path.resolve().is_relative_to(folder.resolve())


def _notes(image: Image.Image) -> Iterator[str]:
    # Phones store a second, smaller copy in their JPEGs (MPO), which is no animation.
    if image.format != "MPO" and getattr(image, "is_animated", False):
        kind = "it has several pages" if image.format == "TIFF" else "it is animated"
        yield f"{kind}: the first {'page' if image.format == 'TIFF' else 'frame'} is explained"
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        yield "it may be transparent in parts: they are taken as white"
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and image.width * image.height > limit:
        yield f"it is very large, {image.width * image.height / 1e6:.0f} megapixels"


def _small(upright: Image.Image) -> Image.Image:
    scale = SHOWN / max(upright.size)
    if scale >= 1:
        return upright
    width, height = (max(round(side * scale), 1) for side in upright.size)
    return upright.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)


def _reason(path: str | os.PathLike[str], error: BaseException) -> str:
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0) / 1e6
        return f"it is too large: its pixels would fill the memory (at most {limit:.0f} megapixels are read)"
    try:
        if os.path.getsize(path) == 0:
            return "the file is empty"
    except OSError:
        return "the file is gone or cannot be reached"
    if isinstance(error, PermissionError):
        return "the file may not be read (permission denied)"
    if isinstance(error, UnidentifiedImageError):
        return "it is not an image, or of a kind that Pillow cannot read"
    text = " ".join(str(error).split())
    if "truncated" in text or isinstance(error, EOFError):
        return "the file is truncated: its end is missing"
    return f"it is damaged ({text or type(error).__name__})"
