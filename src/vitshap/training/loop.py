"""The training loop shared by all trainings: on a CPU, a GPU or several processes, resumable with identical results.

A ``Task`` names a module that returns its own loss, so that it can be wrapped for several processes whatever the loss
needs. A GPU trains in bfloat16 with float32 weights and a CPU in float32 (bfloat16 ends the process on some CPUs),
whatever ``Accelerator`` the caller may have. No random number comes from a process's global generator: the order of
samples is a function of (seed, epoch), a batch of (epoch, sample indices), dropout of (seed, step), and the learning rate
of the step. So a checkpoint needs weights, optimiser state and position only, and two processes see the batches of one.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitshap import files
from vitshap.counter_rng import shuffled
from vitshap.errors import CommandError
from vitshap.training import checkpoints, processes
from vitshap.training.configs import LoopConfig, number
from vitshap.training.processes import kept_random_state, seed_device
from vitshap.training.progress import DeferredLoss, TensorBoard, progress_bar

BEST = "best.safetensors"
LOG = "log.jsonl"
SAVE_SECONDS = 30
PRINTED_EPOCHS = 20
"""About this many validations of a training are printed; the log has all of them."""


class TrainingDiverged(CommandError):
    """The loss is not finite; the message names step, learning rate and the last good checkpoint."""


@dataclass(frozen=True, eq=False)
class Task:
    """What the loop trains."""

    step: nn.Module
    """``forward(*batch)`` returns the mean loss of a batch."""
    trained: nn.Module
    """The part of ``step`` whose weights are saved and returned."""
    batches: Callable[[Iterable[Tensor], int], Iterable[tuple[Tensor, ...]]]
    """Given the sample indices of each batch (int64 ``[n]``, on the CPU) and the epoch, yields the arguments of ``step`` on
    the device; they depend on nothing else."""
    num_samples: int
    validate: Callable[[], dict[str, float]]
    """Returns the metrics of ``trained``, equal in every process."""
    selection_metric: str = "loss"
    """The metric that selects the best weights, see ``best_record``."""


@dataclass
class State:
    """Position and history of a training; saved with every checkpoint."""

    step: int = 0
    losses: list[float] = field(default_factory=list)
    """Losses of the steps since the last validation."""
    history: list[dict[str, float]] = field(default_factory=list)
    """One record per validation."""


def best_record(history: Sequence[dict[str, float]], metric: str) -> dict[str, float]:
    """Return the record of the validation whose weights are kept: the best by ``metric``, the first among equals.

    A metric whose name ends in "loss" is better when smaller, any other when larger. Where the history lacks
    ``metric``, its "loss" decides.
    """
    name = metric if metric in history[0] else "loss"
    return min(history, key=lambda record: record[name] if name.endswith("loss") else -record[name])


def train(
    task: Task, config: LoopConfig, folder: str | Path, *, resume: bool = False, console: Console | None = None
) -> list[dict[str, float]]:
    """Train, leave the best weights in ``task.trained``, and return one record per validation.

    The global random state of the caller is left unchanged.
    """
    with kept_random_state(next(task.step.parameters()).device):
        return _Run(task, config, Path(folder), console or Console(quiet=True)).run(resume)


class StepTimer:
    """Times optimiser steps of the loop, without validation or checkpoints; they do train ``task.trained``."""

    def __init__(self, task: Task, config: LoopConfig) -> None:
        endless = replace(task, num_samples=max(task.num_samples, number(config.batch_size)))
        self._run = _Run(endless, config, Path(), Console(quiet=True), alone=True)

    def __call__(self, order: Sequence[Tensor]) -> list[float]:
        """Take one step per tensor of sample indices; return the seconds of each, loading of the batch included."""
        run, stamps = self._run, []
        with kept_random_state(run.device):
            batches = iter(run.task.batches(order, 0))
            for _ in order:
                stamps.append(time.perf_counter())
                run.take_step(next(batches), 1.0)
                while len(run.deferred) > 1:  # as in training, the device may be one step behind
                    run.deferred.popleft().read()
            run.deferred.clear()
            if run.device.type == "cuda":
                torch.cuda.synchronize(run.device)
        stamps.append(time.perf_counter())
        return [after - before for before, after in pairwise(stamps)]


class _Run:
    def __init__(self, task: Task, config: LoopConfig, folder: Path, console: Console, *, alone: bool = False) -> None:
        """``alone``: train in this process only, whatever the number of processes."""
        self.epochs, self.batch_size, rate = config.numbers()
        if task.num_samples < self.batch_size:
            raise ValueError(f"{task.num_samples} samples are fewer than a batch of {self.batch_size}")
        self.task, self.config, self.folder, self.console = task, config, folder, console
        self.device = next(task.step.parameters()).device
        processes.join(self.device)
        self.rank, self.processes = (0, 1) if alone else (processes.rank(), processes.count())
        if self.batch_size < self.processes:
            raise ValueError(f"a batch of {self.batch_size} cannot be divided among {self.processes} processes")
        self.optimiser = torch.optim.AdamW(
            [p for p in task.step.parameters() if p.requires_grad],
            lr=rate,
            weight_decay=config.weight_decay,
            eps=config.adam_epsilon,
            fused=self.device.type == "cuda",
        )
        self.module: nn.Module = task.step
        if self.processes > 1:
            # static_graph: a parameter that no loss uses, such as DINOv2's mask token, gets no gradient to wait for
            self.module = DistributedDataParallel(task.step, static_graph=True)
        self.state, self.saved = State(), time.perf_counter()
        self.deferred: deque[DeferredLoss] = deque()
        self.tensorboard = TensorBoard(folder / "tensorboard")
        self.epoch_steps = task.num_samples // self.batch_size
        self.total_steps = self.epochs * self.epoch_steps

    def run(self, resume: bool) -> list[dict[str, float]]:
        found = self._latest()
        if found is not None and resume:
            self._continue_from(found)
        elif found is not None:
            raise ValueError(
                f"{self.folder} already holds a training: continue it with resume, or choose another folder"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        shown = self.console if self.rank == 0 else Console(quiet=True)
        with progress_bar(shown, self.total_steps, self.state.step, self.batch_size) as advance:
            while not self._ended() and not self._out_of_patience():
                epoch, position = divmod(self.state.step, self.epoch_steps)
                self._epoch(epoch, position, advance)
                if (epoch + 1) % self.config.validate_every == 0 or self._ended():
                    self._validate(epoch)
                if self._save_is_due():
                    self._save()
        if not self._ended():
            last = self.state.history[-1]["epoch"]
            self.console.print(f"stopped after epoch {last}: no better validation for {self.config.patience} epochs")
        self.tensorboard.close()
        self._load_best()
        return self.state.history

    def _latest(self) -> checkpoints.Checkpoint | None:
        """Return the latest checkpoint, read by the main process, which may be the only one that has the file."""

        def load() -> tuple[dict[str, Tensor], list[Any]]:
            found = checkpoints.load_latest(self.folder / "checkpoints")
            return ({}, []) if found is None else (found.tensors, [found.record, str(found.path)])

        tensors, record = processes.tensors_from_main(load)
        return checkpoints.Checkpoint(tensors, record[0], Path(record[1])) if record else None

    def _epoch(self, epoch: int, position: int, advance: Callable[[int, float], None]) -> None:
        size = self.batch_size
        order = shuffled(self.task.num_samples, seed=self.config.seed, epoch=epoch)
        steps = range(position, self.epoch_steps)
        mine = [order[i * size : (i + 1) * size][self.rank :: self.processes] for i in steps]
        for start, samples, batch in zip(steps, mine, self.task.batches(mine, epoch), strict=True):
            self.take_step(batch, len(samples) * self.processes / size)
            self.read_losses(behind=1)
            if self.state.losses:
                advance(self.state.step, self.state.losses[-1])
            if self.state.step % self.config.save_every == 0 and start + 1 < self.epoch_steps:
                self._save()
        self.read_losses()

    def take_step(self, batch: tuple[Tensor, ...], share: float) -> None:
        """Take one optimiser step; ``share``: size of this process's batch over the mean of all processes."""
        config = self.config
        rate = learning_rate(self.state.step, self.total_steps, config)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        # Seeds dropout, so that a resumed training repeats it
        seed_device((config.seed * 1_000_003 + self.state.step) % 2**63, self.device)
        self.module.train()
        with autocast(self.device):
            loss = self.module(*batch) * share  # gradients are averaged over processes: every sample weighs the same
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), config.max_grad_norm)
        mean = loss.detach().float() if self.processes == 1 else processes.mean(loss.detach().float())
        self.deferred.append(DeferredLoss(self.state.step, rate, mean))
        self.optimiser.step()
        self.state.step += 1

    def read_losses(self, *, behind: int = 0) -> None:
        """Read the losses of all steps but the last ``behind``, on which a GPU may still be working."""
        while len(self.deferred) > behind:
            oldest = self.deferred.popleft()
            self.state.losses.append(oldest.read())
            if not math.isfinite(self.state.losses[-1]):
                self._report_divergence(self.state.losses[-1], oldest.step, oldest.rate)

    def _report_divergence(self, loss: float, step: int, rate: float) -> None:
        last = checkpoints.load_latest(self.folder / "checkpoints")
        where = "there is no checkpoint yet" if last is None else f"the last good checkpoint is {last.path}"
        raise TrainingDiverged(f"the loss is {loss} at step {step} (learning rate {rate:.2e}); {where}")

    def _validate(self, epoch: int) -> None:
        self.task.trained.eval()
        with torch.no_grad(), autocast(self.device):
            metrics = self.task.validate()
        self.task.trained.train()
        metric = self.task.selection_metric
        if not math.isfinite(metrics[metric]):
            raise TrainingDiverged(f"the validation {metric} is {metrics[metric]} after epoch {epoch}")
        losses, self.state.losses = self.state.losses, []
        record = {"epoch": epoch, "step": self.state.step, "train_loss": sum(losses) / len(losses), **metrics}
        self.state.history.append(record)
        best = best_record(self.state.history, metric) is record
        if self.rank == 0:
            if best:
                files.write_tensors(self.folder / BEST, self.task.trained.state_dict())
            files.write_text(self.folder / LOG, "".join(json.dumps(line) + "\n" for line in self.state.history))
            self.tensorboard.add(record)
        lines = len(self.state.history) - 1
        if lines % max(1, self.epochs // self.config.validate_every // PRINTED_EPOCHS) == 0 or self._ended():
            self.console.print(", ".join(f"{k} {v:.4g}" for k, v in record.items()) + (" (best)" if best else ""))

    def _ended(self) -> bool:
        return self.state.step >= self.total_steps

    def _out_of_patience(self) -> bool:
        patience, history = self.config.patience, self.state.history
        if patience is None or not history:
            return False
        return history[-1]["epoch"] - best_record(history, self.task.selection_metric)["epoch"] >= patience

    def _save(self) -> None:
        self.read_losses()  # never save after a loss that is not finite
        if self.rank == 0:
            tensors = {f"weights.{name}": tensor for name, tensor in self.task.trained.state_dict().items()}
            tensors |= checkpoints.optimiser_tensors(self.optimiser)
            checkpoints.save(self.folder / "checkpoints", self.state.step, tensors, vars(self.state))
            self.saved = time.perf_counter()

    def _save_is_due(self) -> bool:
        """Whether to save at the end of an epoch; not of each, for an epoch may be shorter than writing a checkpoint."""
        regular = self.state.step % self.config.save_every == 0 or self._ended()
        return regular or time.perf_counter() - self.saved > SAVE_SECONDS

    def _continue_from(self, found: checkpoints.Checkpoint) -> None:
        weights = {k.removeprefix("weights."): v for k, v in found.tensors.items() if k.startswith("weights.")}
        files.load_weights(self.task.trained, weights, found.path)
        checkpoints.restore_optimiser(self.optimiser, found.tensors)
        self.state = State(**found.record)

    def _load_best(self) -> None:
        path = self.folder / BEST
        weights, _ = processes.tensors_from_main(lambda: (files.read_tensors(path), None))
        files.load_weights(self.task.trained, weights, path)
        self.task.trained.eval()


def autocast(device: torch.device) -> torch.autocast:
    """Return the autocast context of trainings: bfloat16 on a GPU."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def learning_rate(step: int, total: int, config: LoopConfig) -> float:
    """Return the learning rate of a step: linear warm-up, then cosine decay to zero."""
    exact, peak = config.warmup == "exact", number(config.learning_rate)
    warmup = config.warmup_steps if exact else min(config.warmup_steps, total // 10)
    if step < warmup:
        return peak * (step if exact else step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(total - warmup, 1)))
