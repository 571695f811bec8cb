"""Counters and timings of a running server, for Prometheus."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from vitshap.serving.state import Serving

_PATHS = ("/", "/healthz", "/readyz", "/metrics", "/openapi.json", "/v1/models", "/v1/explanations", "/v1/predictions")


class Measured:
    """The counters of one server, in a registry of their own."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, serving: Serving) -> None:
        self._registry = CollectorRegistry()
        here: dict[str, Any] = {"registry": self._registry, "namespace": "vitshap"}
        self._responses = Counter("responses", "Responses by address and status.", ["path", "status"], **here)
        self._seconds = Histogram("response_seconds", "Time from a request to its response.", ["path"], **here)
        self.rejected = Counter("rejected_requests", "Requests answered with 429.", **here)
        self.timeouts = Counter("timed_out_requests", "Requests over their time limit.", **here)
        self.known = Counter("known_photos", "Requests about a photo that was still in memory.", **here)
        self.decoded = Counter("decoded_photos", "Requests whose photo was decoded.", **here)
        self.batch = Histogram("batch_size", "Requests in one forward pass.", buckets=(1, 2, 4, 8, 16, 32, 64), **here)
        waiting = Gauge("requests_in_server", "Requests being received, decoded or computed.", ["kind"], **here)
        for kind in ("quick", "long"):
            waiting.labels(kind).set_function(partial(serving.admitted.__getitem__, kind))
        ready = Gauge("ready", "1 if requests are answered, 0 while the server is loading or stopping.", **here)
        ready.set_function(lambda: float(serving.ready))

    def observe_response(self, path: str, status: int, seconds: float) -> None:
        """Count a response, and the time until it started; unknown addresses count as one."""
        known = path if path in _PATHS else "/static" if path.startswith("/static/") else "other"
        self._responses.labels(known, str(status)).inc()
        self._seconds.labels(known).observe(seconds)

    def exposition(self) -> bytes:
        """Return all numbers in Prometheus' text format."""
        return generate_latest(self._registry)
