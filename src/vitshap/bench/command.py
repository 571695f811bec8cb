"""``vitshap bench``: what all measurements share. Each subcommand imports what it needs when it runs."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

app = typer.Typer(help="Measure speed, as ratios within one run, and quality.", no_args_is_help=True)
console = Console()


def device_named(name: str) -> Any:
    """``auto`` is a GPU if there is one."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise typer.BadParameter("there is no CUDA device here", param_hint="--device")
    return torch.device(name)


def write_json(path: Path | None, content: dict[str, Any]) -> None:
    """Nothing, where no path is given."""
    if path is not None:
        path.write_text(json.dumps(content, indent=2) + "\n")


def one_line_errors(command: Callable[..., None]) -> Callable[..., None]:
    """The command, whose user's errors end in one line."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        from vitshap.training.command import user_errors

        with user_errors(resumes=False):
            command(*arguments, **options)

    return run
