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
from typing import Annotated, Any, Literal, TypeVar

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from vitshap.errors import leave
from vitshap.explaining import command as explaining
from vitshap.exporting import command as exporting
from vitshap.serving import command as serving

T = TypeVar("T")
Data = Literal["imagenette", "mura", "pets"]
Layout = Annotated[
    str,
    typer.Option(
        metavar="auto|folder|imagenette|pets|mura|chest",
        help="How the data is laid out; auto: as in the bundle's training, if known, else recognised.",
    ),
]
Split = Annotated[
    str,
    typer.Option(
        metavar="own|authors",
        help="own: that of the bundle's training, if known, else the data's own; authors: that of the paper's authors.",
    ),
]

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


@app.command()
def reproduce(
    what: Annotated[
        list[str] | None, typer.Argument(help="table-1 to table-12, figure-1 to figure-24, or all.")
    ] = None,
    profile: Annotated[
        str, typer.Option(help="smoke (digits), cpu, small (DeiT-Tiny) or full (the paper's).")
    ] = "smoke",
    step: Annotated[
        list[str] | None, typer.Option(metavar="SETTING/STEP", help="Run this step alone; may be repeated.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]PATH", help="Images of a data set, a folder or archive; may be repeated."),
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(metavar="[SETTING=]FILE", help="Safetensors file that the model starts from; may be repeated."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for results; default: reproduce/PROFILE.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    jobs: Annotated[int, typer.Option(min=1, help="Steps at a time, each in a process with a log of its own.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the steps and their time, and exit.")] = False,
    pages: Annotated[Path | None, typer.Option(help="Folder of result pages to write anew from these results.")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="Print all tables and figures, and exit.")] = False,
) -> None:
    """Make the paper's tables and figures: run what they need, beside the paper's numbers."""
    from vitshap.errors import user_errors

    with user_errors(resumes=False):
        from vitshap.reproduce import command

        if show_list:
            command.print_list(console)
            return
        command.run(
            what or (),
            chosen=profile,
            steps=step or (),
            data=data or (),
            weights=weights or (),
            out=out or Path("reproduce") / profile,
            device=device,
            jobs=jobs,
            dry_run=dry_run,
            pages_folder=pages,
            console=console,
        )


@app.command()
def convert(
    surrogate: Annotated[Path, typer.Argument(help="The authors' ..._surrogate_..._state_dict.ckpt.")],
    explainer: Annotated[Path, typer.Argument(help="The authors' ..._explainer_..._state_dict.ckpt.")],
    data: Annotated[Data, typer.Option(help="What they were trained on.")],
    out: Annotated[Path, typer.Option(help="Folder for the bundle.")],
    half: Annotated[bool, typer.Option("--half", help="Store the weights in float16.")] = False,
) -> None:
    """Make a bundle of the paper's authors' published weights. It is the only command that reads pickled files."""
    from vitshap.errors import user_errors

    with user_errors(resumes=False):
        from vitshap.reproduce.convert import convert as run

        folder = run(surrogate, explainer, data=data, out=out, half=half)
    console.print(f"the explainer is in {folder}", highlight=False, soft_wrap=True)


def command_of(options: type[T], run: Callable[[T], int], /) -> Callable[..., None]:
    """Return a command whose parameters are the fields of ``options``, a dataclass with typer's annotations."""

    def command(**given: Any) -> None:
        raise typer.Exit(run(options(**given)))

    command.__signature__ = inspect.signature(options, eval_str=True)  # type: ignore[attr-defined]
    command.__doc__ = options.__doc__
    return command


app.command("explain")(command_of(explaining.Options, explaining.run))
app.command("serve")(command_of(serving.Options, serving.run))
app.command("export")(command_of(exporting.Options, exporting.run))


@app.command()
def evaluate(
    bundle: Annotated[str | None, typer.Argument(help="Stored explainer: folder, shipped name or hub id.")] = None,
    data: Annotated[str, typer.Option(help="Folder or archive of images, or digits; its test images are used.")] = "",
    model: Annotated[
        str | None, typer.Option(help="Model to explain: timm name, or hub id or folder of transformers.")
    ] = None,
    weights: Annotated[str | None, typer.Option(help="Safetensors file with the weights of a timm model.")] = None,
    methods: Annotated[
        str, typer.Option(metavar="NAME[:OPTION=VALUE],...", help="Default: a set of all kinds; all: every method.")
    ] = "",
    metrics: Annotated[
        str, typer.Option(metavar="NAME[:DEFINITION],...", help="Default: insertion, deletion, and correlations.")
    ] = "",
    images: Annotated[int, typer.Option(min=1, help="Test images, spread evenly.")] = 1000,
    where: Annotated[
        str | None, typer.Option(metavar="predicted=CLASS|label=CLASS", help="Only images of this class.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="predicted|label|CLASS", help="Explained class; default: the predicted one.")
    ] = None,
    classes: Annotated[
        str, typer.Option(metavar="target|all", help="all: also the mean over other classes.")
    ] = "target",
    truth: Annotated[
        Path | None, typer.Option(help="Folder with reference values, a further row; computed if there are none.")
    ] = None,
    truth_images: Annotated[int, typer.Option(min=2, help="Images whose reference values are computed.")] = 100,
    budget: Annotated[int, typer.Option(min=100, help="Evaluations per image of reference values.")] = 65_536,
    against: Annotated[
        str | None, typer.Option(help="Row that differences are taken to; default: the explainer, else the best.")
    ] = None,
    layout: Layout = "auto",
    split: Split = "own",
    cache: Annotated[Path | None, typer.Option(help="Where archives are unpacked.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Images at a time.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    compiled: Annotated[bool, typer.Option(help="Compile the surrogate's evaluation (GPU).")] = True,
    out: Annotated[Path, typer.Option(help="Folder for the report, tables and finished parts.")] = Path(
        "vitshap-evaluation"
    ),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say how long it would take, and stop.")] = False,
) -> None:
    """Compare methods on a model and images: one table with intervals, curves, and a report."""
    given = dict(locals())
    from vitshap.errors import user_errors

    with user_errors(resumes=False):
        for name, value, known in (("--classes", classes, ("target", "all")), ("--split", split, ("own", "authors"))):
            if value not in known:
                raise ValueError(f"{name} is {' or '.join(known)}, got {value!r}")
        if not data:
            raise ValueError("name the images with --data: a folder or archive, or digits")
        from vitshap.evaluation.command import Options, run

        run(Options(**given), console)


@app.command()
def certify(
    bundle: Annotated[str, typer.Argument(help="Stored explainer: folder, shipped name or hub id.")],
    data: Annotated[str, typer.Option(help="Data that it was trained on: a folder or archive, or digits.")] = "",
    others: Annotated[
        list[Path] | None, typer.Option(help="Other images, a folder or archive; may be repeated.")
    ] = None,
    images: Annotated[int, typer.Option(min=2, help="Images of each set, spread evenly.")] = 1000,
    truth_images: Annotated[int, typer.Option(min=2, help="Test images with converged values.")] = 100,
    drift_images: Annotated[
        int, typer.Option(min=0, help="Images with converged values of each corrupted or other set.")
    ] = 16,
    budget: Annotated[int, typer.Option(min=100, help="Evaluations of each image with converged values.")] = 65_536,
    coalitions: Annotated[int, typer.Option(min=2, help="Coalitions of each image for the losses, even.")] = 64,
    corruptions: Annotated[
        str, typer.Option(metavar="NAME,...|none", help="Corruptions of the test images.")
    ] = "noise,blur,contrast,dark",
    metrics: Annotated[
        str, typer.Option(metavar="NAME,...|none", help="Metrics of the explainer and of random scores.")
    ] = "insertion,deletion",
    warned: Annotated[
        float | None, typer.Option(help="Choose the confidence threshold anew: share of validation images below it.")
    ] = None,
    truth: Annotated[Path | None, typer.Option(help="Folder of converged values; default: in the output.")] = None,
    layout: Layout = "auto",
    split: Split = "own",
    cache: Annotated[Path | None, typer.Option(help="Where archives are unpacked.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    compiled: Annotated[bool, typer.Option(help="Compile the surrogate's evaluation (GPU).")] = True,
    out: Annotated[Path, typer.Option(help="Folder for the page, the JSON and finished parts.")] = Path(
        "vitshap-certificate"
    ),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say how long it would take, and stop.")] = False,
    record: Annotated[bool, typer.Option("--record", help="Write the figures into the bundle's card.")] = False,
) -> None:
    """Measure a stored explainer on images that it has not seen, and give a verdict: a page, JSON, the bundle's card."""
    given = dict(locals())
    from vitshap.errors import user_errors

    with user_errors(resumes=False):
        if split not in ("own", "authors"):
            raise ValueError(f"--split is own or authors, got {split!r}")
        if not data:
            raise ValueError("name the images with --data: a folder or archive, or digits")
        from vitshap.certifying.command import Options, run

        run(Options(**given), console)


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
