"""The loop: it learns, it survives being killed to the bit, two processes equal one, failures are named."""

import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.training import small_training, unused_weights
from vitshap.training import checkpoints
from vitshap.training.configs import LoopConfig
from vitshap.training.loop import Task, TrainingDiverged, best_record, learning_rate, train
from vitshap.training.progress import DeferredLoss

PROGRAM = [sys.executable, small_training.__file__]


def _environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **extra}


def test_it_learns_keeps_the_best_and_writes_a_line_per_epoch(tmp_path: Path) -> None:
    task = small_training.task()
    history = train(task, LoopConfig(epochs=6, batch_size=10, learning_rate=3e-3, save_every=4), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines == history
    assert [line["epoch"] for line in lines] == list(range(6))
    assert lines[-1]["train_loss"] < lines[0]["train_loss"]
    best = min(line["loss"] for line in lines)
    assert task.validate()["loss"] == pytest.approx(best, abs=1e-6)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2
    with pytest.raises(ValueError, match="already holds a training"):
        train(small_training.task(), LoopConfig(epochs=6, batch_size=10), tmp_path)


def test_fewer_validations_change_what_is_known_and_not_what_is_learned(tmp_path: Path) -> None:
    config = LoopConfig(epochs=5, batch_size=10, learning_rate=3e-3, save_every=4)
    often = train(small_training.task(), config, tmp_path / "often")
    seldom = train(small_training.task(), replace(config, validate_every=2), tmp_path / "seldom")
    assert [line["epoch"] for line in seldom] == [1, 3, 4]
    for line in seldom:
        same = often[int(line["epoch"])]
        assert (line["step"], line["loss"]) == (same["step"], same["loss"])
    losses = [line["train_loss"] for line in often]
    assert seldom[1]["train_loss"] == pytest.approx((losses[2] + losses[3]) / 2)
    ends = [checkpoints.load_latest(tmp_path / name / "checkpoints").tensors for name in ("often", "seldom")]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_a_training_that_stops_between_validations_continues_to_the_bit(tmp_path: Path) -> None:
    config = LoopConfig(epochs=6, batch_size=10, learning_rate=3e-3, save_every=4, validate_every=3)
    train(small_training.task(), config, tmp_path / "whole")
    stopped = small_training.task()

    def batches(order: Iterable[torch.Tensor], epoch: int) -> Iterator[tuple[torch.Tensor, ...]]:
        for number, batch in enumerate(stopped.batches(order, epoch)):
            if (epoch, number) == (4, 1):  # 21 steps of which 20 are saved; the last validation was after 15
                raise KeyboardInterrupt
            yield batch

    with pytest.raises(KeyboardInterrupt):
        train(replace(stopped, batches=batches), config, tmp_path / "stopped")
    train(small_training.task(), config, tmp_path / "stopped", resume=True)
    whole, continued = (checkpoints.load_latest(tmp_path / name / "checkpoints") for name in ("whole", "stopped"))
    assert whole.record == continued.record
    assert all(torch.equal(whole.tensors[name], continued.tensors[name]) for name in whole.tensors)


def _run_with_kills(folder: Path, kills: int, seed: int) -> int:
    """Run the program, kill it ``kills`` times at random moments, let it finish; returns how many kills hit."""
    moments, hits = random.Random(seed), 0
    for attempt in range(kills + 1):
        process = subprocess.Popen([*PROGRAM, str(folder)], stdout=subprocess.PIPE, env=_environment())
        assert process.stdout.readline().startswith(b"pid")
        if attempt < kills:
            time.sleep(moments.uniform(0.0, 0.4))
            process.kill()
        code = process.wait()
        hits += code == -signal.SIGKILL
    assert code == 0
    return hits


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.long)])
def test_killed_and_continued_equals_uninterrupted_to_the_bit(tmp_path: Path, kills: int) -> None:
    subprocess.run([*PROGRAM, str(tmp_path / "whole")], check=True, env=_environment(), stdout=subprocess.DEVNULL)
    assert _run_with_kills(tmp_path / "killed", kills, seed=kills) > 0
    whole, killed = (checkpoints.load_latest(tmp_path / name / "checkpoints") for name in ("whole", "killed"))
    assert whole.record == killed.record
    assert whole.tensors.keys() == killed.tensors.keys()
    assert all(torch.equal(whole.tensors[name], killed.tensors[name]) for name in whole.tensors)
    best = [load_file(tmp_path / name / "best.safetensors") for name in ("whole", "killed")]
    assert all(torch.equal(best[0][name], best[1][name]) for name in best[0])
    assert (tmp_path / "whole" / "log.jsonl").read_text() == (tmp_path / "killed" / "log.jsonl").read_text()


def test_two_processes_reach_the_losses_of_one(tmp_path: Path) -> None:
    logs = []
    one = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=1"]
    for launch in (one, small_training.accelerate_launch(2)):
        folder = tmp_path / str(len(logs))
        command = [*launch, small_training.__file__, str(folder), "2"]
        subprocess.run(command, check=True, env=_environment(), capture_output=True, timeout=300)
        logs.append([json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()])
    for one, two in zip(*logs, strict=True):
        for key in ("train_loss", "loss"):
            assert two[key] == pytest.approx(one[key], abs=1e-4)


def _two(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*launch, small_training.__file__, *map(str, arguments)]
    return subprocess.run(
        command, env=_environment() | environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.long
def test_two_processes_continue_from_the_disk_of_one(tmp_path: Path) -> None:
    done = _two(tmp_path, OWN_DISKS="1")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "1" / "checkpoints").exists()
    log, best = tmp_path / "0" / "log.jsonl", tmp_path / "0" / "best.safetensors"
    before, weights = log.read_text(), load_file(best)
    shutil.rmtree(
        tmp_path / "0" / "checkpoints" / "step-00000020"
    )  # as if it had been stopped after the eighteenth step
    log.unlink()
    done = _two(tmp_path, OWN_DISKS="1")
    assert done.returncode == 0, done.stderr
    assert log.read_text() == before
    assert all(torch.equal(weights[name], tensor) for name, tensor in load_file(best).items())


def test_a_batch_for_fewer_than_all_processes_is_refused(tmp_path: Path) -> None:
    done = _two(tmp_path, 1, 3, 1)
    assert done.returncode != 0
    assert "a batch of 1 cannot be divided among 2 processes" in done.stderr


def test_two_processes_need_no_folder_nor_a_gradient_for_every_weight() -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*launch, unused_weights.__file__]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"weights ([0-9a-f]{64})", done.stdout)  # two processes may print into one line
    assert len(found) == 2
    assert found[0] == found[1]


class _Explodes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, step: torch.Tensor) -> torch.Tensor:
        return self.weight.sum() * (float("nan") if int(step.max()) >= 0 else 1.0)


def _fine_batches(order, epoch):
    return ((samples - 100,) for samples in order)


def test_a_loss_that_is_not_finite_names_step_rate_and_checkpoint(tmp_path: Path) -> None:
    module = _Explodes()
    fine = Task(module, module, _fine_batches, 8, lambda: {"loss": 0.0})
    train(fine, LoopConfig(epochs=1, batch_size=4), tmp_path)
    broken = Task(module, module, lambda order, epoch: ((samples,) for samples in order), 8, lambda: {"loss": 0.0})
    with pytest.raises(TrainingDiverged, match=r"nan at step 2 .learning rate .*step-00000002"):
        train(broken, LoopConfig(epochs=2, batch_size=4), tmp_path, resume=True)
    with pytest.raises(TrainingDiverged, match="no checkpoint yet"):
        train(broken, LoopConfig(epochs=1, batch_size=4), tmp_path / "fresh")


def test_patience_ends_a_training_that_no_longer_improves(tmp_path: Path) -> None:
    module = _Explodes()
    losses = iter([3.0, 2.0, 2.5, 2.5, 1.0, 0.5])
    task = Task(module, module, _fine_batches, 8, lambda: {"loss": next(losses)})
    history = train(task, LoopConfig(epochs=6, batch_size=4, patience=2), tmp_path)
    assert [line["loss"] for line in history] == [3.0, 2.0, 2.5, 2.5]


def test_patience_is_counted_in_epochs_whatever_is_validated(tmp_path: Path) -> None:
    module = _Explodes()
    losses = iter([3.0, 2.0, 2.5, 2.5, 1.0])
    task = Task(module, module, _fine_batches, 8, lambda: {"loss": next(losses)})
    history = train(task, LoopConfig(epochs=10, batch_size=4, patience=3, validate_every=2), tmp_path)
    assert [line["epoch"] for line in history] == [1, 3, 5, 7]


def test_fewer_samples_than_a_batch_are_named(tmp_path: Path) -> None:
    module = _Explodes()
    task = Task(module, module, lambda order, epoch: ((samples,) for samples in order), 3, lambda: {"loss": 0.0})
    with pytest.raises(ValueError, match="3 samples are fewer than a batch of 64"):
        train(task, LoopConfig(), tmp_path)


def test_the_learning_rate_warms_up_and_falls_to_zero() -> None:
    config = LoopConfig(learning_rate=1.0, warmup_steps=10)
    rates = [learning_rate(step, 200, config) for step in range(200)]
    assert rates[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert max(rates) == 1.0
    assert all(a >= b for a, b in pairwise(rates[10:]))
    assert rates[-1] < 1e-3


def test_an_exact_warm_up_has_its_steps_whatever_the_length() -> None:
    config = LoopConfig(learning_rate=1.0, warmup_steps=500, warmup="exact")
    assert [learning_rate(step, 600, config) for step in (0, 250, 500)] == pytest.approx([0.0, 0.5, 1.0])
    assert learning_rate(550, 600, config) == pytest.approx(0.5)
    assert learning_rate(99, 100, config) == pytest.approx(99 / 500), "it need not come to its end"
    assert learning_rate(59, 600, replace(config, warmup="capped")) == 1.0


def test_a_loss_is_read_when_its_own_gpu_has_copied_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU that a training is on need not be the current one; both are made up here."""
    second, streams, done = torch.device("cuda:1"), [], []

    class Event:
        def record(self, stream: object = None) -> None:
            streams.append(stream)

        def synchronize(self) -> None:
            done.append(True)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: ("stream of", device))
    loss = SimpleNamespace(is_cuda=True, device=second, to=lambda *_, **__: torch.tensor(0.5))
    assert DeferredLoss(0, 0.1, cast(Tensor, loss)).read() == 0.5
    assert (streams, done) == ([("stream of", second)], [True])


def test_epsilon_is_that_of_the_optimiser(tmp_path: Path) -> None:
    """With an epsilon far above the gradients' size steps become small."""
    moved = []
    for epsilon in (1e-8, 1e4):
        task = small_training.task()
        before = {name: tensor.clone() for name, tensor in task.trained.state_dict().items()}
        config = LoopConfig(epochs=1, batch_size=10, adam_epsilon=epsilon, weight_decay=0.0)
        train(task, config, tmp_path / str(epsilon))
        moved.append(max(float((before[k] - v).abs().max()) for k, v in task.trained.state_dict().items()))
    assert moved[1] < moved[0] / 1000


def test_a_training_that_stops_early_says_so(tmp_path: Path) -> None:
    console = Console(record=True, file=io.StringIO(), width=200)
    module = _Explodes()
    losses = iter([3.0, 2.0, 2.5, 2.5])
    task = Task(module, module, _fine_batches, 8, lambda: {"loss": next(losses)})
    train(task, LoopConfig(epochs=6, batch_size=4, patience=2), tmp_path, console=console)
    assert "stopped after epoch 3: no better validation for 2 epochs" in console.export_text()


def test_auto_is_no_number_for_the_loop(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="before this is read"):
        train(small_training.task(), LoopConfig(batch_size="auto"), tmp_path)


def test_the_best_record_is_the_first_among_equals() -> None:
    history = [
        {"epoch": i, "loss": loss, "accuracy": accuracy} for i, (loss, accuracy) in enumerate([(3, 1), (1, 2), (1, 2)])
    ]
    assert best_record(history, "loss")["epoch"] == 1
    assert best_record(history, "accuracy")["epoch"] == 1
    assert best_record(history, "selection_loss")["epoch"] == 1, "the loss decides where a metric is missing"
