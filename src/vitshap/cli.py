"""The command. Each subcommand imports what it needs when it runs."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand

from vitshap.bench import command as bench
from vitshap.bench import quality_commands, speed_commands  # noqa: F401 (they register themselves)

app = typer.Typer(
    name="vitshap",
    help="Which parts of an image drive a vision transformer's prediction.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(bench.app, name="bench")
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
    """Train on digits, compare with exact Shapley values and other methods, explain two photos, write a report."""
    from vitshap.demo import main as run

    raise typer.Exit(run(out, console))


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="Name of a shipped recipe (--list) or path of a YAML file.")] = "",
    data: Annotated[str | None, typer.Option(help="Folder of class folders, archive, or digits.")] = None,
    model: Annotated[str | None, typer.Option(help="timm name, or hub id or folder of transformers.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for everything that is made; default: runs/RECIPE.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be given often.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue what the folder holds.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    show_keys: Annotated[bool, typer.Option("--keys", help="Print all settings of the recipe, and exit.")] = False,
    show_list: Annotated[bool, typer.Option("--list", help="Print the shipped recipes, and exit.")] = False,
) -> None:
    """From images and a net to an explainer: classifier, surrogate, explainer, as a recipe says."""
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


@app.command()
def explain(
    photos: Annotated[
        list[str],
        typer.Argument(help="Images, folders of images, quoted patterns such as '*.jpg', or - (standard input)."),
    ],
    bundle: Annotated[str | None, typer.Option(help="Stored explainer: shipped name, folder, or hub id.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Explain this net instead: timm name, or hub id or folder of transformers.")
    ] = None,
    weights: Annotated[str | None, typer.Option(help="Safetensors file with the weights of a timm net.")] = None,
    method: Annotated[str | None, typer.Option(help="Default: the bundle's explainer; kernelshap for --model.")] = None,
    budget: Annotated[
        int | None,
        typer.Option(
            min=2, help="Evaluations per image of methods that sample; default: as many as fit 60 s (GPU: 2 s)."
        ),
    ] = None,
    players: Annotated[
        int | None, typer.Option(min=1, help="Side of blocks of patches that are explained as one; 2: blocks of 2 x 2.")
    ] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="Class name or number, predicted, or all; may be given often.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Without --target: this many most probable classes.")] = 5,
    patches: Annotated[int, typer.Option(min=1, help="Most important patches to name.")] = 5,
    out: Annotated[Path, typer.Option(help="Folder for report.html and heatmaps.")] = Path("vitshap-output"),
    json_lines: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="A line of JSON per image, as they come.")
    ] = None,
    parquet: Annotated[str | None, typer.Option(help="A row per image and class (needs pyarrow).")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Images at a time.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    heatmaps: Annotated[
        bool | None, typer.Option("--heatmaps/--no-heatmaps", help="Heatmaps as files; default: up to 100 images.")
    ] = None,
) -> None:
    """Show which parts of photos drive the prediction: patches in words, heatmaps, and one report.html."""
    from vitshap.explaining.command import Request, run

    request = Request(
        photos=photos,
        bundle=bundle,
        model=model,
        weights=weights,
        method=method,
        budget=budget,
        players=players,
        targets=tuple(target or ()),
        top=top,
        patches=patches,
        out=out,
        json=json_lines,
        parquet=parquet,
        batch=batch,
        device=device,
        heatmaps=heatmaps,
    )
    raise typer.Exit(run(request))


class OncePerOption(TyperCommand):
    """A command that refuses an option given twice where it takes one value, instead of keeping the last."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, and look at what was given how often."""
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option in self.params:
            single = option.param_type_name == "option" and not getattr(option, "multiple", False)
            if single and sum(one is option for one in given) > 1:
                ctx.fail(f"{option.opts[0]} is given more than once, and takes one value")
        return super().parse_args(ctx, args)


for _owner in (app, bench.app):
    for _command in _owner.registered_commands:
        _command.cls = OncePerOption


def main() -> None:
    """Run the command; errors of the user end with exit code 2 and one line, SIGTERM as Ctrl-C does, with code 143."""
    process, stopped = os.getpid(), False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        if os.getpid() != process:  # a child that was forked has nothing to complete
            os._exit(128 + number)
        if not stopped:
            stopped = True
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        app()
    except SystemExit as end:
        if stopped and end.code:
            raise SystemExit(128 + signal.SIGTERM) from end
        raise
