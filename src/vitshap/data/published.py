"""Splits on record: how many images each part has, and a hash of their names.

Two splits of ImageNette, Pets and MURA have the paper's counts. ``AUTHORS`` are those of the paper's authors, as their
published code makes them (``authors.py``): what the paper's recipes use. ``PUBLISHED`` are those of the rule in
``splits.py`` with seed 0: what the shipped explainer was trained and measured on. They are not the same images: of the 735
Pets test images of the latter 593 are among the authors' training images, so that weights of the one are never
measured on the other. The chest radiographs stand in for MURA where MURA cannot be had.

``sha256`` is that of the sorted names, relative to the data set's folder, with forward slashes, one per line.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedSplit:
    """What a data set's three parts are known by."""

    counts: dict[str, int]
    sha256: dict[str, str] | None
    """None where the data could not be had when this was written: then only the counts are compared."""
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
    # MURA may not be redistributed and was not at hand: counts and rule only, the names were never hashed.
    "mura": PublishedSplit(
        counts={"train": 33071, "val": 3737, "test": 3197},
        sha256=None,
        note="MURA v1.1, 3,737 training images set aside by patient, official validation set as test set",
    ),
    # A subset of 2,100 of the 5,232 training images, all 624 test images. 76 patient numbers of the test images' names are
    # training images' too: whether numbers begin anew there is not documented. The official test set is kept as it is.
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
