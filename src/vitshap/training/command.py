"""What ``vitshap train`` prints besides training: the list of recipes, their keys, and errors in one line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from vitshap.training.keys import describe
from vitshap.training.loop import TrainingDiverged
from vitshap.training.recipes import Recipe, load_recipe, recipe_names


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

    ``resumes``: whether a command that was interrupted can be continued.
    """
    shown = warnings.showwarning
    warnings.showwarning = _show_in_a_line
    try:
        yield
    except (ValueError, OSError) as error:
        _end(str(error), 2)
    except TrainingDiverged as error:
        _end(str(error), 1)
    except KeyboardInterrupt:
        _end("interrupted" + ("; the same command with --resume continues" if resumes else ""), 130)
    finally:
        warnings.showwarning = shown


def _show_in_a_line(message: Warning | str, category: type[Warning], *where: Any, **options: Any) -> None:
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


def _end(message: str, code: int) -> None:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(code)
