"""Steps that draw maps: all methods side by side, non-target classes, curves of a class, and KernelSHAP beside explainers.

A step leaves pictures. Those of data-set photos are for the user's own eyes: they are not committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitshap import plots
from vitshap.data import ImageData
from vitshap.estimators.estimate import correlation
from vitshap.estimators.kernel import kernelshap_original
from vitshap.explanation import Explanation
from vitshap.methods import MethodLike, method
from vitshap.metrics import deletion, insertion
from vitshap.models import MaskedModel
from vitshap.models.base import evaluating
from vitshap.models.preprocess import Preprocess
from vitshap.reproduce.context import Context
from vitshap.reproduce.measurements import predicted_as, rivals
from vitshap.reproduce.shapley import THRESHOLD, predictions
from vitshap.reproduce.specifications import EXPLAINERS, MAP_METHODS
from vitshap.training.batches import evenly
from vitshap.training.values.store import Evaluator

GRIDS = 4
"""Pictures of an image set, at most."""
ROWS = 10
"""Images of one picture."""
NEARLY = 0.75
"""Share of the wanted images that one of each class must give to be enough, as one per breed of Pets does."""


def draw_maps(context: Context, folder: Path, *, which: str) -> dict[str, Any]:
    """Draw the maps of all methods for images of every class, of a non-target class, and curves beside a map."""
    classifier, out = context.classifier, _folder(context, "maps" if which == "main" else "maps-abnormal")
    data = context.splits.test
    output = context.setting.abnormal
    if which == "abnormal":
        assert output is not None
        data = data.subset(predicted_as(classifier, context.pixels(classifier, data), output).nonzero()[:, 0])
    rows = images_per_picture(context.scale.grid_images)
    count = GRIDS * rows
    # labels in turn would make half of the images predicted abnormal wrong predictions
    chosen = data.subset(one_of_each_class(data, count) if which == "main" else evenly(len(data), count))
    pixels = context.pixels(classifier, chosen)
    outputs = _outputs(classifier, pixels)
    targets = outputs.argmax(1) if which == "main" else torch.full((len(pixels),), output or 0)
    methods = _methods(context)
    pictures = []
    for number, here in enumerate(torch.arange(len(pixels)).split(rows)):  # type: ignore[no-untyped-call]
        name = f"maps-{number}.png"
        _grid(context, methods, pixels[here], targets[here], out / name)
        pictures.append(name)
    few = torch.arange(min(3, len(pixels)))
    if outputs.shape[1] > 1:
        second = outputs.topk(2, dim=1).indices[:, 1]
        _grid(context, methods, pixels[few], second[few], out / "non-target.png")
        pictures.append("non-target.png")
        classes = {"target": targets[:1], "non-target": second[:1]}
    else:
        classes = {"target": targets[:1]}
    for name, of in classes.items():
        _curves(context, pixels[:1], of, out / f"curves-{name}.png")
        pictures.append(f"curves-{name}.png")
    return {"pictures": pictures, "images": _names(chosen), "targets": targets.tolist(), "methods": list(methods)}


def draw_kernelshap(context: Context, folder: Path) -> dict[str, Any]:
    """Draw the maps of the explainers and of KernelSHAP as published, run until its threshold."""
    surrogate, out = context.surrogate, _folder(context, "maps-kernelshap")
    places = one_of_each_class(context.compared, context.scale.grid_images)
    data = context.compared.subset(places)
    pixels, targets = context.pixels(surrogate, data), predictions(context)[places]
    evaluator = Evaluator(surrogate, compiled=surrogate.device.type == "cuda")
    values, used, converged = [], [], 0
    for one in pixels.split(1):  # type: ignore[no-untyped-call]
        game = evaluator.game(one)
        estimate = kernelshap_original(game, budget=context.scale.paired, threshold=THRESHOLD)
        values.append(estimate.values.cpu())
        used.append(estimate.evaluations)
        converged += bool(estimate.converged.all())
    known = torch.cat(values)
    explained = {row: one(pixels) for row, one in context.explainers().items()}
    maps = {row: _own(one.values, targets) for row, one in explained.items()}
    maps["kernelshap-original"] = _own(known, targets)
    heats = [[maps[row][i].view(surrogate.grid).numpy() for row in maps] for i in range(len(data))]
    figure = plots.method_grid(
        heats,
        _pictures(surrogate, pixels),
        column_titles=list(maps),
        row_titles=_titles(surrogate, targets),
        units=surrogate.unit,
    )
    plots.save(figure, out / "maps-0.png")
    agreement = {
        row: float(_own(correlation(one.values.double(), known)[:, None], targets).mean())
        for row, one in explained.items()
    }
    evaluations = {"mean": sum(used) / len(used), "most": max(used), "least": min(used)}
    return {
        "pictures": ["maps-0.png"],
        "images": _names(data),
        "evaluations": evaluations,
        "converged": converged,
        "pearson": agreement,
    }


def images_per_picture(grid_images: int) -> int:
    """Return the rows of a picture: ten in the paper's size, so that four pictures have an image of every breed of Pets."""
    return min(ROWS, max(1, grid_images // 2))


def one_of_each_class(data: ImageData, count: int) -> Tensor:
    """Return positions of ``count`` images, one of each class in turn; a single round if that gives nearly as many."""
    of_class = [(data.labels == label).nonzero()[:, 0].tolist() for label in range(len(data.class_names))]
    present = [places for places in of_class if places]
    rounds = 1 if NEARLY * count <= len(present) <= count else max(map(len, present), default=0)
    listed = [places[i] for i in range(rounds) for places in present if i < len(places)]
    return torch.tensor(listed[:count], dtype=torch.long)


def _methods(context: Context) -> dict[str, MethodLike]:
    """Return the methods of the grids, in the paper's order."""
    made: dict[str, MethodLike] = {
        name: method(spec[0], context.classifier, **spec[1])
        for name, spec in rivals(context, MAP_METHODS).items()
        if isinstance(spec, tuple)
    }
    both = {**made, **context.explainers()}
    return {name: both[name] for name in MAP_METHODS}


def _grid(
    context: Context, methods: dict[str, MethodLike], pixels: Tensor, targets: Tensor, path: Path
) -> dict[str, Explanation]:
    explained = {name: one(pixels, target=targets[:, None]) for name, one in methods.items()}
    model = context.surrogate
    heats = [[one.values[i, :, 0].view(model.grid).numpy() for one in explained.values()] for i in range(len(pixels))]
    figure = plots.method_grid(
        heats,
        _pictures(model, pixels),
        column_titles=list(explained),
        row_titles=_titles(model, targets),
        units=[one.unit for one in explained.values()],
    )
    plots.save(figure, path)
    return explained


def _curves(context: Context, pixels: Tensor, targets: Tensor, path: Path) -> None:
    """Draw a picture, the map of a class, and its insertion and deletion curves."""
    model, explainers = context.surrogate, context.explainers()
    found = {row: one(pixels, target=targets[:, None]) for row, one in explainers.items()}
    curves = {
        row: tuple(metric(model, pixels, one).points[0, 0].numpy() for metric in (insertion, deletion))
        for row, one in found.items()
    }
    ours, paper = EXPLAINERS[1], EXPLAINERS[0]
    figure = plots.curves_figure(
        found[ours].values[0, :, 0].view(model.grid).numpy(),
        _pictures(model, pixels)[0],
        *curves[ours],
        unit=model.unit,
        title=f"class {_titles(model, targets)[0]}",
        name=ours,
        compare={paper: (curves[paper][0], curves[paper][1])},
    )
    plots.save(figure, path)


def _own(values: Tensor, targets: Tensor) -> Tensor:
    """Return the values ``[N, d, K]`` of each image's class, ``[N, d]``."""
    return values[torch.arange(len(values)), :, targets]


def _outputs(model: MaskedModel, pixels: Tensor) -> Tensor:
    with torch.no_grad(), evaluating(model.net):
        return torch.cat([model(some).cpu() for some in pixels.split(64)])  # type: ignore[no-untyped-call]


def _pictures(model: MaskedModel, pixels: Tensor) -> list[Tensor]:
    how = model.preprocess
    shown = how.denormalised(pixels) if isinstance(how, Preprocess) else pixels.clamp(0, 1)
    return [one.cpu().float() for one in shown]


def _titles(model: MaskedModel, targets: Tensor) -> list[str]:
    names: Sequence[str] = model.class_names or [str(i) for i in range(model.num_classes)]
    return [names[target] for target in targets.tolist()]


def _names(data: ImageData) -> list[str]:
    return [one.name if isinstance(one, Path) else f"image {i}" for i, one in enumerate(data.images)]


def _folder(context: Context, step: str) -> Path:
    folder = context.store.folder(context.setting.name, step)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
