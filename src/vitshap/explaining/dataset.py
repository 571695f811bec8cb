"""What a model looks at over a whole folder: the end of its report.

For every predicted class the mean map; how much of the positive values lies at the border and in the corners, where markers
and watermarks are; the images whose maps are least like the mean map of their class; and, given the JSON lines of an
earlier run with another model, the images on which the two disagree most.

The maps of all images are in a nameless temporary file, so memory does not grow with their number.
"""

from __future__ import annotations

import heapq
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitshap.explaining.entries import HALF, Explained, printable

LISTED = 10
"""Images that are listed."""
FEWEST = 3
"""Fewest images of a class for which one of them can be unlike the others."""
CORNER = 0.2
"""Side of a corner as a share of the grid's."""
Map = NDArray[np.float32]


class ClassMaps(NamedTuple):
    """The images of one predicted class."""

    label: str
    images: int
    mean: NDArray[np.float64]
    """Mean map, ``[rows, columns]``."""
    border: float
    """Share of the positive values in the outermost patches ..."""
    corners: float
    """... and in the four corners."""


class Unlike(NamedTuple):
    """An image whose map is unlike the mean map of the other images of its class."""

    number: int
    name: str
    label: str
    correlation: float


class Disagreement(NamedTuple):
    """An image on which two models disagree."""

    name: str
    labels: tuple[str, str]
    """The class that each of them predicts; of one probability, on which side of 50 % it is."""
    correlation: float | None
    """Of their maps for the class that the second one predicts; None if one of them has no such map."""
    number: int = 0
    """Of the image in the report."""
    agree: bool = False
    """Whether the predictions can both be right; a probability below 50 % agrees with the prediction of another class."""

    @property
    def order(self) -> tuple[bool, float]:
        """Sorts the strongest disagreement first: another class, then the least similar map."""
        return self.agree, 2.0 if self.correlation is None else self.correlation


@dataclass(frozen=True)
class DataSetSummary:
    """What the maps of a run have in common."""

    images: int
    unit: str
    classes: list[ClassMaps]
    """Most images first."""
    unlike: list[Unlike]
    disagreements: list[Disagreement] | None
    """None if there is no earlier run to compare with; strongest first."""
    compared: int
    border_area: float
    """Share of the patches that are outermost ..."""
    corner_area: float
    """... and in the corners."""
    at_least_half: int | None = None
    """Of a model of one probability: images to which it gives 50 % or more; None for other models."""
    outputs: Literal["probability", "output"] = "probability"
    """What the model's outputs are; of other outputs than probabilities none is predicted, and the largest decides."""
    single: bool = False
    """Whether the model has a single output, so that all images belong together."""


class DataSet:
    """Collect the maps of a run, one image after another; ``summary`` at the end."""

    def __init__(self, folder: str | os.PathLike[str] | None = None, earlier: Mapping[str, Any] | None = None) -> None:
        """``folder`` holds the temporary file; ``earlier`` are the records of a run with another model, by file."""
        self._file: BinaryIO = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._names: BinaryIO = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._shape: tuple[int, int] | None = None
        self._unit = ""
        self._sums: dict[int, tuple[str, int, NDArray[np.float64], NDArray[np.float64]]] = {}
        self._at_least_half: int | None = None
        self._outputs: Literal["probability", "output"] = "probability"
        self._single = False
        self._earlier = earlier
        self._disagreements: list[Disagreement] = []
        self._compared = 0

    def add(self, entry: Explained, number: int) -> None:
        """Add one image, the ``number``-th of the report; it counts if its predicted class was explained."""
        index = entry.predicted(1)[0][0]
        if index not in entry.classes:
            return
        heat = np.nan_to_num(entry.explanation.heatmap(index)[0].numpy()).astype(np.float32)
        if self._shape is None:
            self._shape, self._unit = (heat.shape[0], heat.shape[1]), entry.explanation.unit
        if heat.shape != self._shape:
            return
        nothing = (entry.label(index), 0, np.zeros(heat.shape), np.zeros(heat.shape))
        label, count, total, positive = self._sums.get(index, nothing)
        self._sums[index] = (label, count + 1, total + heat.astype(np.float64), positive + heat.clip(min=0))
        self._outputs, self._single = entry.outputs, len(entry.explanation.prediction[0]) == 1
        if entry.one_probability:
            self._at_least_half = (self._at_least_half or 0) + entry.at_least_half
        self._file.write(np.array([index, number], dtype=np.int64).tobytes() + heat.tobytes())
        self._names.write(entry.name.encode("utf-8", "replace") + b"\n")
        if self._earlier is not None and str(entry.path) in self._earlier:
            self._compared += 1
            found = _disagreement(self._earlier[str(entry.path)], _map_of(entry, heat), number)
            self._disagreements = heapq.nsmallest(LISTED, [*self._disagreements, found], key=lambda one: one.order)

    @property
    def images(self) -> int:
        """Number of images that count."""
        return sum(count for _, count, _, _ in self._sums.values())

    def close(self) -> None:
        """Remove the temporary files."""
        self._file.close()
        self._names.close()

    def summary(self) -> DataSetSummary | None:
        """Return what the images have in common; None if there are fewer than two."""
        images = self.images
        if self._shape is None or images < 2:
            return None
        border, corners = border_mask(self._shape), corner_mask(self._shape)
        classes = [
            ClassMaps(label, count, total / count, _share(positive, border), _share(positive, corners))
            for label, count, total, positive in self._sums.values()
        ]
        return DataSetSummary(
            images=images,
            unit=self._unit,
            classes=sorted(classes, key=lambda one: -one.images),
            unlike=self._least_like_their_class(),
            disagreements=None if self._earlier is None else self._disagreements,
            compared=self._compared,
            border_area=float(border.mean()),
            corner_area=float(corners.mean()),
            at_least_half=self._at_least_half,
            outputs=self._outputs,
            single=self._single,
        )

    def _least_like_their_class(self) -> list[Unlike]:
        """Return the images of smallest correlation with the mean map of the other images of their class."""

        def compared() -> Iterator[tuple[float, int, int, int]]:
            for line, (index, number, heat) in enumerate(self._stored()):
                _, count, total, _ = self._sums[index]
                if count >= FEWEST:
                    yield map_correlation(heat, (total - heat) / (count - 1)), line, index, number

        found = heapq.nsmallest(LISTED, compared())
        wanted = {line for _, line, _, _ in found}
        self._names.seek(0)
        names = {line: name.decode().rstrip("\n") for line, name in enumerate(self._names) if line in wanted}
        return [Unlike(number, names[line], self._sums[index][0], r) for r, line, index, number in found]

    def _stored(self) -> Iterator[tuple[int, int, Map]]:
        """Yield class, number and map of every image."""
        assert self._shape is not None
        rows, columns = self._shape
        size = 16 + 4 * rows * columns
        self._file.seek(0)
        while len(record := self._file.read(size)) == size:
            index, number = np.frombuffer(record[:16], dtype=np.int64).tolist()
            yield index, number, np.frombuffer(record[16:], dtype=np.float32).reshape(rows, columns)


def border_mask(shape: tuple[int, int]) -> NDArray[np.bool_]:
    """Return which patches of a grid are outermost."""
    mask = np.ones(shape, dtype=bool)
    mask[1:-1, 1:-1] = False
    return mask


def corner_mask(shape: tuple[int, int]) -> NDArray[np.bool_]:
    """Return which patches of a grid lie in its four corners, each a fifth of the height and of the width."""
    down, across = (max(1, round(CORNER * side)) for side in shape)
    row, column = np.indices(shape)
    mask: NDArray[np.bool_] = ((row < down) | (row >= shape[0] - down)) & (
        (column < across) | (column >= shape[1] - across)
    )
    return mask


def map_correlation(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Return the correlation of two maps; 0 if one of them is constant."""
    a, b = (np.asarray(one, dtype=np.float64).ravel() for one in (first, second))
    a, b = a - a.mean(), b - b.mean()
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / size if size > 0 else 0.0


def read_run(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the JSON lines of a run (``vitshap explain --json``): what ``disagreements`` needs of each explained file."""
    found = {}
    with Path(path).expanduser().open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                record = json.loads(line)
                if "error" not in record:
                    found[record["file"]] = _map_of_record(record)
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise ValueError(f"{path}, line {number}: not written by vitshap explain --json") from error
    return found


def disagreements(
    first: str | os.PathLike[str], second: str | os.PathLike[str], *, k: int = LISTED
) -> list[Disagreement]:
    """Return the ``k`` images on which two runs disagree most, from the files of ``vitshap explain --json``.

    First those for which they predict different classes (or, of one probability, give different sides of 50 %; less than
    50 % of a class agrees with the prediction of another one); among these, and then among the others, the images whose
    maps have the smallest correlation.
    """
    one, other = read_run(first), read_run(second)
    found = [_disagreement(one[name], other[name], 0) for name in one if name in other]
    if not found:
        raise ValueError(f"{first} and {second} have no file in common")
    return heapq.nsmallest(k, found, key=lambda pair: pair.order)


class _Record(NamedTuple):
    """An image: what is said of its prediction, the class of that, and its maps by class."""

    name: str
    predicted: str
    at_least_half: bool | None
    """Of one probability whether it is 50 % or more; None for other models."""
    maps: Mapping[str, NDArray[Any]]

    @property
    def label(self) -> str:
        if self.at_least_half is None:
            return self.predicted
        return f"{'at or above' if self.at_least_half else 'below'} 50 % {self.predicted}"


def _map_of(entry: Explained, heat: Map) -> _Record:
    name = entry.label(entry.predicted(1)[0][0])
    return _Record(entry.name, name, entry.at_least_half if entry.one_probability else None, {name: heat})


def _map_of_record(record: Mapping[str, Any]) -> _Record:
    rows, columns = record["grid"]
    players = np.array(record.get("players", np.arange(rows * columns).reshape(rows, columns)))
    maps = {
        one["name"]: np.where(players >= 0, np.array(one["values"], dtype=np.float32)[players.clip(min=0)], 0)
        for one in record["explained"]
    }
    first, *others = record["predicted"]
    half = first.get("at_least_half")
    if half is None and not others and record["unit"] == "probability":  # written before there was this entry
        half = first["output"] >= HALF
    return _Record(printable(record["file"]), first["name"], half, maps)


def _disagreement(first: _Record, second: _Record, number: int) -> Disagreement:
    one, other = first.maps.get(second.predicted), second.maps.get(second.predicted)
    comparable = one is not None and other is not None and one.shape == other.shape
    correlation = map_correlation(one, other) if comparable and one is not None and other is not None else None
    denies = [record.at_least_half is False for record in (first, second)]
    agree = (first.predicted == second.predicted) == (denies[0] == denies[1])
    return Disagreement(second.name, (first.label, second.label), correlation, number, agree)


def _share(positive: NDArray[np.float64], mask: NDArray[np.bool_]) -> float:
    total = float(positive.sum())
    return float(positive[mask].sum()) / total if total > 0 else 0.0
