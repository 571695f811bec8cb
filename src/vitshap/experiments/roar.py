"""ROAR with retraining: how well a classifier learns from images in which only, or all but, the important patches are left.

Every image of the training, validation and test split is explained for its true class in its test-time view, without
augmentation. For every number of patches and direction the chosen pixels are set to zero in the normalised input, a
classifier is trained on these images from given weights, and its accuracy on the whole test split is recorded. Without
positional embeddings the shape of the mask itself tells the classifier less about the class.

Orders of patches and finished results are files in one folder: an interrupted run continues after the last of them. A
training that was interrupted continues from its last checkpoint. A folder belongs to one explanation, model and data set.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch
from rich.console import Console
from torch import Tensor, nn

from vitshap.data import Batch, CachedPixels, PixelSource, StreamedPixels, centre, normalised
from vitshap.experiments.tables import Cell, Column, Table
from vitshap.explainers import Explainer
from vitshap.explanation import Explanation
from vitshap.files import locked_folder, read_json, read_tensors, write_tensors, write_text
from vitshap.metrics import mean_interval, roar_counts
from vitshap.metrics.orders import player_counts, player_ranks
from vitshap.metrics.roar import reversed_where
from vitshap.models import MaskedModel
from vitshap.models.base import evaluating, fingerprint
from vitshap.models.packed import Rows
from vitshap.models.removal import PixelsSession
from vitshap.training.batches import Images, chunks
from vitshap.training.configs import ClassifierTraining
from vitshap.training.fit import fit_classifier

Direction: TypeAlias = Literal["insertion", "deletion"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
SPLITS = ("train", "val", "test")
PART = 1024
"""Images whose orders are stored in one file."""
HASHED = 256
"""Images that are hashed at a time."""
POSITIONS = re.compile(r"(^|\.)(pos_embed|pos_embedding|position_embeddings?|positional_embedding)(\.weight)?$")
OTHER_POSITIONS = re.compile(r"rope|rotary|relative_position|rel_pos", re.IGNORECASE)
SETTINGS = "settings.json"


@dataclass(frozen=True)
class Retrained:
    """The result of one training."""

    direction: Direction
    count: int
    """Patches that are shown (insertion) or set to zero (deletion)."""
    correct: tuple[int, ...]
    """Whether each test image is predicted rightly, 0 or 1, in the order of the test split."""

    @property
    def accuracy(self) -> float:
        """Share of the test images that are predicted rightly."""
        return sum(self.correct) / len(self.correct)


def retrain(
    model: MaskedModel,
    splits: Sequence[Any],
    explain: Callable[..., Explanation],
    folder: str | Path,
    /,
    *,
    config: ClassifierTraining | None = None,
    counts: Sequence[int] | None = None,
    directions: Sequence[Direction] = DIRECTIONS,
    positions: bool = True,
    batch: int = 32,
    console: Console | None = None,
) -> list[Retrained]:
    """Retrain copies of ``model`` on masked images for every count and direction; continue what ``folder`` holds.

    ``splits``: training, validation and test data of (image, label). ``explain``: a method made for the explained model,
    called with pixels as ``model`` takes them. ``config``: its augmentation is not used, since masks belong to the
    test-time view. ``counts``: default as for ``vitshap.metrics.roar``. ``positions=False``: without positional embeddings.

    A ``ValueError`` if ``folder`` holds results of another method, model or data set; all images are read to know this. A
    function that is no method is known by its name alone.
    """
    if model.output == "identity" or (model.output == "sigmoid" and model.num_classes > 1):
        kind = "a regression" if model.output == "identity" else "several labels per image"
        raise ValueError(f"masked retraining explains the true class of each image: it cannot be used with {kind}")
    config = replace(config or ClassifierTraining(), augmentation=None)
    start = model if positions else without_positions(model)
    numbers = tuple(roar_counts(model.num_players)) if counts is None else tuple(sorted(set(counts)))
    if not numbers or not 1 <= numbers[0] <= numbers[-1] <= model.num_players:
        raise ValueError(f"counts of {model.num_players} players are 1 to {model.num_players}, got {list(numbers)}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with locked_folder(folder):
        sources = [Images(model, data, None, seed=0) for data in splits]
        _start(folder, start, sources, explain, config, positions)
        orders = [
            _orders(folder, name, images, model, explain, batch) for name, images in zip(SPLITS, sources, strict=True)
        ]
        found = []
        for direction in directions:
            for count in numbers:
                masked = [
                    masked_source(images, model, order, count, direction)
                    for images, order in zip(sources, orders, strict=True)
                ]
                found.append(_one(folder, start, masked, direction, count, config, console))
    return found


def results_table(title: str, results: Iterable[Retrained]) -> Table:
    """Arrange results in a table: accuracy with its 95 % interval by direction and count."""
    columns = (Column("direction"), Column("patches", "d"), Column("accuracy", ".4f"), Column("images", ",.0f"))
    table = Table(title, columns, notes=["accuracy on the test split with its 95 % interval (Wilson)"])
    for one in results:
        interval = mean_interval(torch.tensor(one.correct, dtype=torch.float64), binary=True)
        table.add(
            direction=one.direction,
            patches=one.count,
            accuracy=Cell(one.accuracy, interval=interval),
            images=len(one.correct),
        )
    return table


def without_positions(model: MaskedModel) -> MaskedModel:
    """Return a copy whose absolute positional embeddings are zero and frozen; a network with others is refused."""
    made = copy.deepcopy(model)
    names = [name for name, _ in (*made.net.named_modules(), *made.net.named_parameters(), *made.net.named_buffers())]
    other = next((name for name in names if OTHER_POSITIONS.search(name)), None)
    found = [parameter for name, parameter in made.net.named_parameters() if POSITIONS.search(name)]
    if made.adapter.has_bias or other is not None or not found:
        why = f"it has {other}" if other else "its attention has a bias" if made.adapter.has_bias else "none was found"
        raise ValueError(f"{type(made.net).__name__}: only absolute positional embeddings can be removed, but {why}")
    for parameter in found:
        with torch.no_grad():
            parameter.zero_()
        parameter.requires_grad_(False)
    return made


class _Masked:
    """Mixin of a pixel source: hides pixels of every batch."""

    hide: Callable[[Batch], Tensor]

    def batches(self, order: Iterable[Tensor], *, fill: bool = False) -> Iterator[Batch]:
        for batch in super().batches(order, fill=fill):  # type: ignore[misc]
            yield batch._replace(pixels=self.hide(batch))


class _MaskedCache(_Masked, CachedPixels):
    pass


class _MaskedStream(_Masked, StreamedPixels):
    pass


def masked_source(
    images: Images, model: MaskedModel, order: Tensor, count: int, direction: Direction, /
) -> PixelSource:
    """Return the images' source with pixels hidden: they are zero after normalisation.

    ``order``: the rank of every player by sample index, ``[n, d]``. Insertion shows the first ``count`` players only,
    deletion all others only.
    """
    mean = torch.tensor(images.mean, device=model.device).view(1, -1, 1, 1)
    order = order.to(model.device)  # here, because to look it up on the CPU every batch would wait for a GPU

    def hide(batch: Batch) -> Tensor:
        ranks = order[batch.indices.to(order.device)].to(batch.pixels.device)
        kept = ranks < count if direction == "insertion" else ranks >= count
        seen = centre(batch.pixels, images.size) if images.size else batch.pixels
        unit = normalised(seen, (0.0,) * mean.shape[1], (1.0,) * mean.shape[1])  # float in 0..1
        number = torch.arange(len(unit), device=unit.device)
        rows = Rows(model.players.keep_tokens(kept, number), number)
        return PixelsSession(model.adapter, unit).replaced(rows, mean.to(unit))

    source = images.source
    made: _MaskedCache | _MaskedStream
    if isinstance(source, CachedPixels):
        made = _MaskedCache(source.pixels, source.labels, source.kept, total=source.total, rows=source.rows)
    else:
        made = _MaskedStream(
            source.data,
            source.preprocess,
            device=source.device,
            workers=source.workers,
            unreadable=source.unreadable,
        )
    made.hide = hide
    return made


def _orders(
    folder: Path, name: str, images: Images, model: MaskedModel, explain: Callable[..., Explanation], batch: int
) -> Tensor:
    """Return the rank of every player for the true class by sample index, int32 ``[n, d]``; read or computed by part."""
    order = torch.zeros(images.source.total, model.num_players, dtype=torch.int32)
    for start in range(0, len(images), PART):
        path = folder / f"orders-{name}-{start:07d}.safetensors"
        if not path.exists():
            size = min(PART, len(images) - start)
            views = images.views((start + part for part in chunks(size, batch)), 0)
            found = [(one.indices.cpu(), true_class_ranks(model, explain, pixels, one.labels)) for pixels, one in views]
            write_tensors(
                path, {"indices": torch.cat([i for i, _ in found]), "ranks": torch.cat([r for _, r in found])}
            )
        part = read_tensors(path)
        order[part["indices"]] = part["ranks"]
    return order


def true_class_ranks(model: MaskedModel, explain: Callable[..., Explanation], pixels: Tensor, labels: Tensor) -> Tensor:
    """Return the players' ranks by the value of the true class, int32 ``[B, d]``; for one logit reversed for label 0."""
    one_logit = model.num_classes == 1
    target = torch.zeros_like(labels, dtype=torch.int64) if one_logit else labels.long()
    explanation = explain(pixels, target=target.flatten())
    if explanation.values.shape[1] != model.num_players:
        given = explanation.values.shape[1]
        raise ValueError(f"the explanations have {given} players, the model to retrain {model.num_players}")
    ranks = player_ranks(explanation, pixels, seed=0)[..., :1]
    if one_logit:
        ranks = reversed_where(ranks, labels.view(-1, 1) == 0, player_counts(explanation))
    return ranks[..., 0].cpu()


def _one(
    folder: Path,
    start: MaskedModel,
    masked: Sequence[PixelSource],
    direction: Direction,
    count: int,
    config: ClassifierTraining,
    console: Console | None,
) -> Retrained:
    """Return one stored result, or train and store it."""
    path = folder / f"{direction}-{count}.json"
    if path.exists():
        stored = read_json(path)
        return Retrained(direction, count, tuple(stored["correct"]))
    training = folder / f"{direction}-{count}"
    trained = fit_classifier(start, masked[0], masked[1], training, config, resume=True, console=console)
    found = Retrained(direction, count, tuple(_correct(trained, masked[2], config.validation_batch_size)))
    write_text(path, json.dumps({**asdict(found), "accuracy": found.accuracy}) + "\n")
    shutil.rmtree(training)  # its weights are as large as the network, for every result
    return found


def _correct(model: MaskedModel, source: PixelSource, batch: int) -> list[int]:
    right: list[int] = []
    with torch.no_grad(), evaluating(model.net):
        for pixels, one in Images(model, source, None, seed=0).in_order(batch):
            logits = model.logits(pixels)
            predicted = (logits[:, 0] > 0).long() if model.num_classes == 1 else logits.argmax(1)
            right += (predicted == one.labels.flatten().long()).int().tolist()
    return right


def _start(
    folder: Path,
    model: MaskedModel,
    sources: Sequence[Images],
    explain: Callable[..., Explanation],
    config: ClassifierTraining,
    positions: bool,
) -> None:
    """Record what the folder's results are of, or check that it is the same."""
    settings = {
        "weights": model.fingerprint(),
        "players": described(model.players),
        "method": str(getattr(explain, "name", getattr(explain, "__name__", type(explain).__name__))),
        "explained model": described(getattr(explain, "surrogate", getattr(explain, "model", None))),
        "explainer": described(explain) if isinstance(explain, nn.Module) else None,
        "options": described(explain, without=("model", "progress")) if is_dataclass(explain) else None,
        "data": [_digest(images) for images in sources],
        "positions": positions,
        "config": json.loads(json.dumps(asdict(config), default=str)),
    }
    path = folder / SETTINGS
    if not path.exists():
        write_text(path, json.dumps(settings, indent=2) + "\n")
        return
    stored = read_json(path)
    differing = [name for name, value in settings.items() if stored.get(name) != value]
    if differing:
        raise ValueError(f"{folder} holds results with other {', '.join(differing)}: choose another folder")


def described(value: Any, without: Sequence[str] = ()) -> Any:
    """Return as JSON what an explanation depends on: tensors and networks by their hash, a dataclass by its fields."""
    if isinstance(value, Tensor):
        return fingerprint({"values": value})
    if isinstance(value, MaskedModel):
        parts = {name: getattr(value, name) for name in ("output", "removal", "reference", "players")}
        return {"weights": value.fingerprint(), **described(parts)}
    if isinstance(value, Explainer):
        own = fingerprint(value.state_dict())
        return {"weights": own, "calibration": described(value.calibration), "surrogate": described(value.surrogate)}
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): described(one) for name, one in value.items() if name not in without}
    if isinstance(value, list | tuple):
        return [described(one) for one in value]
    return value if value is None or isinstance(value, str | int | float) else type(value).__name__


def _digest(images: Images) -> str:
    """Return a hash of all images and labels, and of how they become the model's input; the same for any batches."""
    parts = [hashlib.sha256() for _ in Batch._fields]
    for batch in images.source.batches(chunks(len(images), HASHED)):
        for part, tensor in zip(parts, batch, strict=True):
            part.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    found = [images.mean, images.std, images.size, *(part.hexdigest() for part in parts)]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()
