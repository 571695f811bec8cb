"""Results of steps on disk: ``OUT/SETTING/STEP/result.json``, with weights and pictures beside it.

A result records the hash of everything that it depends on, the step's settings and the hashes of the steps before it, and
digests of the weights that it was computed with, because a training that is run again gives other weights. A finished step
with the same hash and weights is not run again; one with others is never overwritten. Weights are stored in
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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

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

    @property
    def weights_digest(self) -> str | None:
        """Digest of the weights that a training left."""
        return self.record.get("weights")

    @property
    def networks(self) -> dict[str, str]:
        """Digests of the weights that the step was computed with, by the step that trained them."""
        found: dict[str, str] = self.record.get("networks", {})
        return found

    def weights(self) -> dict[str, Tensor]:
        """Read the stored weights, in float32."""
        found: dict[str, Tensor] = {}
        for path in sorted(self.folder.glob("weights-*.safetensors")):
            found |= {
                name: tensor.float() if tensor.is_floating_point() else tensor
                for name, tensor in files.read_tensors(path, {"inputs": self.inputs}).items()
            }
        if not found:
            raise ValueError(f"{self.folder} holds no weights: remove it to run the step again")
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

    def begin(self, setting: str, step: str, inputs: str, networks: Mapping[str, str] | None = None) -> Path:
        """Return that folder; ``ValueError`` if it has the files of an attempt with other inputs or weights."""
        work = self.work(setting, step)
        before = _attempt(work)
        if before.inputs not in (None, inputs) or changed(before.networks, networks or {}):
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

    def finished(
        self, setting: str, step: str, inputs: str, networks: Mapping[str, str] | None = None
    ) -> Result | None:
        """Return a finished step's result; ``ValueError`` if it was made from other inputs or weights."""
        found = self.find(setting, step)
        others = changed(found.networks, networks or {}) if found is not None else []
        if found is not None and others:
            raise ValueError(
                f"{found.folder} was made with other weights of {', '.join(others)}: remove it to run the step again, or "
                "choose another folder with --out"
            )
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
        made = {"weights": digest_of_files(sorted(folder.glob("weights-*.safetensors")))} if weights else {}
        record = {
            "step": step,
            "setting": setting,
            "inputs": inputs,
            "date": datetime.now(UTC).date().isoformat(),
            "version": __version__,
            **about,
            **made,
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

    def __init__(self, work: Path, inputs: str, networks: Mapping[str, str] | None = None) -> None:
        """``work``: the step's folder for intermediate files, from ``Store.begin``."""
        self._path, self._about = work / SECONDS, {"inputs": inputs, "networks": dict(networks or {})}
        self._before, self._started = _attempt(work).seconds, time.perf_counter()
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
            files.write_text(self._path, json.dumps({**self._about, "seconds": self.seconds}) + "\n")


class _Attempt(NamedTuple):
    """An attempt that did not finish."""

    inputs: str | None = None
    networks: Mapping[str, str] = {}
    seconds: float = 0.0


def _attempt(work: Path) -> _Attempt:
    """Return the attempt whose files are in a folder, or an empty one."""
    try:
        found = files.read_json(work / SECONDS)
        return _Attempt(str(found["inputs"]), dict(found.get("networks", {})), float(found["seconds"]))
    except (OSError, ValueError, TypeError, KeyError):  # there is none, or none that can be read
        return _Attempt()


def changed(before: Mapping[str, str | None], now: Mapping[str, str | None]) -> list[str]:
    """Return the names whose digests differ, of those with a digest in both."""
    return [name for name, one in before.items() if one is not None and now.get(name) not in (None, one)]


def digest_of_files(paths: Iterable[Path]) -> str:
    """Return a hash of the content of files."""
    found = hashlib.sha256()
    for path in paths:
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


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
