"""What ``vitshap train`` prints besides training: the list of recipes, their keys, and errors in one line."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread, current_thread, main_thread
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from vitshap.training.keys import describe
from vitshap.training.loop import TrainingDiverged
from vitshap.training.recipes import Recipe, load_recipe, recipe_names

GRACE = 1.5
"""Seconds that an interrupted command has to end by itself."""


def list_recipes(console: Console) -> None:
    """Names and descriptions of the recipes that come with the package."""
    table = Table(box=None, show_header=False)
    for name in recipe_names():
        table.add_row(name, load_recipe(name).description)
    console.print(table)


def print_keys(recipe: Recipe, console: Console) -> None:
    """Everything that can be set, what it is now, and what it means."""
    console.print("Set with --set KEY=VALUE:", highlight=False)
    table = Table(box=None, show_header=False)
    table.add_column(no_wrap=True)
    for key in describe(recipe):
        takes = "" if key.takes == "a group of keys" else f"({key.takes})"
        table.add_row(f"[bold]{key.path}[/]", Group(Text(key.value), Text(f"{key.help} {takes}".strip(), "dim")))
    console.print(table)


@contextmanager
def user_errors(*, resumes: bool = True) -> Iterator[None]:
    """Errors of the user end with one line and exit code 2, a training that diverged with one line and 1.

    Ctrl-C and SIGTERM end it within two seconds, whatever is being computed. ``resumes``: whether a command that was
    interrupted can be continued.
    """
    shown = warnings.showwarning
    warnings.showwarning = _show_in_a_line
    interrupted = "interrupted" + ("; the same command with --resume continues" if resumes else "")
    with _ends_promptly(interrupted) as said:
        try:
            yield
        except (ValueError, OSError) as error:
            _end(str(error), 2)
        except TrainingDiverged as error:
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
            _leave(128 + number)
        os.close(reader)

    Thread(target=watch, daemon=True).start()
    try:
        yield said
    finally:
        if said.is_set() and noticed.wait(0.5):
            atexit.register(_leave, 128 + number)  # the first of all to be called
        else:
            signal.set_wakeup_fd(before)
            os.close(writer)


def _show_in_a_line(message: Warning | str, category: type[Warning], *where: Any, **options: Any) -> None:
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


def _leave(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


def _end(message: str, code: int) -> None:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(code)
