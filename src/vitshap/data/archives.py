"""Unpack archives of images, once.

Training reads every image many times and in random order, for which archives are slow. So an archive, or a folder of
archives, is unpacked next to itself or into a cache folder, under a name with a hash of the names and contents of its
parts; the folder appears only when it is complete. Against hostile archives, only plain files are written (no links or
devices), only inside the folder, and only a limited number of bytes (``MAX_RATIO``, ``MAX_BYTES``).
"""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import shutil
import tarfile
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

_SUFFIXES = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".zip")
_CORRUPT = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError)
MAX_RATIO = 20
"""An archive may unpack to this many times its own size (images hardly shrink when they are packed) ..."""
MIN_BYTES = 64 << 20
"""... or to this many bytes if that is more ..."""
MAX_BYTES = 256 << 30
"""... and to no more than this."""
_BYTES_PER_FILE = 1024
"""Counted for each file on top of its content."""
_BLOCK = 1 << 20


def is_archive(path: Path) -> bool:
    """Return whether the path is a file with the name of an archive that can be read."""
    return path.is_file() and path.name.lower().endswith(_SUFFIXES)


def unpacked(path: Path, cache: Path | None = None, *, limit: int | None = None) -> Path:
    """Return the folder with the images: the path itself, or the folder that its archives are unpacked to.

    ``limit``: bytes that may be written, instead of the limits above.
    """
    parts = _parts(path)
    if not parts:
        return path
    stem = _stem(path)
    contents = "\n".join(f"{part.name} {_content_hash(part)}" for part in parts)
    beside = path if path.is_dir() else path.parent
    folder = (cache or beside) / f"{stem}.unpacked-{hashlib.sha256(contents.encode()).hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    unfinished, reason = _temporary_folder(folder.parent, prefix=f".{stem}.")
    if unfinished is None:
        raise ValueError(
            f"{path} cannot be unpacked into {folder.parent} ({reason}): give a cache folder that is writable"
        )
    try:
        allowed = _Allowance(parts, limit)
        for part in parts:
            _unpack(part, unfinished, allowed)
        unfinished.chmod(0o755)  # mkdtemp keeps others out
        with suppress(OSError):  # another process has unpacked it meanwhile: its copy is used
            os.rename(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _temporary_folder(parent: Path, prefix: str) -> tuple[Path | None, str]:
    """Make a folder; None and the reason if that is impossible."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        if not parent.stat().st_mode & 0o222:  # root could write to it, but it was made read-only on purpose
            return None, "the folder is read-only"
        return Path(tempfile.mkdtemp(prefix=prefix, dir=parent)), ""
    except OSError as error:
        return None, str(error)


def _parts(path: Path) -> list[Path]:
    """Return the archive itself, or the archives of a folder that has no other folders in it."""
    if is_archive(path):
        return [path]
    if not path.is_dir():
        return []
    inside = [item for item in sorted(path.iterdir()) if not item.name.startswith(".")]
    if any(item.is_dir() and ".unpacked-" not in item.name for item in inside):
        return []
    return [item for item in inside if is_archive(item)]


def _stem(path: Path) -> str:
    name = path.name.lower()
    cut = max((len(suffix) for suffix in _SUFFIXES if name.endswith(suffix)), default=0)
    return path.name[: len(path.name) - cut]


def _content_hash(archive: Path) -> str:
    """Hash the whole file: an archive of the same size and date may hold other images."""
    with archive.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Allowance:
    """The number of bytes that may still be written."""

    def __init__(self, parts: Sequence[Path], limit: int | None) -> None:
        packed = sum(part.stat().st_size for part in parts)
        self.most = min(max(MAX_RATIO * packed, MIN_BYTES), MAX_BYTES) if limit is None else limit
        self.left = self.most

    def take(self, count: int, archive: Path) -> None:
        """Subtract bytes that are written; raise an error if there are none left."""
        self.left -= count
        if self.left < 0:
            raise ValueError(
                f"{archive} unpacks to more than {self.most / 2**30:.3g} GiB, which is unusual for images: nothing was "
                "unpacked. Allow more with --set data.unpack_limit=GIB (load_data(unpack_limit=GIB)), or unpack it yourself"
            )


def _unpack(archive: Path, folder: Path, allowed: _Allowance) -> None:
    try:
        for name, content in _plain_files(archive):
            target = folder / _safe(name, archive)
            target.parent.mkdir(parents=True, exist_ok=True)
            allowed.take(_BYTES_PER_FILE, archive)
            with content, target.open("wb") as out:
                while block := content.read(_BLOCK):
                    allowed.take(len(block), archive)
                    out.write(block)
    except _CORRUPT as error:
        raise ValueError(f"{archive} cannot be unpacked: {type(error).__name__}: {error}") from error


def _plain_files(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield name and content of the plain files of an archive, without folders, links and devices."""
    if archive.name.lower().endswith(".zip"):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                if not info.is_dir():
                    yield info.filename, packed.open(info)
        return
    with tarfile.open(archive) as tape:
        for member in tape:
            content = tape.extractfile(member) if member.isfile() else None
            if content is not None:
                yield member.name, content
        _require_end(tape, archive)


def _require_end(tape: tarfile.TarFile, archive: Path) -> None:
    """Raise an error where reading stopped at a damaged header, which tarfile takes for the end of the archive."""
    if not isinstance(tape.fileobj, io.BufferedReader):  # compressed: damage shows in its checksum
        return
    tape.fileobj.seek(tape.offset)
    block = tape.fileobj.read(tarfile.BLOCKSIZE)
    if any(block):
        raise tarfile.ReadError(f"it is damaged at byte {tape.offset:,}")
    if not block:
        warnings.warn(
            f"{archive} has no end: it may have been cut off, and some of its images be missing", stacklevel=2
        )


def _safe(name: str, archive: Path) -> PurePosixPath:
    parts = (*PurePosixPath(name).parts, *PureWindowsPath(name).parts)
    if not name or ".." in parts or PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor:
        raise ValueError(
            f"{archive} contains {name!r}, which would be written outside of its folder: nothing was unpacked"
        )
    return PurePosixPath(name)
