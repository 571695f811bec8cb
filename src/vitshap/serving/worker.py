"""A thread that runs jobs in batches: what waits when it is free is run together, up to a number.

If more requests are on their way, it waits a few milliseconds for their jobs before it starts; a single request never
waits. A job that nobody waits for any more is left out.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T", bound="Job")

GATHER_SECONDS = 0.005
"""Longest time for which a batch waits for further jobs."""


class Cancelled(Exception):
    """A job that nobody waits for."""


@dataclass(eq=False, kw_only=True)
class Job:
    """Something to compute; ``result`` is set by the worker's thread."""

    result: Future[Any] = field(default_factory=Future)

    def cancel(self) -> None:
        """Give up the result; the work ends at the next point at which that is possible."""
        self._cancelled = True
        self.result.cancel()

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the result."""
        return getattr(self, "_cancelled", False)

    def finish(self, value: Any) -> None:
        """Set the result, unless the job was cancelled."""
        if not self.result.done() and self.result.set_running_or_notify_cancel():
            self.result.set_result(value)

    def fail(self, error: BaseException) -> None:
        """Set the error, unless the job was cancelled."""
        if not self.result.done() and self.result.set_running_or_notify_cancel():
            self.result.set_exception(error)


class Worker(Generic[T]):
    """A thread and its queue."""

    def __init__(
        self,
        name: str,
        run: Callable[[list[T]], list[T]],
        *,
        batch: int = 1,
        expected: Callable[[], int] = lambda: 0,
    ) -> None:
        """``run`` computes up to ``batch`` jobs and returns those that are to be continued in the next batch.

        ``expected`` returns how many requests are in the server, whose jobs may still come.
        """
        self._run, self._batch, self._expected = run, batch, expected
        self._queue: deque[T] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name=f"vitshap-{name}", daemon=True)
        self._thread.start()

    def submit(self, job: T) -> None:
        """Add a job to the queue; the number of jobs is bounded by whoever admits requests."""
        with self._changed:
            if self._stopped:
                job.fail(Cancelled())
                return
            self._queue.append(job)
            self._changed.notify()

    def stop(self) -> None:
        """Run what waits, then end the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        rest: list[T] = []
        while (jobs := self._next(rest)) is not None:
            try:
                rest = self._run(jobs) if jobs else []
            except BaseException as error:
                rest = []
                for job in jobs:
                    job.fail(error)
            del jobs

    def _next(self, rest: list[T]) -> list[T] | None:
        """Return the jobs of the next batch; None at the end."""
        with self._changed:
            if not rest:
                self._changed.wait_for(lambda: self._queue or self._stopped)
                if not self._queue:
                    return None
            until = time.monotonic() + GATHER_SECONDS
            jobs = self._taken(rest)
            while len(jobs) < self._batch and self._expected() > len(jobs):
                left = until - time.monotonic()
                if left <= 0 or self._stopped:
                    break
                self._changed.wait(left)
                jobs = self._taken(jobs)
            return jobs

    def _taken(self, jobs: list[T]) -> list[T]:
        """Return these jobs with further ones from the queue."""
        jobs = [job for job in jobs if not job.cancelled]
        while self._queue and len(jobs) < self._batch:
            job = self._queue.popleft()
            if not job.cancelled:
                jobs.append(job)
        return jobs
