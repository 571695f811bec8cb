"""The measuring itself."""

import time

import pytest
import torch

from vitshap.bench.machine import describe, limits, seconds


def test_seconds_are_those_of_one_call() -> None:
    calls = []
    measured = seconds(lambda: (calls.append(1), time.sleep(0.01)), torch.device("cpu"), at_least=0.05)
    assert measured >= 0.01
    assert len(calls) >= 4


def test_limits_are_plausible_for_any_machine() -> None:
    found = limits(torch.device("cpu"))
    assert 1e8 < found.flops < 1e17
    assert 1e8 < found.bytes < 1e15


@pytest.mark.parametrize("word", ["torch", "vitshap", "Python"])
def test_a_measurement_names_where_it_was_made(word: str) -> None:
    assert word in describe(torch.device("cpu"))
