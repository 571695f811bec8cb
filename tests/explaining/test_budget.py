"""How many evaluations an image gets, and what is said of the accuracy that they give."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from tests.explaining import made
from vitshap.cli import app
from vitshap.estimators.estimate import correlation, reliability_from_errors
from vitshap.explaining import Explained, Source, budget, explain_photos, terminal
from vitshap.explaining import text as texts
from vitshap.explaining.budget import Cost
from vitshap.methods import method

CPU = torch.device("cpu")


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["explain", *map(str, arguments)])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made.photos(tmp_path / "photos", 2)
    return tmp_path


def _said(report: Path) -> str:
    """What a report says, without its script."""
    return re.sub(r"<script>.*?</script>", "", report.read_text(), flags=re.DOTALL)


def test_the_largest_rung_that_fits() -> None:
    assert budget.LADDER == (1024, 2048, 4096, 8192, 16384, 32768, 65536)
    assert budget.choose(Cost(60 / 4096), CPU) == 4096
    assert budget.choose(Cost(60 / 4095), CPU) == 2048
    assert budget.choose(Cost(1e-9), CPU) == 65536
    assert budget.choose(Cost(1.0), CPU) == 1024
    assert budget.choose(Cost(60 / 4096), torch.device("cuda")) == 1024
    assert budget.choose(Cost(2 / 32768), torch.device("cuda")) == 32768
    assert budget.choose(Cost(1e-6, fixed=1.99), torch.device("cuda")) == 8192  # not 1.99 s per 1,024 evaluations
    assert "at most 60 s per image on a CPU" in budget.reason(4096, Cost(60 / 4096), CPU)
    assert "more than 60 s" in budget.reason(1024, Cost(1.0), CPU)


def test_the_choice_is_said_recorded_and_reproduced(home: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "measure_cost", lambda *arguments: Cost(60 / 1500))
    options = ["photos/0.png", "--bundle", bundle, "--method", "kernelshap", "--no-heatmaps"]
    chosen = _run(*options, "--json", "chosen.jsonl")
    assert chosen.exit_code == 0, chosen.output
    assert "1,024 evaluations per image, the largest of 1,024, 2,048, ... 65,536 that is expected" in chosen.stdout
    assert "--budget 1024 gives the same values again" in chosen.stdout
    report = (home / "vitshap-output" / "report.html").read_text()
    assert "1,024, the largest of 1,024, 2,048, ... 65,536" in report
    asked = _run(*options, "--json", "asked.jsonl", "--budget", "1024")
    assert asked.exit_code == 0, asked.output
    lines = [
        [json.loads(line) for line in (home / f"{name}.jsonl").read_text().splitlines()] for name in ("chosen", "asked")
    ]
    for one, other in zip(*lines, strict=True):
        assert one["explained"] == other["explained"], "not the same values bit for bit"
        assert (one["budget"], one["evaluations"]) == (1024, other["evaluations"])
        assert ("largest of" in one["budget_is"], other["budget_is"]) == (True, "as requested")


def test_real_evaluations_are_timed(home: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "SECONDS", {"cpu": 0.0})
    result = _run("photos/0.png", "--bundle", bundle, "--method", "kernelshap", "--json", "-", "--no-heatmaps")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["budget"] == 1024
    assert "although it is expected to take more than 0 s per image" in result.stderr


def test_reliability_stands_beside_every_sampled_map(home: Path, bundle: Path) -> None:
    options = ["--bundle", bundle, "--method", "permutation", "--budget", 100, "--json", "a.jsonl"]
    result = _run("photos/0.png", *options, "--no-heatmaps")
    assert result.exit_code == 0, result.output
    explained = json.loads((home / "a.jsonl").read_text())["explained"]
    assert all(0 <= one["reliability"] <= 1 for one in explained)
    expected = [texts.reliability_text(one["reliability"]) for one in explained]
    assert f"estimated reliability {expected[0]}" in result.stdout
    others = ", ".join(f"{one['name']} {text}" for one, text in zip(explained[1:], expected[1:], strict=True))
    assert f"reliability of other maps: {others}" in result.stdout
    report = _said(home / "vitshap-output" / "report.html")
    assert re.findall(r"estimated reliability ([\d.]+(?: \(unreliable\))?)", report) == expected


def test_an_accuracy_corrects_the_explainer_until_it_is_reached(home: Path, bundle: Path) -> None:
    options = [
        "photos",
        "--bundle",
        bundle,
        "--accuracy",
        "0.9",
        "--budget",
        "4000",
        "--no-heatmaps",
        "--target",
        "predicted",
    ]
    result = _run(*options, "--json", "a.jsonl")
    assert result.exit_code == 0, result.output
    assert "method refine, prior: the explainer's values" in result.stdout
    assert "until the estimated correlation with the exact values is 0.9, up to 4,000 evaluations" in result.stdout
    assert "the requested accuracy was reached" in result.stdout
    for line in (home / "a.jsonl").read_text().splitlines():
        one = json.loads(line)
        assert one["method"] == "refine"
        assert one["accuracy"] == 0.9
        assert one["converged"]
        assert one["evaluations"] < 4000


def test_an_accuracy_out_of_reach_is_said(home: Path, bundle: Path) -> None:
    result = _run("photos/0.png", "--bundle", bundle, "--accuracy", "0.99999", "--budget", "40", "--no-heatmaps")
    assert result.exit_code == 0, result.output
    assert "NOT as accurate as requested" in result.stdout
    assert "give a larger --budget" in result.stdout
    too_few = _run("photos/0.png", "--bundle", bundle, "--method", "refine", "--budget", "6", "--no-heatmaps")
    assert "evaluations: the values are the prior's" in too_few.stdout
    for value, message in (
        ("1.5", "between 0 and 1"),
        ("0.9 --method explainer", "--accuracy belongs to other methods"),
    ):
        wrong = _run("photos/0.png", "--bundle", bundle, "--accuracy", *value.split())
        assert wrong.exit_code == 2
        assert message in wrong.output.replace("\n", " ")


def test_a_model_without_an_explainer_is_refined_by_default() -> None:
    model = made.model()
    source = Source(model, method("refine", model, budget=64), "a model", prior="patches with similar tokens")
    assert next(terminal.source_lines(source)) == "a model; method refine, prior: patches with similar tokens"


def test_a_map_that_is_mostly_noise_is_called_so(home: Path) -> None:
    model = made.model()
    source = Source(model, method("permutation", model, budget=100), "a model")
    (entry,) = explain_photos([home / "photos" / "0.png"], source, target="predicted")
    assert isinstance(entry, Explained)
    spread = entry.explanation.values.std(1, keepdim=True).expand_as(entry.explanation.values)
    for share, expected in ((0.5, "0.75"), (0.8, "0.36 (unreliable)"), (2.0, "0.00 (unreliable)")):
        noisy = replace(entry, explanation=replace(entry.explanation, stderr=share * spread))
        lines = "\n".join(terminal.entry_lines(noisy, source, k=1))
        assert f"estimated reliability {expected}" in lines


def test_reliability_is_about_the_squared_correlation_with_the_truth() -> None:
    """What it is an estimate of, on images whose exact values are known."""
    model = made.model()
    images = torch.stack([made.PREPROCESS(made.picture(seed)) for seed in range(2)])
    exact = method("exact", model)(images)
    sampled = method("permutation", model, budget=300)(images)
    found = reliability_from_errors(sampled).clamp(min=0)
    true = correlation(sampled.values.double(), exact.values.double()).square()
    assert float(found.mean()) == pytest.approx(float(true.mean()), abs=0.15)


def test_methods_that_sample_nothing_speak_of_no_budget(home: Path, bundle: Path) -> None:
    result = _run("photos/0.png", "--bundle", bundle, "--json", "-", "--no-heatmaps")
    assert result.exit_code == 0
    record = json.loads(result.stdout)
    assert "budget" not in record
    assert "reliability" not in record["explained"][0]
    assert "estimated reliability" not in _said(home / "vitshap-output" / "report.html")


def test_blocks_of_patches_are_players(home: Path, bundle: Path) -> None:
    result = _run("photos/0.png", "--bundle", bundle, "--method", "exact", "--players", 2, "--json", "-")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["players"] == [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]]
    assert record["evaluations"] == 16
    model = made.explainer().surrogate
    expected = method("exact", model, players=2)(home / "photos" / "0.png", target=record["explained"][0]["class"])
    assert record["explained"][0]["values"] == pytest.approx(expected.values[0, :, 0].tolist(), abs=1e-6)
    for options, said in (
        (["--method", "exact", "--players", 0], "Error"),
        (["--method", "exact", "--players", 4], "makes one player of all patches"),
        (["--players", 2], "--players belongs to other methods"),
    ):
        refused = _run("photos/0.png", "--bundle", bundle, *options)
        assert refused.exit_code == 2
        assert said in refused.stderr
    timed = _run("photos/0.png", "--bundle", bundle, "--method", "permutation", "--players", 2, "--budget", 40)
    assert timed.exit_code == 0, timed.output
