"""A small stored explainer, and photos of every kind, sound and unsound."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from tests.models import nets
from vitshap.explainers import Explainer
from vitshap.explainers.calibration import FEATURES, Calibration
from vitshap.models import MaskedModel, Preprocess, wrap

NAMES = ["ant", "bee", "crane", "dog", "English springer"]
PREPROCESS = Preprocess((32, 32), (36, 36), (0.5,) * 3, (0.5,) * 3)


def model(seed: int = 0, **wrapping: Any) -> MaskedModel:
    """A net of 4 x 4 patches and 5 classes."""
    options = {"preprocess": PREPROCESS, "class_names": NAMES, **wrapping}
    return wrap(nets.build("transformers ViT", seed=seed), check=False, **options)


def explainer(**wrapping: Any) -> Explainer:
    """As after training: values differ from patch to patch."""
    torch.manual_seed(3)
    made = Explainer(model(**wrapping)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return made


def calibration() -> Calibration:
    """Errors that depend on everything that they can depend on."""
    numbers = torch.randn(16, generator=torch.Generator().manual_seed(0)).tolist()
    coefficients = (0.1, 0.8, 0.2, 0.1, 0.3)
    assert len(coefficients) == len(FEATURES)
    return Calibration(coefficients, tuple(numbers), tuple(numbers[:5]), 1.3, 0.5, 0.5, 120)


def bundle(folder: Path, *, quality: dict[str, Any] | None = None, calibrated: bool = False, **wrapping: Any) -> Path:
    """The same, stored; no image is doubtful unless ``quality`` says so."""
    made = explainer(**wrapping)
    made.calibration = calibration() if calibrated else None
    return made.save_pretrained(folder, quality=quality or {"unknown_threshold": 0.0})


def picture(seed: int, width: int = 60, height: int = 40) -> Image.Image:
    """Large soft blots of colour."""
    blots = np.random.default_rng(seed).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    return Image.fromarray(blots).resize((width, height), Image.Resampling.BICUBIC)


def photos(folder: Path, count: int) -> list[Path]:
    """Photos 0.png, 1.png, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{i}.png" for i in range(count)]
    for i, path in enumerate(paths):
        picture(i).save(path)
    return paths


def bomb() -> bytes:
    """A PNG of a few bytes that claims 30,000 x 30,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def jpeg(seed: int = 0) -> bytes:
    """A sound file, to be cut short."""
    buffer = io.BytesIO()
    picture(seed, 120, 80).save(buffer, "jpeg")
    return buffer.getvalue()


UNSOUND = {
    "text.jpg": (b"these are words", "not an image"),
    "empty.png": (b"", "the file is empty"),
    "short.jpg": (jpeg()[:-300], "truncated"),
    "stub.jpg": (jpeg()[:40], "truncated|not an image|damaged"),
    "bomb.png": (bomb(), "too large: its pixels would fill the memory"),
}
"""File name -> content, and what is said of it."""
