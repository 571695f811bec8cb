"""Checkpoints: whole or not there, continued to the bit, damage named."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.full_disk import full_disk
from vitshap.training import checkpoints
from vitshap.training.checkpoints import DamagedCheckpoint


def _tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    return {"weight": torch.randn(4, 3, generator=torch.Generator().manual_seed(seed)), "count": torch.tensor(7)}


def test_round_trip_and_the_last_two_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 10):
        checkpoints.save(tmp_path, step, _tensors(step), {"step": step, "history": [0.5, None]})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000010"]
    found = checkpoints.load_latest(tmp_path)
    assert found.record == {"step": 10, "history": [0.5, None]}
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in _tensors(10).items())
    assert checkpoints.load_latest(tmp_path / "nothing here") is None


def test_saving_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    checkpoints.save(tmp_path, 3, _tensors(0), {"try": 1})
    checkpoints.save(tmp_path, 3, _tensors(1), {"try": 2})
    assert checkpoints.load_latest(tmp_path).record == {"try": 2}


@pytest.mark.parametrize("damage", ["flip", "truncate", "no record", "foreign", "version"])
def test_damage_is_named_and_the_one_before_is_used(tmp_path: Path, damage: str) -> None:
    checkpoints.save(tmp_path, 1, _tensors(1), {"step": 1})
    newest = checkpoints.save(tmp_path, 2, _tensors(2), {"step": 2})
    file, record = newest / checkpoints.TENSORS, newest / checkpoints.RECORD
    if damage == "flip":
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    elif damage == "truncate":
        file.write_bytes(file.read_bytes()[:-5])
    elif damage == "no record":
        record.unlink()
    else:
        head = json.loads(record.read_text())
        head["format" if damage == "foreign" else "version"] = "other"
        record.write_text(json.dumps(head))
    with pytest.raises(DamagedCheckpoint, match="step-00000002"):
        checkpoints.load(newest)
    with pytest.warns(UserWarning, match="continuing from step-00000001"):
        assert checkpoints.load_latest(tmp_path).record == {"step": 1}


def test_a_damaged_one_does_not_take_the_place_of_a_sound_one(tmp_path: Path) -> None:
    checkpoints.save(tmp_path, 10, _tensors(1), {})
    (checkpoints.save(tmp_path, 15, _tensors(2), {}) / checkpoints.RECORD).unlink()
    for step in (11, 12):  # continued from the tenth
        checkpoints.save(tmp_path, step, _tensors(step), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000011", "step-00000012"]


def test_only_damaged_ones_is_an_error(tmp_path: Path) -> None:
    path = checkpoints.save(tmp_path, 1, _tensors(), {})
    (path / checkpoints.TENSORS).write_bytes(b"nothing")
    with pytest.raises(DamagedCheckpoint, match="no checkpoint can be used"):
        checkpoints.load_latest(tmp_path)


def test_a_disk_that_is_full_leaves_the_former_one(tmp_path: Path) -> None:
    checkpoints.save(tmp_path, 1, _tensors(1), {"step": 1})
    with full_disk(100), pytest.raises(OSError, match=r"File too large.*earlier ones"):
        checkpoints.save(tmp_path, 2, _tensors(2), {"step": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert checkpoints.load_latest(tmp_path).record == {"step": 1}


def _step(net: nn.Module, optimiser: torch.optim.Optimizer, seed: int) -> None:
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))
    optimiser.zero_grad()
    net(x).square().mean().backward()
    optimiser.step()


def test_an_optimiser_continues_to_the_bit() -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
        return net, torch.optim.AdamW(net.parameters(), lr=0.01)

    net, optimiser = build()
    for seed in range(3):
        _step(net, optimiser, seed)
    weights, moments = {k: v.clone() for k, v in net.state_dict().items()}, checkpoints.optimiser_tensors(optimiser)
    moments = {name: tensor.clone() for name, tensor in moments.items()}
    _step(net, optimiser, 3)
    other, resumed = build()
    other.load_state_dict(weights)
    checkpoints.restore_optimiser(resumed, moments)
    _step(other, resumed, 3)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


_WRITER = """
import sys, torch
from vitshap.training import checkpoints
print("ready", flush=True)
for step in range(1, 10**6):
    checkpoints.save(sys.argv[1], step, {"w": torch.full((200_000,), float(step))}, {"step": step})
"""


def test_a_killed_writer_leaves_a_sound_checkpoint(tmp_path: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        writer.stdout.readline()
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("step-*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.037)
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    found = checkpoints.load_latest(tmp_path)
    assert torch.equal(found.tensors["w"], torch.full((200_000,), float(found.record["step"])))


def test_a_record_nested_without_end_is_damaged(tmp_path: Path) -> None:
    checkpoints.save(tmp_path, 1, {"a": torch.ones(2)}, {})
    newest = checkpoints.save(tmp_path, 2, {"a": torch.ones(2)}, {})
    (newest / "state.json").write_text("[" * 200_000)
    with pytest.warns(UserWarning, match="nested too deeply"):
        assert checkpoints.load_latest(tmp_path).path.name == "step-00000001"
