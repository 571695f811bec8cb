"""Results of steps on disk: ``OUT/SETTING/STEP/result.json``, with weights and pictures beside it.

A result records the hash of everything that it depends on: the step's settings and the hashes of the steps before it. A
finished step with the same hash is not run again; one with another hash is never overwritten. Weights are stored in
float16, in files of at most 15 MiB, so that the folders of finished steps can be moved to another machine. Checkpoints and
other intermediate files are in ``OUT/work``, beside the same hash and the time that the step has taken so far; they are
removed when a step has finished, and never used for other inputs.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitshap import files
from vitshap._version import __version__

RESULT, SECONDS = "result.json", "seconds.json"
EVERY = 5.0
"""Seconds after which the time of a running step is written down again."""
SHARD = 15 * 2**20
"""Largest file of weights, in bytes."""
EXACT = ("null_values", "scale")
"""Buffers of an explainer that are stored in float32."""


@dataclass(frozen=True)
class Result:
    """What a finished step left."""

    folder: Path
    record: Mapping[str, Any]

    @property
    def values(self) -> dict[str, Any]:
        """The measured numbers."""
        found: dict[str, Any] = self.record["values"]
        return found

    @property
    def inputs(self) -> str:
        """Hash of everything that the result depends on."""
        return str(self.record["inputs"])

    def weights(self) -> dict[str, Tensor]:
        """Read the stored weights, in float32."""
        found: dict[str, Tensor] = {}
        for path in sorted(self.folder.glob("weights-*.safetensors")):
            found |= {
                name: tensor.float() if tensor.is_floating_point() else tensor
                for name, tensor in files.read_tensors(path, {"inputs": self.inputs}).items()
            }
        if not found:
            raise ValueError(f"{self.folder} holds no weights")
        return found


class Store:
    """The results of one profile, in one folder."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def folder(self, setting: str, step: str) -> Path:
        """Return where a step's results are."""
        return self.out / setting / step

    def work(self, setting: str, step: str) -> Path:
        """Return where a step may keep intermediate files until it has finished."""
        return self.out / "work" / setting / step

    def begin(self, setting: str, step: str, inputs: str) -> Path:
        """Return that folder; ``ValueError`` if it has the files of an attempt with other inputs."""
        work = self.work(setting, step)
        before, _ = _attempt(work)
        if before not in (None, inputs):
            raise ValueError(
                f"{work} has intermediate files of other settings or other earlier steps: remove it to start the step "
                "again, or choose another folder with --out"
            )
        work.mkdir(parents=True, exist_ok=True)
        return work

    def find(self, setting: str, step: str) -> Result | None:
        """Return a finished step's result, whatever it was made from; None if it has not finished."""
        path = self.folder(setting, step) / RESULT
        if not path.is_file():
            return None
        record = files.read_json(path)
        if not isinstance(record, dict) or not {"inputs", "values"} <= record.keys():
            raise ValueError(f"{path} is damaged: it is no result of a step")
        return Result(path.parent, record)

    def finished(self, setting: str, step: str, inputs: str) -> Result | None:
        """Return a finished step's result; ``ValueError`` if it was made from other inputs."""
        found = self.find(setting, step)
        if found is not None and found.inputs != inputs:
            raise ValueError(
                f"{found.folder} was made with other settings or from other earlier steps: remove it to run the step "
                "again, or choose another folder with --out"
            )
        return found

    def write(
        self,
        setting: str,
        step: str,
        values: Mapping[str, Any],
        *,
        inputs: str,
        about: Mapping[str, Any],
        weights: Mapping[str, Tensor] | None = None,
    ) -> Result:
        """Write a step's result: weights first, then ``result.json``, which makes it finished."""
        folder = self.folder(setting, step)
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("weights-*.safetensors"):  # of an earlier attempt that did not finish
            old.unlink()
        for number, shard in enumerate(_shards(weights or {})):
            files.write_tensors(folder / f"weights-{number:03d}.safetensors", shard, {"inputs": inputs})
        record = {
            "step": step,
            "setting": setting,
            "inputs": inputs,
            "date": datetime.now(UTC).date().isoformat(),
            "version": __version__,
            **about,
            "values": values,
        }
        text = json.dumps(rounded(record), indent=1, allow_nan=False)
        files.write_text(folder / RESULT, text + "\n")
        shutil.rmtree(self.work(setting, step), ignore_errors=True)
        return Result(folder, files.read_json(folder / RESULT))


class Stopwatch:
    """The seconds that a step takes, over all its parts if it is interrupted.

    They are written down every few seconds, because a process that is killed has no other opportunity.
    """

    def __init__(self, work: Path, inputs: str) -> None:
        """``work``: the step's folder for intermediate files, from ``Store.begin``."""
        self._path, self._inputs = work / SECONDS, inputs
        self._before, self._started = _attempt(work)[1], time.perf_counter()
        self._ended = threading.Event()
        self._writer = threading.Thread(target=self._write_often, name="stopwatch", daemon=True)

    @property
    def seconds(self) -> float:
        """Of all parts until now."""
        return self._before + time.perf_counter() - self._started

    def __enter__(self) -> Stopwatch:
        self._write()
        self._writer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._writer.join()
        self._write()

    def _write_often(self) -> None:
        while not self._ended.wait(EVERY):
            self._write()

    def _write(self) -> None:
        with suppress(OSError):  # not worth failing a step
            files.write_text(self._path, json.dumps({"inputs": self._inputs, "seconds": self.seconds}) + "\n")


def _attempt(work: Path) -> tuple[str | None, float]:
    """Return the inputs and the seconds of an attempt that did not finish; None and 0 if there was none."""
    try:
        found = files.read_json(work / SECONDS)
        return str(found["inputs"]), float(found["seconds"])
    except (OSError, ValueError, TypeError, KeyError):  # there is none, or none that can be read
        return None, 0.0


def digest(content: Any) -> str:
    """Return a hash of JSON content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


def rounded(content: Any, digits: int = 6) -> Any:
    """Return JSON content with floats of at most ``digits`` significant digits and null for what is not finite."""
    if isinstance(content, Tensor):
        content = content.tolist()
    if isinstance(content, Mapping):
        return {str(key): rounded(value, digits) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [rounded(value, digits) for value in content]
    if isinstance(content, float):
        return float(f"{content:.{digits}g}") if math.isfinite(content) else None
    return content


def _shards(weights: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Yield the weights in float16, in parts of at most ``SHARD`` bytes; a single larger tensor is a part of its own."""
    part: dict[str, Tensor] = {}
    size = 0
    for name, tensor in weights.items():
        half = tensor.detach().cpu()
        if half.is_floating_point() and name not in EXACT:
            half = half.to(torch.float16)
        if not bool(torch.isfinite(half).all()):
            raise ValueError(f"{name} has values that float16 cannot hold")
        here = half.numel() * half.element_size() + 256  # and its name in the file's header
        if part and size + here > SHARD:
            yield part
            part, size = {}, 0
        part[name] = half
        size += here
    if part:
        yield part
