"""How many evaluations and seconds an image takes until its Shapley values are known well enough.

Three questions, each over the same images: when does the error fall below a share of the range (the paper's rule), when
do two halves of the evaluations agree, and how well does a budget correlate with a reference of very many evaluations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from vitshap.coalitions import Coalitions
from vitshap.estimators.estimate import Estimate, Estimator, correlation, split_half
from vitshap.estimators.kernel import kernelshap, kernelshap_original
from vitshap.estimators.permutation import permutation
from vitshap.game import Game
from vitshap.models import MaskedModel
from vitshap.models.load import ModelSpec, load_model

ESTIMATORS: dict[str, Estimator] = {
    "kernelshap": kernelshap,
    "kernelshap, balanced": partial(kernelshap, sampling="balanced"),
    "kernelshap-original": kernelshap_original,
    "permutation": permutation,
}


class Begin(Protocol):
    """Called with what is measured next, and with its evaluations where they are known."""

    def __call__(self, title: str, evaluations: int | None = None, /) -> object: ...


@dataclass(frozen=True)
class Line:
    """What a budget gives, averaged over images; ``other``: the mean over classes that are not the target."""

    estimator: str
    budget: int
    seconds: float
    """Per image."""
    reliability: float
    reliability_other: float
    correlation: float
    """With the reference."""
    correlation_other: float


@dataclass(frozen=True)
class Reached:
    """Evaluations and seconds per image until every class is below the threshold."""

    threshold: float
    evaluations: list[int]
    seconds: list[float]
    converged: list[bool]


def load(
    name: str, weights: Path, classes: Sequence[int], data: Path, count: int, device: torch.device
) -> tuple[MaskedModel, Tensor]:
    """A timm net with given weights and rows of its head, and the first images of a folder; half precision on a GPU."""
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    spec = ModelSpec(name, weights=str(weights), head_rows=tuple(classes) or None, option="--{}")
    model = load_model(spec).to(device, dtype).eval()
    paths = sorted(path for path in data.rglob("*") if path.suffix.lower() in (".jpeg", ".jpg", ".png"))[:count]
    if not paths:
        raise ValueError(f"{data} holds no image (.jpeg, .jpg, .png)")
    return model, model.prepare(paths).pixels


def watched(game: Game, add: Callable[[int], object]) -> Game:
    """The same game, evaluated in parts that take seconds at most; ``add`` is given the number of each part."""
    part = 4096 if game.device.type == "cuda" else 128

    def value(coalitions: Coalitions) -> Tensor:
        values = []
        for some in coalitions.split(part, dim=1):  # type: ignore[no-untyped-call]
            values.append(game(some))
            add(some.shape[1])
        return torch.cat(values, dim=1)

    return Game(
        value,
        num_players=game.num_players,
        num_outputs=game.num_outputs,
        batch_size=game.batch_size,
        device=game.device,
        player_mask=game.player_mask,
    )


def measure_budgets(
    game_of: Callable[[slice], Game],
    images: int,
    budgets: Sequence[int],
    *,
    reference: int,
    estimators: Sequence[str] = tuple(ESTIMATORS),
    note: Callable[[Line], object] = lambda line: None,
    begin: Begin = lambda title, evaluations=None: None,
    seed: int = 0,
) -> list[Line]:
    """Reliability and correlation of estimators and budgets with a reference of ``reference`` evaluations.

    The reference allots its evaluations beforehand (``sampling="balanced"``), so that it shares nothing with the default
    but the regression. ``note`` is called with every line, ``begin`` with what comes next and its evaluations. A budget
    that is too small for an estimator is left out, and ``begin`` says so.
    """
    everyone = slice(0, images)
    begin(f"reference, {images} images, evaluations of each", reference)
    truth = kernelshap(game_of(everyone), budget=reference, sampling="balanced", seed=seed + 10**6)
    target = truth.full_values.argmax(1)
    lines = []
    for name in estimators:
        estimator = ESTIMATORS[name]
        for budget in budgets:
            begin(f"{name}, budget {budget:,}, and again in two halves, evaluations", 2 * budget)
            started = _now()
            try:
                estimate = estimator(game_of(everyone), budget=budget, seed=seed)
                seconds = (_now() - started) / images
                _, halves = split_half(estimator, game_of(everyone), budget=budget, seed=seed + 1)
            except ValueError as error:
                begin(f"{name}, budget {budget:,}, is left out: {error}")
                continue
            agreement = correlation(estimate.values, truth.values)
            lines.append(Line(name, budget, seconds, *_by_target(halves, target), *_by_target(agreement, target)))
            note(lines[-1])
    return lines


def measure_threshold(
    game_of: Callable[[slice], Game],
    images: int,
    threshold: float,
    *,
    budget: int,
    begin: Begin = lambda title, evaluations=None: None,
) -> Reached:
    """Image by image, as a user would ask; ``begin`` is called with what comes next."""
    found: list[tuple[Estimate, float]] = []
    first = game_of(slice(0, 1))
    kernelshap(first, budget=1024 if first.device.type == "cuda" else 64)  # warm up
    for i in range(images):
        begin(f"image {i + 1} of {images} until error/range < {threshold:g}, evaluations")
        started = _now()
        estimate = kernelshap(game_of(slice(i, i + 1)), budget=budget, threshold=threshold)
        found.append((estimate, _now() - started))
    return Reached(
        threshold,
        [estimate.evaluations for estimate, _ in found],
        [seconds for _, seconds in found],
        [bool(estimate.converged.all()) for estimate, _ in found],
    )


def _by_target(per_class: Tensor, target: Tensor) -> tuple[float, float]:
    """Mean over images ``[B, K]`` of the target class and of the others."""
    own = torch.zeros_like(per_class, dtype=torch.bool).scatter(1, target[:, None], True)
    return float(per_class[own].mean()), float(per_class[~own].mean())


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
