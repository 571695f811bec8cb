"""Layouts of data sets: listing, splitting, and error messages."""

import os
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data import trees
from vitshap.data import ImageData, Splits, load_data
from vitshap.data.layouts import IMAGENETTE_CLASSES, Entry, Listing, list_images
from vitshap.data.published import AUTHORS, PUBLISHED, PublishedSplit, check_published
from vitshap.data.splits import divide, names_hash


def _names(data: ImageData) -> set[str]:
    return {str(path) for path in data.images}


def _require_apart(splits: Splits) -> None:
    train, val, test = (_names(part) for part in splits)
    assert not train & val
    assert not train & test
    assert not val & test
    for part in splits:
        assert [Path(path) for path in part.images] == sorted(part.images)


def test_class_folders_are_split_evenly(tmp_path: Path) -> None:
    trees.class_folders(tmp_path, {"dog": 40, "cat": 20})
    (tmp_path / "cat/notes.txt").write_text("not an image")
    splits = load_data(tmp_path)
    assert [len(part) for part in splits] == [48, 6, 6]
    assert splits.train.class_names == ("cat", "dog")
    assert [part.class_counts().tolist() for part in splits] == [[16, 32], [2, 4], [2, 4]]
    _require_apart(splits)
    again, other = load_data(tmp_path), load_data(tmp_path, seed=1)
    assert _names(again.test) == _names(splits.test)
    assert _names(other.test) != _names(splits.test)
    for path, label in zip(splits.train.images, splits.train.labels, strict=True):
        assert Path(path).parent.name == splits.train.class_names[label]


@pytest.mark.parametrize("val", ["val", "valid", "Validation"])
def test_official_folders_are_used_as_they_are(tmp_path: Path, val: str) -> None:
    for part, count in (("train", 5), (val, 3), ("test", 2)):
        trees.class_folders(tmp_path, {"a": count, "b": count}, f"{part}/")
    splits = load_data(tmp_path)
    assert [len(part) for part in splits] == [10, 6, 4]
    assert all(f"/{val}/" in name for name in _names(splits.val))


def test_without_a_test_set_validation_is_halved(tmp_path: Path) -> None:
    for part, count in (("train", 5), ("val", 7)):
        trees.class_folders(tmp_path, {"a": count, "b": count + 1}, f"{part}/")
    splits = load_data(tmp_path)
    assert [len(part) for part in splits] == [11, 7, 8]
    _require_apart(splits)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    trees.class_folders(tmp_path, {"train": 10, "plane": 10})
    assert load_data(tmp_path).train.class_names == ("plane", "train")


@pytest.mark.parametrize("part", ["train", "val", "test"])
def test_an_image_beside_the_class_folders_of_a_part_is_reported(tmp_path: Path, part: str) -> None:
    for name in ("train", "val", "test"):
        trees.class_folders(tmp_path, {"a": 5, "b": 5}, f"{name}/")
    shutil.copy(next((tmp_path / "train/a").iterdir()), stray := tmp_path / part / "overview.jpg")
    with pytest.raises(ValueError, match=f"{part}/overview.jpg is outside of the class folders"):
        load_data(tmp_path)
    stray.unlink()
    assert load_data(tmp_path).train.class_names == ("a", "b")


def test_images_in_hidden_folders_are_left_out(tmp_path: Path) -> None:
    trees.class_folders(tmp_path, {"a": 10, "b": 10})
    for hidden in (".ipynb_checkpoints", ".thumbnails", "__MACOSX"):
        shutil.copytree(tmp_path / "b", tmp_path / "a" / hidden)
    assert [part.class_counts().tolist() for part in load_data(tmp_path)] == [[8, 8], [1, 1], [1, 1]]


def test_imagenette_is_recognised_and_compared_with_its_known_split(tmp_path: Path) -> None:
    for part, count in (("train", 2), ("val", 3)):
        trees.class_folders(tmp_path / "imagenette2-160", dict.fromkeys(IMAGENETTE_CLASSES, count), f"{part}/")
    with pytest.warns(UserWarning, match=r"val has 15 images instead of 1,962; test has 15 images instead of 1,963"):
        splits = load_data(tmp_path)
    assert splits.train.class_names[0] == "tench"
    assert splits.train.name == "imagenette"
    with pytest.raises(ValueError, match="9,469"):
        load_data(tmp_path, strict=True)
    plain = load_data(tmp_path, layout="folder")
    assert plain.train.class_names[0] == "n01440764"


def test_pets_uses_the_listed_images(tmp_path: Path) -> None:
    trees.pets(tmp_path, per_breed=20)
    with pytest.warns(UserWarning, match="7,349"):
        splits = load_data(tmp_path)
    assert [len(part) for part in splits] == [48, 6, 6]
    assert splits.train.class_names == ("Abyssinian", "american bulldog", "Egyptian Mau")
    assert not any("Abyssinian_999" in name for part in splits for name in _names(part))
    (tmp_path / "images/Abyssinian_3.jpg").unlink()
    with pytest.raises(ValueError, match=r"1 images that do not exist, the first is images/Abyssinian_3\.jpg"):
        load_data(tmp_path)


def test_mura_does_not_divide_patients(tmp_path: Path) -> None:
    trees.mura(tmp_path, patients=60)
    with pytest.warns(UserWarning, match="33,071"):
        splits = load_data(tmp_path)
    train, val, test = (set(part.groups or ()) for part in splits)
    assert not train & val
    assert not (train | val) & test
    total = len(splits.train) + len(splits.val)
    assert len(splits.val) == round(total * 3737 / 36808)
    assert all("/valid/" in name for name in _names(splits.test))
    assert not any("._" in name for name in _names(splits.test))
    assert splits.train.class_names == ("normal", "abnormal")
    for part in splits:
        assert all(
            ("positive" in str(path)) == bool(label) for path, label in zip(part.images, part.labels, strict=True)
        )


@pytest.mark.parametrize("with_val", [False, True])
def test_chest_radiographs_split_validation_off_by_patient(tmp_path: Path, with_val: bool) -> None:
    trees.chest(tmp_path, patients=20, with_val=with_val)
    with pytest.warns(UserWarning, match="2,100 training images"):
        splits = load_data(tmp_path, channels=1)
    assert splits.test.class_counts().tolist() == [12, 8]
    assert len(splits.val) == round((100 + 10 * with_val) / 10)
    assert not set(splits.train.groups or ()) & set(splits.val.groups or ())
    assert splits.train[0][0].shape[0] == 1


def test_a_known_split_passes_and_other_names_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = list_images(trees.class_folders(tmp_path, {"a": 10, "b": 10}))
    parts = divide(listing)
    counts = {part: len(entries) for part, entries in parts.items()}
    hashes = {part: names_hash(entry.path for entry in entries) for part, entries in parts.items()}
    monkeypatch.setitem(PUBLISHED, listing.layout, PublishedSplit(counts, hashes, "a test"))
    check_published(listing, parts, strict=True)
    swapped = parts | {"train": [*parts["train"][1:], Entry("a/other.png", 0)]}
    with pytest.raises(ValueError, match="train has the right number of images, 16, but with other names"):
        check_published(listing, swapped, strict=True)


@pytest.mark.parametrize("name", ["mura", "imagenette", "pets", "chest"])
def test_the_name_of_the_folder_does_not_matter(tmp_path: Path, name: str) -> None:
    trees.class_folders(tmp_path / name, {"a": 10, "b": 10})
    splits = load_data(tmp_path / name, strict=True)
    assert [len(part) for part in splits] == [16, 2, 2]


def test_class_folders_named_like_the_radiographs_need_no_patients(tmp_path: Path) -> None:
    for part in ("train", "test"):
        trees.class_folders(tmp_path, {"NORMAL": 10, "PNEUMONIA": 10}, f"{part}/")
    assert load_data(tmp_path, strict=True).train.class_names == ("NORMAL", "PNEUMONIA")


PATIENT = r"(person\d+|NORMAL2-IM-\d+|IM-\d+)"


@pytest.mark.filterwarnings("ignore:.*is not the known copy of")
def test_a_pattern_gives_the_patients_of_the_radiographs(tmp_path: Path) -> None:
    trees.chest(tmp_path / "set", patients=20)
    known, by_pattern = load_data(tmp_path / "set"), load_data(tmp_path / "set", layout="folder", groups=PATIENT)
    rows = [(path.name, group) for part in known for path, group in zip(part.images, part.groups or (), strict=True)]
    (tmp_path / "patients.csv").write_text("file,group\n" + "".join(f"{name},{group}\n" for name, group in rows))
    by_file = load_data(tmp_path / "set", layout="folder", groups=str(tmp_path / "patients.csv"))
    for one, other, third in zip(known, by_pattern, by_file, strict=True):
        assert one.images == other.images == third.images
        assert one.groups == other.groups == third.groups
    assert set(known.train.groups or ()).isdisjoint(known.val.groups or ())


@pytest.mark.parametrize("official", [False, True])
def test_groups_of_class_folders_are_not_divided(tmp_path: Path, official: bool) -> None:
    def names(part: str, first: int) -> list[str]:
        return [f"{part}{'ab'[i % 2]}/s{first + i // 4}-{i % 4}.png" for i in range(80)]

    trees.write(tmp_path, *(names("train/", 0) + names("val/", 50) if official else names("", 0)))
    apart = load_data(tmp_path, groups=r"/(s\d+)-")
    groups = [set(part.groups or ()) for part in apart]
    assert sum(len(group) for group in groups) == len(set.union(*groups)) == (40 if official else 20)
    assert [len(part) for part in apart] == ([80, 40, 40] if official else [64, 8, 8])
    without = load_data(tmp_path)
    torn = [{path.name.partition("-")[0] for path in part.images} for part in without]
    assert torn[1] & torn[2] or torn[0] & torn[1], "what groups are for"


def test_groups_divided_by_the_folders_are_reported(tmp_path: Path) -> None:
    trees.write(
        tmp_path, *(f"{part}/{name}/s{i}-{part}.png" for part in ("train", "test") for name in "ab" for i in range(9))
    )
    with pytest.warns(
        UserWarning, match=r"9 groups have images in several of the folders train, val and test \(s0, s1"
    ):
        load_data(tmp_path, groups=r"(s\d+)")


def test_three_large_groups_are_one_for_each_part(tmp_path: Path) -> None:
    trees.write(tmp_path, *(f"{name}/s{i}-{k}.png" for name in "ab" for i in range(3) for k in range(6)))
    assert [len(part) for part in load_data(tmp_path, groups=r"(s\d+)")] == [12, 12, 12]


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ("(s", "neither a .csv file nor a regular expression"),
        ("s1", "it has no group: put the part that names the patient into parentheses"),
        (r"(t\d)", r"gives no group to a/000\.png, a/001\.png, a/002\.png and 17 more"),
        ("nowhere.csv", r"nowhere\.csv cannot be read as a csv file of \(file, group\): .*No such file"),
        ("{}/wide.csv", r"wide\.csv cannot be read as a csv file of \(file, group\)"),
        ("{}/binary.csv", "cannot be read"),
        ("{}/short.csv", r"gives no group to a/001\.png"),
    ],
)
def test_invalid_groups_are_reported(tmp_path: Path, groups: str, says: str) -> None:
    trees.class_folders(tmp_path / "set", {"a": 10, "b": 10})
    (tmp_path / "wide.csv").write_text("a,b,c\n")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "short.csv").write_text("a/000.png,x\n")
    with pytest.raises(ValueError, match=says):
        load_data(tmp_path / "set", groups=groups.format(tmp_path))


def test_validation_images_among_the_training_images_are_reported(tmp_path: Path) -> None:
    for part in ("train", "val", "test"):
        trees.class_folders(tmp_path, {"a": 5, "b": 5}, f"{part}/")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_data(tmp_path)
    shutil.copy(tmp_path / "train/a/001.png", tmp_path / "val/b/same.png")
    with pytest.warns(UserWarning, match=r"1 of 11 validation images are identical to training images \(same\.png\)"):
        load_data(tmp_path)


def test_a_class_without_validation_images_is_reported(tmp_path: Path) -> None:
    for part in ("train", "val", "test"):
        trees.class_folders(tmp_path, {"a": 5, "b": 5} if part != "val" else {"b": 5}, f"{part}/")
    with pytest.warns(UserWarning, match="there are no validation images of a"):
        load_data(tmp_path)


def test_known_splits_are_consistent() -> None:
    for name, record in AUTHORS.items():
        assert record.counts == PUBLISHED[name].counts
    assert {name: tuple(record.counts.values()) for name, record in PUBLISHED.items()} == {
        "imagenette": (9469, 1962, 1963),
        "pets": (5879, 735, 735),
        "mura": (33071, 3737, 3197),
        "chest": (1890, 210, 624),
    }
    for name, record in PUBLISHED.items():
        assert (record.sha256 is None) == (name == "mura")
        assert record.sha256 is None or all(len(digest) == 64 for digest in record.sha256.values())


@given(sizes=st.lists(st.integers(1, 6), min_size=12, max_size=80), seed=st.integers(0, 50))
@settings(deadline=None, max_examples=40)
def test_patients_are_never_divided(sizes: list[int], seed: int) -> None:
    entries = [
        Entry(f"{i}/{k}.png", k % 2, "", f"patient{i}") for i, size in enumerate([2, *sizes]) for k in range(size)
    ]
    listing = Listing("x", Path("x"), ("a", "b"), tuple(entries))
    try:
        parts = divide(listing, seed=seed)
    except ValueError:  # so few that some part or class is left without
        return
    assert sorted(entry for part in parts.values() for entry in part) == sorted(entries)
    groups = [{entry.group for entry in part} for part in parts.values()]
    assert sum(len(group) for group in groups) == len(set.union(*groups))


def test_a_missing_image_moves_few_others(tmp_path: Path) -> None:
    entries = [Entry(f"{'ab'[i % 2]}/{i}.png", i % 2) for i in range(1000)]
    whole, less = (divide(Listing("x", tmp_path, ("a", "b"), tuple(e))) for e in (entries, entries[1:]))
    for part in whole:
        assert len({e.path for e in whole[part]} ^ {e.path for e in less[part]}) <= 4


@pytest.mark.parametrize(
    ("classes", "says"),
    [
        ({}, "no class folders"),
        ({"only": 5}, "only one class folder \\(only\\)"),
        ({"a": 1, "b": 1}, "none are left for train"),
        ({"train/a": 3, "train/b": 3, "val/a": 2, "val/c": 2}, "no training images of the class c"),
        ({"train/a": 3, "train/b": 3, "val/a": 1}, "none are left for val"),
        ({"train/a": 3, "train/b": 3, "val/a": 1, "valid/a": 1}, "two folders for val"),
        (dict.fromkeys("abcdefghij", 1), "no training images are left for"),
    ],
)
def test_invalid_folders_are_reported(tmp_path: Path, classes: dict[str, int], says: str) -> None:
    trees.class_folders(tmp_path, classes)
    with pytest.raises(ValueError, match=says):
        load_data(tmp_path)


def test_an_empty_class_folder_is_reported(tmp_path: Path) -> None:
    trees.class_folders(tmp_path, {"a": 5, "b": 5})
    (tmp_path / "c").mkdir()
    with pytest.raises(ValueError, match=r"class folder .*c contains no images"):
        load_data(tmp_path)


def test_other_invalid_sources_are_reported(tmp_path: Path) -> None:
    trees.write(tmp_path, "loose.png")
    for call, says in (
        (lambda: load_data(tmp_path / "nowhere"), "there is no such file or folder"),
        (lambda: load_data(tmp_path / "loose.png"), "give a folder of images, an archive"),
        (lambda: load_data(tmp_path), "images outside of them"),
        (lambda: load_data(tmp_path, layout="coco"), "layout must be one of"),
        (lambda: load_data(tmp_path, channels=2), "1 or 3 channels"),
    ):
        with pytest.raises(ValueError, match=says):
            call()


def test_digits_are_the_default() -> None:
    splits = load_data()
    assert [len(part) for part in splits] == [1257, 180, 360]
    pixels, label = splits.test[0]
    assert pixels.shape == (1, 8, 8)
    assert pixels.dtype == torch.float32
    assert 0 <= float(pixels.min()) < float(pixels.max()) <= 1
    assert splits.test.class_names[label] == str(label)
    everything = torch.cat([part.images.flatten(1) for part in splits])
    from sklearn.datasets import load_digits

    torch.testing.assert_close(everything.sum(0), torch.from_numpy(load_digits().data).float().sum(0) / 16)
    assert torch.equal(splits.val.labels, load_data("digits").val.labels)
    assert not torch.equal(splits.val.labels, load_data("digits", seed=1).val.labels)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_groups_from_a_pipe_are_rejected_and_not_waited_for(tmp_path: Path) -> None:
    trees.class_folders(tmp_path / "set", {"cats": 5, "dogs": 4})
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(ValueError, match=r"data\.groups: .*pipe\.csv is not a regular file"):
        load_data(tmp_path / "set", groups=str(tmp_path / "pipe.csv"))
