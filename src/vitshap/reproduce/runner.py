"""Run steps in order: what has finished is skipped, an interrupted step continues, two processes may run different ones."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from vitshap.errors import did_you_mean
from vitshap.files import FolderInUse, locked_folder
from vitshap.reproduce import store as stores
from vitshap.reproduce.context import SEED, Context, Sources
from vitshap.reproduce.profiles import Profile, Setting
from vitshap.reproduce.specifications import SPECIFICATIONS, Specification, panel_steps, specification
from vitshap.reproduce.steps import step, with_needs
from vitshap.training.processes import kept_random_state


@dataclass(frozen=True)
class Task:
    """One step of one setting."""

    setting: Setting
    step: str

    @property
    def name(self) -> str:
        """As it is written after ``--step``."""
        return f"{self.setting.name}/{self.step}"


def specifications_of(names: Iterable[str]) -> list[Specification]:
    """Return the specifications of these ids; "all": every one."""
    found: dict[str, Specification] = {}
    for name in names:
        chosen = SPECIFICATIONS.values() if name == "all" else [specification(name)]
        found |= {one.id: one for one in chosen}
    return list(found.values())


def tasks_of(profile: Profile, chosen: Iterable[Specification]) -> list[Task]:
    """Return all steps of these tables and figures in this profile, each once and after what it needs."""
    tasks: dict[tuple[str, str], Task] = {}
    for one in chosen:
        for panel in one.panels:
            setting = profile.setting(panel.data, panel.model)
            if setting is None:
                continue
            for name in with_needs(panel_steps(panel.step)):
                tasks.setdefault((setting.name, name), Task(setting, name))
    return list(tasks.values())


def named_tasks(profile: Profile, names: Iterable[str]) -> list[Task]:
    """Return the steps written as ``SETTING/STEP``, without what they need."""
    tasks, settings = [], profile.names()
    for name in names:
        setting, slash, last = name.partition("/")
        if not slash:
            setting, last = next(iter(settings)), name
        if setting not in settings:
            raise ValueError(f"the profile {profile.name} has no {setting!r}{did_you_mean(setting, list(settings))}")
        tasks.append(Task(settings[setting], step(last).name))
    return tasks


class Runner:
    """Runs steps of one profile, with results in one folder."""

    def __init__(
        self, profile: Profile, out: Path, sources: Sources, device: torch.device, console: Console | None = None
    ) -> None:
        self.profile, self.store, self.sources = profile, stores.Store(out), sources
        self.device, self.console = device, console or Console(quiet=True)
        self._contexts: dict[str, Context] = {}

    def context(self, setting: Setting) -> Context:
        """Return what the steps of a setting work with; images and networks are loaded once."""
        if setting.name not in self._contexts:
            self._contexts[setting.name] = Context(
                self.profile, setting, self.store, self.sources, self.device, self.console
            )
        return self._contexts[setting.name]

    def has_data(self, setting: Setting) -> bool:
        """Whether it is known where the images of a setting are."""
        return self.context(setting).recipe.data.source is not None

    def run(self, tasks: Iterable[Task]) -> list[stores.Result]:
        """Run the steps that have not finished; return all results."""
        return [self.run_one(task) for task in tasks]

    def run_one(self, task: Task) -> stores.Result:
        """Run a step, unless it has finished."""
        context, one = self.context(task.setting), step(task.step)
        missing = [name for name in one.needs if self.store.find(task.setting.name, name) is None]
        if missing:
            raise ValueError(f"{task.name} needs {', '.join(f'{task.setting.name}/{name}' for name in missing)} first")
        for name in one.needs:  # of the present settings, also where this step alone is run
            self.store.finished(task.setting.name, name, step(name).inputs(context))
        inputs = one.inputs(context)
        found = self.store.finished(task.setting.name, task.step, inputs)
        if found is not None:
            self._say(f"{task.name}: finished before")
            return found
        try:
            with locked_folder(self.store.folder(task.setting.name, task.step)):
                return self._compute(task, context, inputs)
        except FolderInUse as error:
            raise ValueError(f"{task.name} is being run by another process") from error

    def _compute(self, task: Task, context: Context, inputs: str) -> stores.Result:
        work = self.store.begin(task.setting.name, task.step, inputs)
        self._say(f"{task.name}: {step(task.step).what}")
        with stores.Stopwatch(work, inputs) as watch, kept_random_state(self.device):
            torch.manual_seed(SEED)
            values, weights = step(task.step)(context, work)
        seconds = watch.seconds
        about = {"profile": self.profile.name, "seconds": round(seconds, 1), "seed": SEED, **machine(self.device)}
        about["command"] = f"vitshap reproduce --step {task.name} --profile {self.profile.name}"
        result = self.store.write(task.setting.name, task.step, values, inputs=inputs, about=about, weights=weights)
        self._say(f"{task.name}: {seconds:.0f} s")
        return result

    def seconds(self, tasks: Iterable[Task]) -> Mapping[str, float | None]:
        """Return the estimated seconds of the steps that have not finished; None where nothing is known."""
        return {
            task.name: self.profile.expected(task.step)
            for task in tasks
            if self.store.find(task.setting.name, task.step) is None
        }

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)


def machine(device: torch.device) -> dict[str, Any]:
    """Describe the hardware and the libraries that a result was made with."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("timm", "transformers"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {"hardware": name, "versions": versions}
