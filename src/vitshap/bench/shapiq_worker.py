"""A process that runs shapiq's estimators for ``bench race`` and asks for the values of coalitions through a socket.

It imports nothing but numpy and shapiq, so that it can run with another Python than vitshap: shapiq 1.8 needs 3.12.
Messages are JSON, coalitions bits of bytes, values float64.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from multiprocessing.connection import Client, Connection
from typing import Any

import numpy as np

ESTIMATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "RegressionMSR": ("RegressionMSR", {"index": "SV"}),
    "ProxySHAP": ("ProxySHAP", {"index": "SV", "max_order": 1}),
    "ProxySHAP adjusted": ("ProxySHAP", {"index": "SV", "max_order": 1, "adjustment": True}),
    "OddSHAP": ("OddSHAP", {}),
    "LeverageSHAP": ("LeverageSHAP", {}),
    "KernelSHAP": ("KernelSHAP", {"pairing_trick": True}),
    "PolySHAP": ("PolySHAP", {"max_order": 1, "pairing_trick": True}),
    "PolySHAP, order 2": ("PolySHAP", {"max_order": 2, "pairing_trick": True, "max_terms": 2000}),
    "ShaplEIG": ("ShaplEIG", {}),
}
"""Class and options of each estimator; ``max_terms`` is at most half the number of evaluations."""


def estimate(connection: Connection, job: dict[str, Any]) -> list[float]:
    """Run one estimator; its game asks for values through the connection."""
    import shapiq.approximator as approximators

    name, options = ESTIMATORS[job["estimator"]]
    options = dict(options)
    players, budget = job["players"], job["budget"]
    if "max_terms" in options:
        options["max_terms"] = max(min(budget // 2, options["max_terms"]), players + 1)

    def game(coalitions: Any) -> Any:
        members = np.atleast_2d(np.asarray(coalitions)).astype(bool)
        connection.send_bytes(json.dumps({"image": job["image"], "coalitions": len(members)}).encode())
        connection.send_bytes(np.packbits(members, axis=1).tobytes())
        return np.frombuffer(connection.recv_bytes(), dtype=np.float64).copy()

    approximator = getattr(approximators, name)(n=players, random_state=job["seed"], **options)
    found = approximator.approximate(budget, game)
    return [float(found[(i,)]) for i in range(players)]


def main(address: str) -> None:
    """Take jobs until an empty one comes."""
    warnings.simplefilter("ignore")
    with Client(address, family="AF_UNIX") as connection:
        connection.send_bytes(json.dumps({"ready": True}).encode())
        while job := json.loads(connection.recv_bytes()):
            started = time.process_time()
            answer: dict[str, Any] = {"job": job}
            try:
                answer["values"] = estimate(connection, job)
            except Exception as error:  # an estimator that cannot do this game says so
                answer["error"] = f"{type(error).__name__}: {error}"
            answer["seconds"] = time.process_time() - started
            connection.send_bytes(json.dumps(answer).encode())


if __name__ == "__main__":
    main(sys.argv[1])
