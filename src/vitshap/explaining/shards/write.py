"""One shard to one Parquet file, which appears when it is complete: its existence says that the shard is finished.

So a run that was killed continues where it was, any number of processes share a folder without talking to each other, and
a run may be continued by another engine. ``run.json`` in the folder says what the files were made with: a run with other
settings is refused.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitshap.errors import first_line
from vitshap.explainers import bundle
from vitshap.explaining.batch import NO_CLASS, BatchExplainer, Columns
from vitshap.explaining.entries import Failed
from vitshap.explaining.photos import Photo
from vitshap.explaining.shards.read import Shard, UnreadableShard, read_shard
from vitshap.explaining.sinks import load_pyarrow, parquet_schema
from vitshap.explaining.stream import CannotExplain
from vitshap.files import FolderInUse, locked, read_json

RUN = "run.json"
"""File in the output folder with the settings of its explanations."""
ROW_GROUP = 4096
"""Rows that are collected before they are written."""


@dataclass(frozen=True)
class Job:
    """What is done with every shard; small enough to be sent to any machine."""

    explainer: BatchExplainer
    out: str
    image: str | None = None
    """Suffix or column of the images; None: the customary ones."""
    id: str | None = None
    """Column of the images' names in Parquet shards."""

    def output(self, shard: Shard) -> Path:
        """Return the file of a shard's explanations."""
        return Path(self.out) / f"{shard.stem}.parquet"


@dataclass(frozen=True)
class ShardResult:
    """What became of a shard."""

    shard: str
    images: int = 0
    failed: int = 0
    """Images that could not be explained."""
    seconds: float = 0.0
    finished_before: bool = False
    error: str | None = None
    """Why there is no file, in one line ..."""
    fatal: bool = False
    """... and whether the others have to expect the same."""


def explain_shard(job: Job, shard: Shard, /) -> ShardResult:
    """Explain the images of a shard into its file, unless that exists; errors are part of the result."""
    output, started = job.output(shard), time.perf_counter()
    held = f"another run is explaining {shard.name} into {job.out}"
    try:
        if output.exists():
            return ShardResult(shard.name, finished_before=True)
        with locked(output.with_name(f".{output.name}.lock"), held):
            if output.exists():  # finished while this run waited for the lock
                return ShardResult(shard.name, finished_before=True)
            for left in output.parent.glob(f".{glob.escape(output.name)}.*.tmp"):
                left.unlink()  # of a run that was killed
            images, failed = _write(job, shard, output)
        return ShardResult(shard.name, images, failed, time.perf_counter() - started)
    except (UnreadableShard, FolderInUse) as error:
        return ShardResult(shard.name, error=first_line(error))
    except CannotExplain as error:
        return ShardResult(shard.name, error=f"{shard.name}: {error}", fatal=True)
    except OSError as error:
        why = error.strerror or first_line(error)
        return ShardResult(shard.name, error=f"{output} could not be written: {why}", fatal=True)


def _write(job: Job, shard: Shard, output: Path) -> tuple[int, int]:
    """Write the file aside and rename it; return the number of images, and of those that could not be explained."""
    arrow, parquet = load_pyarrow("shards need")
    schema = parquet_schema(arrow)
    temporary = output.with_name(f".{output.name}.{uuid.uuid4().hex[:12]}.tmp")
    photos = _Counted(read_shard(shard, image=job.image, id=job.id))
    failed, waiting = 0, []
    try:
        with parquet.ParquetWriter(temporary, schema, compression="zstd") as writer:
            for columns in job.explainer.stream(photos):
                failed += int((columns["class"] == NO_CLASS).sum())
                waiting.append(as_table(columns, arrow))
                if sum(map(len, waiting)) >= ROW_GROUP:
                    writer.write_table(arrow.concat_tables(waiting))
                    waiting = []
            if waiting:
                writer.write_table(arrow.concat_tables(waiting))
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())  # after a power failure, a name without its content would count as finished
        os.replace(temporary, output)
    finally:
        temporary.unlink(missing_ok=True)
    return photos.count, failed


class _Counted:
    """Photos that are counted while they are read."""

    def __init__(self, photos: Iterator[Photo | Failed]) -> None:
        self._photos, self.count = photos, 0

    def __iter__(self) -> Iterator[Photo | Failed]:
        for photo in self._photos:
            self.count += 1
            yield photo


def as_table(columns: Columns, arrow: Any) -> Any:
    """Return columns of a ``BatchExplainer`` as a table; of a failed image it has only the name and the error."""
    schema, failed = parquet_schema(arrow), columns["class"] == NO_CLASS
    arrays = []
    for field in schema:
        given = columns.get(field.name)
        if given is None:
            arrays.append(arrow.nulls(len(failed), field.type))
        elif given.ndim == 2:
            width = given.shape[1]
            offsets = np.arange(0, (len(given) + 1) * width, width, dtype=np.int32)[: len(given) + 1]
            content = arrow.array(np.ascontiguousarray(given).ravel(), field.type.value_type)
            blank = arrow.array(failed | np.isnan(given).all(1))
            arrays.append(arrow.ListArray.from_arrays(offsets, content, type=field.type, mask=blank))
        elif given.dtype == object:
            blank = failed & (field.name not in ("file", "error"))
            arrays.append(arrow.array(given, field.type, mask=blank))
        else:
            arrays.append(arrow.array(given, field.type, mask=failed | (given != given)))
    return arrow.Table.from_arrays(arrays, schema=schema)


def claim_folder(job: Job, /) -> None:
    """Record in the output folder what its files are made with; ``ValueError`` where that is something else."""
    folder = Path(job.out)
    path = folder / RUN
    folder.mkdir(parents=True, exist_ok=True)
    own = _settings(job)
    if not path.exists():
        if there := next(folder.glob("*.parquet"), None):
            raise ValueError(f"{there} is not of a run over shards: choose another folder with --out")
        temporary = folder / f".{uuid.uuid4().hex}.tmp"
        try:
            temporary.write_text(json.dumps(own, indent=2) + "\n", encoding="utf-8")
            with suppress(FileExistsError):  # another process was first
                os.link(temporary, path)
        except OSError as error:
            if path.exists() or error.errno == errno.ENOSPC:
                raise
            os.replace(temporary, path)  # a file system without hard links
        finally:
            temporary.unlink(missing_ok=True)
    stored = read_json(path)
    stored = stored if isinstance(stored, dict) else {}
    for key, value in own.items():
        if stored.get(key) != value:
            raise ValueError(
                f"{folder} holds explanations with other settings ({key}: {stored.get(key)} there, {value} here): "
                "choose another folder with --out"
            )


def _settings(job: Job) -> dict[str, Any]:
    """Return what the values depend on, as JSON."""
    given = job.explainer
    source = given.source
    if given.model is None:
        config = bundle.read(given.bundle or bundle.shipped()[0])
        weights = hashlib.sha256(json.dumps(config["sha256"], sort_keys=True).encode()).hexdigest()
    else:
        weights = source.model.fingerprint()
    target = [given.target] if isinstance(given.target, str | int) else list(given.target)
    return {
        "source": source.name,
        "weights": weights[:16],
        "method": source.method.name,
        "budget": given.budget,
        "accuracy": given.accuracy,
        "players": given.players,
        "target": target,
        "image": job.image,
        "id": job.id,
    }
