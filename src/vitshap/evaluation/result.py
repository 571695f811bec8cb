"""The result of a comparison: a value per image for every method and metric, from which all tables and curves are drawn.

A value of random scores is the mean over seeds of one image, so that intervals reflect images alone. Differences between
two rows are taken image by image, where both are defined.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from vitshap.errors import did_you_mean
from vitshap.evaluation.marks import Mark, Measured, mark
from vitshap.experiments.tables import Column, Table
from vitshap.files import read_json, read_tensors, write_tensors, write_text
from vitshap.metrics.base import MetricResult
from vitshap.metrics.intervals import half_widths, interval_coverage, mean_interval

FORMAT = 1
RECORD, TENSORS = "evaluation.json", "evaluation.safetensors"
Key: TypeAlias = tuple[str, str]
"""Names of row and metric."""
Classes: TypeAlias = Literal["target", "others"]
"""The explained class of each image, or the mean over its other classes."""
RANDOM, TRUTH = "random", "truth"
SEPARATOR = "\x1f"
_MODELS = ("classifier", "surrogate")


class RowInfo(NamedTuple):
    """One row."""

    name: str
    kind: str
    """Name of the method; "random" and "truth" are no candidates for the best."""
    runs_on: str
    """ "classifier", "surrogate", or "itself" for an explainer or stored values."""
    class_specific: bool

    @property
    def competes(self) -> bool:
        """Whether it is a method that is compared, and not what others are compared with."""
        return self.kind not in (RANDOM, TRUTH)


class MetricInfo(NamedTuple):
    """One metric."""

    name: str
    higher_is_better: bool


class Cell(NamedTuple):
    """The value of one row in one column."""

    measured: Measured
    images: int
    """Images with a defined value."""
    undefined: int
    """Images without one: a correlation without variance, for example."""
    constant: int
    """Images that have the same value for every patch."""
    mark: Mark
    difference: Measured | None
    """Mean and interval of the differences, image by image, to the row that the column is compared with."""


class Heading(NamedTuple):
    """One column."""

    metric: str
    classes: Classes
    higher_is_better: bool
    against: str | None
    """Row that differences are taken to."""


@dataclass(frozen=True)
class Summary:
    """A table: headings, rows of cells (None: the row has no value there), and sentences below."""

    headings: tuple[Heading, ...]
    rows: tuple[tuple[RowInfo, tuple[Cell | None, ...]], ...]
    notes: tuple[str, ...]
    images: int


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Values of ``N`` images for every row and metric."""

    rows: tuple[RowInfo, ...]
    metrics: tuple[MetricInfo, ...]
    images: tuple[str, ...]
    """Names of the images."""
    labels: Tensor | None
    """Class of each image in the data, int64 ``[N]``."""
    targets: Tensor
    """Class that was explained, int64 ``[N]``."""
    scores: Mapping[Key, Mapping[str, Tensor]]
    """By row and metric: ``target`` and ``others``, float64 ``[N]``, NaN where undefined; curves, ``image.*`` ``[N, ...]``;
    what all images share, ``shared.*``."""
    about: Mapping[str, Any]

    def values(self, row: str, metric: str, classes: Classes = "target") -> Tensor | None:
        """Return the value of every image, float64 ``[N]``; None if the row has none."""
        self._known(row, metric)
        return self.scores.get((row, metric), {}).get(classes)

    def result(self, row: str, metric: str, classes: Classes = "target") -> MetricResult | None:
        """Return the same with mean, standard error and interval; images without reference values are left out."""
        values = self.values(row, metric, classes)
        return None if values is None else self._result(metric, values[self._measured(row, metric)])

    def coverage(self, *, images: int = 1000, repetitions: int = 2000) -> Table:
        """Measure how often the 95 % intervals contain the true mean, by resampling the measured images.

        One row per metric: the smallest and largest share over all methods, for samples of ``images`` images. An interval
        is honest where the share is near 0.95.
        """
        columns = (
            Column("metric"),
            Column("classes"),
            Column("lowest", ".3f"),
            Column("lowest_of", title="of"),
            Column("highest", ".3f"),
        )
        table = Table(f"coverage of 95 % intervals, samples of {images:,} images", columns)
        for metric in self.metrics:
            for classes in ("target", "others"):
                found: list[tuple[float, str]] = []
                for row in self.rows:
                    scores = self.values(row.name, metric.name, classes)
                    if scores is not None and int((~scores.isnan()).sum()) > 1:
                        share = interval_coverage(scores, images=images, repetitions=repetitions).share
                        found.append((share, row.name))
                if found:
                    (lowest, of), (highest, _) = min(found), max(found)
                    table.add(metric=metric.name, classes=classes, lowest=lowest, lowest_of=of, highest=highest)
        return table

    def difference(self, row: str, other: str, metric: str, classes: Classes = "target") -> Measured | None:
        """Return the mean difference of two rows, image by image where both are defined, with its 95 % interval.

        None for fewer than two such images.
        """
        mine, theirs = (self.values(one, metric, classes) for one in (row, other))
        if mine is None or theirs is None:
            return None
        found = (mine - theirs)[~(mine - theirs).isnan()]
        if len(found) < 2:
            return None
        return Measured(float(found.mean()), *mean_interval(found))

    def curve(self, row: str, metric: str, name: str, classes: Classes = "target") -> tuple[Tensor, Tensor] | None:
        """Return mean and half-width of the 95 % interval of every point of a curve, such as ``points`` or ``by_size``.

        Accuracies, the points of ``roar``, are proportions. The half-width is NaN where one image has the point.
        """
        kind = "image" if classes == "target" else classes
        points = self.scores.get((row, metric), {}).get(f"{kind}.{name}")
        if points is None:
            return None
        return points.nanmean(0), half_widths(points, binary=metric.partition(":")[0] == "roar")

    def shared(self, row: str, metric: str, name: str) -> Tensor | None:
        """Return what all images share, such as the ``sizes`` of subsets, or ``seconds`` per explained image."""
        return self.scores.get((row, metric), {}).get(f"shared.{name}")

    def table(self, *, against: str | None = None) -> Summary:
        """Return the table; differences are taken to the row ``against``: by default the first explainer, else the best."""
        if against is not None:
            self._known(against)
        parts: list[tuple[MetricInfo, Classes]] = [(metric, "target") for metric in self.metrics]
        parts += [(metric, "others") for metric in self.metrics if self._has_others(metric.name)]
        columns = [self._column(metric, classes, against) for metric, classes in parts]
        rows = tuple((row, tuple(cells[number] for _, cells in columns)) for number, row in enumerate(self.rows))
        headings = tuple(heading for heading, _ in columns)
        return Summary(headings, rows, tuple(self._notes(headings, rows)), len(self.images))

    def save(self, folder: str | Path, /) -> None:
        """Write everything into a folder; ``load`` reads it."""
        folder = Path(folder)
        tensors = {
            SEPARATOR.join((*key, name)): tensor for key, named in self.scores.items() for name, tensor in named.items()
        }
        tensors["targets"] = self.targets
        if self.labels is not None:
            tensors["labels"] = self.labels
        numbers = {name: f"{number:06d}" for number, name in enumerate(sorted(tensors))}
        write_tensors(folder / TENSORS, {numbers[name]: tensor for name, tensor in tensors.items()})
        record = {
            "format": FORMAT,
            "rows": [row._asdict() for row in self.rows],
            "metrics": [metric._asdict() for metric in self.metrics],
            "images": list(self.images),
            "about": dict(self.about),
            "tensors": {number: name.split(SEPARATOR) for name, number in numbers.items()},
        }
        write_text(folder / RECORD, json.dumps(record, indent=1) + "\n")

    @classmethod
    def load(cls, folder: str | Path, /) -> Evaluation:
        """Read what ``save`` wrote."""
        folder = Path(folder)
        record = read_json(folder / RECORD)
        if record.get("format") != FORMAT:
            raise ValueError(f"{folder / RECORD} has format {record.get('format')}, this version reads {FORMAT}")
        stored = read_tensors(folder / TENSORS)
        scores: dict[Key, dict[str, Tensor]] = {}
        single: dict[str, Tensor] = {}
        for number, name in record["tensors"].items():
            if number not in stored:
                raise ValueError(f"{folder / TENSORS} does not belong to {RECORD}: it has no tensor {number}")
            if len(name) == 1:
                single[name[0]] = stored[number]
            else:
                scores.setdefault((name[0], name[1]), {})[name[2]] = stored[number]
        return cls(
            rows=tuple(RowInfo(**row) for row in record["rows"]),
            metrics=tuple(MetricInfo(**metric) for metric in record["metrics"]),
            images=tuple(record["images"]),
            labels=single.get("labels"),
            targets=single["targets"],
            scores=scores,
            about=record["about"],
        )

    def _column(self, metric: MetricInfo, classes: Classes, against: str | None) -> tuple[Heading, list[Cell | None]]:
        results = {row.name: self.result(row.name, metric.name, classes) for row in self.rows}
        measured = {name: _measured(result) for name, result in results.items()}
        random = next((measured[row.name] for row in self.rows if row.kind == RANDOM), None)
        competing = [row.name for row in self.rows if row.competes]
        found = mark([measured[name] for name in competing], random, higher_is_better=metric.higher_is_better)
        marks = dict(zip(competing, found, strict=True))
        other = against or self._reference(measured, metric.higher_is_better)
        cells: list[Cell | None] = []
        for row in self.rows:
            value, result = measured[row.name], results[row.name]
            if value is None or result is None:
                cells.append(None)
                continue
            paired = None if other in (None, row.name) else self.difference(row.name, other or "", metric.name, classes)
            constant = self.scores[row.name, metric.name].get("image.constant", torch.zeros(0))
            cells.append(
                Cell(
                    measured=value,
                    images=len(result.values) - result.undefined,
                    undefined=result.undefined,
                    constant=int((constant == 1).sum()),
                    mark=marks.get(row.name, Mark()),
                    difference=paired,
                )
            )
        return Heading(metric.name, classes, metric.higher_is_better, other), cells

    def _reference(self, measured: Mapping[str, Measured | None], higher_is_better: bool) -> str | None:
        """Return the row that others are compared with: the first explainer, or the best row."""
        for row in self.rows:
            if row.kind == "explainer" and measured[row.name] is not None:
                return row.name
        known = {row.name: one.mean for row in self.rows if row.competes and (one := measured[row.name]) is not None}
        return (max if higher_is_better else min)(known, key=lambda name: known[name], default=None)

    def _measured(self, row: str, metric: str) -> Tensor:
        """Return which images were measured, bool ``[N]``: without reference values some have no result at all."""
        constant = self.scores[row, metric].get("image.constant")
        return torch.ones(len(self.images), dtype=torch.bool) if constant is None else ~constant.isnan()

    def _result(self, metric: str, values: Tensor) -> MetricResult:
        info = next(one for one in self.metrics if one.name == metric)
        classes = torch.zeros(len(values), 1, dtype=torch.long)
        return MetricResult(
            metric=metric.partition(":")[0],
            values=values[:, None],
            classes=classes,
            higher_is_better=info.higher_is_better,
        )

    def _has_others(self, metric: str) -> bool:
        """Whether a row has a value for other classes: some metrics measure an image's own class only."""
        found = (self.values(row.name, metric, "others") for row in self.rows)
        return any(values is not None and not bool(values.isnan().all()) for values in found)

    def _known(self, row: str, metric: str | None = None) -> None:
        rows, metrics = [one.name for one in self.rows], [one.name for one in self.metrics]
        if row not in rows:
            raise ValueError(f'no row is named "{row}"{did_you_mean(row, rows)}')
        if metric is not None and metric not in metrics:
            raise ValueError(f'no metric of this evaluation is named "{metric}"{did_you_mean(metric, metrics)}')

    def _notes(self, headings: Sequence[Heading], rows: Sequence[tuple[RowInfo, Sequence[Cell | None]]]) -> list[str]:
        notes = [str(self.about["note"])] if self.about.get("note") else []
        on = {model: [row.name for row in self.rows if row.runs_on == model and row.competes] for model in _MODELS}
        if on["classifier"] and on["surrogate"]:
            notes.append(f"{', '.join(on['surrogate'])}: of the surrogate; other methods explain the classifier.")
        elif on["classifier"]:
            notes.append(
                "Methods other than the explainer explain the classifier; metrics are measured with the surrogate."
            )
        elif on["surrogate"] and self.about.get("classifier") is None:
            notes.append(
                "No classifier was given: methods other than the explainer explain the surrogate."
                if any(row.runs_on == "itself" and row.competes for row in self.rows)
                else "All methods explain the model that the metrics are measured with."
            )
        for heading in headings:
            notes += self._undefined_notes(heading)
        for row, cells in rows:
            constant = max((cell.constant for cell in cells if cell is not None), default=0)
            if constant:
                notes.append(
                    f"{row.name}: the same value for every patch of {constant:,} images; their order is random."
                )
        same = [row.name for row in self.rows if not row.class_specific and row.competes]
        if same and any(heading.classes == "others" for heading in headings):
            notes.append(f"A dash for other classes, {', '.join(same)}: the same values for every class.")
        return notes

    def _undefined_notes(self, heading: Heading) -> Iterator[str]:
        """Yield how many images have no value in a column, by row; one sentence where no row has any."""
        results = {row.name: self.result(row.name, heading.metric, heading.classes) for row in self.rows}
        known = {name: one for name, one in results.items() if one is not None and len(one.values)}
        if known and all(one.undefined == len(one.values) for one in known.values()):
            yield f"{_place(heading)}: undefined for all images, whatever the method."
            return
        for name, one in known.items():
            if one.undefined:
                left_out = f"undefined for {one.undefined:,} of {len(one.values):,} images, which are left out."
                yield f"{_place(heading)}, {name}: {left_out}"


def _place(heading: Heading) -> str:
    return heading.metric + (", other classes" if heading.classes == "others" else "")


def _measured(result: MetricResult | None) -> Measured | None:
    if result is None or result.undefined == len(result.values):
        return None
    return Measured(result.mean, *result.interval())
