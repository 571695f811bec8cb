"""The estimate before a training, and curves for TensorBoard."""

import builtins
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vitshap.data import Splits, load_digits
from vitshap.training import timing
from vitshap.training.board import Board
from vitshap.training.nets import build_model
from vitshap.training.recipes import load_recipe


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.2, "about 1 s"),
        (40, "about 40 s"),
        (240, "about 4 min"),
        (3 * 3600, "about 3 h"),
        (86400 * 3, "about 3 days"),
    ],
)
def test_durations_are_said_as_people_do(seconds: float, said: str) -> None:
    assert timing.about(seconds) == said


@pytest.fixture(scope="module")
def digits() -> Splits:
    return load_digits()


@pytest.mark.parametrize("procedure", ["values", "paper"])
def test_every_training_is_estimated_from_its_own_steps(digits: Splits, procedure: str) -> None:
    recipe = load_recipe("digits", settings=[f"explainer.procedure={procedure}"])
    model = build_model(recipe.model, digits.train)
    before = model.fingerprint()
    stages = timing.estimate(recipe, model, digits)
    assert [stage.name for stage in stages] == ["classifier", "surrogate", "explainer"]
    assert model.fingerprint() == before
    assert "360 steps of" in stages[0].detail
    assert "1,140 steps of" in stages[2].detail
    assert ("values of coalitions" in stages[2].detail) == (procedure == "values")
    assert all(stage.seconds > 0 for stage in stages)
    assert timing.lines(stages)[-1].startswith("in all about ")
    assert timing.estimate(recipe, model, digits, done={"classifier", "surrogate", "explainer"}) == []


@pytest.mark.parametrize(("times", "said"), [(1, False), (3, True)])
def test_what_repeats_will_add_is_named(digits: Splits, times: int, said: bool) -> None:
    recipe = load_recipe("digits", settings=[f"explainer.values.unsure={times}"])
    (stage,) = timing.estimate(
        recipe, build_model(recipe.model, digits.train), digits, done={"classifier", "surrogate"}
    )
    assert ("unsure of are met 3 times" in stage.detail) == said


def test_a_step_that_would_take_long_is_timed_in_part(digits: Splits, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe("digits", settings=["masked=true"])
    model = build_model(recipe.model, digits.train)
    clock, sizes = timing._Clock(model, digits), []
    monkeypatch.setattr(timing, "PATIENCE", 0.0)
    monkeypatch.setattr(clock, "_seconds", lambda work, n: sizes.append(n) or n * 1.0)
    assert clock._timed(lambda n: None, 128) == 128.0
    assert set(sizes) == {timing.PART}
    assert [stage.name for stage in timing.estimate(recipe, model, digits)] == ["classifier", "explainer"]


def test_without_tensorboard_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *args: Any, **options: Any) -> ModuleType:
        if name.startswith("torch.utils.tensorboard"):
            raise ImportError(name)
        return original(name, *args, **options)

    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    board = Board(tmp_path / "tensorboard")
    board.add({"epoch": 0, "step": 5, "loss": 1.0})
    board.close()
    assert not (tmp_path / "tensorboard").exists()


def test_curves_for_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = Board(tmp_path)
    for step in (5, 10):
        board.add({"epoch": step // 5 - 1, "step": step, "loss": 1 / step})
    board.close()
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    assert found.Tags()["scalars"] == ["loss"]
    assert {event.step: event.value for event in found.Scalars("loss")} == pytest.approx({5: 0.2, 10: 0.1})
