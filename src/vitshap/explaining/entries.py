"""The results of a run: an entry for each image, explained or failed, with its most important patches, and a summary.

An entry holds a small picture and one image's explanation, not the photo itself: memory does not grow with photo size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Literal, NamedTuple

import torch
from PIL import Image

from vitshap.explaining.curves import RemovalCurve
from vitshap.explanation import Explanation

Box = tuple[float, float, float, float]
"""Left, top, right, bottom in pixels."""
HALF = 0.5
"""A model of one probability is said to give a class this much, or less."""
MOSTLY_SEEN = 0.5
"""If the model sees less than this share of a photo, maps show only that part."""
_DOWN = ("upper", "middle", "lower")
_ACROSS = ("left", "centre", "right")


@dataclass(frozen=True, eq=False)
class Explained:
    """One image, its explanation, and notes for the reader."""

    path: str | PathLike[str]
    picture: Image.Image
    """The whole photo, upright, in RGB, perhaps shrunk."""
    size: tuple[int, int]
    """Width and height of the upright original."""
    explanation: Explanation
    """Of this image alone; its box is in pixels of the original."""
    warnings: tuple[str, ...] = ()
    """Why the explanation may be unreliable."""
    notes: tuple[str, ...] = ()
    """How the file was read, if that is not obvious."""
    curves: tuple[RemovalCurve, ...] = ()
    """The output while patches are removed by their values, if it was evaluated: for ``main``, then for other classes."""
    others: tuple[Explanation, ...] = ()
    """Explanations of the same image by other methods."""
    stderr_from: str | None = None
    """Where the standard errors come from, in words; None if there are none."""
    outputs: Literal["probability", "output"] = "probability"
    """What the model's outputs are."""

    @property
    def name(self) -> str:
        """The path without characters that cannot be printed."""
        return printable(str(self.path))

    @property
    def box(self) -> Box:
        """The model's crop in the original; the whole photo if the crop is not known."""
        if self.explanation.image_box is None:
            return (0.0, 0.0, float(self.size[0]), float(self.size[1]))
        left, top, right, bottom = self.explanation.image_box[0].tolist()
        return left, top, right, bottom

    @property
    def seen(self) -> float:
        """The share of the photo that the model sees."""
        (left, top, right, bottom), (width, height) = self.box, self.size
        across, down = min(right, width) - max(left, 0.0), min(bottom, height) - max(top, 0.0)
        return max(across, 0.0) * max(down, 0.0) / (width * height)

    @property
    def window(self) -> Box:
        """What a map shows: the whole photo, or only the model's crop if that is less than half of it."""
        return self.box if self.zoomed else (0.0, 0.0, float(self.size[0]), float(self.size[1]))

    @property
    def zoomed(self) -> bool:
        """Whether the model sees less than half of the photo, so that maps show only that part."""
        return self.seen < MOSTLY_SEEN

    @property
    def picture_box(self) -> Box:
        """The model's crop in pixels of ``picture``."""
        across, down = (small / large for small, large in zip(self.picture.size, self.size, strict=True))
        left, top, right, bottom = self.box
        return left * across, top * down, right * across, bottom * down

    @property
    def seen_picture(self) -> Image.Image:
        """The part of ``picture`` that the model sees, at least one pixel."""
        left, top, right, bottom = (round(edge) for edge in self.picture_box)
        return self.picture.crop((left, top, max(right, left + 1), max(bottom, top + 1)))

    def label(self, index: int) -> str:
        """Return the name of a class, or "class" and its number."""
        return class_label(self.explanation.class_names, index)

    def predicted(self, k: int) -> list[tuple[int, float]]:
        """Return the ``k`` classes of largest output with their outputs, largest first."""
        outputs = self.explanation.prediction[0]
        best = torch.topk(outputs, min(k, len(outputs)))
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))

    @property
    def one_probability(self) -> bool:
        """Whether the model's only output is the probability of a class: then it predicts that class or its absence."""
        probability = self.outputs == "probability" and self.explanation.unit != "output"
        return probability and len(self.explanation.prediction[0]) == 1

    @property
    def at_least_half(self) -> bool:
        """Whether the largest probability is 50 % or more."""
        return float(self.explanation.prediction[0].max()) >= HALF

    @property
    def classes(self) -> list[int]:
        """The explained classes, in the order of the target."""
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
        """The path without characters that cannot be printed."""
        return printable(str(self.path))


@dataclass(frozen=True)
class Summary:
    """What explained the images, for the head of the report."""

    source: str
    """The bundle or the model, in words."""
    method: str
    outputs: Literal["probability", "output"] = "probability"
    """What the model's outputs are."""
    num_classes: int = 0
    class_names: tuple[str, ...] | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def class_label(names: tuple[str, ...] | list[str] | None, index: int) -> str:
    """Return the name of a class, or "class" and its number."""
    return f"class {index}" if names is None else printable(names[index])


def printable(text: str) -> str:
    """Return the text without control characters, changes of writing direction and broken encoding."""
    return "".join(
        letter if letter.isprintable() else " " if letter.isspace() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


class Patch(NamedTuple):
    """A player of large value. Rows and columns count from 0, from the top left of the model's crop."""

    player: int
    value: float
    stderr: float | None
    interval: tuple[float, float] | None
    """Of 95 %; None if the method gives no standard errors, or the value is exact."""
    row: int
    column: int
    box: Box
    """What it covers, in pixels of the original photo."""
    place: str
    """Where in the photo that is, in words."""

    @property
    def cell(self) -> str:
        """Row and column in words, counted from 1; of the middle patch if the player has several."""
        return f"row {self.row + 1}, column {self.column + 1}"

    @property
    def pixels(self) -> str:
        """The box in words."""
        left, top, right, bottom = (int(edge + 0.5) for edge in self.box)  # a half upwards, as in the viewer
        return f"x {left} to {right}, y {top} to {bottom}"


def patches(entry: Explained, k: int, index: int, *, lowest: bool = False) -> list[Patch]:
    """Return the ``k`` patches of largest value for class ``index``, largest first, or those of ``lowest`` value."""
    explanation = entry.explanation
    labels = explanation.players[0]
    at = int((explanation.classes[0] == index).int().argmax())
    ends = None if explanation.stderr is None else explanation.interval()
    found = []
    best = explanation.top(explanation.values.shape[1], index)[0][::-1] if lowest else explanation.top(k, index)[0]
    for player, value, (row, column) in best[:k]:
        box = _box(entry, (labels == player).nonzero())
        stderr = None if explanation.stderr is None else float(explanation.stderr[0, player, at])
        interval = (float(ends[0][0, player, at]), float(ends[1][0, player, at])) if ends and stderr else None
        found.append(Patch(player, value, stderr, interval, row, column, box, _place(entry, box)))
    return found


def _box(entry: Explained, cells: torch.Tensor) -> Box:
    """Return the smallest box around these cells (``[n, 2]``: row, column), within the photo."""
    left, top, right, bottom = entry.box
    rows, columns = entry.explanation.grid
    across, down = (right - left) / columns, (bottom - top) / rows
    (first_row, first_column), (last_row, last_column) = cells.amin(0).tolist(), cells.amax(0).tolist()
    width, height = entry.size
    return (
        max(left + first_column * across, 0.0),
        max(top + first_row * down, 0.0),
        min(left + (last_column + 1) * across, float(width)),
        min(top + (last_row + 1) * down, float(height)),
    )


def _place(entry: Explained, box: Box) -> str:
    """Return in which of nine parts of the shown photo the middle of the box lies, in words."""
    left, top, right, bottom = entry.window
    across = _ACROSS[_third((box[0] + box[2]) / 2 - left, right - left)]
    down = _DOWN[_third((box[1] + box[3]) / 2 - top, bottom - top)]
    if down == "middle":
        return across if across == "centre" else f"{across} side"
    return f"{down} {across}"


def _third(position: float, whole: float) -> int:
    return min(max(int(3 * position / whole), 0), 2)
