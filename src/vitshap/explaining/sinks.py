"""Results for other programs: a line of JSON per image, a Parquet table, heatmaps as files.

The report (``vitshap.explaining.report``) is a sink too; ``vitshap.explaining.terminal`` prints.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TextIO

import torch

from vitshap import plots
from vitshap.explaining import text
from vitshap.explaining.entries import Explained, Failed, Patch, patches
from vitshap.explanation import Explanation

PREDICTIONS = 5
COUNTING = "rows, columns, classes and players count from 0; rows and columns from the top left of the box"
MAPS = 20
"""Most maps drawn per image if its classes were not named one by one: a map takes 0.05 s or more."""
MARK = {"vitshap": "heatmap"}
"""Text in a PNG file that identifies it as a heatmap of ours."""
_MARK_BYTES, _MARK_WITHIN = b"tEXtvitshap\0heatmap", 2000
"""How the mark looks in the file, and within how many bytes it is."""
_NAME_BYTES = 90
"""Most bytes of the photo's and of the class's name in the name of a heatmap: file systems allow 255 in all."""


class Sink(Protocol):
    """Where results go."""

    def add(self, entry: Explained | Failed, /) -> None: ...


def with_drawn_classes(entry: Explained) -> Explained:
    """Return the entry for drawing: only the ``MAPS`` most probable classes if it has more."""
    if len(entry.classes) <= MAPS:
        return entry
    note = (
        f"maps are drawn for the {MAPS} most probable of {len(entry.classes):,} explained classes; the values of all are "
        "in --json and --parquet"
    )
    return replace(entry, explanation=entry.explanation.select(entry.classes[:MAPS]), notes=(*entry.notes, note))


def record(entry: Explained | Failed, *, k: int = 5) -> dict[str, Any]:
    """Return one image as plain data: predictions, and for each explained class all values and the ``k`` best patches."""
    if isinstance(entry, Failed):
        return {"file": str(entry.path), "error": entry.reason}
    e = entry.explanation
    explained, numbers = [], class_numbers(entry)
    for column, index in enumerate(entry.classes):
        one: dict[str, Any] = {"class": index, "name": entry.label(index), "output": float(e.prediction[0, index])}
        if e.base_values is not None and e.full_values is not None:
            one |= {"base": float(e.base_values[0, column]), "full": float(e.full_values[0, column])}
        one["patches"] = [_patch(patch) for patch in patches(entry, k, index)]
        explained.append(one | numbers[column])
    predicted: list[dict[str, Any]] = [
        {"class": c, "name": entry.label(c), "output": value} for c, value in entry.predicted(PREDICTIONS)
    ]
    if entry.one_probability:
        predicted[0]["at_least_half"] = entry.at_least_half
    found: dict[str, Any] = {"file": str(entry.path), "size": list(entry.size), "predicted": predicted}
    found |= {
        "explained": explained,
        "grid": list(e.grid),
        "counting": COUNTING,
        "box": list(entry.box),
        "unit": e.unit,
        "additive": e.additive,
    }
    if not _one_player_per_patch(e):
        found["players"] = e.players[0].tolist()
    if e.converged is not None:
        found["converged"] = bool(e.converged[0])
    if e.stderr is not None:
        found |= {"interval_level": plots.LEVEL, "stderr_from": entry.stderr_from}
    found |= {"method": e.method, "evaluations": e.evaluations, "seconds": e.seconds}
    return found | {"warnings": list(entry.warnings), "notes": [*entry.notes, *text.hints(entry)]}


def class_numbers(entry: Explained) -> list[dict[str, Any]]:
    """Return the values of each explained class; if there are standard errors, also these, intervals and reliability.

    An interval is two lists: lower ends and upper ends, of the level ``plots.LEVEL``.
    """
    e = entry.explanation
    found: list[dict[str, Any]] = [{"values": rounded(e.values[0, :, column])} for column in range(len(entry.classes))]
    if e.stderr is not None:
        ends = e.interval()
        for column, one in enumerate(found):
            one["stderr"] = rounded(e.stderr[0, :, column])
            one["interval"] = [rounded(end[0, :, column]) for end in ends]
            one["reliability"] = text.reliability(entry, entry.classes[column])
    return found


class JsonLines:
    """Write one line per image as soon as it is done; ``-`` is the standard output. Use it in a ``with`` statement.

    An existing file stays until an image is explained.
    """

    def __init__(self, target: str, *, k: int = 5, facts: Mapping[str, Any] | None = None) -> None:
        """``facts`` are added to the line of every explained image."""
        self._k, self._facts = k, dict(facts or {})
        self._path = None if target == "-" else Path(os.path.expanduser(target))
        self._file: TextIO | None = sys.stdout
        self._waiting: list[Failed] = []
        if self._path is not None:
            self._file, self._new = None, not self._path.exists()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.open("a").close()  # if it cannot be written, fail before anything is explained

    def add(self, entry: Explained | Failed) -> None:
        """Write a line."""
        if self._file is None and isinstance(entry, Failed):
            self._waiting.append(entry)
            return
        file = self._opened()
        facts = self._facts if isinstance(entry, Explained) else {}
        file.write(json.dumps({**record(entry, k=self._k), **facts}, allow_nan=False) + "\n")
        file.flush()

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """Close the file; if an error came before the first image was explained, nothing has changed."""
        if self._path is None:
            return
        if self._file is None and kind is None:
            self._opened()
        if self._file is not None:
            self._file.close()
        elif self._new:
            self._path.unlink(missing_ok=True)

    def _opened(self) -> TextIO:
        if self._file is None:
            assert self._path is not None
            self._file = self._path.open("w", encoding="utf-8")
            for entry in self._waiting:
                self._file.write(json.dumps(record(entry)) + "\n")
        return self._file


class ParquetRows:
    """Write a row per image and explained class, a row group per ``images`` images. Use it in a ``with`` statement.

    The file appears when it is complete; an existing one stays if an error comes before an image is explained.
    """

    def __init__(self, target: str, *, images: int = 64) -> None:
        self._arrow, self._parquet = load_pyarrow("--parquet needs")
        self._path = Path(os.path.expanduser(target))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = self._path.with_name(f".{uuid.uuid4().hex}.tmp")
        self._schema = parquet_schema(self._arrow)
        self._writer = self._parquet.ParquetWriter(self._temporary, self._schema)
        self._rows: list[dict[str, Any]] = []
        self._waiting, self._images, self._explained = 0, images, False

    def add(self, entry: Explained | Failed) -> None:
        """Add an image; every ``images`` of them are written."""
        self._explained |= isinstance(entry, Explained)
        self._rows += _rows(entry)
        self._waiting += 1
        if self._waiting == self._images:
            self._flush()

    def __enter__(self) -> ParquetRows:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """Write what is left and rename the file."""
        try:
            self._flush()
            self._writer.close()
            if self._explained or kind is None:
                os.replace(self._temporary, self._path)
        finally:
            self._temporary.unlink(missing_ok=True)

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
        self._rows, self._waiting = [], 0


class Heatmaps:
    """Draw ``PHOTO-CLASS.png`` for each explained class: the map over the whole photo, with a colour bar.

    In a ``with`` statement, heatmaps of an earlier run in the folder are removed once an image is explained, so that they
    are not taken for those of this run. Other files stay, and no heatmap takes their names.
    """

    def __init__(self, folder: Path, photos: Iterable[Path] = (), *, drawing: bool = True) -> None:
        """``photos`` in the folder itself are never overwritten; without ``drawing`` nothing is drawn."""
        self._folder, self._drawing, self._explained = folder, drawing, False
        home = folder.resolve()
        there = list(folder.glob("*.png")) if folder.is_dir() else []
        self._old = {path for path in there if _ours(path)}
        foreign = [path.name for path in there if path not in self._old]
        own = [path.name for path in photos if path.parent.resolve() == home]
        self._taken = {hash(name.lower()) for name in (*foreign, *own)}

    def add(self, entry: Explained | Failed) -> None:
        """Draw the maps of one image."""
        if isinstance(entry, Failed):
            return
        self._explained = True
        if not self._drawing:
            return
        shown, picture = replace(entry.explanation, image_box=torch.tensor([entry.picture_box])), entry.picture
        if entry.zoomed:  # on a whole panorama the map would be too small to read
            shown, picture = replace(shown, image_box=None), entry.seen_picture
        for index in entry.classes:
            path = self._folder / self._name(Path(entry.path).stem, entry.label(index))
            plots.save(shown.plot(picture, target=index), path, metadata=MARK)
            self._old.discard(path)

    def add_comparison(self, entry: Explained, others: Sequence[Explained]) -> Path:
        """Draw the entry's first class by several methods side by side, ``PHOTO-methods.png``; return the file."""
        index = entry.classes[0]
        every = [entry.explanation, *(other.explanation for other in others)]
        figure = plots.method_grid(
            [[one.heatmap(index)[0].numpy() if index in one.classes[0] else None for one in every]],
            [entry.picture],
            column_titles=[one.method for one in every],
            row_titles=[entry.label(index)],
            boxes=[entry.picture_box],
            units=[one.unit for one in every],
        )
        path = self._folder / self._name(Path(entry.path).stem, "methods")
        plots.save(figure, path, metadata=MARK)
        self._old.discard(path)
        return path

    def __enter__(self) -> Heatmaps:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """Remove the heatmaps of an earlier run, whose report has been replaced."""
        if self._explained and not isinstance(error, OSError):
            for path in self._old:
                path.unlink(missing_ok=True)

    def _name(self, stem: str, label: str) -> str:
        """Return a file name that no other map of this run has, not even on a system that ignores case."""
        stem, label = _slug(stem), _slug(label)
        name, count = f"{stem}-{label}.png", 1
        while hash(name.lower()) in self._taken:
            count += 1
            name = f"{stem}-{count}-{label}.png"
        self._taken.add(hash(name.lower()))
        return name


def _ours(path: Path) -> bool:
    """Return whether a PNG is a heatmap that an earlier run wrote."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return _MARK_BYTES in file.read(_MARK_WITHIN)
    except OSError:
        return False


def _slug(text: str) -> str:
    """Return the text with only characters that are safe in file names everywhere."""
    safe = re.sub(r"[^\w.+=-]+", "_", text).strip("._")
    return safe.encode()[:_NAME_BYTES].decode(errors="ignore") or "_"


def _patch(patch: Patch) -> dict[str, Any]:
    found = {"player": patch.player, "value": patch.value, "row": patch.row, "column": patch.column}
    error: dict[str, Any] = {} if patch.stderr is None else {"stderr": patch.stderr}
    error |= {} if patch.interval is None else {"interval": list(patch.interval)}
    return {**found, **error, "box": [round(edge, 1) for edge in patch.box], "place": patch.place}


def rounded(values: torch.Tensor) -> list[float]:
    """Return values with seven digits, the precision of float32."""
    return [float(f"{value:.7g}") for value in values.tolist()]


def _one_player_per_patch(explanation: Explanation) -> bool:
    labels = explanation.players[0].flatten()
    return bool(torch.equal(labels, torch.arange(len(labels))))


def load_pyarrow(who_needs: str) -> tuple[Any, Any]:
    """Return the modules ``pyarrow`` and ``pyarrow.parquet``; a ``ValueError`` says how to install them."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        text = f'{who_needs} pyarrow, which is not installed: pip install "vitshap[shards]"'
        raise ValueError(text) from error


def parquet_schema(arrow: Any) -> Any:
    """Return the columns of all Parquet files, with the module pyarrow."""
    numbers = arrow.list_(arrow.float32())
    return arrow.schema(
        [
            ("file", arrow.string()),
            ("error", arrow.string()),
            ("class", arrow.int32()),
            ("name", arrow.string()),
            ("output", arrow.float32()),
            ("base", arrow.float32()),
            ("full", arrow.float32()),
            ("values", numbers),
            ("stderr", numbers),
            ("interval", arrow.list_(numbers)),
            ("grid", arrow.list_(arrow.int32())),
            ("box", numbers),
            ("unit", arrow.string()),
            ("method", arrow.string()),
            ("warnings", arrow.list_(arrow.string())),
        ]
    )


def _rows(entry: Explained | Failed) -> list[dict[str, Any]]:
    if isinstance(entry, Failed):
        return [{"file": entry.name, "error": entry.reason}]
    found = record(entry, k=1)
    shared = {key: found[key] for key in ("grid", "box", "unit", "method", "warnings")} | {"file": entry.name}
    return [{**{key: one[key] for key in one if key != "patches"}, **shared} for one in found["explained"]]
