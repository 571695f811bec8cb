"""Shards on a Ray cluster: Ray Data gives them to actors that load the net once, and a lost actor's to another.

A shard's file is written by the actor itself, as without Ray, so that the files are the same; Ray moves names and counts.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from vitshap.errors import first_line
from vitshap.explaining.shards.read import Shard
from vitshap.explaining.shards.write import Job, ShardResult, explain_shard


class ShardActor:
    """A worker process of the cluster."""

    def __init__(self, job: Job) -> None:
        import torch

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))  # as many as Ray gives it
        self._job = job

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Explain the shards of a batch; return what became of them, as columns."""
        results = [asdict(explain_shard(self._job, Shard(str(path)))) for path in batch["path"]]
        return {name: [one[name] for one in results] for name in results[0]}


def explain_on_ray(job: Job, shards: Sequence[Shard], /, *, workers: int | None = None) -> Iterator[ShardResult]:
    """Explain shards on the cluster of ``RAY_ADDRESS``, or on this machine; yield results as they come.

    ``workers`` is the number of processes; default: one per GPU of the cluster, or per core where there is none.
    """
    finished = [shard for shard in shards if job.output(shard).exists()]
    yield from (ShardResult(shard.name, finished_before=True) for shard in finished)
    left = [shard for shard in shards if shard not in set(finished)]
    if not left:
        return
    try:
        import ray
        import ray.data
        from ray.exceptions import RayError
    except ImportError as error:
        raise ValueError('--engine ray needs ray, which is not installed: pip install "vitshap[ray]"') from error
    started = not ray.is_initialized()
    if started:
        _start(ray)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        for row in _results(ray, job, left, workers).iter_rows():
            yield ShardResult(**row)
    except RayError as error:
        why = first_line(getattr(error, "cause", None) or error)
        raise OSError(f"Ray gave up ({why}); finished shards stay, and the same command continues") from error
    finally:
        if started:
            ray.shutdown()


def _start(ray: Any) -> None:
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # notes about Ray's own restarts, not for users
    stop = signal.getsignal(signal.SIGTERM)
    ray.init(log_to_driver=False, logging_level=logging.ERROR)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, stop)  # Ray's own handler prints a stack trace


def _results(ray: Any, job: Job, shards: Sequence[Shard], workers: int | None) -> Any:
    """Return the data set of results: a block per shard, computed when it is read."""
    resources = ray.cluster_resources()
    gpus = int(resources.get("GPU", 0)) if job.explainer.device != "cpu" else 0
    count = min(len(shards), workers or gpus or int(resources.get("CPU", 1)))
    paths = ray.data.from_items([{"path": shard.path} for shard in shards], override_num_blocks=len(shards))
    pool = ray.data.ActorPoolStrategy(
        min_size=1, max_size=count, initial_size=count, max_tasks_in_flight_per_actor=1
    )  # no shard waits for a busy process
    needs = {"num_gpus": 1} if gpus else {"num_cpus": 1}
    return paths.map_batches(ShardActor, fn_constructor_args=(job,), batch_size=1, compute=pool, **needs)
