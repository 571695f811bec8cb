"""Known splits of the paper's data sets: how many images each part has, a hash of their names, and the authors' own.

ImageNette, Pets and MURA have two splits with the paper's counts. ``AUTHORS`` are those of the paper's authors, as
their published code makes them; the paper's recipes use them. ``PUBLISHED`` are those of the rule in ``splits.py`` with
seed 0; the shipped explainer was trained and measured on one. The two are not the same images: of the 735 Pets test
images of the latter 593 are training images of the authors, so that weights trained on one split are never measured on
the other. The chest radiographs stand in for MURA where MURA is not available.

``sha256`` is the hash of the sorted names, relative to the data set's folder, with forward slashes, one per line.

The authors' splits of ImageNette and Pets are stored as one letter per image, sorted by name (``authors_*.txt``, with
how they were found and their hashes); that of MURA is computed by their rule. All come from
``numpy.random.RandomState(44).permutation``, whose output numpy guarantees. The images are the same; their pixels may
differ, because the authors used ImageNette's archive of 160 pixels.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np

from vitshap.data.dataset import ImageData
from vitshap.data.layouts import Listing
from vitshap.data.splits import Parts, names_hash


@dataclass(frozen=True)
class PublishedSplit:
    """How the three parts of a data set are recognised."""

    counts: dict[str, int]
    sha256: dict[str, str] | None
    """None where the data was not available when this was written: then only the counts are compared."""
    note: str


AUTHORS = {
    "imagenette": PublishedSplit(
        counts={"train": 9469, "val": 1962, "test": 1963},
        sha256={
            "train": "e951ca34eb1ca6988f45894f626915028237736081a604f9d20d436b89fd0909",
            "val": "01d175b2cee1bccca31af3828a6bff924e19f855a0db2b7ea5d336061f56efd4",
            "test": "69f0f54888e16eb6924a0770c8e6f3d9e3a473b5e308e244cae10b0a4c926024",
        },
        note="ImageNette v2, all 13,394 images, official validation set halved by the paper's authors",
    ),
    "pets": PublishedSplit(
        counts={"train": 5879, "val": 735, "test": 735},
        sha256={
            "train": "be3bbbb161ecf1918fb26b727bb61e81a581cc95d9b0803924e1505c9c5b4977",
            "val": "5a956c10effa73e055e03235ca825ce28a559a7d18faff50e3031c0c696d6d27",
            "test": "69216f829fa904e616c08546ac144c4bc00f31bd35294216e0b92e37cee8a4a0",
        },
        note="Oxford-IIIT Pet, the 7,349 images of annotations/list.txt, split by the paper's authors",
    ),
    "mura": PublishedSplit(
        counts={"train": 33071, "val": 3737, "test": 3197},
        sha256={
            "train": "75ea3093aa78045e0cfda563e3b5a250681f9612342e946c3490a9839c1abc7e",
            "val": "19dc056daf27a9f754cd1f2de0fd00a92ae1c8538c51a3e8123c473a9d00f2dc",
            "test": "4d1debb598a9e125bc1913cdde8acf11f4a95526046ac74b4d05aa09ea436aa8",
        },
        note="MURA v1.1, a tenth of the training patients set aside by the paper's authors, official valid folder as test",
    ),
}

PUBLISHED = {
    "imagenette": PublishedSplit(
        counts={"train": 9469, "val": 1962, "test": 1963},
        sha256={
            "train": "e951ca34eb1ca6988f45894f626915028237736081a604f9d20d436b89fd0909",
            "val": "7575212e9bb4907e5a37014e789c9b3bc985c6cdf5e35a208616fd6ebc95aaab",
            "test": "f586678285f045cea40b96e2f980215cbe84de2323bd63f96cc2d0ee148c0e5a",
        },
        note="ImageNette v2, all 13,394 images, official validation set halved",
    ),
    "pets": PublishedSplit(
        counts={"train": 5879, "val": 735, "test": 735},
        sha256={
            "train": "f3caa4d61d5d6d66ce4333356e93b374f43ec48b53ceaa7eac0072f0305e0b47",
            "val": "699c48d208962fb89e892efd88c3556f01464ed83c4395f513d7cd15d7a8232d",
            "test": "bd3fcc0777be02f2e2ecdbe3f516e26c20d16e82340efa2436cf7320a95191a7",
        },
        note="Oxford-IIIT Pet, the 7,349 images of annotations/list.txt, a tenth each set aside for validation and test",
    ),
    # MURA may not be redistributed and was not available: only counts, no hashes of names.
    "mura": PublishedSplit(
        counts={"train": 33071, "val": 3737, "test": 3197},
        sha256=None,
        note="MURA v1.1, 3,737 training images set aside by patient, official validation set as test set",
    ),
    # A subset of 2,100 of the 5,232 training images, and all 624 test images. 76 patient numbers occur in names of both
    # test and training images; whether they are the same patients is not documented. The official test set is used.
    "chest": PublishedSplit(
        counts={"train": 1890, "val": 210, "test": 624},
        sha256={
            "train": "89947bb9bfafb3702ce1c3406498426e9d11972ad21de45e96aec30033d38964",
            "val": "efc38bf2b87c565e412f1de9768d85842910b8c7d7eabc65b79606ee185fccef",
            "test": "7b452211a1198b066355cfb113272ed8eb3039124e1204ddf6cd85e4f4058281",
        },
        note="2,100 training images of Kermany et al., a tenth set aside by patient, and all 624 test images",
    ),
}

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
"""Classes of the authors' outputs 0 to 9, which are not in the order of the folders."""
_PART_OF_LETTER = {"r": "train", "v": "val", "t": "test"}
_SEED = 44
_MURA_VAL = 0.1
"""Share of the training patients that the authors used for validation."""
_EVALUATED = {
    "tables": (1, "9c66102c9b65a5bda76e38442eea52d312f662eabe9220de22490a2c29d4a99d"),
    "kernelshap": (2, "ce97b0826d900f0937aae406c9dd7fbe43e29e0ac3a7544c667734be494b7475"),
}
"""Block of lines in ImageNette's file, and the hash of the names."""


def check_published(
    listing: Listing, parts: Parts, records: Mapping[str, PublishedSplit] = PUBLISHED, *, strict: bool = False
) -> None:
    """Warn (or, if strict, raise an error) if the splits are not those known for this data set."""
    record = records.get(listing.layout)
    if record is None:
        return
    counts = {part: len(entries) for part, entries in parts.items()}
    wrong = [
        f"{part} has {counts[part]:,} images instead of {record.counts[part]:,}"
        for part in parts
        if counts[part] != record.counts[part]
    ]
    if not wrong and record.sha256 is not None:
        wrong = [
            f"{part} has the right number of images, {counts[part]:,}, but with other names"
            for part, entries in parts.items()
            if names_hash(entry.path for entry in entries) != record.sha256[part]
        ]
    if not wrong:
        return
    message = f"{listing.root} is not the known copy of {listing.layout} ({record.note}): " + "; ".join(wrong)
    if strict:
        raise ValueError(message)
    warnings.warn(f"{message}. Results cannot be compared with those on the known split.", stacklevel=3)


def authors_split(listing: Listing) -> tuple[Listing, Parts]:
    """Return the listing with the authors' order of classes, and their training, validation and test images."""
    if listing.layout not in AUTHORS:
        raise ValueError(
            f"the paper's authors split {', '.join(AUTHORS)}, not a data set of the layout {listing.layout}: "
            "use data.split own"
        )
    if listing.layout == "mura":
        return listing, _mura(listing)
    if listing.layout == "imagenette" and sorted(listing.class_names) == sorted(IMAGENETTE_ORDER):
        listing = _reordered(listing, IMAGENETTE_ORDER)
    given = [entry for entry in sorted(listing.entries) if entry.part != "train"]
    parts: Parts = {"train": [e for e in sorted(listing.entries) if e.part == "train"], "val": [], "test": []}
    letters = "".join(_blocks(listing.layout)[0].values())
    for entry, letter in zip(given, letters, strict=False):
        parts[_PART_OF_LETTER[letter]].append(entry)
    record = AUTHORS[listing.layout]
    hashes = {part: names_hash(entry.path for entry in entries) for part, entries in parts.items()}
    if len(given) != len(letters) or hashes != record.sha256:
        raise ValueError(
            f"{listing.root} does not hold exactly the images that the paper's authors split ({record.note}): use a "
            "complete copy, or data.split own"
        )
    return listing, parts


def authors_evaluation_images(test: ImageData, which: Literal["tables", "kernelshap"] = "tables") -> ImageData:
    """Return the test images that the paper's figures were computed on.

    Args:
        test: ``load_data(..., split="authors").test`` of ImageNette or Pets.
        which: ``"tables"``: insertion, deletion, sensitivity and faithfulness (1,024 of ImageNette, all 735 of Pets);
            ``"kernelshap"``: the comparison with KernelSHAP (100 of ImageNette, of which the plots leave out
            ``n03425413_13231.JPEG``).
    """
    block, digest = _EVALUATED[which]
    names = ["/".join(path.parts[-3:] if test.name == "imagenette" else path.parts[-2:]) for path in _paths(test)]
    known = AUTHORS[test.name].sha256 if test.name == "imagenette" or (test.name, which) == ("pets", "tables") else None
    if known is None or names_hash(names) != known["test"]:
        raise ValueError(
            f"which images of {test.name} the authors used for {which} is known only for their test images of imagenette, "
            'and of pets for tables: give load_data(..., split="authors").test'
        )
    if test.name == "pets":
        return test
    blocks = _blocks("imagenette")
    # There is a mark for every image of the validation folder; those of the test half are in the order of their names.
    letters, marks = ("".join(blocks[i].values()) for i in (0, block))
    marked = [mark == "1" for letter, mark in zip(letters, marks, strict=True) if letter == "t"]
    by_name = sorted(range(len(names)), key=lambda i: names[i])
    chosen = sorted(i for i, mark in zip(by_name, marked, strict=True) if mark)
    assert names_hash(names[i] for i in chosen) == digest
    return test.subset(chosen)


def authors_output_names(layout: str) -> tuple[str, ...]:
    """Return the classes of the authors' outputs for ``"imagenette"``, ``"pets"`` or ``"mura"``, in their order."""
    if layout == "mura":
        return ("abnormal",)
    if layout == "pets":
        return tuple(sorted((name.replace("_", " ") for name in _blocks("pets")[0]), key=str.lower))
    if layout == "imagenette":
        return IMAGENETTE_ORDER
    raise ValueError(f"the paper's authors trained on {', '.join(AUTHORS)}, not on {layout!r}")


def _paths(test: ImageData) -> list[Path]:
    return [Path(image) for image in test.images if isinstance(image, Path)]


def _mura(listing: Listing) -> Parts:
    """Take a tenth of the training patients for validation; the official validation set is the test set."""
    patients = sorted({entry.group for entry in listing.entries if entry.part == "train"})
    order = np.random.RandomState(_SEED).permutation(len(patients))
    chosen = {patients[i] for i in order[: math.ceil(_MURA_VAL * len(patients))]}
    parts: Parts = {"train": [], "val": [], "test": []}
    for entry in sorted(listing.entries):
        part = "val" if entry.part == "train" and entry.group in chosen else entry.part
        parts[part].append(entry)
    return parts


def _reordered(listing: Listing, names: tuple[str, ...]) -> Listing:
    """Return the same images with the classes in another order."""
    entries = tuple(e._replace(label=names.index(listing.class_names[e.label])) for e in listing.entries)
    return replace(listing, class_names=names, entries=entries)


def _blocks(layout: str) -> list[dict[str, str]]:
    """Read blocks of lines, separated by comments: letters by the name that their line starts with."""
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
