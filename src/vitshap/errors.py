"""Errors as users see them: one line, an exit code, and the known name that an unknown one resembles."""

from __future__ import annotations

import atexit
import difflib
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Thread, current_thread, main_thread
from typing import Any

LISTED = 40
"""Most names that an error lists."""
GRACE = 1.5
"""Seconds that an interrupted command has to end by itself."""
HARMLESS = ("Attempting to run cuBLAS, but there was no current CUDA context",)
"""Beginnings of warnings that commands do not show: PyTorch's, of what it then puts right itself."""


class CommandError(RuntimeError):
    """A failure that is neither the user's nor a bug; a command that it ends prints its message and exits with code 1."""


class OptionError(TypeError, ValueError):
    """An option that a method or metric does not have, or of another type; commands end with its message as for any
    ``ValueError``."""


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """The end of an error message about an unknown word: the known one that it resembles, or else all of them."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.65)
    near = near or [one for one in known if len(word) > 3 and one[:4] == word[:4]]
    if near:
        return f'; did you mean "{near[0]}"?'
    more = f" and {len(known) - LISTED:,} more" if len(known) > LISTED else ""
    return f"; known: {', '.join(known[:LISTED])}{more}"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, at most 200 characters; its type where there is no message."""
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__


@contextmanager
def user_errors(*, resumes: bool = True) -> Iterator[None]:
    """End a command with one line: exit code 2 for ``ValueError`` and ``OSError``, 1 for ``CommandError``, 130 for Ctrl-C.

    Ctrl-C and SIGTERM end it within two seconds, whatever is being computed. ``resumes``: whether an interrupted
    command can be continued with ``--resume``.
    """
    shown = warnings.showwarning
    warnings.showwarning = _show_in_a_line
    interrupted = "interrupted" + ("; the same command with --resume continues" if resumes else "")
    with _ends_promptly(interrupted) as said:
        try:
            yield
        except (ValueError, OSError) as error:
            _end(str(error), 2)
        except CommandError as error:
            _end(str(error), 1)
        except KeyboardInterrupt:
            said.set()
            _end(interrupted, 130)
        finally:
            warnings.showwarning = shown


@contextmanager
def _ends_promptly(message: str) -> Iterator[Event]:
    """End this process ``GRACE`` seconds after Ctrl-C or SIGTERM.

    Python acts on a signal when a call returns, and a step of a training on a CPU may be a call of many seconds; after
    that, the libraries' own clearing up takes seconds too, and is left out. Files are written whole or not at all, so
    nothing is lost. The event that is given says that ``message`` was printed already.
    """
    said, noticed, number = Event(), Event(), 0
    if current_thread() is not main_thread() or os.name != "posix":
        yield said
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def watch() -> None:
        nonlocal number
        while (got := os.read(reader, 1)) and got[0] not in (signal.SIGINT, signal.SIGTERM):
            pass
        if got:
            number = got[0]
            noticed.set()
            time.sleep(GRACE)
            if not said.is_set():
                print(f"error: {message}", file=sys.stderr)
            leave(128 + number)
        os.close(reader)

    Thread(target=watch, daemon=True).start()
    try:
        yield said
    finally:
        if said.is_set() and noticed.wait(0.5):
            atexit.register(leave, 128 + number)  # the first of all to be called
        else:
            signal.set_wakeup_fd(before)
            os.close(writer)


def _show_in_a_line(message: Warning | str, category: type[Warning], *where: Any, **options: Any) -> None:
    if not str(message).startswith(HARMLESS):
        print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


def leave(code: int) -> None:
    """End this process at once, without the clean-up at exit, which takes seconds after large libraries were imported."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


def _end(message: str, code: int) -> None:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(code)
