"""Batches of images to columns of values, for data frameworks: a dict of arrays in, a dict of arrays out.

``BatchExplainer`` fits ``map_batches`` of Ray Data, partitions of Dask and ``datasets.map``; shards
(``vitshap.explaining.shards``) are explained with it too. An instance holds settings alone, so that it is pickled in a few
bytes; the net is loaded where the instance is first called, once per process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitshap.explainers import Explainer
from vitshap.explaining.entries import Failed, class_label
from vitshap.explaining.photos import InMemory, Photo
from vitshap.explaining.source import Source, open_source
from vitshap.explaining.stream import (
    DEFAULT_TARGET,
    Prepared,
    explain_batch,
    explain_or_fail,
    model_batch,
    prepare_photo,
    prepared_batches,
)
from vitshap.game import ClassLike
from vitshap.methods import SamplingMethod
from vitshap.models.base import resolve_device
from vitshap.players import resolve

Columns: TypeAlias = dict[str, NDArray[Any]]
IMAGES_AT_A_TIME = {"cpu": 16, "cuda": 64}
"""By kind of device, for methods that do not sample; those that do take one."""
NO_CLASS = -1
"""The class in the row of an image that could not be explained."""
_ONE_AT_A_TIME = threading.RLock()
"""Loading and explaining: methods replace functions of the net while they run, so that threads must not share it."""


@dataclass(frozen=True)
class BatchExplainer:
    """Explain batches of images: call it with a dict of arrays, and it returns one.

    The batch has the images in the column ``image`` (the content of a file, a path, ``{"bytes": ..., "path": ...}``, a PIL
    image, or an array uint8 ``[H, W, 3]``) and their names in the column ``id``. The result has a row per image and
    explained class, in the order of the images, with the columns of ``vitshap explain --parquet``. An image that cannot
    be explained has one row with the reason as ``error``, the class -1 and values that are NaN.
    """

    bundle: str | None = None
    """Stored explainer: shipped name, folder, or hub id; default: the first one shipped."""
    model: str | None = None
    """Explain this model instead: timm name, or hub id or folder of transformers."""
    weights: str | None = None
    method: str | None = None
    budget: int | None = None
    """Evaluations per image; required for methods that sample, so that all machines use the same."""
    accuracy: float | None = None
    players: int | None = None
    target: ClassLike | Sequence[ClassLike] = DEFAULT_TARGET
    """Class name or number, "predicted", "top-K" or "all", or several of these."""
    batch: int | None = None
    """Images at a time; default: 16 on a CPU, 64 on a GPU, and 1 for methods that sample."""
    device: str = "auto"
    threads: int | None = None
    """Threads that decode; default: one per core, at most 8."""
    image: str = "image"
    id: str | None = "id"
    """Column with the images' names; None: the paths of the images, if they are known."""

    def __post_init__(self) -> None:
        """Make folders absolute: other processes may run elsewhere."""
        for name in ("bundle", "model", "weights"):
            given = getattr(self, name)
            if given is not None and (here := Path(os.path.expanduser(given))).exists():
                object.__setattr__(self, name, str(here.resolve()))
        if isinstance(self.target, list):  # settings are compared and hashed
            object.__setattr__(self, "target", tuple(self.target))

    def __call__(self, batch: Mapping[str, Sequence[Any] | NDArray[Any]], /) -> Columns:
        """Explain one batch."""
        parts = list(self.stream(self._photos(batch)))
        if not parts:
            return self._columns([])
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def stream(self, photos: Iterable[Photo | Failed], /) -> Iterator[Columns]:
        """Explain any number of photos, with threads that decode ahead; yield the columns of a batch at a time."""
        source = self.source
        prepare = partial(prepare_photo, model=source.model, picture=False)
        for entries in prepared_batches(photos, prepare, batch=self.images_at_a_time, threads=self.threads):
            ready = [entry for entry in entries if isinstance(entry, Prepared)]
            with _ONE_AT_A_TIME:
                done = iter(explain_or_fail(ready, self._explain, self._loaded.explained_any))
            found = [entry if isinstance(entry, Failed) else next(done) for entry in entries]
            self._loaded.explained_any |= any(isinstance(one, _Rows) for one in found)
            yield self._columns(found)

    @property
    def source(self) -> Source:
        """What explains: loaded once per process, however many instances have these settings."""
        return self._loaded.source

    @property
    def _loaded(self) -> _Loaded:
        sampling = (self.budget, self.accuracy, self.players)
        key = (self.bundle, self.model, self.weights, self.method, *sampling, self.device)
        with _ONE_AT_A_TIME:
            if key not in _LOADED:
                _LOADED.clear()  # one net at a time: it may fill the device
                source = self._open()
                model = source.model
                players = resolve(self.players or model.players, model.grid).num_players
                labels = [class_label(model.class_names, index) for index in range(model.num_classes)]
                calibrated = isinstance(source.method, Explainer) and source.method.calibration is not None
                has_stderr = calibrated or isinstance(source.method, SamplingMethod)
                _LOADED[key] = _Loaded(source, players, labels, has_stderr)
            return _LOADED[key]

    @property
    def images_at_a_time(self) -> int:
        """The number of images that the model sees at once."""
        source = self.source
        return self.batch or (1 if source.method.samples else IMAGES_AT_A_TIME[source.model.device.type])

    def _open(self) -> Source:
        source = open_source(
            self.bundle,
            self.model,
            weights=self.weights,
            method_name=self.method,
            budget=self.budget,
            players=self.players,
            accuracy=self.accuracy,
            device=resolve_device(self.device),
        )
        if source.method.samples and self.budget is None:
            raise ValueError(
                f"the method {source.method.name} needs a budget here, for example 4096: evaluations per image, the same "
                "in all processes and on all machines"
            )
        return source

    def _photos(self, batch: Mapping[str, Any]) -> list[Photo | Failed]:
        for column in (self.image, self.id):
            if column is not None and column not in batch:
                known = ", ".join(map(str, batch))
                raise ValueError(f"the batch has no column {column!r}, only {known}: name it with image= or id=")
        names = [None] * len(batch[self.image]) if self.id is None else batch[self.id]
        return [as_photo(image, name) for image, name in zip(batch[self.image], names, strict=True)]

    def _explain(self, photos: Sequence[Prepared]) -> list[_Rows]:
        """Return the rows of each photo."""
        source = self.source
        found = explain_batch(photos, source, self.target, model_batch(photos, source))
        classes, boxes = found.classes.cpu().numpy(), found.image_box
        outputs = np.take_along_axis(_array(found.prediction), classes, 1)
        nothing = np.full(classes.shape, np.nan, np.float32)
        base, full = (nothing if one is None else _array(one) for one in (found.base_values, found.full_values))
        values = _array(found.values).swapaxes(1, 2)  # [B, T, d]
        stderr = None if found.stderr is None else _array(found.stderr).swapaxes(1, 2)
        rows = []
        for i, photo in enumerate(photos):
            once = np.sort(np.unique(classes[i], return_index=True)[1])  # each class once, in the order of the target
            errors = None if stderr is None else stderr[i][once]
            box = (0.0, 0.0, *map(float, photo.size)) if boxes is None else tuple(boxes[i].tolist())
            warning = source.low_confidence(found.prediction[i])
            row = (classes[i][once], outputs[i][once], base[i][once], full[i][once], values[i][once], errors)
            rows.append(_Rows(str(photo.path), *row, box, found.unit, [] if warning is None else [warning]))
        return rows

    def _columns(self, found: Sequence[_Rows | Failed]) -> Columns:
        """Join the rows of images, and of those that could not be explained."""
        model, method, players = self.source.model, self.source.method, self._loaded.players
        images = [_rows_of_failed(one, players) if isinstance(one, Failed) else one for one in found]
        counts = [len(one.classes) for one in images]
        reasons = [one.reason if isinstance(one, Failed) else None for one in found]
        classes, labels = _joined([one.classes for one in images], (0,), np.int32), self._loaded.labels
        columns = {
            "file": _repeated([one.name for one in images], counts),
            "error": _repeated(reasons, counts),
            "class": classes,
            "name": _objects([None if one == NO_CLASS else labels[one] for one in classes.tolist()]),
            "output": _joined([one.output for one in images], (0,)),
            "base": _joined([one.base for one in images], (0,)),
            "full": _joined([one.full for one in images], (0,)),
            "values": _joined([one.values for one in images], (0, players)),
        }
        if self._loaded.has_stderr:
            errors = [np.full_like(one.values, np.nan) if one.stderr is None else one.stderr for one in images]
            columns["stderr"] = _joined(errors, (0, players))
        return columns | {
            "grid": np.tile(np.array(model.grid, np.int32), (len(classes), 1)),
            "box": np.repeat(np.array([one.box for one in images], np.float32).reshape(-1, 4), counts, axis=0),
            "unit": _repeated([one.unit for one in images], counts),
            "method": _objects([method.name] * len(classes)),
            "warnings": _repeated([one.warnings for one in images], counts),
        }


@dataclass
class _Loaded:
    """What a process has loaded, and what is the same for every batch."""

    source: Source
    players: int
    labels: list[str]
    has_stderr: bool
    explained_any: bool = False


_LOADED: dict[tuple[object, ...], _Loaded] = {}


class _Rows(NamedTuple):
    """The rows of one image: arrays over its explained classes."""

    name: str
    classes: NDArray[Any]
    output: NDArray[Any]
    base: NDArray[Any]
    full: NDArray[Any]
    values: NDArray[Any]
    stderr: NDArray[Any] | None
    box: tuple[float, ...]
    unit: str | None
    warnings: list[str]


def as_photo(image: Any, name: Any = None, /) -> Photo | Failed:
    """Return an image of a data set (see ``BatchExplainer``) as a photo of this name, or why it is none."""
    path = None
    if isinstance(image, Mapping):
        path = image.get("path")
        image = path if image.get("bytes") is None else image["bytes"]
    called = as_text(name if name is not None else path or (image if isinstance(image, str | os.PathLike) else ""))
    if image is None:
        return Failed(called, "there is no image")
    if isinstance(image, str | os.PathLike):
        try:
            image = Path(image).expanduser().read_bytes()
        except OSError as error:
            return Failed(called, f"its file cannot be read ({error.strerror})")
    if isinstance(image, bytes | Image.Image | np.ndarray):
        return InMemory(image, called)
    return Failed(called, f"it is not an image but of type {type(image).__name__}")


def as_text(name: Any, /) -> str:
    """Return a name as text that any table can hold: what is not UTF-8 becomes an escape, ``\\xff`` or ``\\udcff``."""
    if isinstance(name, bytes):
        return name.decode("utf-8", "backslashreplace")
    return str(name).encode("utf-8", "backslashreplace").decode()


def _rows_of_failed(entry: Failed, players: int) -> _Rows:
    number, nan = np.array([NO_CLASS], np.int32), np.full(1, np.nan, np.float32)
    values = np.full((1, players), np.nan, np.float32)
    return _Rows(str(entry.path), number, nan, nan, nan, values, None, (np.nan,) * 4, None, [])


def _joined(parts: Sequence[NDArray[Any]], empty: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.empty(empty, dtype)


def _repeated(values: Sequence[Any], counts: Sequence[int]) -> NDArray[Any]:
    return _objects([value for value, count in zip(values, counts, strict=True) for _ in range(count)])


def _array(tensor: Tensor) -> NDArray[Any]:
    found: NDArray[Any] = tensor.float().cpu().numpy()
    return found


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    """Return an array of Python objects; lists stay lists."""
    return np.fromiter(values, dtype=object, count=len(values))
