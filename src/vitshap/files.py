"""Files: written completely or not at all, read with an error that names them; output folders with one writer at a time."""

from __future__ import annotations

import errno
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there
    fcntl = None  # type: ignore[assignment]

LOCK = ".vitshap.lock"
"""Name of the file in an output folder that the run which writes there holds a lock on."""


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Call ``write`` with a temporary name beside ``path`` and rename the file: an error leaves what was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")  # short, however long the name is
    try:
        write(temporary)
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        raise OSError(f"{path} could not be written ({error}); what was there before is unchanged") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> Any:
    """Read a JSON file; a damaged one is a ``ValueError`` that names it, a missing one an ``OSError``."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ValueError(f"{path} is damaged: {reason}") from error


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors to a safetensors file atomically."""
    # clones: safetensors refuses tensors that share memory
    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_atomically(path, lambda temporary: save_file(copies, temporary, dict(metadata or {})))


def read_tensors(path: Path, metadata: Mapping[str, str] | None = None) -> dict[str, Tensor]:
    """Read a safetensors file; a ``ValueError`` if it is missing, damaged or lacks an entry of ``metadata``."""
    if not path.is_file():  # reading a pipe would never end
        raise ValueError(f"{path} cannot be read as safetensors: there is no such file")
    try:
        with safe_open(path, "pt") as file:
            stored = file.metadata() or {}
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read as safetensors: {error}") from error
    for key, value in (metadata or {}).items():
        if stored.get(key) != value:
            raise ValueError(f"{path} was made for another {key}")
    return tensors


def load_weights(net: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Load all of a network's weights; a ``ValueError`` that names ``path`` if any is missing, unknown or misshapen."""
    if difference := state_difference(net.state_dict(), tensors):
        raise ValueError(f"{path} holds the weights of another network: {difference}")
    net.load_state_dict(dict(tensors))


def state_difference(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str | None:
    """Why ``given`` cannot replace the tensors ``own`` of a network; None if it can."""
    odd = sorted(own.keys() ^ given.keys()) or [name for name in own if own[name].shape != given[name].shape]
    return f"{len(odd)} tensors are missing, unknown or of another shape, {odd[0]} first" if odd else None


class FolderInUse(OSError):
    """Another run writes into the folder, or writes the same file."""


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Hold an output folder, which is made if need be, for this run alone; ``FolderInUse`` where another run has it.

    A folder that was made here and is still empty at the end is removed.
    """
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    text = f"another run of vitshap writes into {folder}: wait for its end, or choose another folder with --out"
    try:
        with locked(folder / LOCK, text):
            yield
    finally:
        if made:
            with suppress(OSError):
                folder.rmdir()


@contextmanager
def locked(path: Path, message: str) -> Iterator[None]:
    """Hold a lock file; ``FolderInUse`` with this message where another run has it.

    The operating system releases the lock of a process that ends, however it ends. The lock file is removed at the end.
    File systems without locks lock nothing.
    """
    handle = _lock(path, message)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # before the lock is released: a run that waited to open it sees that it is gone
        os.close(handle)


def _lock(path: Path, message: str) -> int:
    while True:
        handle = os.open(
            path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666
        )
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        except FileNotFoundError:  # the run that held it has just removed it
            pass
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                return handle  # a file system without locks
            os.close(handle)
            raise FolderInUse(message) from error
        os.close(handle)
