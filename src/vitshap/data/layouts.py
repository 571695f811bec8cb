"""List the images of a folder with what their paths say: class, patient, official split.

A layout is recognised by the folder's structure, so that ``--data PATH`` needs no code. Nothing is decoded here; the
listing is divided into training, validation and test images by ``splits.py``.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

_IMAGES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".jp2", ".dcm"}
_PART_OF = {
    name + ending: part
    for part, names in {
        "train": ("train", "training"),
        "val": ("val", "valid", "validation"),
        "test": ("test", "testing"),
    }.items()
    for name in names
    for ending in ("", "_set", "-set", "set")
}
_HIDDEN = (".", "__MACOSX")
_CHEST_PATIENT = re.compile(r"(person\d+|NORMAL2-IM-\d+|IM-\d+)")
IMAGENETTE_CLASSES = {
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}


class Entry(NamedTuple):
    """One image of a listing."""

    path: str
    """Relative to the listing's root, with forward slashes."""
    label: int
    part: str = ""
    """The official split that it belongs to: train, val, test, or none."""
    group: str = ""
    """The patient, or another group that a split must not divide; may be empty."""


@dataclass(frozen=True)
class Listing:
    """All images of a data set."""

    name: str
    root: Path
    class_names: tuple[str, ...]
    entries: tuple[Entry, ...]
    val_share: Fraction = Fraction(1, 10)
    """Share of the training images used for validation where there is no official validation set."""
    layout: str = "folder"
    """The layout it was read as; ``name`` may be anything."""


def list_images(root: Path, layout: str = "auto") -> Listing:
    """List the images of a folder in the given layout, or in the one recognised by its structure."""
    if layout != "auto" and layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {['auto', *LAYOUTS]}, got {layout!r}")
    root = _descend(root)
    if layout == "auto":
        layout = _recognise(root)
    return LAYOUTS[layout](root)


def grouped(listing: Listing, groups: str) -> Listing:
    """Return the listing with a group for every image.

    ``groups`` is a regular expression with a group in parentheses, searched for in the image's path, or the name of a csv
    file of (file, group).
    """
    of_image = _groups_of_file(listing, groups) if groups.lower().endswith(".csv") else _groups_by_name(listing, groups)
    without = [entry.path for entry in listing.entries if not of_image.get(entry.path)]
    if without:
        more = f" and {len(without) - 3:,} more" if len(without) > 3 else ""
        raise ValueError(f"data.groups {groups!r} gives no group to {', '.join(without[:3])}{more}")
    return replace(listing, entries=tuple(e._replace(group=of_image[e.path]) for e in listing.entries))


def _groups_by_name(listing: Listing, pattern: str) -> dict[str, str]:
    try:
        searched, reason = re.compile(pattern), "it has no group: put the part that names the patient into parentheses"
    except re.error as error:
        searched, reason = re.compile(""), str(error)
    if not searched.groups:
        raise ValueError(
            f"data.groups {pattern!r} is neither a .csv file nor a regular expression with a group: {reason}"
        )
    found = {entry.path: searched.search(entry.path) for entry in listing.entries}
    return {path: "/".join(part for part in match.groups() if part) for path, match in found.items() if match}


def _groups_of_file(listing: Listing, file: str) -> dict[str, str]:
    """Find groups by the image's path within the data set, or by its file name where no other image has it."""
    path = Path(file).expanduser()
    if path.exists() and not path.is_file():
        raise ValueError(f"data.groups: {path} is not a regular file")  # reading a pipe would never end
    try:
        with path.open(newline="", encoding="utf-8-sig") as opened:
            given = {file.strip().removeprefix("./"): group.strip() for file, group in filter(None, csv.reader(opened))}
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(f"data.groups: {path} cannot be read as a csv file of (file, group): {error}") from error
    named: dict[str, list[str]] = defaultdict(list)
    for entry in listing.entries:
        named[entry.path.rpartition("/")[2]].append(entry.path)
    by_name = {paths[0]: given[name] for name, paths in named.items() if len(paths) == 1 and name in given}
    return by_name | {entry.path: given[entry.path] for entry in listing.entries if entry.path in given}


def _recognise(root: Path) -> str:
    if (root / "annotations" / "list.txt").is_file() and (root / "images").is_dir():
        return "pets"
    parts = _parts(root)
    inside = {folder.name for part in parts.values() for folder in _folders(part)}
    if inside and all(name.startswith("XR_") for name in inside):
        return "mura"
    if inside == {"NORMAL", "PNEUMONIA"} and "test" in parts and _names_patients(parts.values()):
        return "chest"
    if inside == set(IMAGENETTE_CLASSES) and set(parts) == {"train", "val"}:
        return "imagenette"
    return "folder"


def _class_folders(root: Path) -> Listing:
    """One folder per class, possibly within train, val and test."""
    parts = _parts(root) or {"": root}
    names = sorted({folder.name for part in parts.values() for folder in _folders(part)})
    if len(names) < 2:
        found = f"only one class folder ({names[0]})" if names else "no class folders"
        loose = ", but images outside of them" if not names and _image_files(root) else ""
        raise ValueError(f"{root} has {found}{loose}: put the images of two or more classes into one folder per class")
    if "train" in parts and (unknown := set(names) - {folder.name for folder in _folders(parts["train"])}):
        raise ValueError(f"{root}: there are no training images of the class {', '.join(sorted(unknown))}")
    entries = []
    for part, top in parts.items():
        for folder in _folders(top):
            files = _image_files(folder)
            if not files:
                raise ValueError(f"the class folder {folder} contains no images: fill it or remove it")
            entries += [Entry(file.relative_to(root).as_posix(), names.index(folder.name), part) for file in files]
    return Listing(root.name, root, tuple(names), tuple(entries))


def _imagenette(root: Path) -> Listing:
    """ImageNette: ``train/<wnid>`` and ``val/<wnid>``, with readable class names."""
    plain = _class_folders(root)
    names = tuple(IMAGENETTE_CLASSES.get(name, name) for name in plain.class_names)
    return Listing("imagenette", root, names, plain.entries, layout="imagenette")


def _pets(root: Path) -> Listing:
    """Oxford-IIIT Pet: the 7,349 images of 37 breeds in ``annotations/list.txt``; its own two halves are not used."""
    listed = root / "annotations" / "list.txt"
    rows = [line.split() for line in listed.read_text().splitlines() if line.strip() and not line.startswith("#")]
    breed_of = {row[0]: int(row[1]) if len(row) > 1 and row[1].isdecimal() else 0 for row in rows}
    names = {label: name.rpartition("_")[0].replace("_", " ") for name, label in breed_of.items()}
    if sorted(names) != list(range(1, len(names) + 1)):
        raise ValueError(f"{listed} must have lines 'name class species breed' with classes from 1 on")
    entries = [Entry(f"images/{name}.jpg", label - 1) for name, label in breed_of.items()]
    missing = [entry.path for entry in entries if not (root / entry.path).is_file()]
    if missing:
        raise ValueError(f"{listed} lists {len(missing):,} images that do not exist, the first is {missing[0]}")
    classes = tuple(names[label] for label in sorted(names))
    return Listing("pets", root, classes, tuple(sorted(entries)), layout="pets")


def _mura(root: Path) -> Listing:
    """MURA: ``train/XR_ELBOW/patient00011/study1_negative/image1.png``; its official validation set is the test set."""
    shape = re.compile(r"[^/]+/XR_[A-Z]+/(patient\d+)/study\d+_(negative|positive)/[^/]+")
    entries = []
    for part, top in _parts(root).items():
        for file in _image_files(top):
            path = file.relative_to(root).as_posix()
            match = shape.fullmatch(path)
            if match is None:
                raise ValueError(f"{path} is not named like MURA's images (XR_*/patient*/study*_negative/image*.png)")
            entries.append(Entry(path, int(match[2] == "positive"), "test" if part == "val" else part, match[1]))
    return Listing("mura", root, ("normal", "abnormal"), tuple(entries), Fraction(3737, 36808), "mura")


def _chest(root: Path) -> Listing:
    """Chest radiographs: ``train|test/{NORMAL,PNEUMONIA}``; the 16 images of ``val`` in some copies join ``train``."""
    plain = _class_folders(root)
    entries = []
    for entry in plain.entries:
        file = entry.path.rpartition("/")[2]
        match = _CHEST_PATIENT.match(file)
        if match is None:
            raise ValueError(f"{entry.path} has no patient in its name (personN_..., IM-N-..., NORMAL2-IM-N-...)")
        entries.append(entry._replace(part="test" if entry.part == "test" else "train", group=match[1]))
    return Listing("chest", root, ("normal", "pneumonia"), tuple(entries), layout="chest")


def _names_patients(folders: Iterable[Path]) -> bool:
    """Return whether images are named like the chest radiographs; other data sets may have the same class folders."""
    return all(_CHEST_PATIENT.match(file.name) for folder in folders for file in _image_files(folder))


LAYOUTS: dict[str, Callable[[Path], Listing]] = {
    "folder": _class_folders,
    "imagenette": _imagenette,
    "pets": _pets,
    "mura": _mura,
    "chest": _chest,
}


def _descend(root: Path) -> Path:
    """Descend into the one folder that archives often wrap everything in, unless it is a class."""
    while len(folders := _folders(root)) == 1 and _folders(folders[0]) and not _image_files(root, deep=False):
        root = folders[0]
    return root


def _parts(root: Path) -> dict[str, Path]:
    """Return the folders of official splits, if any; a folder named train with images directly in it is a class."""
    found: dict[str, Path] = {}
    mixed: list[Path] = []
    for folder in _folders(root):
        part = _PART_OF.get(folder.name.lower())
        if part is None or not _folders(folder):
            continue
        if stray := _image_files(folder, deep=False):
            mixed += stray[:1] if len(_image_files(folder)) > len(stray) else []
            continue
        if part in found:
            raise ValueError(f"{root} has two folders for {part} images: {found[part].name} and {folder.name}")
        found[part] = folder
    if mixed and all(folder.name.lower() in _PART_OF for folder in _folders(root)):
        raise ValueError(f"{mixed[0]} is outside of the class folders beside it: move it into one of them or remove it")
    if found and "train" not in found and len(found) == len(_folders(root)):
        raise ValueError(f"{root} has folders of {' and '.join(found)} images, but none of training images (train)")
    return found if "train" in found else {}


def _folders(root: Path) -> list[Path]:
    return sorted(item for item in root.iterdir() if item.is_dir() and not item.name.startswith(_HIDDEN))


def _image_files(root: Path, *, deep: bool = True) -> list[Path]:
    """Return the image files in a folder (and in its folders), sorted, without hidden ones: copies by other programs."""
    files = root.rglob("*") if deep else root.iterdir()
    return sorted(
        file
        for file in files
        if file.suffix.lower() in _IMAGES
        and not any(part.startswith(_HIDDEN) for part in file.relative_to(root).parts)
        and file.is_file()
    )
