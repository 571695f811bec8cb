"""Measures of an explainer's quality, where the exact values are known."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import ViTConfig, ViTForImageClassification
from typer.testing import CliRunner

from vitshap.bench import explainers, quality
from vitshap.bench.command import write_json
from vitshap.cli import app
from vitshap.data import load_digits
from vitshap.estimators import truth
from vitshap.estimators.exact import exact
from vitshap.explainers import Explainer
from vitshap.models import wrap
from vitshap.training.recipes import load_recipe
from vitshap.training.values.store import Evaluator


@pytest.fixture(scope="module")
def explainer() -> Explainer:
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=10, initializer_range=0.5, **size)
    names = list(load_digits().test.class_names)
    return Explainer(wrap(ViTForImageClassification(config).eval(), class_names=names)).eval()


@pytest.fixture(scope="module")
def judged(explainer: Explainer, tmp_path_factory: pytest.TempPathFactory) -> quality.Judged:
    evaluate = Evaluator(explainer.surrogate)
    folder = tmp_path_factory.mktemp("truth")
    first = quality.judge_by(folder, evaluate, load_digits().test, count=6, budget=2000)
    again = quality.judge_by(folder, evaluate, load_digits().test, count=6, budget=2000)
    assert torch.equal(first.truth.values, again.truth.values)
    return first


def test_exact_values_agree_and_an_untrained_explainer_does_not(explainer: Explainer, judged: quality.Judged) -> None:
    right = exact(explainer.surrogate.game(judged.pixels)).values
    found = quality.agreement(right, judged.truth, judged.labels)
    assert found["target"] == pytest.approx(1, abs=0.02)
    assert found["others"] == pytest.approx(1, abs=0.02)
    assert found["raw_target"] <= found["target"]
    untrained = quality.agreement(explainer(judged.pixels).values, judged.truth, judged.labels)
    assert abs(untrained["target"]) < 0.7


def test_a_truth_by_a_half_precision_copy_is_found_by_the_net_itself(explainer: Explainer, tmp_path: Path) -> None:
    gpu = Evaluator(explainer.surrogate)
    gpu._convert(torch.float16)  # what a GPU evaluates with
    half = quality.judge_by(tmp_path, gpu, load_digits().test, count=2, budget=300)
    cpu = quality.judge_by(tmp_path, Evaluator(explainer.surrogate), load_digits().test, count=2, budget=300)
    assert torch.equal(half.truth.values, cpu.truth.values)
    assert truth.load(tmp_path, surrogate=explainer.surrogate.fingerprint()).specification.num_inputs == 2


def test_a_truth_of_noise_corrects_nothing_and_the_command_says_why(
    explainer: Explainer, judged: quality.Judged, tmp_path: Path
) -> None:
    noise = replace(judged.truth, reliability=torch.zeros_like(judged.truth.reliability))
    found = quality.agreement(explainer(judged.pixels).values, noise, judged.labels)
    assert found["target"] is found["others"] is None
    assert found["reliability_target"] == 0
    explainer.save_pretrained(tmp_path / "bundle")
    quality.judge_by(tmp_path / "truth", Evaluator(explainer.surrogate), load_digits().test, count=2, budget=300)
    stored = load_file(tmp_path / "truth" / "truth.safetensors")
    stored["reliability"].zero_()
    save_file(stored, tmp_path / "truth" / "truth.safetensors")
    words = ["bench", "quality", str(tmp_path / "bundle"), "digits", "--truth", str(tmp_path / "truth"), "--record"]
    options = ["--images", "2", "--budget", "300", "--curves", "0", "--device", "cpu"]
    result = CliRunner().invoke(app, [*words, *options, "--out", str(tmp_path / "new" / "numbers.json")])
    assert result.exit_code == 0, result.output
    assert "inf" not in result.stdout
    assert "target and others: not known" in result.stdout
    written = json.loads((tmp_path / "new" / "numbers.json").read_text(), parse_constant=pytest.fail)
    assert written["target"] is None
    assert "reliability is below 0.1" in written["reason"]
    assert "truth in" in result.stderr


def test_numbers_that_are_not_finite_are_null_in_json(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": [1.5, float("inf")], "b": {"c": float("nan")}, "d": (1, "x", None, True)})
    text = (tmp_path / "a.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": [1.5, None],
        "b": {"c": None},
        "d": [1, "x", None, True],
    }


def test_images_are_spread_over_the_split(explainer: Explainer) -> None:
    test = load_digits().test
    pixels, labels = quality.spread_out(explainer.surrogate, test, 3)
    assert labels.tolist() == [int(test.labels[i]) for i in (0, 179, 359)]
    assert torch.equal(pixels[1], test[179][0])


def test_areas_of_an_untrained_explainer_are_near_those_of_chance(explainer: Explainer) -> None:
    pixels, labels = quality.spread_out(explainer.surrogate, load_digits().test, 30)
    found = quality.areas(Evaluator(explainer.surrogate), explainer, pixels, labels)
    assert set(found) == {"insertion", "others_insertion", "deletion", "random_insertion", "random_deletion"}
    assert found["insertion"] == pytest.approx(found["random_insertion"], abs=0.15)


@pytest.mark.filterwarnings("ignore:.*(validation|test) images")
def test_other_classes_are_refused(explainer: Explainer, tmp_path: Path) -> None:
    from PIL import Image

    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(4):
            Image.new("L", (8, 8), 40 * i).save(tmp_path / name / f"{i}.png")
    with pytest.raises(ValueError, match="cat"):
        quality.open_data(explainer.surrogate, tmp_path)


def test_variants_have_equal_evaluations_and_the_command_trains_them(explainer: Explainer, tmp_path: Path) -> None:
    chosen = explainers.variants(views=2, coalitions=32, num_players=16)
    alone = [chosen[f"+ {name}"] for name in explainers.recipe_steps()]
    without = [chosen[f"all but {name}"] for name in explainers.recipe_steps()]
    all_of_them = [*alone, *without, chosen["stored values"], chosen["all together"]]
    assert len(set(map(repr, all_of_them))) == len(all_of_them)
    recipe, together = load_recipe(explainers.RECIPE).explainer, chosen["all together"]
    assert replace(together.values, views=recipe.values.views, coalitions=recipe.values.coalitions) == recipe.values
    assert together.augmentation == recipe.augmentation
    paper = chosen["paper"]
    assert paper.procedure == "paper"
    assert paper.loop.epochs == 2  # of 32 coalitions and the full one
    explainer.save_pretrained(tmp_path / "bundle")
    words = ["bench", "ablation", str(tmp_path / "bundle"), "digits", "--truth", str(tmp_path / "truth")]
    options = ["--images", "2", "--budget", "300", "--views", "1", "--only", "5,10,12", "--device", "cpu"]
    result = CliRunner().invoke(app, [*words, *options])
    assert result.exit_code == 0, result.output
    evaluations = [int(n.replace(",", "")) for n in re.findall(r"([\d,]+) evaluations", result.stdout)]
    assert evaluations[:2] == [41_481, 41_481]
    assert evaluations[2] == pytest.approx(41_481, rel=0.1)  # images five times, asked 7 times each instead of 33
