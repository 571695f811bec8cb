"""Checkpoints: written atomically, read back without loss, so that a resumed training gives identical results.

A checkpoint is a folder ``step-00000120`` with ``state.safetensors`` (weights and optimiser state) and ``state.json``
(position, history, the hash of the first file). It is written under a temporary name and renamed when complete, so a killed
process or a full disk leaves the earlier checkpoints unchanged. The last two are kept; a damaged one is skipped in favour
of the one before it. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitshap import files

FORMAT = "vitshap.checkpoint"
VERSION = 2
KEPT = 2
TENSORS, RECORD = "state.safetensors", "state.json"


class Checkpoint(NamedTuple):
    """The content of a checkpoint: named tensors, and everything else as JSON."""

    tensors: dict[str, Tensor]
    record: dict[str, Any]
    path: Path


class DamagedCheckpoint(ValueError):
    """A checkpoint is incomplete, modified or of another format; the message names it."""


def save(folder: str | Path, step: int, tensors: dict[str, Tensor], record: dict[str, Any]) -> Path:
    """Write the checkpoint of ``step`` and remove all but it and the one before it."""
    folder = Path(folder)
    final = folder / f"step-{step:08d}"
    partial = folder / f".{final.name}.{os.getpid()}.partial"
    shutil.rmtree(partial, ignore_errors=True)  # left by a killed process with the same number
    try:
        partial.mkdir(parents=True)
        save_file({name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}, partial / TENSORS)
        head = {"format": FORMAT, "version": VERSION, "step": step, "sha256": _hash(partial / TENSORS)}
        (partial / RECORD).write_text(json.dumps({**head, "record": record}))
        if final.exists():  # the same step again, after a resume from an earlier one
            shutil.rmtree(final)
        os.replace(partial, final)
    except (OSError, SafetensorError) as error:
        raise OSError(
            f"the checkpoint of step {step} could not be written ({error}); earlier ones in {folder} are unchanged"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    # Later steps were damaged, or training would not be here.
    kept = [path for path in _steps(folder) if path.name <= final.name][-KEPT:]
    for path in {*folder.glob("step-*"), *folder.glob(".step-*.partial")} - {*kept}:
        shutil.rmtree(path, ignore_errors=True)
    return final


def load(path: str | Path) -> Checkpoint:
    """Read one checkpoint, or raise ``DamagedCheckpoint``."""
    path = Path(path)
    try:
        head = files.read_json(path / RECORD)
        kind, version, digest, record = head["format"], head["version"], head["sha256"], head["record"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpoint(f"{path} is not a complete vitshap checkpoint: {error}") from error
    if kind != FORMAT or version != VERSION:
        raise DamagedCheckpoint(f"{path} is {kind} of version {version}; this vitshap reads {FORMAT} {VERSION}")
    if not (path / TENSORS).exists() or _hash(path / TENSORS) != digest:
        raise DamagedCheckpoint(f"{path} is damaged: {TENSORS} is not what was written")
    try:
        return Checkpoint(load_file(path / TENSORS), record, path)
    except SafetensorError as error:
        raise DamagedCheckpoint(f"{path} is damaged: {error}") from error


def load_latest(folder: str | Path) -> Checkpoint | None:
    """Return the newest intact checkpoint in ``folder``, with a warning for damaged newer ones; None if there is none."""
    damaged = []
    for path in reversed(_steps(Path(folder))):
        try:
            found = load(path)
        except DamagedCheckpoint as error:
            damaged.append(str(error))
            continue
        for problem in damaged:
            warnings.warn(f"{problem}; continuing from {found.path.name}", stacklevel=2)
        return found
    if damaged:
        raise DamagedCheckpoint("no checkpoint can be used: " + "; ".join(damaged))
    return None


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimiser's state tensors by name, without its settings."""
    states = optimiser.state_dict()["state"]
    return {
        f"optimiser.{index}.{name}": torch.as_tensor(value)
        for index, state in states.items()
        for name, value in state.items()
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Restore the state that ``optimiser_tensors`` returned."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        if key.startswith("optimiser."):
            _, index, name = key.split(".", 2)
            state.setdefault(int(index), {})[name] = tensor
    whole = optimiser.state_dict()
    optimiser.load_state_dict({**whole, "state": state})


def _steps(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
