"""``certify``, ``evaluate`` and ``bench calibrate`` measure on the images that a bundle's training held out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from tests.data import trees
from tests.evaluation.small import digits_explainer, digits_net
from vitshap.certifying import command as certify
from vitshap.cli import app
from vitshap.data import SplitRecord, Splits, load_data, load_digits
from vitshap.estimators import truth
from vitshap.evaluation import Evaluation
from vitshap.evaluation.selection import image_names
from vitshap.explainers import Explainer, bundle
from vitshap.models import Preprocess, wrap
from vitshap.training.batches import evenly

GROUPS = r"/s(\d+)-"


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [*map(str, words), "--device", "cpu"])


def _stored(folder: Path, explainer: Explainer, splits: Splits, seed: int, groups: str | None = None) -> Path:
    """Store an explainer with the record that ``vitshap train`` makes."""
    record = SplitRecord.of(splits, layout="auto", split="own", seed=seed, groups=groups)
    setattr(explainer, bundle.TRAINED_ON, record.to_json())
    return explainer.save_pretrained(folder)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of digits that another seed than 0 divided."""
    folder = tmp_path_factory.mktemp("digits") / "bundle"
    return _stored(folder, digits_explainer(digits_net()), load_digits(seed=3), seed=3)


@pytest.fixture(scope="module")
def patients(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A bundle, and its images of 20 patients."""
    made = tmp_path_factory.mktemp("patients")
    trees.write(made / "data", *(f"{name}/s{i}-{k}.png" for name in ("cats", "dogs") for i in range(20) for k in "ab"))
    how = Preprocess(size=(8, 8), resize=(8, 8), mean=(0.5,), std=(0.5,))
    model = wrap(digits_net(classes=2).net, class_names=["cats", "dogs"], preprocess=how)
    splits = load_data(made / "data", groups=GROUPS, channels=1)
    return _stored(made / "bundle", digits_explainer(model), splits, 0, GROUPS), made / "data"


def test_evaluate(patients: tuple[Path, Path], tmp_path: Path) -> None:
    stored, data = patients
    done = run("evaluate", stored, "--data", data, "--methods", "random", "--metrics", "deletion", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    held_out = load_data(data, groups=GROUPS).test
    assert list(Evaluation.load(tmp_path).images) == image_names(held_out)
    assert set(image_names(held_out)) != set(image_names(load_data(data).test))


def test_evaluate_the_surrogate_of_a_bundle(patients: tuple[Path, Path], tmp_path: Path) -> None:
    stored, data = patients
    words = ("--methods", "random", "--metrics", "deletion", "--out", tmp_path)
    done = run("evaluate", "--model", stored, "--data", data, *words)
    assert done.exit_code == 0, done.output
    assert list(Evaluation.load(tmp_path).images) == image_names(load_data(data, groups=GROUPS).test)


def test_certify(patients: tuple[Path, Path], digits: Path) -> None:
    stored, data = patients
    splits, _ = certify.open_data(Explainer.from_pretrained(stored), certify.Options(str(stored), str(data)))
    assert splits.val.images == load_data(data, groups=GROUPS).val.images
    splits, _ = certify.open_data(Explainer.from_pretrained(digits), certify.Options(str(digits), "digits"))
    assert torch.equal(splits.test.images, load_digits(seed=3).test.images)


def test_calibrate(digits: Path, tmp_path: Path) -> None:
    few = ("--images", 40, "--budget", 100, "--truth", tmp_path)
    done = run("bench", "calibrate", digits, "digits", *few)
    assert done.exit_code == 0, done.output
    val = load_digits(seed=3).val
    pixels = torch.as_tensor(val.images)[evenly(len(val), 40)]
    torch.testing.assert_close(
        truth.load(tmp_path).full_values.float(), digits_net()(pixels).detach().float(), atol=1e-5, rtol=0
    )


@pytest.mark.filterwarnings("default:.*not the images that were held out")
def test_images_of_another_place_give_a_warning_in_a_line(patients: tuple[Path, Path], tmp_path: Path) -> None:
    other = trees.class_folders(tmp_path / "other", {"cats": 20, "dogs": 20})
    out = ("--methods", "random", "--metrics", "deletion", "--out", tmp_path / "out")
    done = run("evaluate", patients[0], "--data", other, *out)
    assert done.exit_code == 0, done.output
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert f"{other}: these are not the images that were held out in the explainer's training" in said
