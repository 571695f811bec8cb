"""What all requests share: the models, and how many requests are in the server."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from vitshap.errors import did_you_mean
from vitshap.serving.measured import Measured
from vitshap.serving.models import ModelChoice, SeenPhoto, ServedModel
from vitshap.serving.schemas import ApiError
from vitshap.serving.uploads import Limits, Received

T = TypeVar("T")

DECODERS = 2
"""Threads that decode photos."""


class Serving:
    """Models, limits and counters of a running server."""

    def __init__(self, choices: Sequence[ModelChoice], limits: Limits, device: str = "cpu") -> None:
        self.choices, self.limits, self.device = list(choices), limits, device
        self.names = [choice.name for choice in choices]
        self.models: dict[str, ServedModel] = {}
        self.failure: Exception | None = None
        """Why the models could not be loaded."""
        self.stopping = False
        self.admitted = {"quick": 0, "long": 0}
        """Requests in the server, by the thread that computes for them."""
        self.received = Received(limits)
        self.measured = Measured(self)
        self.decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="vitshap-decode")
        self._finished: list[float] = []

    @property
    def ready(self) -> bool:
        """Whether all models are loaded, and the server is not stopping."""
        return len(self.models) == len(self.choices) and not self.stopping

    @property
    def idle(self) -> bool:
        """Whether no request is being computed."""
        return not any(self.admitted.values())

    def load(self) -> None:
        """Load the models; the first error ends it and is kept in ``failure``."""
        try:
            for choice in self.choices:
                model = ServedModel(choice, self.limits, self.device, lambda: self.admitted["quick"])
                model.batch_sizes = self.measured.batch.observe
                self.models[choice.name] = model
        except Exception as error:
            self.failure = error

    def close(self) -> None:
        """Finish what is under way."""
        self.stopping = True
        for model in self.models.values():
            model.close()
        self.decoders.shutdown(cancel_futures=True)

    def require_ready(self) -> None:
        """Raise unless requests are answered."""
        if self.stopping:
            raise ApiError(503, "stopping", "the server is stopping", {"Retry-After": "5", "Connection": "close"})
        if not self.ready:
            raise ApiError(503, "loading", "the models are being loaded", {"Retry-After": "2"})

    def model(self, name: str | None) -> ServedModel:
        """Return a model by its name, by default the first."""
        self.require_ready()
        name = self.names[0] if name is None else name
        if name not in self.models:
            raise ApiError(404, "unknown_model", f"there is no such model{did_you_mean(name, self.names)}")
        return self.models[name]

    @contextmanager
    def admission(self, lane: str) -> Iterator[None]:
        """Count a request while it is in the server; raise if too many are."""
        most = self.limits.waiting if lane == "quick" else self.limits.sampling
        if self.admitted[lane] >= most:
            self.measured.rejected.inc()
            seconds = str(self._expected_wait(lane))
            message = f"{most} requests are in the server already: try again in {seconds} s"
            raise ApiError(429, "busy", message, {"Retry-After": seconds})
        self.admitted[lane] += 1
        try:
            yield
        finally:
            self.admitted[lane] -= 1
            self._finished = [*self._finished[-31:], time.monotonic()]

    def over_time(self) -> ApiError:
        """Count a request that is over its time limit; return its error."""
        self.measured.timeouts.inc()
        message = f"the request took more than {self.limits.seconds:g} s"
        return ApiError(503, "time_limit", message, {"Retry-After": "5"})

    def _expected_wait(self, lane: str) -> int:
        """Return the seconds in which the requests that are here will be answered, from the latest answers."""
        if lane != "quick" or len(self._finished) < 8:
            return 2
        rate = (len(self._finished) - 1) / max(time.monotonic() - self._finished[0], 1e-3)
        return min(max(math.ceil(self.admitted[lane] / rate), 1), 30)

    async def in_decoder(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call a function in a decoding thread."""
        return await asyncio.get_running_loop().run_in_executor(self.decoders, call, *arguments)

    async def photo(self, model: ServedModel, content: bytes) -> SeenPhoto:
        """Return the photo of these bytes, decoded unless the model knows it."""
        photo, known = await self.in_decoder(model.photo, content)
        (self.measured.known if known else self.measured.decoded).inc()
        return photo
