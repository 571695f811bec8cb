"""What training costs: counted and extrapolated rightly, for all stages and both procedures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.models import nets
from vitshap.bench import training
from vitshap.cli import app
from vitshap.models import wrap
from vitshap.training.configs import Procedure
from vitshap.training.loop import StepTimer
from vitshap.training.recipes import load_recipe


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> list[StepTimer]:
    """All timers that are made."""
    made = []

    class Watched(StepTimer):
        def __init__(self, *args) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(training, "StepTimer", Watched)
    return made


def _took_real_steps(timer: StepTimer, steps: int) -> None:
    run = timer._run
    assert run.state.step == steps + training.WARM_UP
    assert run.optimiser.state
    assert all(state["step"] == steps + training.WARM_UP for state in run.optimiser.state.values())


@pytest.mark.parametrize("procedure", ["values", "paper"])
def test_every_step_of_an_explainer_is_a_real_one(procedure: Procedure, timers: list[StepTimer]) -> None:
    model = wrap(nets.build("timm ViT"), check=False)
    config = training.training_for("explainer", procedure, batch=4, coalitions=6)
    speed = training.measure_net(model, config, steps=3)
    [timer] = timers
    _took_real_steps(timer, 3)
    assert speed.training == procedure
    assert speed.images_per_second == pytest.approx(4 / speed.step_seconds)
    if procedure == "paper":  # six coalitions and the whole image, in the step
        assert speed.evaluations_per_second == pytest.approx(7 * speed.images_per_second)
    assert speed.evaluations_per_second > 0
    assert speed.peak_gib is None


@pytest.mark.parametrize("stage", ["classifier", "surrogate"])
def test_every_step_of_the_other_stages_is_a_real_one(stage: training.Stage, timers: list[StepTimer]) -> None:
    model = wrap(nets.build("timm ViT"), check=False)
    before = model.fingerprint()
    config = training.training_for(stage, "values", batch=4)
    speed = training.measure_net(model, config, steps=3)
    [timer] = timers
    _took_real_steps(timer, 3)
    trained = timer._run.task.trained
    assert trained.fingerprint() != before
    assert (trained is model) == (stage == "classifier"), "a surrogate is a copy of its classifier"
    assert speed.training == stage
    assert speed.batch == 4
    # two coalitions of each image
    expected = None if stage == "classifier" else pytest.approx(2 * speed.images_per_second)
    assert speed.evaluations_per_second == expected


def test_settings_are_those_of_the_recipe_unless_given() -> None:
    recipe = load_recipe("paper-imagenette")
    for stage in training.STAGES:
        assert training.training_for(stage, "paper") == getattr(recipe, stage)
        changed = training.training_for(stage, "paper", batch=5, epochs=7, coalitions=8, views=9, compiled=True)
        assert (changed.loop.batch_size, changed.loop.epochs, changed.compiled) == (5, 7, True)
        assert changed.augmentation == getattr(recipe, stage).augmentation
    assert (changed.coalitions, changed.values.coalitions, changed.values.views) == (8, 8, 9)
    assert training.training_for("surrogate", "paper", coalitions=8).coalitions == recipe.surrogate.coalitions


def test_hours_by_hand() -> None:
    values = training.Speed("values", 10, 0.5, 20, 1000, None)
    assert values.hours(7, 105, 36_000) == pytest.approx((7 * 10 * 0.5 + 36) / 3600)
    for other in ("paper", "surrogate", "classifier"):
        speed = training.Speed(other, 10, 0.5, 20, 1000, None)
        assert speed.hours(7, 105, 36_000) == pytest.approx(7 * 10 * 0.5 / 3600)
    config = training.training_for("explainer", "values", epochs=7, coalitions=9, views=3)
    assert training.projected_hours(values, config, 105) == pytest.approx((7 * 10 * 0.5 + 3 * 105 * 10 / 1000) / 3600)


def test_the_command_has_a_row_for_each_stage(tmp_path: Path) -> None:
    options = ["--stage", "all", "--arch", "tiny", "--procedure", "paper", "--batch", "1", "--coalitions", "2"]
    result = CliRunner().invoke(
        app,
        ["bench", "training", *options, "--steps", "2", "--device", "cpu", "--out", str(tmp_path / "speed.json")],
    )
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    for text in ("classifier: 25 epochs of 9,469 images", "surrogate: 50 epochs", "explainer: 100 epochs", "projected"):
        assert text in said
    [table] = json.loads((tmp_path / "speed.json").read_text())["tables"]
    assert [row["stage"] for row in table["rows"]] == ["classifier", "surrogate", "explainer"]
    for row, epochs in zip(table["rows"], (25, 50, 100), strict=True):
        assert row["batch"] == 1
        assert row["training"] == pytest.approx(epochs * 9_469 * row["step"] / 1e3 / 3600)
    alone = CliRunner().invoke(app, ["bench", "training", "--stage", "explain"])
    assert alone.exit_code == 2
