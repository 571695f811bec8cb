"""Estimates of many images by every method and number of evaluations, each stored in a file as soon as it is computed.

A run that was interrupted continues after its last file, and several processes may compute different methods into one
folder. Tables and figures are made from the files later, without the network. Images are estimated in batches, so that a
GPU has many coalitions at once; the seed belongs to the batch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitshap.estimators.as_methods import Refine
from vitshap.estimators.estimate import Estimate, endpoints
from vitshap.estimators.kernel import kernelshap
from vitshap.estimators.posterior import Prior
from vitshap.estimators.priors import explained_prior, read_tokens, token_prior
from vitshap.estimators.refine import RefineState
from vitshap.explainers import Explainer
from vitshap.files import read_tensors, write_tensors
from vitshap.game import Game
from vitshap.models import MaskedModel
from vitshap.models.base import fingerprint

EXPLAINER, KERNELSHAP, TOKENS, REFINED = "explainer", "kernelshap", "refine, tokens", "refine, explainer"
CONTROL = "control variate"
"""The explainer as a linear control variate: what ``refine`` with the explainer evaluates, without the posterior."""
METHODS = (EXPLAINER, KERNELSHAP, TOKENS, REFINED)
TOTAL = "refine, explainer, total budget"
"""``refine`` with the explainer, the evaluations of all images together spent where they help most."""
ACCURACY = "accuracy"


class Values(NamedTuple):
    """Values of ``N`` images with their standard errors and cost."""

    values: Tensor
    """``[N, d, K]``."""
    stderr: Tensor | None
    """``[N, d, K]``."""
    evaluations: Tensor
    """Of each image, int64 ``[N]``."""
    seconds: float = 0.0
    """Of all images together."""


@dataclass(frozen=True)
class Key:
    """What was computed."""

    method: str
    budget: int
    seed: int = 0

    @property
    def file(self) -> str:
        """Name of the file."""
        return f"{self.method.replace(', ', '-').replace(' ', '-')}_{self.budget}_{self.seed}.safetensors"


@dataclass(frozen=True, eq=False)
class Subject:
    """Images, the model whose values are estimated, and its explainer if it has one."""

    model: MaskedModel
    pixels: Tensor
    explainer: Explainer | None = None
    game_of: Callable[[slice], Game] | None = None
    """Game of some of the images; default: the model's, in "auto" precision."""
    batch: int = 20
    """Images estimated at a time."""

    def game(self, part: slice) -> Game:
        """Return the game of some of the images."""
        if self.game_of is not None:
            return self.game_of(part)
        return self.model.game(self.pixels[part], precision="auto")

    @property
    def parts(self) -> list[slice]:
        """The batches of images."""
        return [slice(i, min(i + self.batch, len(self.pixels))) for i in range(0, len(self.pixels), self.batch)]

    def methods(self) -> tuple[str, ...]:
        """Return the methods that can be compared."""
        return (*METHODS, TOTAL) if self.explainer is not None else (KERNELSHAP, TOKENS)

    def about(self, method: str) -> dict[str, str]:
        """Return what estimates by this method belong to, stored with them."""
        about = {"model": self.model.fingerprint(), "set of images": fingerprint({"pixels": self.pixels})}
        if self.explainer is None or method in (KERNELSHAP, TOKENS):
            return about
        calibration = None if self.explainer.calibration is None else self.explainer.calibration.to_json()
        return about | {
            "explainer": fingerprint(self.explainer.state_dict()),
            "calibration of the explainer": json.dumps(calibration),
        }

    def prior(self, part: slice, method: str, game: Game) -> Prior:
        """Return the prior of a method for some of the images."""
        pixels = self.pixels[part]
        tokens = read_tokens(self.model.adapter, pixels, self.model.players)
        if method == TOKENS:
            return token_prior(game, tokens)
        assert self.explainer is not None
        explanation = self.explainer(pixels)
        everything = explanation.classes.to(game.device)
        return explained_prior(explanation, game, everything, tokens, self.explainer.calibration)


def keys(methods: Sequence[str], budgets: Sequence[int], seeds: Sequence[int]) -> Iterator[Key]:
    """Yield what is computed for these methods: every budget with every seed, the explainer once without evaluations."""
    for method in methods:
        for budget in (0,) if method == EXPLAINER else budgets:
            for seed in seeds[:1] if method == EXPLAINER else seeds:
                yield Key(method, budget, seed)


def estimate(subject: Subject, key: Key) -> dict[str, Values]:
    """Estimate the values of all images; for the explainer as a prior also as a control variate (same evaluations)."""
    if key.method == TOTAL:
        everything = slice(0, len(subject.pixels))
        total = key.budget * len(subject.pixels)
        return {TOTAL: _image_by_image(subject, [everything], seed=key.seed, total_budget=total)}
    started = time.perf_counter()
    found: dict[str, list[Estimate]] = {}
    for number, part in enumerate(subject.parts):
        seed = key.seed * len(subject.parts) + number
        for name, one in _estimate_part(subject, part, key, seed).items():
            found.setdefault(name, []).append(one)
    return {name: _joined(some, time.perf_counter() - started) for name, some in found.items()}


def stored(folder: Path, subject: Subject, key: Key) -> Values:
    """Return the values of ``key`` from the folder, computed and written there before if they are not in it.

    A ``ValueError`` if those in the folder belong to another model, explainer or set of images.
    """
    path, about = folder / key.file, subject.about(key.method)
    if not path.exists():
        for name, values in estimate(subject, key).items():
            write(folder / replace(key, method=name).file, values, about)
    return read(path, about)


def stored_accuracy(folder: Path, subject: Subject, accuracy: float, *, budget: int) -> Values:
    """Return what ``reach_accuracy`` found from the folder, as ``stored`` does."""
    path, about = folder / accuracy_file(accuracy), subject.about(ACCURACY)
    if not path.exists():
        write(path, reach_accuracy(subject, accuracy, budget=budget), about)
    return read(path, about)


def reach_accuracy(subject: Subject, accuracy: float, *, budget: int, seed: int = 0) -> Values:
    """Run ``refine`` image by image until the estimated correlation of the predicted class is ``accuracy``.

    The prior is the explainer, or tokens without one; ``budget`` is the most for one image.
    """
    return _image_by_image(subject, subject.parts, budget=budget, seed=seed, accuracy=accuracy)


def _image_by_image(subject: Subject, parts: Sequence[slice], **options: Any) -> Values:
    """Run ``refine``, which spends evaluations unevenly between the images of each part."""
    started = time.perf_counter()
    prior = "tokens" if subject.explainer is None else subject.explainer
    method = Refine(subject.model, prior=prior, **options)
    everything = list(range(subject.model.num_classes))
    values, errors, evaluations = [], [], []
    for part in parts:
        explanation = method(subject.pixels[part], target=everything)
        assert explanation.stderr is not None
        assert explanation.evaluations_each is not None
        values.append(explanation.values.double().cpu())
        errors.append(explanation.stderr.double().cpu())
        evaluations.append(explanation.evaluations_each.cpu())
    return Values(torch.cat(values), torch.cat(errors), torch.cat(evaluations), time.perf_counter() - started)


def accuracy_file(accuracy: float) -> str:
    """Return the name of the file of ``reach_accuracy``."""
    return f"{ACCURACY}_{accuracy:g}.safetensors"


def write(path: Path, values: Values, about: Mapping[str, str] | None = None) -> None:
    """Write values to a file, atomically, in single precision, with what they belong to."""
    tensors = {
        "values": values.values.float(),
        "evaluations": values.evaluations,
        "seconds": torch.tensor(values.seconds, dtype=torch.float64),
    }
    if values.stderr is not None:
        tensors["stderr"] = values.stderr.float()
    write_tensors(path, tensors, about)


def read(path: Path, about: Mapping[str, str] | None = None) -> Values:
    """Read what ``write`` wrote, in double precision; a ``ValueError`` if it belongs to something else."""
    tensors = read_tensors(path, about)
    stderr = tensors["stderr"].double() if "stderr" in tensors else None
    return Values(tensors["values"].double(), stderr, tensors["evaluations"], float(tensors["seconds"]))


def found_in(folder: Path) -> dict[Key, Values]:
    """Return all estimates in a folder."""
    names = {Key(name, 0).file.split("_")[0]: name for name in (*METHODS, CONTROL, TOTAL)}
    found = {}
    for path in sorted(folder.glob("*_*_*.safetensors")):
        method, budget, seed = path.stem.split("_")
        if method in names:
            found[Key(names[method], int(budget), int(seed))] = read(path)
    return found


def _estimate_part(subject: Subject, part: slice, key: Key, seed: int) -> dict[str, Estimate]:
    game = subject.game(part)
    if key.method == KERNELSHAP:
        return {KERNELSHAP: kernelshap(game, budget=key.budget, seed=seed)}
    prior = subject.prior(part, key.method, game)
    nothing = torch.zeros(game.batch_size, dtype=torch.bool)
    ends = endpoints(game)
    if key.method == EXPLAINER:
        return {EXPLAINER: Estimate(prior.mean, prior.stderr, *ends, 1, EXPLAINER, nothing, posterior=True)}
    state = RefineState(game, prior, 4096, seed)
    used = state.advance(key.budget)
    found = {key.method: Estimate(*state.estimate(), *ends, used, key.method, nothing, posterior=True)}
    if key.method == REFINED:
        found[CONTROL] = Estimate(*state.unbiased(), *ends, used, CONTROL, nothing)
    return found


def _joined(estimates: Sequence[Estimate], seconds: float) -> Values:
    errors = [one.stderr.cpu() for one in estimates if one.stderr is not None]
    return Values(
        torch.cat([one.values.cpu() for one in estimates]),
        torch.cat(errors) if len(errors) == len(estimates) else None,
        torch.cat([torch.full((len(one.values),), one.evaluations) for one in estimates]),
        seconds,
    )
