"""``vitshap evaluate`` on a small bundle and digits."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

from tests.evaluation.small import digits_explainer, digits_net
from vitshap.cli import app
from vitshap.data import load_digits
from vitshap.evaluation import Evaluation
from vitshap.evaluation.selection import image_names
from vitshap.explainers import Explainer
from vitshap.models import wrap
from vitshap.training.values.reference import open_data, sample_images


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
    assert found.table().notes[0] == "All methods explain the model that the metrics are measured with."
    assert "No classifier was given" not in done.output, "--model names it"
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
        (("BUNDLE", "--methods", "kernelshap:budgt=3"), 'kernelshap has no option "budgt"; did you mean "budget"?'),
        (("BUNDLE", "--methods", "kernelshap:budget=abc"), 'kernelshap: budget is a whole number, got "abc"'),
        (("BUNDLE", "--methods", "kernelshap:budget=0.5"), "budget is a whole number"),
        (("BUNDLE", "--methods", "kernelshap:paired=1"), 'paired is true or false, got "1"'),
        (("BUNDLE", "--methods", "refine:prior=3"), 'refine:prior=3: prior is "tokens"'),
        (("BUNDLE", "--methods", "explainer:x=1"), 'the method explainer has no options, got "explainer:x=1"'),
        (("BUNDLE", "--methods", "rise:masks=0"), "masks must be at least 1, got 0"),
        (("BUNDLE", "--methods", "kernelshap:progress=3"), "progress cannot be given on the command line"),
        (("BUNDLE", "--metrics", "grid-pointing:labels=3"), "labels cannot be given on the command line"),
        (("BUNDLE", "--metrics", "insertion:foo"), 'insertion has no option "definition"'),
        (("BUNDLE", "--metrics", "insertion:step=abc"), 'insertion: step is a whole number, got "abc"'),
    ],
)
def test_bad_input_ends_with_one_line(stored: Path, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    done = run(*(str(stored) if word == "BUNDLE" else word for word in words), "--out", tmp_path / "out")
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("error:")]) == 1
    assert not (tmp_path / "out" / "parts").exists()  # before anything is computed


def _photos(folder: Path, *names: str) -> Path:
    """Images of 8 x 8 pixels."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(zlib.crc32(name.encode()))
        Image.fromarray(random.integers(0, 256, (8, 8), dtype=np.uint8)).save(folder / name)
    return folder


def test_a_flat_folder_needs_no_labels(tmp_path: Path) -> None:
    digits_net().net.save_pretrained(tmp_path / "net")
    photos = _photos(tmp_path / "photos", *(f"{i}.png" for i in range(5)))
    few = ("--model", tmp_path / "net", "--methods", "attention-last", "--metrics", "insertion", "--device", "cpu")
    words = ("evaluate", *few, "--data", photos, "--out", tmp_path / "out")
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code == 0, done.output
    assert "is not divided into classes: all of its 5 images are taken, without labels" in done.stderr
    found = Evaluation.load(tmp_path / "out")
    assert list(found.images) == [f"photos/{i}.png" for i in range(5)]
    assert found.labels is None
    for more in (("--target", "label"), ("--where", "label=3"), ("--layout", "folder")):
        refused = CliRunner().invoke(app, list(map(str, (*words, *more))))
        assert refused.exit_code == 2
        assert "has no class folders" in refused.stderr
    _photos(photos, "cats/a.png")  # neither class folders nor flat
    assert CliRunner().invoke(app, list(map(str, words))).exit_code == 2


@pytest.mark.filterwarnings("ignore:.*(validation|test) images")
@pytest.mark.parametrize("own", ["cats", "dogs"])
def test_what_a_single_logit_predicts(tmp_path: Path, own: str) -> None:
    """Its class may come first or last among the folders."""
    model = wrap(digits_net(classes=1).net, class_names=[own], output="sigmoid")
    data = _photos(tmp_path / "data", *(f"{kind}/{i}.png" for kind in ("cats", "dogs") for i in range(60)))
    test = open_data(model, data).test
    pixels, _ = sample_images(model, test, len(test))
    with torch.no_grad():
        logits = model.net(pixels).logits[:, 0]
        model.net.classifier.bias -= logits.mean()
    has_own = {name for name, logit in zip(image_names(test), logits, strict=True) if logit > logits.mean()}
    digits_explainer(model).save_pretrained(tmp_path / "one")
    few = ("--methods", "random", "--metrics", "deletion", "--device", "cpu", "--data", data)
    for name in ("cats", "dogs"):
        words = ("evaluate", tmp_path / "one", *few, "--where", f"predicted={name}", "--out", tmp_path / name)
        done = CliRunner().invoke(app, list(map(str, words)))
        assert done.exit_code == 0, done.output
        chosen = set(Evaluation.load(tmp_path / name).images)
        assert chosen == (has_own if name == own else set(image_names(test)) - has_own)
        labelled = (
            "evaluate",
            tmp_path / "one",
            *few,
            "--where",
            f"label={name}",
            "--target",
            "label",
            "--out",
            tmp_path / f"{name}-label",
        )
        assert CliRunner().invoke(app, list(map(str, labelled))).exit_code == 0
        for out in (name, f"{name}-label"):
            assert f"explained: the probability of {own}." in (tmp_path / out / "report.html").read_text()
        found = Evaluation.load(tmp_path / f"{name}-label")
        assert {one.partition("/")[0] for one in found.images} == {name}
        assert set(found.labels.tolist()) == {int(name == own)}


def test_the_data_must_be_named(stored: Path) -> None:
    done = CliRunner().invoke(app, ["evaluate", str(stored)])
    assert done.exit_code == 2
    assert "--data" in done.stderr
    assert len(load_digits().test) == 360
