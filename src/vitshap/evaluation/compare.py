"""Compute a comparison: every method and metric on the same images, batch by batch.

For a batch of images every method explains once, and a metric with coalitions of its own evaluates them once, for all
methods. So memory holds one batch whatever the number of images, and what is finished of a batch is stored at once: a run
that was interrupted continues there. Several processes take turns in the batches and exchange what they found.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitshap.estimators.truth import Truth
from vitshap.evaluation.columns import Column, mean_over, per_image
from vitshap.evaluation.explanations import Explanations, constant_images, some_images
from vitshap.evaluation.gather import gathered
from vitshap.evaluation.result import RANDOM, TRUTH, Evaluation, Key, MetricInfo, RowInfo
from vitshap.evaluation.rows import Row
from vitshap.evaluation.selection import Part, Selection
from vitshap.evaluation.store import Store, digest
from vitshap.evaluation.supplied import Classes, Supplied
from vitshap.models import MaskedModel
from vitshap.training import processes
from vitshap.training.values.store import Evaluator

BATCHES = {"cpu": 16, "cuda": 64}
"""Images at a time."""
MOST_VALUES = 2**26
"""Most numbers of a batch, in memory at once: values of all explanations, or outputs that the methods share; 256 MiB."""
RESPONSES = 13_000
"""Outputs per image and class that methods share, at most: sensitivity-n with its default options."""
TIMED = {"cpu": 2, "cuda": 8}
"""Images on which a comparison is timed."""
SHARED = "evaluations that all methods share"


class StepTime(NamedTuple):
    """Expected seconds of one method with all metrics, or of what all methods share."""

    name: str
    explaining: float
    measuring: float

    @property
    def seconds(self) -> float:
        """Of both."""
        return self.explaining + self.measuring


@dataclass(eq=False)
class Comparison:
    """A comparison that is ready to be computed: ``estimate`` says how long it takes, ``run`` computes it."""

    surrogate: MaskedModel
    classifier: MaskedModel | None
    selection: Selection
    rows: list[Row]
    columns: list[Column]
    classes: Classes
    sampled: Tensor | None
    """The other classes of each image that are explained, int64 ``[N, n]``; None: all."""
    target: str
    truth: Truth | None
    truth_places: Tensor
    """Of each selected image in the reference values, -1 where there is none, int64 ``[N]``."""
    store: Store
    evaluate: Evaluator
    batch: int
    _game: dict[str, Any] = field(init=False)
    _supplied: Supplied = field(init=False)

    def __post_init__(self) -> None:
        """Describe the game once: its weights are hashed."""
        model = self.evaluate.model
        self._game = {
            "surrogate": self.evaluate.fingerprint(),
            "precision": str(self.evaluate.dtype),
            "removal": model.removal,
            "output": model.output,
        }
        self._supplied = Supplied(
            surrogate=self.surrogate,
            evaluate=self.evaluate,
            selection=self.selection,
            target=self.target,
            classes=self.classes,
            truth=self.truth,
            truth_places=self.truth_places,
        )

    def run(self, progress: Callable[[str, int, int], object] | None = None) -> Evaluation:
        """Compute what is not stored; ``progress(row, done, total)`` is called with numbers of images."""
        found: dict[Key, list[tuple[Tensor, dict[str, Tensor]]]] = {}
        done = 0
        for number, places in enumerate(self._batches()):
            if number % processes.count() == processes.rank():
                for key, rows, tensors in self._batch(places, progress, done):
                    found.setdefault(key, []).append((rows, tensors))
            done += len(places)
            for row in self.rows if progress is not None else ():
                progress(row.name, done, len(self.selection))  # type: ignore[misc]
        keys = [(row.name, column.name) for row in self.rows for column in self.columns]
        return self._result(gathered(found, keys, len(self.selection)))

    def estimate(self) -> list[StepTime]:
        """Time what is not stored on a few images; return what it takes for all images, by method.

        Empty if everything is stored.
        """
        if not (todo := self._todo()):
            return []
        few = torch.arange(min(TIMED[self.surrogate.device.type], len(self.selection)))
        part = self.selection.load(few)
        if self.surrogate.device.type == "cuda":
            self._times(part, few, todo)  # compiles
        scale = len(self.selection) / len(few) / processes.count()
        return [StepTime(name, scale * one, scale * two) for name, one, two in self._times(part, few, todo)]

    def _batches(self) -> list[Tensor]:
        return list(torch.arange(len(self.selection)).split(self.batch))  # type: ignore[no-untyped-call]

    def _pairs(self) -> Iterator[tuple[Row, Column]]:
        return ((row, column) for column in self.columns for row in self.rows)

    def _in_order(self) -> Iterator[tuple[Column, dict[str, Any]]]:
        """Yield the columns, those with the same coalitions one after the other, with a place for what they share."""
        before, shared = "", dict[str, Any]()
        for column in sorted(self.columns, key=lambda column: column.responses_key):
            if column.responses_key != before:
                before, shared = column.responses_key, {}
            yield column, shared

    def _todo(self) -> set[Key]:
        """Return the rows and columns of which something is not stored."""
        if self.store.folder is None:
            return {(row.name, column.name) for row, column in self._pairs()}
        return {
            (row.name, column.name)
            for places, part in ((places, self.selection.load(places)) for places in self._batches())
            for row, column in self._pairs()
            if len(self._rows_of(row, column, places))
            and self.store.load(self._describe(row, column, part, places)) is None
        }

    def _batch(
        self, places: Tensor, progress: Callable[[str, int, int], object] | None, done: int
    ) -> Iterator[tuple[Key, Tensor, dict[str, Tensor]]]:
        """Yield every row's and column's results on a batch, with the places of their images in the selection."""
        part = self.selection.load(places)
        explanations, checked = self._explanations(part, places, self.store), False
        for number, (column, shared) in enumerate(self._in_order()):
            for row in self.rows:
                rows = self._rows_of(row, column, places)
                if not len(rows):
                    continue
                about = self._describe(row, column, part, places)
                tensors = self.store.load(about)
                if tensors is None:
                    checked = checked or self._check_precision(part)
                    tensors = self._measure(row, column, explanations, places, rows, shared)
                    self.store.save(about, tensors)
                yield (row.name, column.name), places[rows], tensors
                if progress is not None:
                    progress(row.name, done + len(places) * (number + 1) // len(self.columns), len(self.selection))

    def _check_precision(self, part: Part) -> bool:
        """Evaluate a few coalitions: if float16 overflows, the surrogate is evaluated in bfloat16 from now on."""
        if part.pixels.device.type == "cuda":
            d = self.surrogate.num_players
            some = torch.arange(d, device=part.pixels.device) < torch.tensor([[0], [d // 2]], device=part.pixels.device)
            self.evaluate(part.pixels, some.expand(len(part.pixels), -1, -1))
        return True

    def _rows_of(self, row: Row, column: Column, places: Tensor) -> Tensor:
        """Return which images of a batch have a result: those with reference values, if it needs them."""
        if row.is_truth or "truth" in column.needs:
            return (self.truth_places[places] >= 0).nonzero()[:, 0]
        return torch.arange(len(places))

    def _explanations(self, part: Part, places: Tensor, store: Store) -> Explanations:
        return Explanations(
            self.surrogate,
            part,
            self.selection.targets[places],
            others=self._explains_others,
            sampled=None if self.sampled is None else self.sampled[places],
            describe=lambda row: self._describe_explanation(row, part, places),
            store=store,
            truth=None if self.truth is None else (self.truth, self.truth_places[places]),
        )

    def _measure(
        self,
        row: Row,
        column: Column,
        explanations: Explanations,
        places: Tensor,
        rows: Tensor,
        shared: dict[str, Any],
    ) -> dict[str, Tensor]:
        """Compute one metric of one row on some images of a batch; the mean over seeds, where there are several."""
        targets = self.selection.targets[places[rows]]
        model, pixels = self._supplied.evaluated(row, column, explanations.part, rows)
        results = []
        for explanation, method in explanations.of(row):
            some = some_images(explanation, rows)
            supplied = self._supplied.of(row, column, pixels, places[rows], some, method, shared)
            try:
                result = column(model, pixels, some, supplied)
            except ValueError as error:
                raise ValueError(f"{column.name}, {row.name}: {error}") from error
            kept = per_image(result, targets, others=self._explains_others(row))
            kept["image.constant"] = constant_images(some, targets).double()
            kept["shared.seconds"] = torch.tensor([explanation.seconds], dtype=torch.float64)
            kept["shared.evaluations"] = torch.tensor([float(explanation.evaluations)], dtype=torch.float64)
            results.append(kept)
        return mean_over(results)

    def _explains_others(self, row: Row) -> bool:
        """Whether classes other than the target are explained: a class-agnostic method has nothing to say about them, but
        random scores are what others are compared with."""
        several = self.surrogate.num_classes > 1
        return self.classes == "all" and several and (row.class_specific or row.is_random)

    def _describe(self, row: Row, column: Column, part: Part, places: Tensor) -> dict[str, Any] | None:
        """Return all that the values of a metric depend on; None if that is not known."""
        about = self._describe_explanation(row, part, places)
        if about is None:
            return None
        return {**about, "game": self._game, **column.identity, **self._supplied.describe(column, places)}

    def _explained(self, places: Tensor) -> str | list[list[int]]:
        return "all" if self.sampled is None else [[int(one) for one in row] for row in self.sampled[places]]

    def _describe_explanation(self, row: Row, part: Part, places: Tensor) -> dict[str, Any] | None:
        if row.identity is None:
            return None
        models = [self.surrogate] if self.classifier is None else [self.surrogate, self.classifier]
        images = [part.digests, self.selection.targets[places].tolist(), [repr(one.preprocess) for one in models]]
        return {
            "row": dict(row.identity),
            "classes": self._explained(places) if self._explains_others(row) else "target",
            "images": digest(images),
            "places": self.truth_places[places].tolist() if row.is_truth else None,
        }

    def _times(self, part: Part, places: Tensor, todo: set[Key]) -> list[tuple[str, float, float]]:
        """Return seconds of explaining and measuring for each row that has something to compute, and of what they share."""
        explanations = self._explanations(part, places, Store(None))
        times: dict[str, list[float]] = {}
        sharing = 0.0
        for column, shared in self._in_order():
            for row in self.rows:
                rows = self._rows_of(row, column, places)
                if (row.name, column.name) not in todo or not len(rows):
                    continue
                one = row if len(row.methods) < 2 else replace(row, methods=row.methods[:1])
                clock = [time.perf_counter()]
                explanation, method = next(iter(explanations.of(one)))
                clock.append(time.perf_counter())
                some = some_images(explanation, rows)
                pixels = self._supplied.evaluated(row, column, part, rows)[1]
                self._supplied.of(row, column, pixels, places[rows], some, method, shared)
                clock.append(time.perf_counter())
                self._measure(one, column, explanations, places, rows, shared)
                clock.append(time.perf_counter())
                spent = times.setdefault(row.name, [0.0, 0.0])
                spent[0] += clock[1] - clock[0]
                sharing += clock[2] - clock[1]
                spent[1] += (clock[3] - clock[2]) * max(len(row.methods), 1)
        found = [(name, explaining, measuring) for name, (explaining, measuring) in times.items()]
        needs_shared = any("responses" in column.needs for column in self.columns)
        return [*found, (SHARED, 0.0, sharing)] if needs_shared else found

    def _result(self, scores: Mapping[Key, Mapping[str, Tensor]]) -> Evaluation:
        higher = {name: bool(tensors["shared.higher_is_better"][0]) for (_, name), tensors in scores.items()}
        kinds = {row.name: RANDOM if row.is_random else TRUTH if row.is_truth else _kind(row) for row in self.rows}
        names = self.surrogate.class_names
        selection = self.selection
        return Evaluation(
            rows=tuple(RowInfo(row.name, kinds[row.name], row.runs_on, row.class_specific) for row in self.rows),
            metrics=tuple(MetricInfo(one.name, higher[one.name]) for one in self.columns if one.name in higher),
            images=selection.names,
            labels=selection.labels,
            targets=selection.targets,
            scores=scores,
            about={
                "surrogate": self._game["surrogate"],
                "classifier": None if self.classifier is None else self.classifier.fingerprint(),
                "target": self.target,
                "where": selection.where,
                "classes": self.classes,
                "unit": self.surrogate.unit,
                "class_names": None if names is None else list(names),
                "num_classes": self.surrogate.num_classes,
                "players": self.surrogate.num_players,
                "precision": str(self.evaluate.dtype).removeprefix("torch."),
                "device": device_name(self.surrogate.device),
                "note": selection.note,
            },
        )


def _kind(row: Row) -> str:
    return str(getattr(row.methods[0], "name", row.name))


def device_name(device: torch.device) -> str:
    """Return the name of a GPU, or CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
