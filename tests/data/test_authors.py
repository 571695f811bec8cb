"""The splits of the paper's authors: the shipped files match their hashes, and the rule for MURA is scikit-learn's."""

import hashlib
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.model_selection import train_test_split

from tests.data import trees
from vitshap.data import ImageData, authors_evaluation_images, load_data, published
from vitshap.data.layouts import IMAGENETTE_CLASSES, Entry, Listing
from vitshap.data.published import AUTHORS, IMAGENETTE_ORDER, PublishedSplit, authors_split
from vitshap.data.splits import names_hash

LETTERS = {
    "imagenette": "b99bea63e460a99c35ab4fc15b1c930d66e9b8253e7f0a48d5114359be1e00ad",
    "pets": "9960235216bf8662964cc88e26571a614067557d05c510b7e7c79821a5c76dd7",
}


def _lines(name: str) -> list[tuple[str, str]]:
    text = (resources.files("vitshap") / "data" / f"authors_{name}.txt").read_text()
    return [(line.split()[0], line.split()[1]) for line in text.splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("name", ["imagenette", "pets"])
def test_the_shipped_files_are_complete(name: str) -> None:
    letters = "".join(letters for _, letters in _lines(name)[: 10 if name == "imagenette" else None])
    assert hashlib.sha256(letters.encode()).hexdigest() == LETTERS[name]
    counts = AUTHORS[name].counts
    expected = {"v": counts["val"], "t": counts["test"]} | ({"r": counts["train"]} if name == "pets" else {})
    assert {letter: letters.count(letter) for letter in set(letters)} == expected


def test_evaluation_images_are_test_images_ten_per_class_for_kernelshap() -> None:
    lines = _lines("imagenette")
    assert len(lines) == 30
    for (wnid, letters), (second, tables), (third, kernelshap) in zip(
        lines[:10], lines[10:20], lines[20:], strict=True
    ):
        assert wnid == second == third
        assert wnid in IMAGENETTE_CLASSES
        assert len(letters) == len(tables) == len(kernelshap)
        assert kernelshap.count("1") == 10
        for marks in (tables, kernelshap):
            assert all(letter == "t" for letter, mark in zip(letters, marks, strict=True) if mark == "1")
    assert sum(marks.count("1") for _, marks in lines[10:20]) == 1024


def _made_up_imagenette() -> tuple[Listing, dict[str, dict[str, list[str]]]]:
    """As many images as there are letters, with made-up names, and where each should go."""
    lines, classes = _lines("imagenette"), list(IMAGENETTE_CLASSES)
    entries = [Entry(f"train/{wnid}/x{i}.JPEG", k, "train") for k, wnid in enumerate(classes) for i in range(2)]
    names: dict[str, dict[str, list[str]]] = {"part": {"train": [e.path for e in entries], "val": [], "test": []}}
    names["evaluated"] = {"tables": [], "kernelshap": []}
    for k, (wnid, letters) in enumerate(lines[:10]):
        for i, letter in enumerate(letters):
            path = f"val/{wnid}/{i:04}.JPEG"
            entries.append(Entry(path, k, "val"))
            names["part"]["val" if letter == "v" else "test"].append(path)
            for which, line in (("tables", lines[10 + k]), ("kernelshap", lines[20 + k])):
                if line[1][i] == "1":
                    names["evaluated"][which].append(path)
    return Listing(
        "imagenette", Path("set"), tuple(IMAGENETTE_CLASSES.values()), tuple(entries), layout="imagenette"
    ), names


def test_letters_go_to_the_images_in_the_order_of_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    listing, names = _made_up_imagenette()
    with pytest.raises(ValueError, match="does not hold exactly the images that the paper's authors split"):
        authors_split(listing)
    hashes = {part: names_hash(paths) for part, paths in names["part"].items()}
    monkeypatch.setitem(AUTHORS, "imagenette", PublishedSplit({}, hashes, "made up"))
    given, parts = authors_split(listing)
    for part, paths in names["part"].items():
        assert sorted(entry.path for entry in parts[part]) == sorted(paths)
    assert given.class_names == IMAGENETTE_ORDER
    for entry in parts["test"]:
        assert IMAGENETTE_CLASSES[entry.path.split("/")[1]] == IMAGENETTE_ORDER[entry.label]
    files = [Path("set") / entry.path for entry in parts["test"]]
    labels = torch.tensor([entry.label for entry in parts["test"]])
    test = ImageData(files, labels, given.class_names, name="imagenette")
    for which, paths in names["evaluated"].items():
        block = published._EVALUATED[which][0]
        monkeypatch.setitem(published._EVALUATED, which, (block, names_hash(paths)))
        found = authors_evaluation_images(test, which)
        assert sorted("/".join(path.parts[1:]) for path in found.images) == sorted(paths)


@pytest.mark.filterwarnings("ignore:.*is not the known copy of")
def test_muras_patients_are_those_of_scikit_learns_split(tmp_path: Path) -> None:
    trees.mura(tmp_path, patients=33)
    splits = load_data(tmp_path, split="authors")
    patients = sorted({*(splits.train.groups or ()), *(splits.val.groups or ())})
    train, val = train_test_split(np.array(patients), random_state=44, test_size=0.1)
    assert set(splits.val.groups or ()) == set(val)
    assert set(splits.train.groups or ()) == set(train)
    assert all("/valid/" in str(path) for path in splits.test.images)
    own = load_data(tmp_path)
    assert set(own.val.groups or ()) != set(val)


def test_other_data_sets_have_no_authors_split(tmp_path: Path) -> None:
    trees.class_folders(tmp_path / "folders", {"a": 9, "b": 9})
    trees.pets(tmp_path / "pets", per_breed=4)
    for source, says in (
        ("folders", "not a data set of the layout folder: use data.split own"),
        ("pets", "does not hold exactly the images that the paper's authors split .*7,349"),
    ):
        with pytest.raises(ValueError, match=says):
            load_data(tmp_path / source, split="authors")
    with pytest.raises(ValueError, match="digits have one split"):
        load_data("digits", split="authors")


def test_only_the_authors_test_images_have_evaluation_images(tmp_path: Path) -> None:
    trees.class_folders(tmp_path, {"a": 9, "b": 9})
    test = load_data(tmp_path).test
    with pytest.raises(ValueError, match="is known only for their test images"):
        authors_evaluation_images(test)
    one = ImageData([tmp_path / "a/b/c.JPEG"] * 2, torch.tensor([0, 1]), ("a", "b"), name="imagenette")
    with pytest.raises(ValueError, match="their test images of imagenette"):
        authors_evaluation_images(one)
