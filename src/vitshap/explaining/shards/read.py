"""Shards of a data set: found by name, and read image by image, with memory for a few images.

Shards are tar files as webdataset writes them (files of one item share their name up to the first dot) or Parquet files
with a column of images.
"""

from __future__ import annotations

import glob
import os
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitshap.explaining.batch import as_photo, as_text
from vitshap.explaining.entries import Failed, printable
from vitshap.explaining.photos import SUFFIXES, Photo
from vitshap.explaining.sinks import load_pyarrow

TAR = (".tar", ".tar.gz", ".tgz")
PARQUET = (".parquet",)
IMAGE_COLUMNS = ("image", "img", "jpg", "jpeg", "png", "webp", "bytes")
"""Columns of Parquet files that are tried for the images ..."""
ID_COLUMNS = ("id", "key", "__key__", "image_id", "file", "file_name", "filename")
"""... and for their names."""
_ROWS = 32
"""Rows of a Parquet file that are read at once."""
_BLOCK = 512
"""Bytes of a block in a tar file; two blocks of zeros are its end."""


class UnreadableShard(ValueError):
    """A shard that cannot be read to its end, with the reason in one line."""


@dataclass(frozen=True)
class Shard:
    """One file of a data set."""

    path: str

    @property
    def name(self) -> str:
        """The file's name, as it is printed."""
        return printable(Path(self.path).name)

    @property
    def stem(self) -> str:
        """The file's name without its suffix."""
        name = Path(self.path).name
        return name[: -len(next(end for end in (*TAR[::-1], *PARQUET) if name.lower().endswith(end)))]


def is_shard(name: str) -> bool:
    """Return whether a name or pattern is that of shards."""
    return name.lower().endswith((*TAR, *PARQUET))


def find_shards(names: Iterable[str], /, *, leave_out: Path | None = None) -> list[Shard]:
    """Return the shards of these names, folders and patterns, sorted by path, each once.

    ``leave_out`` is a folder to skip: one that explanations have been written to.
    """
    found: set[str] = set()
    for name in names:
        path = Path(os.path.expanduser(name))
        if path.is_dir():
            inside = [str(one) for one in path.iterdir() if is_shard(one.name) and not one.name.startswith(".")]
        elif path.is_file():
            inside = [str(path)]
        else:
            inside = [one for one in glob.glob(str(path), recursive=True) if is_shard(one)]
        if leave_out is not None:
            inside = [one for one in inside if Path(one).resolve().parent != leave_out.resolve()]
        if not inside or not all(map(is_shard, inside)):
            kinds = ", ".join((*TAR, *PARQUET))
            raise ValueError(f"{printable(name)}: {'not a shard' if inside else 'there is no shard'} ({kinds})")
        found |= {os.path.abspath(one) for one in inside}
    shards = [Shard(path) for path in sorted(found)]
    taken: dict[str, Shard] = {}
    for shard in shards:
        if (other := taken.setdefault(shard.stem.lower(), shard)) is not shard:
            raise ValueError(
                f"{other.path} and {shard.path} would be explained into files of one name: explain them apart"
            )
    return shards


def read_shard(shard: Shard, /, *, image: str | None = None, id: str | None = None) -> Iterator[Photo | Failed]:
    """Yield the images of a shard in their order, or why an item has none; ``UnreadableShard`` where the file is damaged.

    ``image`` is the suffix of the images in a tar file or their column in a Parquet file, ``id`` the column of their names;
    by default those that are customary. Items of tar files are named by their key.
    """
    tar = shard.path.lower().endswith(TAR)
    if tar and id is not None:
        raise ValueError("--id-column is for Parquet shards: items of tar files are named by their key")
    try:
        yield from _read_tar(shard.path, image) if tar else _read_parquet(shard.path, image, id)
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise UnreadableShard(f"{shard.name} cannot be read: {_reason(error)}") from error
    except UnreadableShard as error:
        raise UnreadableShard(f"{shard.name}: {error}") from error


def _read_tar(path: str, image: str | None) -> Iterator[Photo | Failed]:
    if path.lower().endswith(".tar"):
        _require_end(path)
    key: str | None = None
    suffixes: list[str] = []
    content: bytes | None = None
    with tarfile.open(path, "r|*") as archive:
        for member in archive:
            folder, _, base = member.name.rpartition("/")
            stem, dot, suffix = base.partition(".")
            if not member.isfile() or not stem or not dot:  # as webdataset: hidden files and those without a suffix
                continue
            here = f"{folder}/{stem}" if folder else stem
            if here != key:
                if key is not None:
                    yield _item(key, suffixes, content, image)
                key, suffixes, content = here, [], None
            suffixes.append(suffix)
            if content is None and (suffix == image if image else f".{suffix.lower()}" in SUFFIXES):
                file = archive.extractfile(member)
                content = b"" if file is None else file.read()
    if key is not None:
        yield _item(key, suffixes, content, image)


def _item(key: str, suffixes: Sequence[str], content: bytes | None, image: str | None) -> Photo | Failed:
    if content is not None:
        return as_photo(content, key)
    wanted = "image" if image is None else f"file .{image}"
    return Failed(as_text(key), f"it has no {wanted}, only {', '.join('.' + as_text(one) for one in suffixes)}")


def _require_end(path: str) -> None:
    """Refuse a tar file whose end is missing: between two members, that would look like its end."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - _BLOCK, 0))
        if size == 0:
            raise UnreadableShard("the file is empty")
        if any(file.read()):
            raise UnreadableShard("its end is missing: the file was not written or copied completely")


def _read_parquet(path: str, image: str | None, id: str | None) -> Iterator[Photo | Failed]:
    arrow, parquet = load_pyarrow("shards need")
    try:
        with parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            images = _image_column(schema, image)
            names = _id_column(schema, id)
            columns = [images] if names is None else [images, names]
            row = 0
            for batch in file.iter_batches(_ROWS, columns=columns, use_threads=False):
                found = batch.column(images).to_pylist()
                called = [None] * len(found) if names is None else batch.column(names).to_pylist()
                for content, name in zip(found, called, strict=True):
                    own = content.get("path") if isinstance(content, dict) else None
                    yield as_photo(content, str(row) if name is None and own is None else name)
                    row += 1
    except arrow.ArrowException as error:
        raise UnreadableShard(f"it cannot be read as Parquet: {_reason(error)}") from error


def _image_column(schema: Any, wanted: str | None) -> str:
    """Return the column of images: the given one, one of a customary name, or the only one that can hold images."""
    if wanted is not None:
        return _single(schema, wanted)
    found = [field.name for field in schema if _holds_images(str(field.type))]
    customary = [name for name in IMAGE_COLUMNS if name in found]
    if customary or len(found) == 1:
        return _single(schema, (customary or found)[0])
    problem = f"several columns may hold images ({', '.join(found)})" if found else "no column holds images"
    raise UnreadableShard(f"{problem}, of {', '.join(schema.names)}: name it with --image-column")


def _id_column(schema: Any, wanted: str | None) -> str | None:
    found = wanted or next((name for name in ID_COLUMNS if name in schema.names), None)
    return None if found is None else _single(schema, found)


def _single(schema: Any, name: str) -> str:
    """Return the name of a column that is there once."""
    if name not in schema.names:
        raise UnreadableShard(f"it has no column {name!r}, only {', '.join(schema.names)}")
    if schema.names.count(name) > 1:
        raise UnreadableShard(f"it has {schema.names.count(name)} columns {name!r}")
    return name


def _holds_images(kind: str) -> bool:
    """Whether a column is bytes, or a struct of bytes and path as the library datasets stores images."""
    return kind in ("binary", "large_binary") or (kind.startswith("struct<") and "bytes: binary" in kind)


def _reason(error: BaseException) -> str:
    text = " ".join(str(getattr(error, "strerror", None) or error).split())
    return text or type(error).__name__
