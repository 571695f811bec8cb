"""What a report is made of: images that were explained, images that could not be, and what explained them.

An entry holds a small picture and one image's explanation, nothing of the photo itself, so that thousands can pass by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Literal

import torch
from PIL import Image

from vitshap.explanation import Explanation

Box = tuple[float, float, float, float]
"""Left, top, right, bottom in pixels."""
MOSTLY_SEEN = 0.5
"""Where the net sees less than this share of a photo, maps show that part alone."""


@dataclass(frozen=True, eq=False)
class Explained:
    """One image, its explanation, and what the reader should be told about it."""

    path: str | PathLike[str]
    picture: Image.Image
    """The whole photo, upright, in RGB, perhaps shrunk."""
    size: tuple[int, int]
    """Width and height of the upright original."""
    explanation: Explanation
    """Of this image alone; its box is in pixels of the original."""
    warnings: tuple[str, ...] = ()
    """What makes the explanation doubtful."""
    notes: tuple[str, ...] = ()
    """How the file was read, where that is not obvious."""

    def __post_init__(self) -> None:
        if len(self.explanation) != 1:
            raise ValueError(f"an entry holds the explanation of one image, got {len(self.explanation)}")

    @property
    def name(self) -> str:
        """The path as it can be printed anywhere."""
        return printable(str(self.path))

    @property
    def box(self) -> Box:
        """The net's crop in the original; all of it where that is not known."""
        if self.explanation.image_box is None:
            return (0.0, 0.0, float(self.size[0]), float(self.size[1]))
        left, top, right, bottom = self.explanation.image_box[0].tolist()
        return left, top, right, bottom

    @property
    def seen(self) -> float:
        """The share of the photo that the net sees."""
        (left, top, right, bottom), (width, height) = self.box, self.size
        across, down = min(right, width) - max(left, 0.0), min(bottom, height) - max(top, 0.0)
        return max(across, 0.0) * max(down, 0.0) / (width * height)

    @property
    def window(self) -> Box:
        """What a map shows: the photo, or what the net sees of it where that is less than half."""
        return self.box if self.zoomed else (0.0, 0.0, float(self.size[0]), float(self.size[1]))

    @property
    def zoomed(self) -> bool:
        """Whether the net sees less than half of the photo, so that maps show that part alone."""
        return self.seen < MOSTLY_SEEN

    @property
    def picture_box(self) -> Box:
        """The same in pixels of ``picture``."""
        across, down = (small / large for small, large in zip(self.picture.size, self.size, strict=True))
        left, top, right, bottom = self.box
        return left * across, top * down, right * across, bottom * down

    def label(self, index: int) -> str:
        """What a class is called."""
        return class_label(self.explanation.class_names, index)

    def predicted(self, k: int) -> list[tuple[int, float]]:
        """The ``k`` classes of largest output with their outputs, largest first."""
        outputs = self.explanation.prediction[0]
        best = torch.topk(outputs, min(k, len(outputs)))
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))

    @property
    def classes(self) -> list[int]:
        """Explained classes, in the order in which they were asked for."""
        return [int(index) for index in self.explanation.classes[0]]

    @property
    def main(self) -> int:
        """The class that is shown first: the predicted one if it was explained, else the first explained one."""
        predicted = self.predicted(1)[0][0]
        return predicted if predicted in self.classes else self.classes[0]


@dataclass(frozen=True)
class Failed:
    """An image that could not be explained, and why, in one line."""

    path: str | PathLike[str]
    reason: str

    @property
    def name(self) -> str:
        """The path as it can be printed anywhere."""
        return printable(str(self.path))


@dataclass(frozen=True)
class Summary:
    """What explained the images, for the head of the report."""

    source: str
    """The bundle or the model, in words."""
    method: str
    outputs: Literal["probability", "output"] = "probability"
    """What the net's predictions are."""
    num_classes: int = 0
    class_names: tuple[str, ...] | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def class_label(names: tuple[str, ...] | list[str] | None, index: int) -> str:
    """The name of a class, or its number."""
    return f"class {index}" if names is None else printable(names[index])


def printable(text: str) -> str:
    """Text without control characters, turned writing or broken encoding, as terminals and pages need it."""
    return "".join(
        letter if letter.isprintable() else " " if letter.isspace() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
