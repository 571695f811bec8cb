"""One loop for all trainings, on a CPU, a GPU or many processes, that can be killed at any moment and continued to the bit.

What is trained is a module that returns its own loss, so that it can be wrapped for several processes whatever the loss
needs. A GPU trains in bfloat16 with float32 weights, a CPU in float32 (bfloat16 ends the process on some CPUs), whatever
``Accelerator`` the caller may have. Nothing is drawn from a process's random stream: the order of samples is a function
of (seed, epoch), a batch of (epoch, sample numbers), dropout of (seed, step), the learning rate of the step. So a
checkpoint needs weights, the optimiser's moments and the position, and two processes see the same batches as one.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitshap import files
from vitshap.counter_rng import shuffled
from vitshap.errors import CommandError
from vitshap.training import checkpoints, processes
from vitshap.training.board import Board, progress_bar
from vitshap.training.processes import kept_random_state, seed_device
from vitshap.training.unread import UnreadLoss

BEST = "best.safetensors"
LOG = "log.jsonl"
SAVE_SECONDS = 30
LINES = 20
"""About so many epochs are printed; the log has all."""


Auto = Literal["auto"]


N = TypeVar("N", int, float)


def number(value: N | Auto) -> N:
    """A number in whose place "auto" could stand; ``configs.suited`` chooses it."""
    if value == "auto":
        raise ValueError('"auto" is resolved by fit_* and vitshap train: a number is needed here')
    return value


class TrainingDiverged(CommandError):
    """The loss is not finite; the message names step, learning rate and the last good checkpoint."""


@dataclass(frozen=True)
class LoopConfig:
    """How to train; the defaults are the paper's for explainers."""

    epochs: int | Auto = 100
    """Passes over the training images; auto: by device and number of images."""
    batch_size: int | Auto = 64
    """Samples per optimiser step, over all processes; auto: by device, net and number of images (64 on a CPU)."""
    learning_rate: float | Auto = 1e-4
    """Peak, after the warm-up; then it falls along a cosine to zero. auto: by device and batch."""
    warmup_steps: int = 500
    """Steps of the linear warm-up, see ``warmup``."""
    warmup: Literal["capped", "exact"] = "capped"
    """"capped": at most a tenth of all steps; "exact": that many whatever the length of the training, from a rate of 0."""
    weight_decay: float = 1e-5
    epsilon: float = 1e-8
    """Added to the denominator in AdamW."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    seed: int = 0
    save_every: int = 500
    """Steps between checkpoints, besides one at the end of an epoch if the last is half a minute old."""
    validate_every: int = 1
    """Epochs between validations, each with a line in the log; the last epoch has one in any case."""
    patience: int | None = None
    """Stop after so many epochs without a better validation; None: never. The best weights are kept in any case. The
    learning rate falls over all epochs, so less than a quarter of them may stop a training that would still improve."""

    def __post_init__(self) -> None:
        for key in ("epochs", "batch_size", "save_every", "validate_every", "patience"):
            if (value := getattr(self, key)) not in (None, "auto") and value < 1:
                raise ValueError(f"{key} must be at least 1, got {value}")
        for key in ("learning_rate", "clip", "epsilon"):
            if (value := getattr(self, key)) != "auto" and not value > 0:
                raise ValueError(f"{key} must be positive, got {value}")
        for key in ("seed", "warmup_steps", "weight_decay"):
            if getattr(self, key) < 0:
                raise ValueError(f"{key} must be 0 or more, got {getattr(self, key)}")

    def numbers(self) -> tuple[int, int, float]:
        """Epochs, batch size and peak learning rate as numbers."""
        return number(self.epochs), number(self.batch_size), number(self.learning_rate)


@dataclass(frozen=True, eq=False)
class Task:
    """What to train."""

    step: nn.Module
    """``forward(*batch)`` returns the mean loss of a batch."""
    trained: nn.Module
    """The part of ``step`` whose weights are saved and returned."""
    batches: Callable[[Iterable[Tensor], int], Iterable[tuple[Tensor, ...]]]
    """For every tensor of samples (int64 ``[n]``, on the CPU) of an epoch, the arguments of ``step`` on the device; what
    they are depends on the samples and the epoch alone."""
    num_samples: int
    validate: Callable[[], dict[str, float]]
    """Metrics of ``trained`` as it is, the same in every process."""
    select: str = "loss"
    """The metric that chooses the best weights."""
    higher_is_better: bool = False


@dataclass
class Progressed:
    """Where training stands; saved with every checkpoint."""

    step: int = 0
    losses: list[float] = field(default_factory=list)
    """Of the steps since the last validation."""
    best: float | None = None
    best_epoch: int = -1
    history: list[dict[str, float]] = field(default_factory=list)


def train(
    task: Task, config: LoopConfig, folder: str | Path, *, resume: bool = False, console: Console | None = None
) -> list[dict[str, float]]:
    """Train, leave the best weights in ``task.trained``, and return one record per validation.

    The caller's random numbers go on afterwards as if nothing had been drawn.
    """
    with kept_random_state(next(task.step.parameters()).device):
        return _Run(task, config, Path(folder), console or Console(quiet=True)).run(resume)


class _Run:
    def __init__(self, task: Task, config: LoopConfig, folder: Path, console: Console) -> None:
        self.epochs, self.batch_size, rate = config.numbers()
        if task.num_samples < self.batch_size:
            raise ValueError(f"{task.num_samples} samples are fewer than a batch of {self.batch_size}")
        self.task, self.config, self.folder, self.console = task, config, folder, console
        self.device = next(task.step.parameters()).device
        processes.join(self.device)
        self.rank, self.processes = processes.rank(), processes.count()
        if self.batch_size < self.processes:
            raise ValueError(
                f"a batch of {self.batch_size} is too small for {self.processes} processes: each takes its part of it"
            )
        self.optimiser = torch.optim.AdamW(
            [p for p in task.step.parameters() if p.requires_grad],
            lr=rate,
            weight_decay=config.weight_decay,
            eps=config.epsilon,
            fused=self.device.type == "cuda",
        )
        self.module: nn.Module = task.step
        if self.processes > 1:
            # Processes wait for each other's gradients, also for those that no loss has: DINOv2's mask token is unused.
            self.module = DistributedDataParallel(task.step, static_graph=True)
        self.state, self.saved = Progressed(), time.perf_counter()
        self.unread: deque[UnreadLoss] = deque()
        self.board = Board(folder / "tensorboard")
        self.epoch_steps = task.num_samples // self.batch_size
        self.total_steps = self.epochs * self.epoch_steps

    def run(self, resume: bool) -> list[dict[str, float]]:
        found = self._found()
        if found is not None and resume:
            self._continue_from(found)
        elif found is not None:
            raise ValueError(
                f"{self.folder} holds a training already: continue it with resume, or choose another folder"
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
        self.board.close()
        self._load_best()
        return self.state.history

    def _found(self) -> checkpoints.Checkpoint | None:
        """The latest checkpoint, which may be on the disk of the main process alone."""

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
            self._step(batch, len(samples) * self.processes / size)
            self._read_loss(behind=1)
            if self.state.losses:
                advance(self.state.step, self.state.losses[-1])
            if self.state.step % self.config.save_every == 0 and start + 1 < self.epoch_steps:
                self._save()
        self._read_loss()

    def _step(self, batch: tuple[Tensor, ...], share: float) -> None:
        """One optimiser step; ``share`` is the size of this process's batch over the mean of all."""
        config = self.config
        rate = learning_rate(self.state.step, self.total_steps, config)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        # for dropout, the same after a resume
        seed_device((config.seed * 1_000_003 + self.state.step) % 2**63, self.device)
        self.module.train()
        with autocast(self.device):
            loss = self.module(*batch) * share  # processes average their gradients: every sample counts the same
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), config.clip)
        self.unread.append(UnreadLoss(self.state.step, rate, processes.mean(loss.detach().float())))
        self.optimiser.step()
        self.state.step += 1

    def _read_loss(self, *, behind: int = 0) -> None:
        """Take note of the losses of all steps but the last ``behind``: a GPU works on while older ones are read."""
        while len(self.unread) > behind:
            oldest = self.unread.popleft()
            self.state.losses.append(oldest.loss())
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
        value = metrics[self.task.select]
        if not math.isfinite(value):
            raise TrainingDiverged(f"the {self.task.select} of the validation images is {value} after epoch {epoch}")
        sign = 1 if self.task.higher_is_better else -1
        better = self.state.best is None or sign * value > sign * self.state.best
        if better:
            self.state.best, self.state.best_epoch = value, epoch
            if self.rank == 0:
                files.write_tensors(self.folder / BEST, self.task.trained.state_dict())
        losses, self.state.losses = self.state.losses, []
        record = {"epoch": epoch, "step": self.state.step, "train_loss": sum(losses) / len(losses), **metrics}
        self.state.history.append(record)
        if self.rank == 0:
            files.write_text(self.folder / LOG, "".join(json.dumps(line) + "\n" for line in self.state.history))
            self.board.add(record)
        lines = len(self.state.history) - 1
        if lines % max(1, self.epochs // self.config.validate_every // LINES) == 0 or self._ended():
            self.console.print(", ".join(f"{k} {v:.4g}" for k, v in record.items()) + (" (best)" if better else ""))

    def _ended(self) -> bool:
        return self.state.step >= self.total_steps

    def _out_of_patience(self) -> bool:
        patience, history = self.config.patience, self.state.history
        return patience is not None and bool(history) and history[-1]["epoch"] - self.state.best_epoch >= patience

    def _save(self) -> None:
        self._read_loss()  # nothing is saved before it is known to be finite
        if self.rank == 0:
            tensors = {f"weights.{name}": tensor for name, tensor in self.task.trained.state_dict().items()}
            tensors |= checkpoints.optimiser_tensors(self.optimiser)
            checkpoints.save(self.folder / "checkpoints", self.state.step, tensors, vars(self.state))
            self.saved = time.perf_counter()

    def _save_is_due(self) -> bool:
        """At the end of an epoch. Epochs may last a second: writing weights and moments after each would take longer."""
        regular = self.state.step % self.config.save_every == 0 or self._ended()
        return regular or time.perf_counter() - self.saved > SAVE_SECONDS

    def _continue_from(self, found: checkpoints.Checkpoint) -> None:
        weights = {k.removeprefix("weights."): v for k, v in found.tensors.items() if k.startswith("weights.")}
        files.load_weights(self.task.trained, weights, found.path)
        checkpoints.restore_optimiser(self.optimiser, found.tensors)
        self.state = Progressed(**found.record)

    def _load_best(self) -> None:
        path = self.folder / BEST
        weights, _ = processes.tensors_from_main(lambda: (files.read_tensors(path), None))
        files.load_weights(self.task.trained, weights, path)
        self.task.trained.eval()


def autocast(device: torch.device) -> torch.autocast:
    """Half precision as trainings use it."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def learning_rate(step: int, total: int, config: LoopConfig) -> float:
    """Linear warm-up, then a cosine to zero."""
    exact, peak = config.warmup == "exact", number(config.learning_rate)
    warmup = config.warmup_steps if exact else min(config.warmup_steps, total // 10)
    if step < warmup:
        return peak * (step if exact else step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(total - warmup, 1)))
