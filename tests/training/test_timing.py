"""The estimate before a training, and curves for TensorBoard."""

import builtins
import io
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from rich.console import Console

from vitshap.data import Splits, load_digits
from vitshap.models import MaskedModel
from vitshap.training.progress import TensorBoard
from vitshap.training.recipes import clock, load_recipe, timing
from vitshap.training.recipes.run import build_model


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "1 s"),
        (40, "40 s"),
        (240, "4 min"),
        (3 * 3600, "3 h"),
        (86400 * 3, "3 days"),
    ],
)
def test_durations_are_rounded_to_one_unit(seconds: float, text: str) -> None:
    assert clock.duration(seconds) == text


def test_a_range_has_one_unit() -> None:
    assert clock.duration(400, 250) == "4 to 7 min"
    assert clock.duration(40, 39.8) == "40 s"


@pytest.fixture(scope="module")
def digits() -> Splits:
    return load_digits()


@pytest.mark.parametrize("procedure", ["values", "paper"])
def test_every_training_is_estimated_from_its_own_steps(digits: Splits, procedure: str) -> None:
    recipe = load_recipe("digits", settings=[f"explainer.procedure={procedure}"])
    model = build_model(recipe.model, digits.train)
    before = model.fingerprint()
    stages = timing.estimate(recipe, model, digits)
    assert [stage.name for stage in stages] == ["images", "classifier", "surrogate", "explainer"]
    assert model.fingerprint() == before
    assert "1,797 images to read" in stages[0].detail
    assert "360 steps of" in stages[1].detail
    assert "1,140 steps of" in stages[3].detail
    assert ("coalition values" in stages[3].detail) == (procedure == "values")
    assert all(stage.seconds > 0 for stage in stages)
    assert timing.lines(stages)[-1].startswith("in total about ")
    assert timing.estimate(recipe, model, digits, done={"classifier", "surrogate", "explainer"}) == []


def test_the_estimate_is_a_range_that_compilation_widens() -> None:
    stage = clock.StageTime("explainer", 600, "1,000 steps of 0.6 s")
    assert timing.lines([stage])[-1].startswith("in total about 8 to 14 min")
    low, high = stage.span
    compiled = clock.compiled(stage)
    assert compiled.span[0] < low < high < compiled.span[1]
    assert "before compilation" in timing.lines([compiled])[0]


def test_long_trainings_are_compiled_where_that_was_left_open(digits: Splits, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe("digits", settings=["classifier.compiled=auto", "surrogate.compiled=auto"])
    model, console = build_model(recipe.model, digits.train), Console(record=True, file=io.StringIO(), width=200)
    monkeypatch.setattr(timing, "can_compile", lambda device: True)  # as a GPU can
    monkeypatch.setattr(timing, "LONG", 0.0)
    chosen = timing.print_estimate(recipe, model, digits, {"surrogate"}, console)
    assert chosen.classifier.compiled is True
    assert chosen.surrogate.compiled is False, "it is already trained"
    assert chosen.explainer.compiled is False, "as the recipe says"
    said = console.export_text().splitlines()
    assert [line.split(":")[0] for line in said if "before compilation" in line] == ["classifier"]
    monkeypatch.setattr(timing, "LONG", 1e9)
    assert timing.print_estimate(recipe, model, digits, {"surrogate"}, console).classifier.compiled is False


def _steps(stage: clock.StageTime) -> int:
    return int(stage.detail.partition(" steps")[0].replace(",", ""))


def test_repeats_test_images_and_validation_are_counted(digits: Splits, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which every image takes a second, whatever is done with it."""
    monkeypatch.setattr(clock.Clock, "_seconds", lambda self, work, n: n * 1.0)
    monkeypatch.setattr(clock.Clock, "_writing", lambda self: 0.0)
    monkeypatch.setattr(clock, "QUICK", 0.0)
    done = {"classifier", "surrogate"}

    def explainer(*settings: str, splits: Splits = digits) -> clock.StageTime:
        recipe = load_recipe("digits", settings=["explainer.values.allocation=shapley", *settings])
        images, stage = timing.estimate(recipe, model, splits, done=done)
        assert images.name == "images"
        return stage

    model = build_model(load_recipe("digits").model, digits.train)
    once, again = explainer(), explainer("explainer.values.low_confidence_oversampling=11")
    assert _steps(again) == 60 * (2 * len(digits.train) // 64)  # a tenth of them ten times more
    assert "repeated 11 times" in again.detail
    assert again.seconds > 1.5 * once.seconds
    assert explainer("explainer.loop.validate_every=60").seconds < once.seconds
    fewer = Splits(digits.train, digits.val, digits.test.subset(range(10)))
    assert explainer(splits=fewer).seconds < once.seconds


def test_a_step_that_would_take_long_is_timed_in_part(digits: Splits, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe("digits", settings=["masked=true"])
    model = build_model(recipe.model, digits.train)
    timer, sizes = clock.Clock(model, digits), []
    monkeypatch.setattr(timer, "_seconds", lambda work, n: sizes.append(n) or n * 0.1)
    assert timer._timed(lambda n: None, 128) == pytest.approx(12.8)
    assert sizes == [clock.PART, clock.PART, 10], "about a second's work"
    sizes.clear()
    assert timer._timed(lambda n: None, 16) == pytest.approx(1.6)
    assert sizes == [clock.PART, clock.PART, 16, 16, 16]
    names = [stage.name for stage in timing.estimate(recipe, model, digits)]
    assert names == ["images", "classifier", "explainer"]


def test_the_clock_waits_for_the_gpu_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: waited.append(device))
    timer = clock.Clock.__new__(clock.Clock)
    timer.model = cast(MaskedModel, SimpleNamespace(device=torch.device("cuda:1")))
    assert timer._seconds(lambda n: None, 1) >= 0
    assert waited == [torch.device("cuda:1")]


def test_without_tensorboard_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *args: Any, **options: Any) -> ModuleType:
        if name.startswith("torch.utils.tensorboard"):
            raise ImportError(name)
        return original(name, *args, **options)

    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    board = TensorBoard(tmp_path / "tensorboard")
    board.add({"epoch": 0, "step": 5, "loss": 1.0})
    board.close()
    assert not (tmp_path / "tensorboard").exists()


def test_curves_for_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(tmp_path)
    for step in (5, 10):
        board.add({"epoch": step // 5 - 1, "step": step, "loss": 1 / step})
    board.close()
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    assert found.Tags()["scalars"] == ["loss"]
    assert {event.step: event.value for event in found.Scalars("loss")} == pytest.approx({5: 0.2, 10: 0.1})
