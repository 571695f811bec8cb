"""``vitshap evaluate`` on a small bundle and digits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.evaluation.small import digits_explainer, digits_net
from vitshap.cli import app
from vitshap.data import load_digits
from vitshap.evaluation import Evaluation
from vitshap.explainers import Explainer


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles") / "digits"
    digits_explainer(digits_net()).save_pretrained(folder)
    return folder


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["evaluate", *map(str, words), "--data", "digits", "--device", "cpu"])


def test_a_comparison_is_estimated_computed_and_continued(stored: Path, tmp_path: Path) -> None:
    words = (stored, "--images", 4, "--metrics", "insertion,deletion", "--classes", "all", "--out", tmp_path / "out")
    dry = run(*words, "--methods", "explainer,rise:masks=20", "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert "for 4 images" in dry.stderr
    assert "rise:masks=20" in dry.stderr
    assert not (tmp_path / "out" / "report.html").exists()
    first = run(*words, "--methods", "explainer,rise:masks=20")
    assert first.exit_code == 0, first.output
    assert "random" in first.stdout
    assert "insertion" in first.stdout
    parts = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "parts").rglob("*.safetensors")}
    more = run(*words, "--methods", "explainer,rise:masks=20,attention-last", "--against", "random")
    assert more.exit_code == 0, more.output
    assert "attention-last" in more.stderr
    assert "rise" not in more.stderr  # only what is new is timed
    assert all(path.stat().st_mtime_ns == when for path, when in parts.items())
    assert [row.name for row in Evaluation.load(tmp_path / "out").rows] == [
        "explainer", "rise:masks=20", "attention-last", "random"
    ]  # fmt: skip
    again = run(*words, "--methods", "explainer,rise:masks=20")
    assert "all results of 4 images are stored already" in again.stderr
    records = json.loads((tmp_path / "out" / "table.json").read_text(), parse_constant=pytest.fail)
    assert records["about"]["target"] == "predicted"


def test_the_default_methods_fit_the_model(stored: Path, tmp_path: Path) -> None:
    done = run(stored, "--images", 2, "--metrics", "insertion", "--out", tmp_path, "--where", "label=3")
    assert done.exit_code == 0, done.output
    found = Evaluation.load(tmp_path)
    assert {row.kind for row in found.rows} >= {"explainer", "attention-rollout", "leave-one-out", "rise", "random"}
    assert found.labels.tolist() == [3, 3]


def test_the_classifier_of_a_bundle_and_a_model_by_name(tmp_path: Path) -> None:
    surrogate, classifier = digits_net(), digits_net(1)
    Explainer(surrogate, classifier=classifier).eval().save_pretrained(tmp_path / "both", include_classifier=True)
    few = ("--images", 2, "--methods", "attention-last", "--metrics", "insertion")
    assert run(tmp_path / "both", *few, "--out", tmp_path / "1").exit_code == 0
    on = {row.name: row.runs_on for row in Evaluation.load(tmp_path / "1").rows}
    assert on == {"attention-last": "classifier", "random": "classifier"}
    classifier.net.save_pretrained(tmp_path / "net")
    done = run("--model", tmp_path / "net", *few, "--out", tmp_path / "2")
    assert done.exit_code == 0, done.output
    found = Evaluation.load(tmp_path / "2")
    assert {row.runs_on for row in found.rows} == {"surrogate"}
    assert "No classifier was given" in found.table().notes[0]
    other = run(tmp_path / "both", "--model", tmp_path / "net", *few, "--out", tmp_path / "3")
    assert other.exit_code == 0, other.output
    digits_net(2).net.save_pretrained(tmp_path / "wrong")
    refused = run(tmp_path / "both", "--model", tmp_path / "wrong", *few, "--out", tmp_path / "4")
    assert refused.exit_code == 2
    assert "made for another model" in refused.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere",), "nowhere"),
        ((), "name what is compared on"),
        (("BUNDLE", "--methods", "rolout"), 'no method is named "rolout"'),
        (("BUNDLE", "--methods", "rise:20"), "NAME:OPTION=VALUE"),
        (("BUNDLE", "--metrics", "insertoin"), 'did you mean "insertion"'),
        (("BUNDLE", "--classes", "both"), "--classes is target or all"),
        (("BUNDLE", "--target", "eleven"), 'no class is named "eleven"'),
        (("BUNDLE", "--where", "predicted=11"), "classes are 0 to 9"),
        (("BUNDLE", "--against", "nobody", "--methods", "random", "--images", "2"), 'no row is named "nobody"'),
    ],
)
def test_bad_input_ends_with_one_line(stored: Path, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    done = run(*(str(stored) if word == "BUNDLE" else word for word in words), "--out", tmp_path / "out")
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("error:")]) == 1


def test_the_data_must_be_named(stored: Path) -> None:
    done = CliRunner().invoke(app, ["evaluate", str(stored)])
    assert done.exit_code == 2
    assert "--data" in done.stderr
    assert len(load_digits().test) == 360
