"""Small folders of images in the layouts of real data sets."""

import zlib
from pathlib import Path

import numpy as np
from PIL import Image


def picture(seed: int, *, height: int = 10, width: int = 14) -> Image.Image:
    """A smooth colour picture that differs from seed to seed."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (3, 3, 3), dtype=np.uint8))
    return coarse.resize((width, height), Image.Resampling.BILINEAR)


def write(root: Path, *names: str) -> None:
    """An image for each name, of its own."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(zlib.crc32(name.encode())).save(path)


def class_folders(root: Path, classes: dict[str, int], prefix: str = "") -> Path:
    """As many images for each class as said."""
    for name, count in classes.items():
        write(root, *(f"{prefix}{name}/{i:03}.png" for i in range(count)))
    return root


def mura(root: Path, *, patients: int, official_valid: int = 6) -> Path:
    """MURA's real layout: patients with one to four images in one or two studies, some of them at two body parts."""
    names = []
    for part, count, first in (("train", patients, 11), ("valid", official_valid, 11185)):
        for i in range(count):
            patient = f"patient{first + i:05}"
            for body in ("XR_ELBOW", "XR_HAND")[: 1 + (i % 7 == 0)]:
                finding = "positive" if i % 3 == 0 else "negative"
                names += [
                    f"MURA-v1.1/{part}/{body}/{patient}/study1_{finding}/image{k}.png" for k in range(1, 2 + i % 4)
                ]
    write(root, *names)
    hidden = root / "MURA-v1.1/valid/XR_ELBOW/patient11185/study1_positive/._image1.png"
    hidden.write_bytes(b"left behind by another system")
    return root


def pets(root: Path, *, per_breed: int) -> Path:
    """Oxford-IIIT Pet's layout: listed images, and one that no list names."""
    breeds = ("Abyssinian", "american_bulldog", "Egyptian_Mau")
    lines = ["#Image CLASS-ID SPECIES BREED ID"]
    for label, breed in enumerate(breeds, start=1):
        write(root, *(f"images/{breed}_{i}.jpg" for i in range(1, per_breed + 1)))
        lines += [f"{breed}_{i} {label} 1 {label}" for i in range(1, per_breed + 1)]
    write(root, "images/Abyssinian_999.jpg")
    (root / "annotations").mkdir()
    (root / "annotations/list.txt").write_text("\n".join(lines) + "\n")
    return root


def chest(root: Path, *, patients: int, with_val: bool = False) -> Path:
    """The radiographs' layout: the patient's number is in the file's name."""
    parts = [("train", patients, 100), ("test", 4, 0)] + ([("val", 2, 900)] if with_val else [])
    for part, count, first in parts:
        for i in range(first, first + count):
            write(root, f"{part}/PNEUMONIA/person{i}_virus_{2 * i}.png", f"{part}/PNEUMONIA/person{i}_bacteria_{i}.png")
            write(root, f"{part}/NORMAL/IM-{i:04}-0001.png", f"{part}/NORMAL/NORMAL2-IM-{i:04}-0001.png")
            write(root, f"{part}/NORMAL/IM-{i:04}-0001-0002.png")
    return root
