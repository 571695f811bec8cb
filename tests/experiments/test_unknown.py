"""The low-confidence threshold."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification
from typer.testing import CliRunner

from vitshap.cli import app
from vitshap.data import load_digits
from vitshap.experiments import quality
from vitshap.explainers import Explainer, bundle
from vitshap.models import MaskedModel, wrap


@pytest.fixture(scope="module")
def model() -> MaskedModel:
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=10, initializer_range=0.5, **size)
    return wrap(ViTForImageClassification(config).eval(), class_names=list(load_digits().test.class_names))


def test_the_threshold_has_the_chosen_share_of_known_images_below_it() -> None:
    random = torch.Generator().manual_seed(0)
    known = 1 - 0.5 * torch.rand(2000, generator=random) ** 3
    others = {"close": torch.rand(900, generator=random), "far": torch.full((50,), 0.1)}
    threshold = quality.low_confidence_threshold(known, 0.1)
    table = quality.separation(known, others, threshold)
    below = dict(zip(table.values("images_of"), table.values("below_threshold"), strict=True))
    assert below["known classes"] == pytest.approx(0.1, abs=0.02)
    assert below["known classes"] <= 0.1
    assert threshold == round(threshold, 2)
    assert below["far"] == 1
    assert below["close"] == pytest.approx(threshold, abs=0.05)
    assert table.values("images") == [2000, 900, 50]
    larger = (known[:, None] > others["close"]).double().mean()  # of all pairs, as the area is defined
    assert table.values("roc_auc") == [None, pytest.approx(float(larger), abs=1e-6), 1]


def test_probabilities_are_the_models_on_images_spread_over_the_data(model: MaskedModel) -> None:
    test = load_digits().test
    tops = quality.top_probabilities(model, test, count=3, batch=2)
    pixels = torch.stack([test[i][0] for i in (0, 179, 359)])
    torch.testing.assert_close(tops, model(pixels).detach().amax(1))


def test_a_model_without_probabilities_is_rejected(model: MaskedModel) -> None:
    with pytest.raises(ValueError, match="probabilities"):
        quality.top_probabilities(wrap(model.net, output="identity"), load_digits().test, count=3)


def test_the_command_records_what_it_finds(model: MaskedModel, tmp_path: Path) -> None:
    folder, noise = tmp_path / "bundle", tmp_path / "noise"
    Explainer(model).save_pretrained(folder, quality={"accuracy": 0.5})
    random = np.random.default_rng(0)
    for name in ("one", "two"):
        (noise / name).mkdir(parents=True)
        for i in range(12):
            Image.fromarray(random.integers(0, 255, (8, 8), dtype=np.uint8)).save(noise / name / f"{i}.png")
    words = ["bench", "unknown", str(folder), "digits", "--others", str(noise), "--images", "40", "--device", "cpu"]
    result = CliRunner().invoke(app, [*words, "--record"])
    assert result.exit_code == 0, result.output
    recorded = bundle.read(folder)["quality"]
    assert recorded["accuracy"] == 0.5
    assert f"threshold {recorded['unknown_threshold']:.2f}" in result.output
    assert f" | {recorded['unknown_threshold']:.4g} |" in (folder / "README.md").read_text()
    bundle.load(folder)  # tensors and their hashes are as they were


def test_only_numbers_and_text_are_recorded(model: MaskedModel, tmp_path: Path) -> None:
    Explainer(model).save_pretrained(tmp_path / "bundle")
    before = (tmp_path / "bundle" / "config.json").read_text()
    with pytest.raises(bundle.BundleError, match="finite numbers"):
        bundle.record(tmp_path / "bundle", {"loss": float("nan")})
    assert (tmp_path / "bundle" / "config.json").read_text() == before
    with pytest.raises(bundle.BundleError, match="holds no bundle"):
        bundle.record("owner/name", {"loss": 1.0})


@pytest.mark.parametrize(
    ("bundle", "options", "match"),
    [
        ("a-shipped-name", ["--record"], "a-shipped-name holds no bundle"),  # before anything is measured
        ("nowhere/at-all", [], "nowhere/at-all"),
    ],
)
def test_errors_end_in_one_line(bundle: str, options: list[str], match: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = CliRunner().invoke(app, ["bench", "unknown", bundle, "digits", "--others", "x", *options])
    assert result.exit_code == 2
    assert match in result.stderr
    assert result.stderr.count("\n") == 1
