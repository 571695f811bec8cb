"""Error against evaluations on digits with exact values, and the command that calibrates a bundle."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import ViTConfig, ViTForImageClassification
from typer.testing import CliRunner

from vitshap.cli import app
from vitshap.data import load_digits
from vitshap.estimators.truth import Truth
from vitshap.experiments.refinement import METHODS, error_curves, exact_truth
from vitshap.explainers import Explainer, bundle
from vitshap.explainers.calibration import calibrate
from vitshap.models import wrap


@pytest.fixture(scope="module")
def explainer() -> Explainer:
    """Of a network of 4 x 4 patches with random weights; its head is new, so that its errors are the values."""
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=10, initializer_range=0.5, **size)
    names = list(load_digits().test.class_names)
    return Explainer(wrap(ViTForImageClassification(config).eval(), class_names=names, players=2)).eval()


@pytest.fixture(scope="module")
def known(explainer: Explainer) -> tuple[Tensor, Truth]:
    pixels = torch.as_tensor(load_digits().test.images)[:60]
    return pixels, exact_truth(lambda part: explainer.surrogate.game(pixels[part]), 60, batch=30)


def test_curves_of_all_methods_end_at_the_exact_values(explainer: Explainer, known: tuple[Tensor, Truth]) -> None:
    pixels, truth = known
    explainer.calibration = calibrate(explainer, pixels[:30], truth.values[:30])
    seen: list[int] = []
    table = error_curves(
        explainer,
        pixels[30:],
        truth[30:],
        budgets=(10, 16),
        seeds=(0, 1),
        batch=15,
        finished=lambda table: seen.append(len(table.rows)),
    )
    assert seen == list(range(1, 8))
    assert list(dict.fromkeys(table.values("method"))) == list(METHODS)
    rows = {(row["method"].value, row["budget"].value): row for row in table.rows}
    for name in METHODS[1:]:
        last = rows[name, 16]  # all 16 coalitions of four players
        assert last["l2_target"].value == pytest.approx(0, abs=1e-6)
        assert last["pearson_others"].value == pytest.approx(1)
        assert last["spearman_target"].value == pytest.approx(1)
        assert last["r2_target"].value == pytest.approx(1)
    assert rows["refine, explainer", 10]["l2_target"].value <= rows["explainer", 0]["l2_target"].value
    assert 0.85 < rows["explainer", 0]["coverage"].value < 1
    with pytest.raises(ValueError, match="60 images are given, and reference values of 30"):
        error_curves(explainer, pixels, truth[30:], budgets=(10,))


def test_the_command_calibrates_a_bundle(explainer: Explainer, tmp_path: Path) -> None:
    explainer.calibration = None
    folder = explainer.save_pretrained(tmp_path / "bundle")
    words = ["bench", "calibrate", str(folder), "digits", "--truth", str(tmp_path / "truth"), "--record"]
    result = CliRunner().invoke(app, [*words, "--images", "40", "--budget", "100", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert "calibrated on 20 and judged on 20" in result.output.replace("\n", " ")
    loaded = bundle.load(folder)
    assert loaded.calibration is not None
    assert loaded.calibration.images == 40
    assert loaded(torch.zeros(1, 1, 8, 8)).stderr is not None
