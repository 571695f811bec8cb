"""Estimators against an independent truth: their errors as evaluations increase, and where they pass the explainers'.

The truth is ``kernelshap`` with many evaluations and other random numbers than any estimate that is compared with it. The
estimates are KernelSHAP as published, with and without pairs, our ``kernelshap``, and ``refine`` with and without an
explainer, on the same images; their errors are measured at growing numbers of evaluations of one run. Images are estimated
in small batches, each stored when it is done, so that an interrupted step continues.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitshap.estimators import truth
from vitshap.estimators.estimate import Estimate
from vitshap.estimators.kernel import kernelshap, kernelshap_original
from vitshap.estimators.posterior import Prior
from vitshap.estimators.refine import refine
from vitshap.experiments.estimates import REFINED, TOKENS, Subject
from vitshap.files import read_tensors, write_tensors
from vitshap.game import Game
from vitshap.metrics.intervals import half_widths
from vitshap.metrics.statistics import correlate
from vitshap.models.base import evaluating
from vitshap.reproduce.context import EXPLAINER_STEPS, SEED, Context
from vitshap.training.values.reference import calibrate_on_validation
from vitshap.training.values.store import Evaluator

BATCH = 4
"""Images that are estimated at once, with the same subsets."""
TRUTH_SEED = 10**6
"""Seed of the truth: no estimate has the same random numbers."""
VALUES = "values.safetensors"
PRIORS = {"refine-tokens": TOKENS, "refine-explainer": REFINED}
"""The prior of each step that measures ``refine``."""
MEASURES = ("distance", "pearson", "spearman")
THRESHOLD = 0.2
"""Of the largest standard error to the range of the values, at which KernelSHAP stops in the comparison of maps."""


def compute_truth(context: Context, folder: Path) -> dict[str, Any]:
    """Estimate the Shapley values of the compared images with many evaluations; the files stay with the result."""
    surrogate = context.surrogate
    game_of = compared_games(context)
    known = truth.compute(
        folder,
        game_of,
        num_inputs=len(context.compared),
        surrogate=surrogate.fingerprint(),
        budget=context.scale.truth,
        batch=BATCH,
        seed=TRUTH_SEED,
        progress=_note(context, "truth"),
    )
    final = context.store.folder(context.setting.name, "truth")
    final.mkdir(parents=True, exist_ok=True)
    for name in (truth.RECORD, truth.TENSORS):
        shutil.copy(folder / name, final / name)
    targets = predictions(context)
    own = torch.zeros_like(known.reliability, dtype=torch.bool).scatter(1, targets[:, None], True)
    return {
        "images": len(targets),
        "evaluations": context.scale.truth,
        "reliability": {"target": float(known.reliability[own].mean()), "non-target": _others(known.reliability, own)},
    }


def stored_truth(context: Context) -> truth.Truth:
    """Load the reference values of the compared images."""
    return truth.load(context.store.folder(context.setting.name, "truth"), surrogate=context.surrogate.fingerprint())


def measure_estimator(context: Context, folder: Path, *, kind: str) -> dict[str, Any]:
    """Measure the error of an estimator at growing numbers of evaluations.

    ``kind``: the step, "kernelshap-paired" or "kernelshap-unpaired" as published; "kernelshap-default", our estimator, with
    an eighth of the evaluations; "refine-tokens" or "refine-explainer", which corrects our default explainer.
    """
    scale = context.scale
    budget = {
        "kernelshap-paired": scale.paired,
        "kernelshap-unpaired": scale.unpaired,
        "kernelshap-default": scale.paired // 8,
    }.get(kind, scale.refined)
    folder.mkdir(parents=True, exist_ok=True)
    known, targets, subject = stored_truth(context), predictions(context), _subject(context, folder, kind)
    note = _note(context, kind)
    parts = []
    for start in range(0, len(targets), BATCH):
        here = slice(start, min(start + BATCH, len(targets)))
        path = folder / f"part-{start:05d}.safetensors"
        if not path.exists():
            game = subject.game(here)
            prior = subject.prior(here, PRIORS[kind], game) if kind in PRIORS else None
            write_tensors(path, _run(game, kind, prior, budget, known.values[here], SEED + start))
        parts.append(read_tensors(path))
        note(here.stop, len(targets))
    final = context.store.folder(context.setting.name, kind)
    final.mkdir(parents=True, exist_ok=True)
    write_tensors(final / VALUES, {"values": torch.cat([part["values"] for part in parts]).float()})
    errors = {name: torch.cat([part[name] for part in parts], 1) for name in MEASURES}  # [points, N, K]
    found: dict[str, Any] = {"evaluations": parts[0]["evaluations"].tolist(), "images": len(targets)}
    found["curves"] = {name: by_class(each, targets) for name, each in errors.items()}
    return found


def stored_values(context: Context, step: str) -> Tensor:
    """Return the last values ``[N, d, K]`` of an estimator."""
    path = context.result(step).folder / VALUES
    if not path.is_file():
        raise ValueError(f"{path.parent} holds no values: remove it to run the step again")
    return read_tensors(path)["values"].double()


def _subject(context: Context, folder: Path, kind: str) -> Subject:
    """Return the compared images with what an estimator needs: the explainer is calibrated, as ``vitshap train`` does."""
    explainer = None
    if kind == "refine-explainer":
        explainer, config = context.explainer("train-explainer-default"), context.recipe.calibration
        if config is not None:
            val = context.opened("val", context.surrogate)
            explainer.calibration = calibrate_on_validation(
                explainer, val, folder / "calibration", config, context.console
            )
    pixels = context.pixels(context.surrogate, context.compared)
    return Subject(context.surrogate, pixels, explainer, compared_games(context, pixels), BATCH)


def measure_explainer(context: Context, folder: Path, *, trained: str) -> dict[str, Any]:
    """Measure the error of the explainer that the step ``trained`` left, on the same images."""
    known, targets = stored_truth(context), predictions(context)
    with torch.no_grad():
        values = context.explainer(trained)(context.pixels(context.surrogate, context.compared)).values.double()
    errors = errors_to(values, known.values)
    row = next(row for row, step in EXPLAINER_STEPS.items() if step == trained)
    return {
        "images": len(targets),
        "rows": {row: {name: by_class(each[None], targets) for name, each in errors.items()}},
    }


def errors_to(values: Tensor, known: Tensor) -> dict[str, Tensor]:
    """Return distance and correlations of values ``[N, d, K]`` with the truth, float64 ``[N, K]`` each."""
    values, known = values.double().cpu(), known.double().cpu()
    sides = values.transpose(1, 2), known.transpose(1, 2)
    return {
        "distance": (values - known).norm(dim=1),
        "pearson": correlate(*sides, "pearson"),
        "spearman": correlate(*sides, "spearman"),
    }


def by_class(errors: Tensor, targets: Tensor) -> dict[str, dict[str, list[float]]]:
    """Return means over images, and half-widths of their 95 % intervals, of errors ``[points, N, K]``."""
    own = torch.zeros(errors.shape[1:], dtype=torch.bool).scatter(1, targets[:, None], True)
    found = {}
    for name, where in (("target", own), ("non-target", ~own)):
        if not bool(where.any()):
            continue
        per_image = errors.masked_fill(~where, torch.nan).nanmean(2)  # [points, N]
        half = half_widths(per_image.T).nan_to_num(0.0)  # one image has no interval
        found[name] = {"mean": per_image.nanmean(1).tolist(), "interval": half.tolist()}
    return found


def _run(game: Game, kind: str, prior: Prior | None, budget: int, known: Tensor, seed: int) -> dict[str, Tensor]:
    """Return the errors of the partial estimates of one run, ``[points, B, K]``, and its last values."""
    points: list[dict[str, Tensor]] = []
    used: list[int] = []

    def partial(estimate: Estimate) -> None:
        used.append(estimate.evaluations)
        points.append(errors_to(estimate.values, known))

    if prior is not None:
        last = refine(game, prior, budget=budget, seed=seed, progress=partial)
    elif kind == "kernelshap-default":
        last = kernelshap(game, budget=budget, seed=seed, progress=partial)
    else:
        paired = kind == "kernelshap-paired"
        last = kernelshap_original(game, budget=budget, paired=paired, seed=seed, progress=partial)
    errors = {name: torch.stack([point[name] for point in points]) for name in MEASURES}
    return {**errors, "evaluations": torch.tensor(used), "values": last.values.cpu()}


def compared_games(context: Context, pixels: Tensor | None = None) -> Callable[[slice | Tensor], Game]:
    """Return a function that makes the game of some of the compared images, in the fastest precision of the device."""
    surrogate = context.surrogate
    evaluate = Evaluator(surrogate, compiled=surrogate.device.type == "cuda")
    images = context.pixels(surrogate, context.compared) if pixels is None else pixels
    return lambda part: evaluate.game(images[part])


def predictions(context: Context) -> Tensor:
    """Return the classifier's predictions for the compared images."""
    classifier = context.classifier
    with torch.no_grad(), evaluating(classifier.net):
        outputs = [classifier(some) for some in context.pixels(classifier, context.compared).split(64)]  # type: ignore[no-untyped-call]
    return torch.cat(outputs).argmax(1).cpu()


def _others(reliability: Tensor, own: Tensor) -> float | None:
    return float(reliability[~own].mean()) if bool((~own).any()) else None


def _note(context: Context, name: str) -> Callable[[int, int], None]:
    def note(done: int, total: int) -> None:
        if done == total or done % 20 == 0:
            context.console.print(f"{name}: {done} of {total} images", highlight=False)

    return note
