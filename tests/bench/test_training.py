"""What training costs: counted and extrapolated rightly, for both procedures."""

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


@pytest.mark.parametrize("procedure", ["values", "paper"])
def test_every_step_is_a_real_one(procedure: Procedure, monkeypatch: pytest.MonkeyPatch) -> None:
    timers = []

    class Watched(StepTimer):
        def __init__(self, *args) -> None:
            super().__init__(*args)
            timers.append(self)

    monkeypatch.setattr(training, "StepTimer", Watched)
    model = wrap(nets.build("timm ViT"), check=False)
    config = training.training_for(procedure, batch=4, coalitions=6, compiled=False)
    speed = training.measure_net(model, config, steps=3)
    [timer] = timers
    assert timer._run.state.step == 3 + training.WARM_UP
    assert all(state["step"] == 3 + training.WARM_UP for state in timer._run.optimiser.state.values())
    assert speed.procedure == procedure
    assert speed.images_per_second == pytest.approx(4 / speed.step_seconds)
    if procedure == "paper":  # six coalitions and the whole image, in the step
        assert speed.evaluations_per_second == pytest.approx(7 * speed.images_per_second)
    assert speed.evaluations_per_second > 0
    assert speed.peak_gib is None


def test_hours_by_hand() -> None:
    values = training.Speed("values", 10, 0.5, 20, 1000, None)
    assert values.hours(7, 105, 36_000) == pytest.approx((7 * 10 * 0.5 + 36) / 3600)
    paper = training.Speed("paper", 10, 0.5, 20, 1000, None)
    assert paper.hours(7, 105, 36_000) == pytest.approx(7 * 10 * 0.5 / 3600)


def test_the_command(tmp_path: Path) -> None:
    options = ["--arch", "tiny", "--procedure", "paper", "--batch", "2", "--coalitions", "2", "--steps", "2"]
    result = CliRunner().invoke(
        app, ["bench", "training", *options, "--device", "cpu", "--out", str(tmp_path / "speed.json")]
    )
    assert result.exit_code == 0, result.output
    assert "100 epochs of 9,469 images" in result.output
    [table] = json.loads((tmp_path / "speed.json").read_text())["tables"]
    [row] = table["rows"]
    assert row["batch"] == 2
    assert row["training"] > 0
