"""``vitshap reproduce``: list, estimate, run and show the paper's tables and figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from vitshap.experiments.tables import Table as Rows
from vitshap.files import write_text
from vitshap.models.base import resolve_device
from vitshap.reproduce import pages
from vitshap.reproduce.context import Sources
from vitshap.reproduce.profiles import PROFILES, Profile, profile
from vitshap.reproduce.runner import Runner, Task, named_tasks, specifications_of, tasks_of
from vitshap.reproduce.sources import source_lines
from vitshap.reproduce.specifications import SPECIFICATIONS, Specification
from vitshap.reproduce.steps import EXPERIMENTS, needed, step
from vitshap.reproduce.views import View, Viewer
from vitshap.training.recipes.clock import duration

REPORT = "report"
BOLD = re.compile(r"\*\*(.+?)\*\*")


def print_list(console: Console) -> None:
    """Print all tables and figures with what each needs, the further experiments, and the profiles."""

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    for one in SPECIFICATIONS.values():
        say(f"{one.id}: {one.title}")
        say(f"    {', '.join(one.data)}; {', '.join(one.models)}; {one.images}")
        say(f"    needs {', '.join(needed(one))}")
    console.print("\nFurther experiments, with --step:")
    for name in EXPERIMENTS:
        say(f"{name}: {step(name).what}")
    console.print("\nProfiles:")
    for kind in PROFILES.values():
        say(f"{kind.name}: {kind.description}; settings {', '.join(kind.names())}")


def run(
    names: Sequence[str],
    *,
    chosen: str,
    steps: Sequence[str],
    data: Sequence[str],
    weights: Sequence[str],
    out: Path,
    device: str,
    jobs: int,
    dry_run: bool,
    pages_folder: Path | None,
    console: Console,
) -> int:
    """Run what these tables and figures need (or the given steps alone), then write and print them.

    Returns the exit code: 0, also where images of some data sets were not given.
    """
    kind = profile(chosen)
    if not names and not steps and pages_folder is None:
        raise ValueError("give a table or figure (table-1, figure-2, all), or --step SETTING/STEP; --list prints them")
    wanted = specifications_of(names)
    tasks = tasks_of(kind, wanted) + named_tasks(kind, steps)
    runner = Runner(kind, out, _sources(kind, data, weights, out), resolve_device(device), console)
    if not dry_run:
        tasks = _with_data(runner, tasks, console)
    print_estimate(runner, tasks, console)
    if dry_run:
        return 0
    if jobs > 1:
        runner.run_together(tasks, jobs)
    else:
        runner.run(tasks)
    viewer = Viewer(kind, runner.store)
    views = [viewer.view(one) for one in wanted]
    for view in views:
        write_view(view, out / REPORT)
        for table in view.tables:
            console.print(styled(table).to_terminal())
    if views:
        filled, not_run = sum(one.filled for one in views), sum(one.not_run for one in views)
        console.print(
            f"{len(views)} tables and figures in {out / REPORT}: {filled:,} numbers, curves and pictures, "
            f"{not_run:,} not run",
            highlight=False,
            soft_wrap=True,
        )
    if pages_folder is not None:
        pages.collect(out, pages_folder, kind)
        pages.write_pages(pages_folder)
    return 0


def print_estimate(runner: Runner, tasks: Sequence[Task], console: Console) -> None:
    """Print the steps that have not finished and how long they take."""
    seconds = runner.seconds(tasks)
    if not seconds:
        console.print(f"{len(tasks)} steps, all finished before", highlight=False)
        return
    for name, spent in seconds.items():
        console.print(f"{name}: {'no estimate' if spent is None else duration(spent)}", highlight=False)
    known = [spent for spent in seconds.values() if spent is not None]
    much = "about" if len(known) == len(seconds) else "at least"
    total = f", {much} {duration(sum(known))} ({runner.profile.hardware})" if known else ""
    console.print(f"{len(seconds)} of {len(tasks)} steps to run{total}", highlight=False)


def styled(table: Rows) -> Rows:
    """Return a table whose Markdown bold is the terminal's."""
    rows = [
        {key: replace(cell, value=BOLD.sub(r"[bold]\1[/bold]", str(cell.value))) for key, cell in row.items()}
        for row in table.rows
    ]
    return replace(table, rows=rows)


def write_view(view: View, folder: Path) -> None:
    """Write a table or figure as Markdown, with its charts and the pictures that its steps left."""
    one: Specification = view.specification
    drawn = view.draw(folder)
    lines = [f"# {one.id}: {one.title}\n", *(f"{note}\n" for note in one.notes)]
    lines += [table.to_markdown() for table in view.tables]
    lines += [f"![{path.name}]({path.name})\n" for path in drawn]
    lines += [f"![{path.name}](../{path.relative_to(folder.parent).as_posix()})\n" for path in view.pictures]
    lines += [f"- {line}" for line in source_lines(view.sources)]
    write_text(folder / f"{one.id}.md", "\n".join(lines) + "\n")


def _sources(kind: Profile, data: Sequence[str], weights: Sequence[str], out: Path) -> Sources:
    """Read where images and weights are."""
    sets = _by_name(
        data, {one.data for one in kind.settings.values()}, f"--data: the profile {kind.name} has the data sets"
    )
    files = _by_name(weights, set(kind.names()), f"--weights: the profile {kind.name} has the settings")
    for path in files.values():
        if not Path(path).is_file():
            raise ValueError(f"--weights: there is no file {path}")
    return Sources(sets, files, out / "work" / "data")


def _by_name(texts: Sequence[str], known: set[str], option: str) -> dict[str, str]:
    """Read ``NAME=PATH``, or ``PATH``, which is for every other name."""
    given: dict[str, str] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals or name not in known:
            if equals and not Path(text).exists():
                raise ValueError(f"{option} {', '.join(sorted(known))}; got {text}")
            name, path = "", text
        given[name] = path
    return given


def _with_data(runner: Runner, tasks: Sequence[Task], console: Console) -> list[Task]:
    """Leave out steps of data sets whose images were not given."""
    missing = {task.setting.data for task in tasks if not runner.has_data(task.setting)}
    for name in sorted(missing):
        console.print(f"{name}: not run, because no --data {name}=PATH was given", highlight=False)
    kept = [task for task in tasks if task.setting.data not in missing]
    if missing and not kept:
        raise ValueError(f"give the images with --data {sorted(missing)[0]}=PATH")
    return kept
