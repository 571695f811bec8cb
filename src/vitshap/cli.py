"""The command ``vitshap``. Each subcommand imports what it needs when it runs."""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from vitshap.errors import leave
from vitshap.explaining import command as explaining
from vitshap.serving import command as serving

T = TypeVar("T")

app = typer.Typer(
    name="vitshap",
    help="Which parts of an image drive a vision transformer's prediction.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
console = Console()


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from vitshap._version import __version__

        console.print(__version__)
        raise typer.Exit


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for report and pictures; an earlier demo there is replaced.")
    ] = Path("demo-output"),
) -> None:
    """Explain two photos, train on digits, compare with exact Shapley values and other methods, write a report."""
    from vitshap.demo import main as run

    raise typer.Exit(run(out, console))


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="Name of a shipped recipe (--list) or path of a YAML file.")] = "",
    data: Annotated[str | None, typer.Option(help="Folder of class folders, archive, or digits.")] = None,
    model: Annotated[str | None, typer.Option(help="timm name, or hub id or folder of transformers.")] = None,
    out: Annotated[Path | None, typer.Option(help="Output folder; default: runs/RECIPE.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the output folder.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    show_keys: Annotated[bool, typer.Option("--keys", help="Print all settings of the recipe, and exit.")] = False,
    show_list: Annotated[bool, typer.Option("--list", help="Print the shipped recipes, and exit.")] = False,
) -> None:
    """Train an explainer of a model on images, by a recipe: classifier, surrogate, explainer."""
    from vitshap.errors import user_errors
    from vitshap.training.recipes.recipe import load_recipe, print_keys, print_recipes

    with user_errors():
        if show_list:
            print_recipes(console)
            return
        chosen = load_recipe(recipe, data=data, model=model, settings=settings or ())
        if show_keys:
            print_keys(chosen, console)
            return
        from vitshap.training.recipes.run import run

        run(chosen, out or Path("runs") / Path(recipe).stem, resume=resume, console=console, device=device)


def command_of(options: type[T], run: Callable[[T], int], /) -> Callable[..., None]:
    """Return a command whose parameters are the fields of ``options``, a dataclass with typer's annotations."""

    def command(**given: Any) -> None:
        raise typer.Exit(run(options(**given)))

    command.__signature__ = inspect.signature(options, eval_str=True)  # type: ignore[attr-defined]
    command.__doc__ = options.__doc__
    return command


app.command("explain")(command_of(explaining.Options, explaining.run))
app.command("serve")(command_of(serving.Options, serving.run))


class OncePerOption(TyperCommand):
    """A command that rejects an option of one value given twice, instead of using the last."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; fail if an option of one value is repeated."""
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option in self.params:
            single = option.param_type_name == "option" and not getattr(option, "multiple", False)
            if single and sum(one is option for one in given) > 1:
                ctx.fail(f"{option.opts[0]} is given more than once, but takes one value")
        return super().parse_args(ctx, args)


def _single_values(commands: typer.Typer) -> None:
    for command in commands.registered_commands:
        command.cls = OncePerOption


class _Bench(TyperGroup):
    """``vitshap bench``, imported only when it is used."""

    @cached_property
    def _group(self) -> Any:
        from vitshap.bench import experiment_commands, speed_commands  # noqa: F401 (they register themselves)
        from vitshap.bench.command import app as bench

        _single_values(bench)
        return typer.main.get_command(bench)

    def list_commands(self, ctx: Any) -> list[str]:
        """List the subcommands."""
        return list(self._group.list_commands(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a subcommand."""
        return self._group.get_command(ctx, cmd_name)


app.add_typer(
    typer.Typer(cls=_Bench, help="Measure speed, as ratios within one run, and quality.", no_args_is_help=True),
    name="bench",
)
_single_values(app)


def main() -> None:
    """Run the command. A user's error ends it with one line and exit code 2; SIGTERM acts as Ctrl-C, with exit code 143."""
    process, stopped = os.getpid(), False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        if os.getpid() != process:  # a forked child has nothing to finish
            os._exit(128 + number)
        if not stopped:
            stopped = True
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        app()
    except SystemExit as end:
        code = 128 + signal.SIGTERM if stopped and end.code else end.code
        if sys.argv[1:2] in (["explain"], ["serve"]) and (code is None or isinstance(code, int)):
            leave(code or 0)  # all is done: the libraries' own clean-up takes more than a second
        raise SystemExit(code) from end
