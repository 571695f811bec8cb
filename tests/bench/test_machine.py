"""The measuring itself."""

import itertools

import pytest
import torch

from vitshap.bench import machine
from vitshap.bench.machine import describe, seconds


def test_seconds_are_those_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    lasting = itertools.chain([9.0], itertools.cycle([0.5]))  # the first call is slow, and not counted
    now, calls = [0.0], []

    def work() -> None:
        calls.append(1)
        now[0] += next(lasting)

    monkeypatch.setattr(machine.time, "perf_counter", lambda: now[0])
    assert seconds(work, torch.device("cpu"), at_least=1.0, rounds=3) == 0.5
    assert len(calls) == 1 + 3 * 2


@pytest.mark.parametrize("word", ["torch", "vitshap", "Python"])
def test_a_measurement_names_where_it_was_made(word: str) -> None:
    assert word in describe(torch.device("cpu"))
