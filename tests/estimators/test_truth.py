"""Stored truth: the same after a stop, whole or absent, and of one surrogate only."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.estimators.games import size_effect
from vitshap.analytic import AnalyticGame
from vitshap.estimators import truth
from vitshap.game import Game

WHOLE = size_effect(12, batch_size=5, num_outputs=2)


def game_of(part: slice) -> Game:
    rows = WHOLE.shapley_values[part]

    def value(s: torch.Tensor) -> torch.Tensor:
        padded = s.new_zeros(5, *s.shape[1:])
        padded[part] = s
        return WHOLE._value(padded)[part]

    return AnalyticGame(value, rows)


def compute(folder: Path, **changes: Any) -> truth.Truth:
    options: dict[str, Any] = {"num_inputs": 5, "surrogate": "abc", "budget": 400, "batch": 2, **changes}
    return truth.compute(folder, options.pop("game_of", game_of), **options)


def test_values_reliability_and_record(tmp_path: Path) -> None:
    made = compute(tmp_path / "t")
    assert made.values.shape == (5, 12, 2)
    assert ((made.values - WHOLE.shapley_values).abs() <= 5 * made.stderr + 1e-9).all()
    assert made.reliability_per_class.min() > 0.98
    record = json.loads((tmp_path / "t" / "truth.json").read_text())
    assert record["specification"]["surrogate"] == "abc"
    assert record["specification"]["budget"] == 400
    assert record["finished"]
    assert record["reliability_per_class"] == pytest.approx(made.reliability_per_class.tolist())
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == ["truth.json", "truth.safetensors"]


def test_stopped_and_continued_is_the_same(tmp_path: Path) -> None:
    whole = compute(tmp_path / "whole")
    asked: list[slice] = []

    def failing(part: slice) -> Game:
        asked.append(part)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return game_of(part)

    with pytest.raises(KeyboardInterrupt):
        compute(tmp_path / "cut", game_of=failing)
    with pytest.raises(FileNotFoundError, match="no finished reference values"):
        truth.load(tmp_path / "cut")
    (tmp_path / "cut" / "part-00000002.safetensors.tmp").write_bytes(b"half a file")
    continued = compute(tmp_path / "cut", game_of=failing)
    assert [part.start for part in asked] == [0, 2, 2, 4]
    for name in ("values", "stderr", "base_values", "full_values", "reliability"):
        assert torch.equal(getattr(whole, name), getattr(continued, name))


def test_finished_reference_values_are_not_computed_again(tmp_path: Path) -> None:
    made = compute(tmp_path)

    def never(part: slice) -> Game:
        raise AssertionError("asked again")

    again = compute(tmp_path, game_of=never)
    assert torch.equal(made.values, again.values)


def test_another_surrogate_needs_other_reference_values(tmp_path: Path) -> None:
    compute(tmp_path)
    with pytest.raises(ValueError, match="surrogate 'abc' there, 'xyz' requested"):
        compute(tmp_path, surrogate="xyz")
    with pytest.raises(ValueError, match="a new surrogate needs new ones"):
        truth.load(tmp_path, surrogate="xyz")
    assert truth.load(tmp_path, surrogate="abc").specification.num_inputs == 5


def test_progress_and_bad_input(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    compute(tmp_path / "a", progress=lambda done, of: seen.append((done, of)))
    assert seen == [(2, 5), (4, 5), (5, 5)]
    with pytest.raises(ValueError, match="returned 1 inputs instead of 2"):
        compute(tmp_path / "b", game_of=lambda part: game_of(slice(0, 1)))
    with pytest.raises(ValueError, match="at least 1"):
        compute(tmp_path / "c", num_inputs=0)
