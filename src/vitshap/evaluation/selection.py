"""Which images are compared, and the class of each that is explained.

Images are opened once for each model, cached in memory where they fit and decoded again where they do not, so that
memory does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from vitshap.data import UNLABELLED, Batch
from vitshap.errors import did_you_mean
from vitshap.estimators.truth import Truth
from vitshap.evaluation.store import tensor_digest
from vitshap.game import ClassLike, class_index
from vitshap.models import MaskedModel
from vitshap.models.base import evaluating
from vitshap.training.batches import Images, decoding, evenly

Chosen: TypeAlias = int | Sequence[int] | Sequence[str] | None
"""Images: a number of them, spread evenly; their positions in the data; their names; None: all."""
_PREDICTED, _LABEL = "predicted", "label"
_BATCH = 64
_CHECKED = 8
"""Images whose stored outputs are compared with the surrogate's."""
_MOVED = 0.05
"""Largest difference between stored and computed outputs of an image, relative to the largest output, at least 1."""


class Where(NamedTuple):
    """A condition on images: those predicted as a class, or labelled with it."""

    by: str
    class_name: ClassLike

    @classmethod
    def parse(cls, text: str, /) -> Where:
        """Read ``predicted=CLASS`` or ``label=CLASS``."""
        by, equals, name = text.partition("=")
        if by not in (_PREDICTED, _LABEL) or not equals or not name:
            raise ValueError(f"a condition is predicted=CLASS or label=CLASS, got {text!r}")
        return cls(by, name)

    def __str__(self) -> str:
        return f"{self.by}={self.class_name}"


class Part(NamedTuple):
    """A batch of images as both models take them."""

    pixels: Tensor
    """Input of the surrogate, ``[B, C, H, W]``."""
    explained: Tensor
    """Input of the classifier; the same tensor where the two are prepared alike."""
    digests: list[str]
    """Of every image as it was decoded."""


@dataclass(frozen=True, eq=False)
class Selection:
    """The images of a comparison, in order."""

    names: tuple[str, ...]
    positions: Tensor
    """Of each image in the data, int64 ``[N]``."""
    labels: Tensor | None
    """Class of each image in the data, int64 ``[N]``; None if the data has no such labels."""
    targets: Tensor
    """Class that is explained, int64 ``[N]``."""
    prediction: Tensor
    """Output of the classifier (or surrogate) for the whole image, float32 ``[N, K]``."""
    note: str
    """Where there are fewer images than are taken at most: how many, and why."""
    where: str
    sources: tuple[Images, Images]
    """For the surrogate and for the classifier."""
    places: Tensor
    """Of each image in the sources, int64 ``[N]``."""

    def __len__(self) -> int:
        return len(self.positions)

    def load(self, rows: Tensor) -> Part:
        """Return some images, by their place in the selection."""
        surrogate, classifier = self.sources
        pixels, batch = self._read(surrogate, rows)
        if classifier is surrogate:
            return Part(pixels, pixels, [tensor_digest(one) for one in batch.pixels])
        explained, other = self._read(classifier, rows)
        both = zip(batch.pixels, other.pixels, strict=True)
        return Part(pixels, explained, [tensor_digest(one) + tensor_digest(two) for one, two in both])

    def _read(self, source: Images, rows: Tensor) -> tuple[Tensor, Batch]:
        wanted = self.places[rows]
        pixels, batch = next(iter(source.views([source.positions(wanted)], 0)))
        if batch.indices.cpu().tolist() != wanted.tolist():
            raise ValueError("an image that could be read at first cannot be read any more")
        return pixels, batch


def select(
    surrogate: MaskedModel,
    classifier: MaskedModel | None,
    data: Any,
    *,
    images: Chosen = None,
    where: Where | None = None,
    target: ClassLike = _PREDICTED,
    first: Sequence[int] = (),
) -> Selection:
    """Choose images and the class of each that is explained.

    ``images`` None takes all; a number takes that many, spread evenly over those that fulfil the condition ``where``, the
    ones at the positions ``first`` before all others. An image that cannot be read is left out.
    """
    names = image_names(data)
    counted = isinstance(images, int)
    asked = _listed(None if where is not None and counted else images, names, first)
    if not asked:
        raise ValueError("there are no images to compare on")
    model = surrogate if classifier is None else classifier
    sources = _open(surrogate, classifier, data, asked)
    places, labels, prediction = _predict(model, sources[1])
    labels = None if getattr(data, "class_names", None) == UNLABELLED else labels
    kept = torch.arange(len(places))
    if where is not None:
        kept = _matching(where, labels, prediction, data, model).nonzero()[:, 0]
        if not len(kept):
            raise ValueError(f"none of {len(asked):,} images has {where}")
        if isinstance(images, int):
            preferred = [i for i, place in enumerate(kept.tolist()) if asked[int(places[place])] in set(first)]
            kept = kept[torch.tensor(_spread(images, len(kept), preferred))]
    positions = torch.tensor(asked)[places[kept]]
    labels = None if labels is None else labels[kept]
    return Selection(
        names=tuple(names[i] for i in positions.tolist()),
        positions=positions,
        labels=labels,
        targets=_targets(target, labels, prediction[kept], model),
        prediction=prediction[kept],
        note=_note(images if isinstance(images, int) else len(asked), len(kept), where),
        where="" if where is None else str(where),
        sources=sources,
        places=places[kept],
    )


def image_names(data: Any) -> list[str]:
    """Return the names of the images: files by their name and folder, others by number."""
    files = getattr(data, "images", None)
    if isinstance(files, Sequence) and files and all(isinstance(one, str | Path) for one in files):
        return ["/".join(Path(one).parts[-2:]) for one in files]
    return [f"image {i}" for i in range(len(data))]


def reference_positions(truth: Truth, data: Any) -> list[int]:
    """Return the images of reference values without names: as many as there are, spread evenly over the data."""
    count = truth.specification.num_inputs
    if count > len(data):
        raise ValueError(f"the reference values are of {count:,} images, but the data has {len(data):,}")
    return [int(i) for i in evenly(len(data), count)]


def check_reference(selection: Selection, truth: Truth, places: Tensor, surrogate: MaskedModel) -> None:
    """Raise ``ValueError`` if stored outputs of whole images are not those of the surrogate: they are of other images.

    ``places``: of each selected image in the reference values, -1 where there is none. A few images are looked at.
    """
    rows = (places >= 0).nonzero()[:, 0][:_CHECKED]
    if not len(rows):
        raise ValueError("none of the selected images has reference values: select more images, or leave out the truth")
    pixels = selection.load(rows).pixels
    with torch.no_grad(), evaluating(surrogate.net):
        outputs = surrogate(pixels.to(next(surrogate.net.parameters()).dtype)).double().cpu()
    stored = truth.full_values[places[rows]]
    moved = float((stored - outputs).abs().max())
    if not moved <= _MOVED * max(1.0, float(stored.abs().max())):
        raise ValueError(
            f"the reference values are of other images: an output that was stored differs by {moved:.2f} from the "
            "surrogate's for the image at its place; give the data and split that they were computed on"
        )


def _listed(images: Chosen, names: Sequence[str], first: Sequence[int]) -> list[int]:
    """Return positions in the data."""
    if images is None:
        return list(range(len(names)))
    if isinstance(images, int):
        return _spread(images, len(names), first)
    return [_position(one, names) for one in images]


def _spread(count: int, total: int, first: Sequence[int]) -> list[int]:
    """Return ``count`` of the numbers below ``total``, in order: those in ``first``, and others spread evenly."""
    if count < 1:
        raise ValueError(f"give at least one image, got {count}")
    before = list(first)[:count]
    others = [i for i in range(total) if i not in set(before)]
    more = min(count - len(before), len(others))
    return sorted([*before, *(others[int(i)] for i in evenly(len(others), more))] if more else before)


def _position(one: int | str, names: Sequence[str]) -> int:
    if isinstance(one, int):
        if not 0 <= one < len(names):
            raise ValueError(f"image {one} is not in the data, which has the images 0 to {len(names) - 1}")
        return one
    found = [i for i, name in enumerate(names) if name == one or name.endswith(f"/{one}")]
    if len(found) != 1:
        why = "several images are" if found else "no image is"
        raise ValueError(f'{why} named "{one}"{"" if found else did_you_mean(one, names)}')
    return found[0]


def _open(surrogate: MaskedModel, classifier: MaskedModel | None, data: Any, asked: list[int]) -> tuple[Images, Images]:
    some = data.subset(asked) if hasattr(data, "subset") else torch.utils.data.Subset(data, asked)
    opened = Images(surrogate, some, None, seed=0)
    if classifier is None or decoding(classifier) == decoding(surrogate):
        return opened, opened
    return opened, Images(classifier, some, None, seed=0)


def _predict(model: MaskedModel, images: Images) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return places, labels and outputs of all images that can be read."""
    places, labels, outputs = [], [], []
    with torch.no_grad(), evaluating(model.net):
        for pixels, batch in images.in_order(_BATCH):
            places.append(batch.indices.cpu())
            labels.append(batch.labels.cpu())
            outputs.append(model(pixels.to(next(model.net.parameters()).dtype)).float().cpu())
    joined = torch.cat(labels)
    known = joined.ndim == 1 and not joined.is_floating_point()
    return torch.cat(places), joined.long() if known else None, torch.cat(outputs)


def _matching(where: Where, labels: Tensor | None, prediction: Tensor, data: Any, model: MaskedModel) -> Tensor:
    """Return which images fulfil the condition, bool ``[N]``."""
    one_output = prediction.shape[1] == 1
    names = getattr(data, "class_names", None) if where.by == _LABEL or one_output else model.class_names
    count = 2 if one_output else prediction.shape[1]
    if one_output and where.by == _PREDICTED and model.output != "sigmoid":
        raise ValueError(f"{where}: a model with one output that is no probability predicts no class")
    name = where.class_name
    if one_output and where.by == _PREDICTED and model.class_names:
        name = _of_one_output(name, names, model.class_names[0])
    index = class_index(_number(name, names), names, count)
    if where.by == _LABEL:
        if labels is None:
            raise ValueError(f"{where}: the data has no labels that are one class for each image")
        return labels == index
    predicted = (prediction[:, 0] >= 0.5).long() if one_output else prediction.argmax(1)
    return predicted == index


def _of_one_output(name: ClassLike, names: Sequence[str] | None, own: str) -> ClassLike:
    """Return 1 for the class that the model's one output stands for, and 0 for the data's other class."""
    if name == own:
        return 1
    return 0 if names is not None and len(names) == 2 and own in names and name in names else name


def _targets(target: ClassLike, labels: Tensor | None, prediction: Tensor, model: MaskedModel) -> Tensor:
    """Return the class to explain, int64 ``[N]``."""
    if target == _PREDICTED:
        return prediction.argmax(1)
    if target == _LABEL and _LABEL not in (model.class_names or ()):
        if labels is None:
            raise ValueError('target "label": the data has no labels that are one class for each image')
        if model.num_classes == 1:
            return torch.zeros_like(labels)
        if len(labels) and int(labels.max()) >= model.num_classes:
            given = int(labels.max())
            raise ValueError(f'target "label": an image has class {given}, the model 0 to {model.num_classes - 1}')
        return labels
    index = class_index(_number(target, model.class_names), model.class_names, model.num_classes)
    return torch.full((len(prediction),), index)


def _number(name: ClassLike, names: Sequence[str] | None) -> ClassLike:
    """Return a decimal number as a number, unless a class has that name."""
    return int(name) if isinstance(name, str) and name.isdecimal() and name not in (names or ()) else name


def _note(asked: int, found: int, where: Where | None) -> str:
    if found >= asked:
        return ""
    which = "that can be read" if where is None else f"with {where}"
    return f"{found:,} images (at most {asked:,} are taken): the data has no more {which}"
