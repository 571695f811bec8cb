"""The thread that batches jobs."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest

from vitshap.serving.worker import Cancelled, Job, Worker


@dataclass(eq=False, kw_only=True)
class Number(Job):
    value: int
    rounds: int = 1


def _doubling(batches: list[list[int]], started: threading.Event, free: threading.Event) -> Any:
    def run(jobs: list[Number]) -> list[Number]:
        started.set()
        free.wait(10)
        batches.append([job.value for job in jobs])
        for job in jobs:
            job.rounds -= 1
            if job.value < 0:
                raise ValueError("negative")
            if job.rounds == 0:
                job.finish(2 * job.value)
        return [job for job in jobs if job.rounds > 0]

    return run


def _worker(
    batch: int = 4, expected: int = 0
) -> tuple[Worker[Number], list[list[int]], threading.Event, threading.Event]:
    batches: list[list[int]] = []
    started, free = threading.Event(), threading.Event()
    return (
        Worker("test", _doubling(batches, started, free), batch=batch, expected=lambda: expected),
        batches,
        started,
        free,
    )


def test_what_waits_is_run_together_in_order() -> None:
    worker, batches, started, free = _worker()
    jobs = [Number(value=i) for i in range(10)]
    worker.submit(jobs[0])
    started.wait(10)
    for job in jobs[1:]:
        worker.submit(job)
    free.set()
    assert [job.result.result(10) for job in jobs] == [2 * i for i in range(10)]
    assert batches == [[0], [1, 2, 3, 4], [5, 6, 7, 8], [9]]
    worker.stop()


def test_cancelled_jobs_are_left_out_and_errors_do_not_end_the_thread() -> None:
    worker, batches, started, free = _worker(batch=1)
    first, cancelled, wrong, last = (Number(value=value) for value in (1, 2, -3, 4))
    worker.submit(first)
    started.wait(10)
    for job in (cancelled, wrong, last):
        worker.submit(job)
    cancelled.cancel()
    free.set()
    with pytest.raises(ValueError, match="negative"):
        wrong.result.result(10)
    assert last.result.result(10) == 8
    assert batches == [[1], [-3], [4]]
    worker.stop()


def test_long_jobs_take_turns_with_others() -> None:
    worker, batches, started, free = _worker(batch=2)
    long, short = Number(value=7, rounds=3), Number(value=1)
    worker.submit(long)
    started.wait(10)
    worker.submit(short)
    free.set()
    assert short.result.result(10) == 2
    assert long.result.result(10) == 14
    assert batches == [[7], [7, 1], [7]]
    worker.stop()


def test_stopping_finishes_what_waits_and_refuses_the_rest() -> None:
    worker, _, started, free = _worker(batch=1)
    jobs = [Number(value=i) for i in range(3)]
    for job in jobs:
        worker.submit(job)
    started.wait(10)
    free.set()
    worker.stop()
    assert [job.result.result(0) for job in jobs] == [0, 2, 4]
    late = Number(value=9)
    worker.submit(late)
    with pytest.raises(Cancelled):
        late.result.result(0)


def test_a_batch_waits_for_requests_that_are_on_their_way() -> None:
    worker, batches, _, free = _worker(batch=2, expected=2)
    free.set()
    one, two = Number(value=1), Number(value=2)
    worker.submit(one)
    worker.submit(two)
    assert [one.result.result(10), two.result.result(10)] == [2, 4]
    assert [value for batch in batches for value in batch] == [1, 2]
    worker.stop()
