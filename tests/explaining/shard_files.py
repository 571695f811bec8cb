"""Shards of small pictures, written by the libraries that users write them with, and what was explained of them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import webdataset

from tests.explaining import made


def encoded(seed: int, kind: str = "png") -> bytes:
    buffer = io.BytesIO()
    made.picture(seed).save(buffer, kind)
    return buffer.getvalue()


def write_tar(path: Path, items: Sequence[dict[str, Any]]) -> Path:
    """A shard as webdataset writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with webdataset.TarWriter(str(path)) as writer:
        for item in items:
            writer.write(item)
    return path


def tar_shards(folder: Path, shards: int, images: int, pictures: int = 12) -> list[Path]:
    """Shards train-0000.tar, ... of this many images each, of keys 000000, 000001, ... over all of them."""
    files = [encoded(seed) for seed in range(pictures)]
    found = []
    for shard in range(shards):
        keys = range(shard * images, (shard + 1) * images)
        items = [{"__key__": f"{key:06}", "png": files[key % pictures], "cls": key % 5} for key in keys]
        found.append(write_tar(folder / f"train-{shard:04}.tar", items))
    return found


def keys_of(shards: int, images: int) -> dict[str, list[str]]:
    """The keys in ``tar_shards``, by shard."""
    return {f"train-{shard:04}": [f"{shard * images + i:06}" for i in range(images)] for shard in range(shards)}


def write_parquet(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=5)
    return path


def explained_files(folder: Path) -> dict[str, list[str]]:
    """The names of explained images by shard, each once for its rows, in the order of the rows."""
    found = {}
    for path in sorted(folder.glob("*.parquet")):
        names = pq.read_table(path, columns=["file"]).column("file").to_pylist()
        found[path.stem] = [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name]
    return found


def started(*arguments: object) -> subprocess.Popen[str]:
    """The real command in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "COLUMNS": "10000"}
    return subprocess.Popen(
        [sys.executable, "-m", "vitshap", "explain", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
