"""Find photos (names, folders, patterns, the standard input) and read them.

For a file that cannot be read, the reason is one line in plain words.
"""

from __future__ import annotations

import glob
import io
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from vitshap.data.decode import UnreadableImage
from vitshap.explaining.entries import Failed
from vitshap.models.dicom import UnreadableDicom, is_dicom, read_dicom
from vitshap.models.preprocess import eight_bit

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
    "dcm",
)
SUFFIXES = frozenset(f".{kind}" for kind in _KINDS)
"""Suffixes of files that are taken from a folder; a file that is named is tried whatever its suffix."""
SHOWN = 800
"""Longest side of the picture that is kept for drawing."""
LARGE = 32_000_000
"""Pixels above which a photo is shrunk while it is read, ..."""
ENOUGH = 8_000_000
"""... to this many at least, ..."""
SHORT_SIDE = 1024
"""... and to a short side of this many pixels at least."""
NOT_A_FILE = "it is a pipe, socket or device, not a file (- reads a photo from the standard input)"
PIPED_BYTES = 1 << 29
"""Most bytes that are read from the standard input."""
_DEEP = ("I", "F")
"""Modes that are scaled by the range of the whole image."""
_EXIF = ("exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp")
"""Keys of an image's metadata that hold its orientation."""
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = (5, 6, 7, 8)
"""Orientations in which width and height are stored as height and width."""


@dataclass(frozen=True)
class InMemory:
    """A photo that is no file of its own: from the standard input, from a shard, or decoded already."""

    content: bytes | Image.Image | NDArray[Any] = field(repr=False)
    """A file's content, an image, or an array ``[H, W, C]``."""
    name: str = "standard-input"

    def __fspath__(self) -> str:
        """Return its name in reports."""
        return self.name

    def __str__(self) -> str:
        return self.__fspath__()


Photo: TypeAlias = Path | InMemory


@dataclass(frozen=True)
class Found:
    """Files to explain, and names for which there is none."""

    photos: list[Photo]
    missing: list[Failed]

    @property
    def files(self) -> list[Path]:
        """The photos that are files."""
        return [photo for photo in self.photos if isinstance(photo, Path)]


@dataclass(frozen=True, eq=False)
class Opened:
    """A decoded photo, and the picture to show of it."""

    image: Image.Image
    """Loaded, upright, of any mode; a very large photo is shrunk."""
    size: tuple[int, int]
    """Width and height of the upright original."""
    notes: tuple[str, ...]

    @cached_property
    def picture(self) -> Image.Image:
        """Upright, RGB, at most ``SHOWN`` pixels a side; a panorama has more, since the model sees a small part of it."""
        return _small(self.image)


def find_photos(names: Iterable[str], /, *, leave_out: Path | None = None) -> Found:
    """Return the named files, the files in named folders and their subfolders, and those that match patterns, each once.

    "-" is the standard input. Pipes, sockets and devices are not photos. ``leave_out`` is a folder to skip: the one that
    results are written to.
    """
    photos: dict[Photo, None] = {}
    missing = []
    for name in names:
        found = _piped() if name == "-" else _found(name, leave_out)
        if isinstance(found, Failed):
            missing.append(found)
        else:
            photos.update(dict.fromkeys(found))
    return Found(list(photos), missing)


def read_photo(
    source: str | os.PathLike[str] | BinaryIO,
    /,
    *,
    formats: tuple[str, ...] | None = None,
    most_pixels: int | None = None,
) -> Opened:
    """Read the photo of a file, its first frame if it has several; ``UnreadableImage`` has a reason in plain words.

    ``formats``: Pillow's names of the formats that are tried, besides DICOM; default: all. A photo of more than
    ``most_pixels`` (default: twice ``PIL.Image.MAX_IMAGE_PIXELS``) is refused before it is decoded.
    """
    file: str | os.PathLike[str] | BinaryIO = source
    if isinstance(source, InMemory):
        if not isinstance(source.content, bytes):
            return opened(source.content)
        file = io.BytesIO(source.content)
    name = str(source) if isinstance(source, str | os.PathLike) else "the image"
    try:
        if isinstance(file, str | os.PathLike):
            _require_regular(file)
        if is_dicom(file):
            radiograph = read_dicom(file, most_pixels=most_pixels)
            return Opened(radiograph, radiograph.size, ())
        with Image.open(file, formats=formats) as image:
            if most_pixels is not None and image.width * image.height > most_pixels:
                raise Image.DecompressionBombError(f"{image.width * image.height} pixels")
            notes = tuple(_notes(image))
            size = image.size
            factor = _factor(size)
            if factor > 1:  # JPEGs can be decoded at a fraction of their size
                image.draft(None, (size[0] // factor, size[1] // factor))
                factor //= round(size[0] / image.width)
            image.load()
            orientation = _orientation(image)
            for key in _EXIF:  # read once, here: whatever follows must not turn the image again
                image.info.pop(key, None)
            plain = image.copy() if factor == 1 else _reduced(image, factor)
        upright = plain.transpose(_TURNS[orientation]) if orientation in _TURNS else plain
        return Opened(upright, size[::-1] if orientation in _SIDEWAYS else size, notes)
    except UnreadableImage:
        raise
    except Exception as error:  # Pillow's plugins raise many kinds of errors for damaged files
        raise UnreadableImage(name, _reason(file, error, most_pixels)) from error


def opened(photo: Image.Image | NDArray[Any], /) -> Opened:
    """Return an image or array ``[H, W, C]`` as a decoded photo, upright; ``UnreadableImage`` if it is none or damaged."""
    try:
        image = Image.fromarray(photo) if isinstance(photo, np.ndarray) else ImageOps.exif_transpose(photo)
    except Exception as error:  # an image that is decoded only now may be damaged
        if isinstance(photo, np.ndarray):
            why = f"an array is a photo, uint8 [H, W, 3]; this one is {photo.dtype} {list(photo.shape)}"
        else:
            why = _damage(error)
        raise UnreadableImage("the image", why) from error
    return Opened(image, image.size, ())


def photo_pixels(photo: Photo) -> int:
    """Return the number of pixels that decoding a photo needs, from the start of its file; 0 if unreadable."""
    try:
        if isinstance(photo, Path):
            _require_regular(photo)
        content = photo.content if isinstance(photo, InMemory) else photo
        if not isinstance(content, bytes | Path):  # nothing is left to be decoded
            return 0
        with Image.open(io.BytesIO(content) if isinstance(content, bytes) else content) as image:
            shrunk = _factor(image.size) ** 2 if image.format in ("JPEG", "MPO") else 1
            return image.width * image.height // shrunk
    except Exception:  # read_photo gives the reason
        return 0


def _require_regular(path: str | os.PathLike[str]) -> None:
    """Raise unless this is a regular file: reading a pipe may never end."""
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise UnreadableImage(str(path), "it is a folder")
    if not stat.S_ISREG(mode):
        raise UnreadableImage(str(path), NOT_A_FILE)


def _factor(size: tuple[int, int]) -> int:
    """Return the factor by which a photo of this size is shrunk while it is read."""
    width, height = size
    if width * height <= LARGE:
        return 1
    fits = (f for f in (8, 4, 2) if width * height >= ENOUGH * f * f and min(size) >= SHORT_SIDE * f)
    return next(fits, 1)


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation; 1, upright, if the EXIF data are damaged."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # Pillow raises many kinds of errors for damaged data
        return 1


def _reduced(image: Image.Image, factor: int) -> Image.Image:
    """Return the image in RGB, shrunk band by band to avoid a second copy of its full size."""
    if image.mode in _DEEP:
        return eight_bit(image).reduce(factor)
    width, height = (-(-side // factor) for side in image.size)
    small = Image.new("RGB", (width, height))
    rows = 256 * factor
    for top in range(0, image.height, rows):
        band = eight_bit(image.crop((0, top, image.width, min(top + rows, image.height))))
        small.paste(band.reduce(factor), (0, top // factor))
    return small


def _piped() -> list[Photo] | Failed:
    if sys.stdin is None or sys.stdin.isatty():
        return Failed("-", "nothing is piped into the standard input")
    content = sys.stdin.buffer.read(PIPED_BYTES + 1)
    if len(content) > PIPED_BYTES:
        return Failed("-", f"more than {PIPED_BYTES >> 20} MiB come through the standard input")
    return [InMemory(content)]


def _found(name: str, leave_out: Path | None) -> list[Path] | Failed:
    path = Path(os.path.expanduser(name))
    if path.is_dir():
        _refuse_own_folder(path, leave_out)
        photos = sorted(_within(path, leave_out))
        return photos or Failed(name, f"the folder holds no image ({', '.join(_KINDS)})")
    if path.exists():
        return [path] if path.is_file() else Failed(name, NOT_A_FILE)
    if any(letter in name for letter in "*?["):
        matched = sorted(Path(one) for one in glob.iglob(str(path), recursive=True))
        matched = [one for one in matched if not _inside(one, leave_out)]
        inside = [sorted(_within(one, leave_out)) if one.is_dir() else [one] for one in matched if _ordinary(one)]
        return [file for files in inside for file in files] or Failed(name, "no file matches this pattern")
    return Failed(name, "there is no such file or folder")


def _ordinary(path: Path) -> bool:
    """Return whether it is not a pipe, socket or device."""
    return path.is_file() or path.is_dir() or not path.exists()


def _within(folder: Path, leave_out: Path | None) -> Iterator[Path]:
    for here, folders, files in os.walk(folder):
        folders[:] = [one for one in folders if not one.startswith(".") and not _inside(Path(here, one), leave_out)]
        for file in files:
            path = Path(here, file)
            if not file.startswith(".") and path.suffix.lower() in SUFFIXES and _ordinary(path):
                yield path


def _refuse_own_folder(folder: Path, leave_out: Path | None) -> None:
    if leave_out is not None and folder.resolve() == leave_out.resolve():
        raise ValueError(
            f"results cannot go to the folder that is searched for photos ({folder}): the next run would explain the "
            "heatmaps of this one; give another with --out"
        )


def _inside(path: Path, folder: Path | None) -> bool:
    return folder is not None and path.resolve().is_relative_to(folder.resolve())


def _notes(image: Image.Image) -> Iterator[str]:
    # Phones store a second, smaller copy in their JPEGs (MPO): that is not an animation.
    if image.format != "MPO" and getattr(image, "is_animated", False):
        kind = "it has several pages" if image.format == "TIFF" else "it is animated"
        yield f"{kind}: the first {'page' if image.format == 'TIFF' else 'frame'} is explained"
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        yield "it may be partly transparent: transparent parts become white"
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and image.width * image.height > limit:
        yield f"it is very large, {image.width * image.height / 1e6:.0f} megapixels"


def _small(upright: Image.Image) -> Image.Image:
    shorter, longer = sorted(upright.size)
    scale = min(max(SHOWN / longer, SHOWN / 2 / shorter), 4 * SHOWN / longer)
    if scale >= 1:
        return eight_bit(upright)
    width, height = (max(round(side * scale), 1) for side in upright.size)
    rgb = upright if upright.mode == "RGB" else eight_bit(upright)
    return rgb.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)


def _reason(file: str | os.PathLike[str] | BinaryIO, error: BaseException, most_pixels: int | None) -> str:
    if isinstance(error, UnreadableDicom):
        return str(error)
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        limit = (most_pixels or 2 * (Image.MAX_IMAGE_PIXELS or 0)) / 1e6
        return f"it is too large: its pixels would fill the memory (at most {limit:.0f} megapixels are read)"
    try:
        if (os.path.getsize(file) if isinstance(file, str | os.PathLike) else file.seek(0, io.SEEK_END)) == 0:
            return "the file is empty"
    except (OSError, ValueError):  # a stream may be closed
        return "the file is gone or cannot be reached"
    if isinstance(error, PermissionError):
        return "the file may not be read (permission denied)"
    if isinstance(error, UnidentifiedImageError):
        return "it is not an image, or of a kind that Pillow cannot read"
    return _damage(error)


def _damage(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if "truncated" in text or isinstance(error, EOFError):
        return "the file is truncated: its end is missing"
    return f"it is damaged ({text or type(error).__name__})"
