"""Shards on a real Ray cluster: the same files as without Ray, and none lost with a worker or a node."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import ray
import ray.data
from ray.cluster_utils import Cluster

from tests.explaining.shard_files import encoded, explained_files, keys_of, tar_shards, write_tar
from vitshap.explaining import BatchExplainer
from vitshap.explaining.shards import Job, Shard, ShardResult, explain_shard
from vitshap.explaining.shards.on_ray import explain_on_ray

STORE = 100 << 20
"""Bytes of a node's object store: shards never pass through it."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster of a head, on which nothing is computed, and nodes that tests add."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": STORE})
    root = str(Path(__file__).parent.parent.parent)
    paths = os.pathsep.join([f"{root}/src", root])
    ray.init(made.address, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": paths}})
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Any:
    """A node that stays."""
    return cluster.add_node(num_cpus=2, object_store_memory=STORE)


@pytest.fixture(scope="module")
def explainer(bundle: Path) -> BatchExplainer:
    return BatchExplainer(str(bundle), target="top-2", batch=4, device="cpu")


def _same_files(one: Path, other: Path) -> None:
    assert explained_files(one) == explained_files(other)
    for path in one.glob("*.parquet"):
        first, second = pq.read_table(path), pq.read_table(other / path.name)
        assert first.schema.equals(second.schema)
        for name in ("file", "error", "class", "name", "grid", "unit", "method"):
            assert first.column(name).equals(second.column(name))
        for name in ("values", "box", "output", "base", "full"):
            values = [np.array([v for v in t.column(name).to_pylist() if v is not None]) for t in (first, second)]
            np.testing.assert_allclose(*values, atol=1e-6)


@pytest.mark.long
def test_map_batches(node: Any, explainer: BatchExplainer) -> None:
    images = [encoded(seed) for seed in range(6)]
    data = ray.data.from_items(
        [{"id": str(i), "image": image} for i, image in enumerate(images)], override_num_blocks=2
    )
    mapped = data.map_batches(
        BatchExplainer,
        fn_constructor_kwargs={"bundle": explainer.bundle, "target": "top-2", "device": "cpu"},
        batch_size=3,
        compute=ray.data.ActorPoolStrategy(size=1),
    )
    rows = sorted(mapped.take_all(), key=lambda row: int(row["file"]))
    own = explainer({"id": [*map(str, range(6))], "image": images})
    assert [row["file"] for row in rows] == own["file"].tolist()
    assert [row["class"] for row in rows] == own["class"].tolist()
    np.testing.assert_allclose(np.stack([row["values"] for row in rows]), own["values"], atol=1e-6)


def test_the_files_are_those_of_one_process(node: Any, explainer: BatchExplainer, tmp_path: Path) -> None:
    items = [{"__key__": "a", "txt": "x"}, {"__key__": "b", "png": encoded(0)}]
    paths = [*tar_shards(tmp_path / "in", 2, 10), write_tar(tmp_path / "in" / "items.tar", items)]
    shards = [Shard(str(path)) for path in paths]
    short = tmp_path / "in" / "short.tar"
    short.write_bytes(paths[0].read_bytes()[:2048])
    for name in ("ray", "process"):
        (tmp_path / name).mkdir()
    for shard in shards:
        explain_shard(Job(explainer, str(tmp_path / "process")), shard)
    job = Job(explainer, str(tmp_path / "ray"))
    assert explain_shard(job, shards[0]).error is None, "begun without Ray, continued with it"
    results = {one.shard: one for one in explain_on_ray(job, [*shards, Shard(str(short))], workers=1)}
    assert results["train-0000.tar"].finished_before
    assert (results["items.tar"].images, results["items.tar"].failed) == (2, 1)
    assert results["short.tar"].error is not None
    assert "short.tar: its end is missing" in results["short.tar"].error
    _same_files(tmp_path / "process", tmp_path / "ray")


def _writers(folder: Path) -> list[int]:
    """The processes that are explaining a shard into this folder: those that hold its lock file open."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if Path(os.readlink(link)).parent == folder and os.readlink(link).endswith(".lock"):
                found.add(int(link.parts[2]))
    return sorted(found)


@pytest.mark.long
def test_a_killed_worker_and_a_killed_node(
    cluster: Cluster, node: Any, explainer: BatchExplainer, tmp_path: Path
) -> None:
    count, images = 20, 250
    paths = tar_shards(tmp_path / "in", count, images)
    second = cluster.add_node(num_cpus=2, object_store_memory=STORE)
    (tmp_path / "out").mkdir()
    job = Job(explainer, str(tmp_path / "out"))
    results: list[ShardResult] = []
    failed: list[BaseException] = []

    def explain() -> None:
        try:
            results.extend(explain_on_ray(job, [Shard(str(path)) for path in paths], workers=4))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=explain)
    thread.start()

    def finished() -> int:
        return len(list((tmp_path / "out").glob("*.parquet")))

    def wait_for(shards: int) -> None:
        until = time.monotonic() + 240
        while finished() < shards and thread.is_alive() and time.monotonic() < until:
            time.sleep(0.02)
        assert thread.is_alive(), failed
        assert finished() >= shards

    wait_for(1)
    victim = _writers(tmp_path / "out")[0]
    assert victim != os.getpid()
    os.kill(victim, signal.SIGKILL)
    wait_for(3)
    cluster.remove_node(second, allow_graceful=False)
    at_the_node = finished()
    assert at_the_node < count, "the node was killed in the midst of the work"
    thread.join(300)
    assert not thread.is_alive()
    assert not failed
    assert [one.error for one in results if one.error is not None] == []
    assert len({one.shard for one in results}) == len(results) == count
    assert explained_files(tmp_path / "out") == keys_of(count, images)
    (tmp_path / "whole").mkdir()
    for path in paths:
        explain_shard(Job(explainer, str(tmp_path / "whole")), Shard(str(path)))
    _same_files(tmp_path / "whole", tmp_path / "out")
