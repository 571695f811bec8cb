"""Which patches matter most, and where they are: row and column, a box in the photo, and a word for the place."""

from __future__ import annotations

from typing import NamedTuple

import torch

from vitshap.report.entries import Box, Explained

_DOWN = ("upper", "middle", "lower")
_ACROSS = ("left", "centre", "right")


class Patch(NamedTuple):
    """A player of large value. Rows and columns count from 0, at the top left of what the net sees."""

    player: int
    value: float
    stderr: float | None
    row: int
    column: int
    box: Box
    """What it covers, in pixels of the original photo."""
    place: str
    """Where in the photo that is, in words."""

    @property
    def cell(self) -> str:
        """Row and column in words, counted from 1; of the middle one, where a player is more than one patch."""
        return f"row {self.row + 1}, column {self.column + 1}"

    @property
    def pixels(self) -> str:
        """The box in words."""
        left, top, right, bottom = (round(edge) for edge in self.box)
        return f"x {left} to {right}, y {top} to {bottom}"


def patches(entry: Explained, k: int, index: int) -> list[Patch]:
    """The ``k`` patches of largest value for class ``index``, largest first."""
    explanation = entry.explanation
    labels = explanation.players[0]
    if labels.ndim != 2:
        raise ValueError(f"patches are named by rows and columns; this grid is {list(labels.shape)}")
    column_of = int((explanation.classes[0] == index).int().argmax())
    found = []
    for player, value, (row, column) in explanation.top(k, index)[0]:
        box = _box(entry, (labels == player).nonzero())
        stderr = None if explanation.stderr is None else float(explanation.stderr[0, player, column_of])
        found.append(Patch(player, value, stderr, row, column, box, _place(entry, box)))
    return found


def _box(entry: Explained, cells: torch.Tensor) -> Box:
    """The smallest box around these cells (``[n, 2]``: row, column), within the photo."""
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
    """One of nine words for where in the shown part of the photo the middle of the box is."""
    left, top, right, bottom = entry.window
    across = _ACROSS[_third((box[0] + box[2]) / 2 - left, right - left)]
    down = _DOWN[_third((box[1] + box[3]) / 2 - top, bottom - top)]
    if down == "middle":
        return across if across == "centre" else f"{across} side"
    return f"{down} {across}"


def _third(position: float, whole: float) -> int:
    return min(max(int(3 * position / whole), 0), 2)
