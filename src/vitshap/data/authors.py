"""The splits and the order of classes of the paper's authors, rebuilt from what they published.

ImageNette and Pets come as one letter per image (``authors_*.txt``, with how they were found and their hashes), for images
sorted by name; MURA by the rule itself. All rest on ``RandomState(44).permutation``, which numpy keeps as it is. The images
are the same; their pixels need not be, for the authors used ImageNette's archive of 160 pixels.
"""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np

from vitshap.data.dataset import ImageData
from vitshap.data.layouts import IMAGENETTE_CLASSES, Listing
from vitshap.data.published import AUTHORS
from vitshap.data.splits import Parts, names_hash

IMAGENETTE_ORDER = (
    "cassette player",
    "garbage truck",
    "tench",
    "English springer",
    "church",
    "parachute",
    "French horn",
    "chain saw",
    "golf ball",
    "gas pump",
)
"""The authors' outputs 0 to 9: not in the order of the folders."""
_PART_OF_LETTER = {"r": "train", "v": "val", "t": "test"}
_SEED = 44
_MURA_VAL = 0.1
"""Share of the training patients that the authors validated on."""
_EVALUATED = {
    "tables": (1, "9c66102c9b65a5bda76e38442eea52d312f662eabe9220de22490a2c29d4a99d"),
    "kernelshap": (2, "ce97b0826d900f0937aae406c9dd7fbe43e29e0ac3a7544c667734be494b7475"),
}
"""Block of lines in ImageNette's file, and the hash of the names."""


def authors_split(listing: Listing) -> tuple[Listing, Parts]:
    """The listing with the authors' order of classes, and their training, validation and test images."""
    if listing.layout not in AUTHORS:
        raise ValueError(
            f"the paper's authors split {', '.join(AUTHORS)}, not a data set of the layout {listing.layout}: "
            "take data.split own"
        )
    if listing.layout == "mura":
        return listing, _mura(listing)
    listing = _ordered(listing, IMAGENETTE_ORDER) if listing.layout == "imagenette" else listing
    given = [entry for entry in sorted(listing.entries) if entry.part != "train"]
    parts: Parts = {"train": [e for e in sorted(listing.entries) if e.part == "train"], "val": [], "test": []}
    letters = "".join(_blocks(listing.layout)[0].values())
    for entry, letter in zip(given, letters, strict=False):
        parts[_PART_OF_LETTER[letter]].append(entry)
    record = AUTHORS[listing.layout]
    hashes = {part: names_hash(entry.path for entry in entries) for part, entries in parts.items()}
    if len(given) != len(letters) or hashes != record.sha256:
        raise ValueError(
            f"{listing.root} does not hold exactly the images that the paper's authors split ({record.note}): take a "
            "complete copy, or data.split own"
        )
    return listing, parts


def authors_evaluation_images(test: ImageData, which: Literal["tables", "kernelshap"] = "tables") -> ImageData:
    """Of the authors' test images those that the paper's figures were computed on.

    Args:
        test: ``load_data(..., split="authors").test`` of ImageNette or Pets.
        which: ``"tables"``: insertion, deletion, sensitivity and faithfulness (1,024 of ImageNette, all 735 of Pets);
            ``"kernelshap"``: the comparison with KernelSHAP (100 of ImageNette, of which the plots leave out
            ``n03425413_13231.JPEG``).
    """
    if which not in _EVALUATED:
        raise ValueError(f"which is one of {', '.join(_EVALUATED)}; got {which!r}")
    if test.name not in ("imagenette", "pets") or (test.name == "pets" and which != "tables"):
        raise ValueError(f"which images of {test.name} the authors took for {which} is not on record")
    names = ["/".join(path.parts[-3:] if test.name == "imagenette" else path.parts[-2:]) for path in _paths(test)]
    if names_hash(names) != (AUTHORS[test.name].sha256 or {})["test"]:
        raise ValueError('these are not the authors\' test images: take load_data(..., split="authors").test')
    if test.name == "pets":
        return test
    blocks, (block, digest) = _blocks("imagenette"), _EVALUATED[which]
    # A mark stands for every image of the validation folder; those of the test half are in the order of their names.
    letters, marks = ("".join(blocks[i].values()) for i in (0, block))
    marked = [mark == "1" for letter, mark in zip(letters, marks, strict=True) if letter == "t"]
    by_name = sorted(range(len(names)), key=lambda i: names[i])
    chosen = sorted(i for i, mark in zip(by_name, marked, strict=True) if mark)
    assert names_hash(names[i] for i in chosen) == digest
    return test.subset(chosen)


def _paths(test: ImageData) -> list[Path]:
    return [Path(image) for image in test.images if isinstance(image, Path)]


def _mura(listing: Listing) -> Parts:
    """A tenth of the training patients, by place among the sorted names; the official validation set is the test set."""
    patients = sorted({entry.group for entry in listing.entries if entry.part == "train"})
    order = np.random.RandomState(_SEED).permutation(len(patients))
    chosen = {patients[i] for i in order[: math.ceil(_MURA_VAL * len(patients))]}
    parts: Parts = {"train": [], "val": [], "test": []}
    for entry in sorted(listing.entries):
        part = "val" if entry.part == "train" and entry.group in chosen else entry.part
        parts[part].append(entry)
    return parts


def _ordered(listing: Listing, names: tuple[str, ...]) -> Listing:
    """The same images with the classes in another order."""
    if sorted(names) != sorted(listing.class_names):
        raise ValueError(
            f"{listing.root} has other classes than ImageNette's: {', '.join(IMAGENETTE_CLASSES.values())}"
        )
    entries = tuple(e._replace(label=names.index(listing.class_names[e.label])) for e in listing.entries)
    return replace(listing, class_names=names, entries=entries)


def _blocks(layout: str) -> list[dict[str, str]]:
    """Letters by the names that lines begin with; lines of one block stand together, between comments."""
    text = (resources.files("vitshap") / "data" / f"authors_{layout}.txt").read_text(encoding="utf-8")
    blocks: list[dict[str, str]] = []
    for line, before in zip(text.splitlines(), ["#", *text.splitlines()], strict=False):
        if line.startswith("#"):
            continue
        if before.startswith("#"):
            blocks.append({})
        key, letters = line.split()
        blocks[-1][key] = letters
    return blocks
