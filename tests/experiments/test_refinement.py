"""Error against evaluations on digits with exact values, and the command that calibrates a bundle."""

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import ViTConfig, ViTForImageClassification
from typer.testing import CliRunner

from vitshap.cli import app
from vitshap.data import load_digits
from vitshap.estimators.truth import Truth
from vitshap.experiments import estimates
from vitshap.experiments.estimates import (
    CONTROL,
    EXPLAINER,
    KERNELSHAP,
    METHODS,
    REFINED,
    TOTAL,
    Key,
    Values,
    found_in,
)
from vitshap.experiments.refinement import (
    accuracy_table,
    error_curves,
    store_truth,
    stored_curves,
    two_step_table,
)
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
def known(explainer: Explainer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tensor, Truth]:
    pixels = torch.as_tensor(load_digits().test.images)[:60]
    subject = estimates.Subject(explainer.surrogate, pixels)
    truth = store_truth(
        tmp_path_factory.mktemp("known") / "truth", subject, budget=16
    )  # all coalitions of four players
    assert truth.specification.method == "exact"
    return pixels, truth


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


def test_r2_of_the_other_classes_is_a_median_and_says_so(known: tuple[Tensor, Truth]) -> None:
    _, truth = known
    half = Values(0.5 * truth.values, None, torch.ones(len(truth.values), dtype=torch.int64))
    table = stored_curves({Key(EXPLAINER, 0): half}, truth)
    others = torch.ones_like(truth.full_values, dtype=torch.bool)
    others.scatter_(1, truth.full_values.argmax(1, keepdim=True), False)
    r2 = 1 - 0.25 * truth.values.square().sum(1) / (4 * truth.values.var(1, correction=0))
    assert table.rows[0]["r2_others"].value == pytest.approx(float(r2[others].median()), rel=1e-4)
    heading = next(column.heading for column in table.columns if column.key == "r2_others")
    assert heading == "r2 others, median"
    assert "of r2 their median" in table.notes[0]


def test_the_command_calibrates_a_bundle(explainer: Explainer, tmp_path: Path) -> None:
    explainer.calibration = None
    folder = explainer.save_pretrained(tmp_path / "bundle")
    words = ["bench", "calibrate", str(folder), "digits", "--truth", str(tmp_path / "truth"), "--record"]
    result = CliRunner().invoke(app, [*words, "--images", "40", "--budget", "100", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())  # lines are broken where the name of the folder ends
    assert "calibrated on every other of 40 validation images, judged on the others" in said
    loaded = bundle.load(folder)
    assert loaded.calibration is not None
    assert loaded.calibration.images == 40
    assert loaded(torch.zeros(1, 1, 8, 8)).stderr is not None


def test_stored_estimates_give_the_same_table_and_are_not_computed_again(
    explainer: Explainer, known: tuple[Tensor, Truth], tmp_path: Path
) -> None:
    pixels, truth = known
    explainer.calibration = calibrate(explainer, pixels[:30], truth.values[:30])
    options = {"budgets": (10, 14), "batch": 15, "folder": tmp_path}
    table = error_curves(explainer, pixels[30:], truth[30:], **options)  # type: ignore[arg-type]
    subject = estimates.Subject(explainer.surrogate, pixels[30:], explainer, batch=15)
    assert store_truth(tmp_path / "truth", subject, budget=16).values.allclose(truth.values[30:])
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = error_curves(explainer, pixels[30:], truth[30:], **options)  # type: ignore[arg-type]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    assert again.to_json() == table.to_json()
    found = found_in(tmp_path)
    assert Key(CONTROL, 10) in found  # from the evaluations of refine with the explainer
    merged = stored_curves(found, truth[30:])
    assert [row for row in merged.rows if row["method"].value != CONTROL] == table.rows
    total = estimates.stored(tmp_path, subject, Key(TOTAL, 10)).evaluations
    assert int(total.sum()) <= 10 * len(total)
    assert len(total.unique()) > 1
    rules = two_step_table(found_in(tmp_path), truth[30:])
    assert rules.values("rule").count(TOTAL) == 1
    assert sum("Selective Explanations" in rule for rule in rules.values("rule")) == 2
    shown = [row for row in rules.rows if row["rule"].value == "kernelshap"]
    own = [row for row in table.rows if row["method"].value == "kernelshap"]
    assert [row["l2_target"].value for row in shown] == [row["l2_target"].value for row in own]


def test_stored_estimates_are_of_the_same_model_images_and_explainer(
    explainer: Explainer, known: tuple[Tensor, Truth], tmp_path: Path
) -> None:
    pixels, truth = known
    explainer = deepcopy(explainer)
    explainer.calibration = calibrate(explainer, pixels[:30], truth.values[:30])
    subject = estimates.Subject(explainer.surrogate, pixels[30:], explainer)
    for name in METHODS:
        estimates.stored(tmp_path, subject, Key(name, 10))
    estimates.stored_accuracy(tmp_path, subject, 0.9, budget=16)

    def refused(other: estimates.Subject, what: str, *names: str) -> None:
        for name in names:
            with pytest.raises(ValueError, match=f"was made for another {what}"):
                estimates.stored(tmp_path, other, Key(name, 10))
        with pytest.raises(ValueError, match=f"was made for another {what}"):
            estimates.stored_accuracy(tmp_path, other, 0.9, budget=16)

    refused(replace(subject, pixels=pixels[:30]), "set of images", *METHODS)
    explainer.calibration = calibrate(explainer, pixels[30:], truth.values[30:])
    refused(subject, "calibration of the explainer", EXPLAINER, REFINED)
    with torch.no_grad():
        next(explainer.network.parameters()).add_(1)
    refused(subject, "explainer", EXPLAINER, REFINED)
    estimates.stored(tmp_path, subject, Key(KERNELSHAP, 10))  # needs no explainer
    with torch.no_grad():
        next(explainer.surrogate.net.parameters()).add_(1)
    refused(subject, "model", *METHODS)


def test_a_single_budget_for_as_many_images_is_interpolated(known: tuple[Tensor, Truth]) -> None:
    truth = known[1][:4]
    exact, wrong = truth.values, -truth.values

    def values(right: int, evaluations: list[int]) -> Values:
        return Values(torch.cat([exact[:right], wrong[right:]]), None, torch.tensor(evaluations))

    found = {
        Key(EXPLAINER, 0): values(1, [1] * 4),
        Key(REFINED, 100): values(2, [100] * 4),
        Key(REFINED, 400): values(4, [400] * 4),
        Key(KERNELSHAP, 50): values(4, [50] * 4),  # another method
    }
    table, histogram = accuracy_table(found, values(3, [2, 2, 100, 300]), truth, 0.9, REFINED)
    row = {key: cell.value for key, cell in table.rows[0].items()}
    assert row["reached"] == 0.75
    assert row["mean"] == 101
    assert row["single"] == pytest.approx(200)  # half of the way from 100 to 400, on a logarithmic axis
    assert row["ratio"] == pytest.approx(101 / 200)
    assert [(r["up_to"].value, r["images"].value) for r in histogram.rows] == [(2, 2), (128, 1), (512, 1)]


def test_the_command_computes_what_the_tables_show(explainer: Explainer, tmp_path: Path) -> None:
    folder = explainer.save_pretrained(tmp_path / "bundle")
    runs = tmp_path / "runs"
    words = ["bench", "refine", str(folder), "digits", "--folder", str(runs), "--images", "8", "--budgets", "10,16"]
    result = CliRunner().invoke(
        app, [*words, "--reference", "100", "--first", "20", "--accuracy", "0.5", "--device", "cpu"]
    )
    assert result.exit_code == 0, result.output
    figure, out = tmp_path / "curves.png", tmp_path / "tables.json"
    shown = ["bench", "refine-tables", str(runs), "--figure", str(figure), "--out", str(out), "--accuracy", "0.5"]
    result = CliRunner().invoke(app, shown)
    assert result.exit_code == 0, result.output
    assert figure.stat().st_size > 1000
    titles = [table["title"] for table in json.loads(out.read_text())["tables"]]
    assert titles[0] == "8 images"
    assert titles[-1] == "evaluations per image"
    for bad, expected in ((["--steps", "kernel"], "got kernel"), (["--first", "400"], "asked are 401 to 408")):
        result = CliRunner().invoke(app, [*words, *bad, "--device", "cpu"])
        assert result.exit_code == 2
        assert expected in result.output.replace("\n", " ")
