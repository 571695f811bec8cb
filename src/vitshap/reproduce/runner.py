"""Run steps in order, or several at a time in processes of their own: what has finished is skipped, an interrupted step
continues."""

from __future__ import annotations

import multiprocessing
import os
import platform
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
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

TIMING = "timing"
"""The step that measures times, beside no other one."""


@dataclass(frozen=True)
class Task:
    """One step of one setting."""

    setting: Setting
    step: str

    @property
    def name(self) -> str:
        """As it is written after ``--step``."""
        return f"{self.setting.name}/{self.step}"


def beside(running: Sequence[Task], ready: Sequence[Task]) -> list[Task]:
    """Return those of the steps that are ready which may start while others run, in order.

    Trainings go first, and beside no measurement: they leave a GPU waiting for the launches of small kernels, in which
    time it computes those of other trainings, but each of these would wait for the long kernels of a measurement. Times of
    methods are measured last, and beside no other step.
    """
    trainings = [task for task in ready if step(task.step).trains]
    measurements = [task for task in ready if not step(task.step).trains and task.step != TIMING]
    if any(not step(task.step).trains for task in running):
        return [] if trainings or any(task.step == TIMING for task in running) else measurements
    if running or trainings:
        return trainings
    return measurements or list(ready[:1])


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
        self.jobs = 1
        """Processes that run steps at the same time, this one included."""
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
        if missing := self._missing(task):
            raise ValueError(f"{task.name} needs {', '.join(f'{task.setting.name}/{name}' for name in missing)} first")
        for name in one.needs:  # of the present settings, also where this step alone is run
            networks = self._networks(Task(task.setting, name), context)
            self.store.finished(task.setting.name, name, step(name).inputs(context), networks)
        inputs, networks = one.inputs(context), self._networks(task, context)
        found = self.store.finished(task.setting.name, task.step, inputs, networks)
        if found is not None:
            self._say(f"{task.name}: finished before")
            return found
        try:
            with locked_folder(self.store.folder(task.setting.name, task.step)):
                return self._compute(task, context, inputs, networks)
        except FolderInUse as error:
            raise ValueError(f"{task.name} is being run by another process") from error

    def run_together(self, tasks: Sequence[Task], jobs: int) -> list[stores.Result]:
        """Run the steps in up to ``jobs`` processes, each when what it needs has finished; ``beside`` says which of them.

        A step that fails does not end the others, but for those that need it. Every process writes a log.
        """
        waiting = {task.name: task for task in tasks if self.store.find(task.setting.name, task.step) is None}
        running: dict[str, SpawnProcess] = {}
        failed: list[str] = []
        try:
            while True:
                ready = [task for task in waiting.values() if not self._missing(task)]
                now = [task for task in tasks if task.name in running]
                for task in beside(now, ready)[: jobs - len(running)]:
                    running[task.name] = self._started(waiting.pop(task.name), 1 if task.step == TIMING else jobs)
                if not running:
                    break
                wait([process.sentinel for process in running.values()])
                for name in [name for name, process in running.items() if not process.is_alive()]:
                    process = running.pop(name)
                    process.join()
                    self._say(self._ending(name, process.exitcode))
                    failed += [name] if process.exitcode else []
        finally:
            for process in running.values():  # after an interruption
                process.terminate()
                process.join()
        if failed or waiting:
            logs = ", ".join(str(self._log(name)) for name in failed)
            ended = f"{', '.join(failed)} failed: see {logs}" if failed else ""
            left = f"steps before these have not been run: {', '.join(waiting)}" if waiting else ""
            raise ValueError("; ".join(part for part in (ended, left) if part))
        return self.run(tasks)

    def _started(self, task: Task, jobs: int) -> SpawnProcess:
        """Start a step in a process of its own."""
        log = self._log(task.name)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        arguments = self.profile, self.store.out, self.sources, self.device, task, jobs, log
        process = multiprocessing.get_context("spawn").Process(target=_run_alone, args=arguments)
        process.start()
        self._say(f"{task.name}: started, log in {log}")
        return process

    def _ending(self, name: str, code: int | None) -> str:
        """Return the last line of a process's log; how it ended, if it was killed before it could write one."""
        log = self._log(name)
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() and code in (0, 1) else []
        return lines[-1] if lines else f"{name}: its process ended with exit code {code}"

    def _log(self, name: str) -> Path:
        return self.store.out / "work" / f"{name.replace('/', '-')}.log"

    def _missing(self, task: Task) -> list[str]:
        """Return the steps before it that have not finished."""
        return [name for name in step(task.step).needs if self.store.find(task.setting.name, name) is None]

    def _networks(self, task: Task, context: Context) -> dict[str, str]:
        """Return digests of the weights that a step is computed with, as far as they are known."""
        trained = {name: self.store.find(task.setting.name, name) for name in with_needs([task.step])[:-1]}
        found = {name: one.weights_digest for name, one in trained.items() if one is not None}
        found["pre-trained"] = context.pretrained_digest
        return {name: one for name, one in found.items() if one is not None}

    def _compute(self, task: Task, context: Context, inputs: str, networks: dict[str, str]) -> stores.Result:
        work = self.store.begin(task.setting.name, task.step, inputs, networks)
        self._say(f"{task.name}: {step(task.step).what}")
        with stores.Stopwatch(work, inputs, networks) as watch, kept_random_state(self.device):
            torch.manual_seed(SEED)
            values, weights = step(task.step)(context, work)
        seconds = watch.seconds
        about = {"profile": self.profile.name, "seconds": round(seconds, 1), "seed": SEED, **machine(self.device)}
        about["command"] = f"vitshap reproduce --step {task.name} --profile {self.profile.name}"
        about |= {"networks": networks} | ({"jobs": self.jobs} if self.jobs > 1 else {})
        result = self.store.write(task.setting.name, task.step, values, inputs=inputs, about=about, weights=weights)
        self._say(f"{task.name}: {seconds:.0f} s")
        return result

    def seconds(self, tasks: Iterable[Task]) -> Mapping[str, float | None]:
        """Return the estimated seconds of the steps that have not finished; None where nothing is known."""
        return {
            task.name: self.profile.expected(task.setting.name, task.step)
            for task in tasks
            if self.store.find(task.setting.name, task.step) is None
        }

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)


def _run_alone(
    profile: Profile, out: Path, sources: Sources, device: torch.device, task: Task, jobs: int, log: Path
) -> None:
    """Run a step in this process, one of ``jobs``, with its share of memory or threads; exit with 1 if it fails."""
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(0.95 / jobs, device.index)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // jobs))
    with log.open("w", encoding="utf-8", buffering=1) as file:
        console = Console(file=file, width=120)
        runner = Runner(profile, out, sources, device, console)
        runner.jobs = jobs
        try:
            runner.run_one(task)
        except Exception as error:  # whatever it is, the main process shows it and goes on
            console.print_exception()
            console.print(
                f"{task.name}: {type(error).__name__}: {error}", highlight=False, soft_wrap=True, markup=False
            )
            raise SystemExit(1) from None


def _end_with_parent() -> None:
    """Wait until the main process has ended, which may have been killed, and end this one: nobody would start the rest."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


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
