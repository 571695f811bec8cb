"""What a training held out is found again from its record, wherever the images are; other images give a warning."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from tests.data import trees
from vitshap.data import SplitRecord, Splits, load_data, load_digits

GROUPS = r"/s(\d+)-"


def _record(splits: Splits, **settings: object) -> SplitRecord:
    given = {"layout": "auto", "split": "own", "seed": 0, "groups": None, **settings}
    record = SplitRecord.of(splits, **given)
    return SplitRecord.from_json(json.loads(json.dumps(record.to_json())))


def _names(splits: Splits) -> list[set[str]]:
    return [{f"{path.parent.name}/{path.name}" for path in part.images} for part in splits]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images of two classes and 20 patients, four each."""
    return _patients(tmp_path / "images")


def _patients(root: Path) -> Path:
    trees.write(root, *(f"{name}/s{i}-{k}.png" for name in ("cats", "dogs") for i in range(20) for k in "ab"))
    return root


@pytest.mark.parametrize("settings", [{"seed": 3}, {"groups": GROUPS}, {"seed": 2, "groups": GROUPS}])
def test_seed_and_groups_are_those_of_the_training(folder: Path, tmp_path: Path, settings: dict) -> None:
    splits = load_data(folder, **settings)
    record = _record(splits, **settings)
    assert _names(record.load(folder)) == _names(splits) != _names(load_data(folder))
    shutil.move(folder, tmp_path / "elsewhere")
    assert _names(record.load(tmp_path / "elsewhere")) == _names(splits)
    assert str(tmp_path) not in json.dumps(record.to_json())
    assert "cats" not in json.dumps(record.to_json())


def test_no_warning_is_about_a_division_that_is_not_used(folder: Path) -> None:
    """Both images of a patient are one file: without the groups they would be in different parts."""
    for first in folder.glob("*/*-a.png"):
        shutil.copy(first, first.with_name(first.name.replace("-a", "-b")))
    record = _record(load_data(folder, groups=GROUPS), groups=GROUPS)
    with pytest.warns(UserWarning, match="are identical to training images"):
        load_data(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        record.load(folder)


def test_digits_of_another_seed() -> None:
    record = _record(load_digits(seed=3), seed=3)
    assert record.load("digits").test.labels.tolist() == load_digits(seed=3).test.labels.tolist()


def test_groups_of_a_file(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "patients.csv"
    rows = [f"{name}/s{i}-{k}.png,p{i}" for name in ("cats", "dogs") for i in range(20) for k in "ab"]
    file.write_text("\n".join(["file,group", *rows]))
    splits = load_data(folder, groups=str(file))
    record = _record(splits, groups=str(file))
    assert record.groups == "patients.csv"  # not where it is
    assert _names(record.load(folder)) == _names(splits)  # found beside the images
    file.rename(folder / file.name)
    assert _names(record.load(folder)) == _names(splits)
    (folder / file.name).write_text("\n".join(["file,group", *(row.replace(",p", ",q") for row in rows)]))
    with pytest.raises(ValueError, match=r"divided otherwise.*Does patients\.csv say the same"):
        record.load(folder)
    (folder / file.name).unlink()
    with pytest.raises(ValueError, match=r"by the groups of patients\.csv.*neither in the current folder nor in"):
        record.load(folder)


def test_other_images_are_possible_with_a_warning(folder: Path, tmp_path: Path) -> None:
    other = trees.class_folders(tmp_path / "other", {"cats": 30, "dogs": 30})  # names without a patient
    record = _record(load_data(folder, groups=GROUPS), groups=GROUPS)
    with pytest.warns(UserWarning, match=r"not the images that were held out.*6 test images now, 8 then"):
        found = record.load(other)
    assert _names(found) == _names(load_data(other))
    without_file = _record(load_data(folder), groups="gone.csv")
    with pytest.warns(UserWarning, match="not the images that were held out"):
        without_file.load(other)


def test_a_pattern_of_a_bundle_does_not_see_other_names(folder: Path, tmp_path: Path) -> None:
    """It would take years on such a name, and bundles come from anywhere."""
    record = replace(_record(load_data(folder)), groups=r"(a+)+$")
    other = trees.class_folders(tmp_path / "other", {40 * "a" + "!": 30, "dogs": 30})
    with pytest.warns(UserWarning, match="not the images that were held out"):
        record.load(other)


def test_added_images_give_a_warning(folder: Path) -> None:
    record = _record(load_data(folder, seed=3), seed=3)
    trees.write(folder, *(f"cats/t{i}-a.png" for i in range(20)))
    with pytest.warns(UserWarning, match="with images added, removed or renamed"):
        record.load(folder)


def test_few_images_change_their_part_where_one_is_missing(folder: Path, tmp_path: Path) -> None:
    rows = [f"{name}/s{i}-{k}.png,p{i}" for name in ("cats", "dogs") for i in range(20) for k in "ab"]
    (tmp_path / "patients.csv").write_text("\n".join(["file,group", *rows]))
    for settings in ({"seed": 3}, {"groups": str(tmp_path / "patients.csv"), "seed": 3}):
        before = load_data(folder, **settings)
        record = _record(before, **settings)
        gone = before.val.images[0]
        gone.rename(tmp_path / "gone.png")
        with pytest.warns(UserWarning, match="with images added, removed or renamed"):
            after = record.load(folder)
        assert len(_names(before)[0] & (_names(after)[1] | _names(after)[2])) <= 2
        (tmp_path / "gone.png").rename(gone)


@pytest.mark.filterwarnings("ignore::UserWarning")  # so few images lack a class somewhere
def test_a_split_that_the_user_asks_for_replaces_the_record(tmp_path: Path) -> None:
    images = trees.mura(tmp_path, patients=40)
    splits = load_data(images, seed=3)
    record = _record(splits, seed=3)
    assert _names(record.load(images)) == _names(splits)
    with pytest.warns(UserWarning, match="divided otherwise") as warned:
        found = record.load(images, split="authors")
    assert any("it was trained on some of those" in str(one.message) for one in warned)
    assert _names(found) != _names(splits)


@pytest.mark.parametrize(
    "damage", [{"seed": "x"}, {"split": "ours"}, {"parts": {}}, {"parts": {"val": 3}}, {"groups": 1}]
)
def test_a_damaged_record_is_one_line(folder: Path, damage: dict) -> None:
    with pytest.raises(ValueError, match="record of the images it was trained on is damaged"):
        SplitRecord.from_json({**_record(load_data(folder)).to_json(), **damage})
    with pytest.raises(ValueError, match="is damaged"):
        SplitRecord.from_json([1])
