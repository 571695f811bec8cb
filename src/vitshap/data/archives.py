"""Archives of images, unpacked once.

Training reads every image many times and in random order, which archives are bad at. So an archive (or a folder of
parts) is unpacked next to itself, or into a folder that the user names, under a name that its parts' names and contents
are hashed into; the folder appears only when it is complete. Only plain files are written and only inside the folder:
links, devices and names that lead outside are what hostile archives are made of. So are small files that unpack to
many gigabytes: what is written is limited (``MOST_TIMES``, ``MOST_BYTES``).
"""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

_SUFFIXES = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".zip")
_CORRUPT = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError)
MOST_TIMES = 20
"""Images hardly shrink when they are packed: an archive is unpacked to at most so many times its own size, ..."""
LEAST_BYTES = 64 << 20
"""... or to this where that is more, ..."""
MOST_BYTES = 256 << 30
"""... and to no more than this."""
_BYTES_PER_FILE = 1024
"""What a file counts at least, for names take place too."""
_BLOCK = 1 << 20


def is_archive(path: Path) -> bool:
    """Whether the file's name says that it is an archive that can be read."""
    return path.is_file() and path.name.lower().endswith(_SUFFIXES)


def unpacked(path: Path, cache: Path | None = None, *, limit: int | None = None) -> Path:
    """The folder with the images: the path itself, or where its archive or archives were unpacked (now or earlier).

    ``limit``: bytes that may be written, instead of the limits above.
    """
    parts = _parts(path)
    if not parts:
        return path
    stem = _stem(path)
    said = "\n".join(f"{part.name} {_content_hash(part)}" for part in parts)
    beside = path if path.is_dir() else path.parent
    folder = (cache or beside) / f"{stem}.unpacked-{hashlib.sha256(said.encode()).hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if not folder.parent.stat().st_mode & 0o222:  # root could write all the same, but somebody meant it
            raise PermissionError("the folder is read-only")
        unfinished = Path(tempfile.mkdtemp(prefix=f".{stem}.", dir=folder.parent))
    except OSError as error:
        raise ValueError(
            f"{path} cannot be unpacked into {folder.parent} ({error}): name a cache folder that can be written to"
        ) from error
    try:
        allowed = _Allowance(parts, limit)
        for part in parts:
            _unpack(part, unfinished, allowed)
        unfinished.chmod(0o755)  # mkdtemp keeps others out
        _move(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _parts(path: Path) -> list[Path]:
    """The archive itself, or the archives of a folder that has no other folders in it."""
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
    """Of the whole file: an archive of the same size and date may hold other images."""
    try:
        with archive.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ValueError(f"{archive} cannot be read: {error}") from error


class _Allowance:
    """How many bytes may still be written."""

    def __init__(self, parts: Sequence[Path], limit: int | None) -> None:
        packed = sum(part.stat().st_size for part in parts)
        self.most = min(max(MOST_TIMES * packed, LEAST_BYTES), MOST_BYTES) if limit is None else limit
        self.left = self.most

    def take(self, count: int, archive: Path) -> None:
        """Refuse when it is used up; sizes that an archive states of itself are not believed."""
        self.left -= count
        if self.left < 0:
            raise ValueError(
                f"{archive} unpacks to more than {self.most / 2**30:.3g} GiB, which archives of images do not: nothing was "
                "unpacked. If it is right, allow more with --set data.unpack_limit=GIB (load_data(unpack_limit=GIB)), "
                "or unpack it yourself"
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
    """Name and content of the plain files of an archive; folders, links and devices are passed over."""
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


def _safe(name: str, archive: Path) -> PurePosixPath:
    parts = (*PurePosixPath(name).parts, *PureWindowsPath(name).parts)
    if not name or ".." in parts or PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor:
        raise ValueError(
            f"{archive} holds {name!r}, which would be written outside of its folder: nothing was unpacked"
        )
    return PurePosixPath(name)


def _move(unfinished: Path, folder: Path) -> None:
    """Give the folder its final name; if another process has meanwhile done the same, its copy stays."""
    try:
        os.rename(unfinished, folder)
    except OSError:
        if not folder.is_dir():
            raise
