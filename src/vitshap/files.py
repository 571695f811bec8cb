"""Output folders of commands: one run at a time writes into a folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there
    fcntl = None  # type: ignore[assignment]

LOCK = ".vitshap.lock"
"""Name of the file in an output folder that the run which writes there holds a lock on."""


class FolderInUse(OSError):
    """Another run writes into the folder."""


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Hold an output folder, which is made if need be, for this run alone; ``FolderInUse`` where another run has it.

    The operating system releases the lock of a process that ends, however it ends. The lock file is removed at the end,
    and with it a folder that was made here and is still empty. File systems without locks lock nothing.
    """
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    handle = _lock(path, folder)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # before the lock is released: a run that waited to open it sees that it is gone
        os.close(handle)
        if made:
            with suppress(OSError):
                folder.rmdir()


def _lock(path: Path, folder: Path) -> int:
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
            text = f"another run of vitshap writes into {folder}: wait for its end, or choose another folder with --out"
            raise FolderInUse(text) from error
        os.close(handle)
