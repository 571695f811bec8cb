"""How long a recipe will take on this machine: two real optimiser steps of each training, timed before anything starts.

Steps run on throw-away copies with the real batch, net, augmentation and coalitions, and are extrapolated together with
validation, evaluation of coalitions and decoding. Where even one step of the real batch would take long, two images are
timed and multiplied. What early stopping may save is not known beforehand, nor how many images the surrogate will be unsure
of, which ``values.unsure`` lets be met again: the former makes these upper estimates, the latter is named beside them.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Container, Iterable
from typing import Any, NamedTuple

import torch
from accelerate import PartialState
from torch import Tensor

from vitshap.coalitions import shapley_kernel, uniform_size
from vitshap.data import (
    Augmentation,
    Batch,
    CachedPixels,
    ImageData,
    PixelSource,
    Splits,
    open_pixels,
    sample_coalitions,
)
from vitshap.data.items import Unreadable
from vitshap.data.pixels import free_bytes
from vitshap.explainers import Explainer
from vitshap.models import MaskedModel
from vitshap.training.batches import Images, decodes_by
from vitshap.training.configs import ExplainerTraining
from vitshap.training.explainer import PaperStep, network_config
from vitshap.training.fit import ClassifierStep, SurrogateStep
from vitshap.training.loop import LoopConfig
from vitshap.training.objectives import explainer_loss
from vitshap.training.pilot import law_before_pilot
from vitshap.training.recipes import Recipe
from vitshap.training.values import PILOT_IMAGES, PILOT_REPEATS, ROWS, Evaluator

PATIENCE = 20.0
"""Seconds: where a step of the real size would take longer, a part of it is timed."""
PART = 2
"""Images of such a part."""
SPARE = 8
"""Images that are read besides those that are timed, should some of these be unreadable."""
PILOT_SIZES = 14
"""About so many sizes of coalitions are asked by the pilot of the procedure "values"."""


class StageTime(NamedTuple):
    """An estimate for one training."""

    name: str
    seconds: float
    detail: str
    """What it is made of."""


def estimate(
    recipe: Recipe, model: MaskedModel, splits: Splits, *, done: Container[str] = frozenset()
) -> list[StageTime]:
    """Seconds of each training of the recipe that is not ``done``, on the device where ``model`` is."""
    clock = _Clock(model, splits)
    stages = []
    if recipe.classifier is not None and "classifier" not in done:
        stages.append(clock.classifier(recipe))
    if recipe.surrogate is not None and not recipe.masked and "surrogate" not in done:
        stages.append(clock.surrogate(recipe))
    if "explainer" not in done:
        stages.append(clock.explainer(recipe.explainer))
    if model.device.type == "cuda":
        torch.cuda.empty_cache()
    return stages


def about(seconds: float) -> str:
    """A duration as people say it: about 40 s, about 4 min, about 3 h, about 2 days."""
    for unit, length, limit in (("s", 1, 90), ("min", 60, 90 * 60), ("h", 3600, 48 * 3600)):
        if seconds < limit:
            return f"about {max(1, round(seconds / length))} {unit}"
    return f"about {round(seconds / 86400):,} days"


class _Clock:
    """Times parts of the work of one recipe's trainings."""

    def __init__(self, model: MaskedModel, splits: Splits) -> None:
        self.model, self.splits = model, splits
        self.decode = self._decode()
        self.processes = PartialState().num_processes

    def classifier(self, recipe: Recipe) -> StageTime:
        config, model = recipe.classifier, copy.deepcopy(self.model)
        assert config is not None
        law, trained = uniform_size(model.num_players), ClassifierStep(model, None)

        def loss(pixels: Tensor, batch: Batch, coalitions: int = config.coalitions) -> Tensor:
            if not recipe.masked:
                return trained.forward(pixels, batch.labels)
            some = sample_coalitions(law, batch.indices, seed=0, epoch=0, n=coalitions)
            return trained.forward(pixels, batch.labels, some)

        step = self._step(model, config.augmentation, config.loop, loss)
        check = self._per_image(lambda p, b: loss(p, b, config.validation_coalitions), config.validation_batch)
        return self._stage("classifier", config.loop, step, check)

    def surrogate(self, recipe: Recipe) -> StageTime:
        config, model = recipe.surrogate, copy.deepcopy(self.model)
        assert config is not None
        law, trained = uniform_size(model.num_players), SurrogateStep(model, self.model)

        def loss(pixels: Tensor, batch: Batch, coalitions: int = config.coalitions) -> Tensor:
            return trained.forward(pixels, sample_coalitions(law, batch.indices, seed=0, epoch=0, n=coalitions))

        step = self._step(model, config.augmentation, config.loop, loss)
        check = self._per_image(lambda p, b: loss(p, b, config.validation_coalitions), config.validation_batch)
        return self._stage("surrogate", config.loop, step, check)

    def explainer(self, config: ExplainerTraining) -> StageTime:
        game = copy.deepcopy(self.model).eval()
        explainer = Explainer(game, network_config(config, game.num_players), classifier=game)
        evaluator = Evaluator(game)
        fresh, paper = config.procedure == "paper", PaperStep(explainer, compiled=False)
        asked = config.coalitions if fresh else config.values.coalitions
        # Nearer to the sizes that a pilot will find than the kernel's are, which take far longer
        piloted = not fresh and config.values.allocation == "pilot"
        law = law_before_pilot(game.evaluation_cost()) if piloted else shapley_kernel(game.num_players)

        def drawn(batch: Batch, n: int) -> Tensor:
            return sample_coalitions(law, batch.indices, seed=0, epoch=0, n=n + n % 2, paired=not piloted)[:, :n]

        def loss(pixels: Tensor, batch: Batch) -> Tensor:
            some, base = drawn(batch, asked), explainer.null_values.expand(len(pixels), -1)
            if fresh:
                return paper.forward(pixels, some)
            # Values of coalitions are computed before, see below; what is done with them costs little.
            return explainer_loss(explainer.values(pixels, base), some, base[:, None].expand(-1, asked, -1), base)

        step = self._step(explainer, config.augmentation, config.loop, loss)
        null = explainer.null_values
        check = self._per_image(lambda p, _: explainer.values(p, null.expand(len(p), -1)), config.validation_batch)
        values = self._per_image(lambda p, b: evaluator(p, drawn(b, asked)), max(1, ROWS // (asked + 1)), cast=False)
        held_out = len(self.splits.val) * values * (config.validation_coalitions + 1) / (asked + 1)
        once = 0.0 if fresh else self._evaluated(config) * values / self.processes
        stage = self._stage("explainer", config.loop, step, check, once=once + held_out, asked=once)
        if config.compiled and game.device.type == "cuda":
            stage = stage._replace(detail=f"{stage.detail}; timed before it is compiled, so it will be faster")
        if not fresh and config.values.unsure > 1:
            again = f"images that the surrogate will be unsure of are met {config.values.unsure} times"
            stage = stage._replace(detail=f"{stage.detail}; not counted: {again}")
        return stage

    def _evaluated(self, config: ExplainerTraining) -> float:
        """How many views are evaluated: each once, or again in every epoch if they are not kept; and those of the pilot."""
        values, images = config.values, len(self.splits.train)
        limit = free_bytes(self.model.device) // 2 if values.memory_gib is None else values.memory_gib * 2**30
        needed = values.views * images * (values.coalitions + 1) * self.model.num_classes * 4
        rounds = min(values.views, config.loop.epochs) if needed <= limit else config.loop.epochs
        # A pilot asks some images about all sizes, as long as that is a fiftieth of all evaluations or it is four images.
        asked = 2 * PILOT_REPEATS * min(PILOT_SIZES, self.model.num_players // 2) / (values.coalitions + 1)
        return rounds * images + max(4 * asked, min(PILOT_IMAGES * asked, values.views * images / 50))

    def _stage(
        self, name: str, loop: LoopConfig, step: float, check: float, *, once: float = 0.0, asked: float = 0.0
    ) -> StageTime:
        train, val = len(self.splits.train), len(self.splits.val)
        steps = loop.epochs * (train // loop.batch_size)
        validations = -(-loop.epochs // loop.validate_every)
        seconds = steps * step + validations * val * check + once + (train + val) * self.decode
        detail = f"{steps:,} steps of {step:.3g} s"
        if asked:
            detail += f", values of coalitions {about(asked)}"
        return StageTime(name, seconds, detail)

    def _step(
        self,
        trained: torch.nn.Module,
        augmentation: Augmentation | None,
        loop: LoopConfig,
        loss: Callable[[Tensor, Batch], Tensor],
    ) -> float:
        """Seconds of an optimiser step with the recipe's batch."""
        batch = -(-loop.batch_size // self.processes)
        images = self._some(self.splits.train, batch, augmentation)
        parameters = [p for p in trained.parameters() if p.requires_grad]
        optimiser = torch.optim.AdamW(parameters, lr=1e-8)

        def work(n: int) -> None:
            trained.train()
            for pixels, drawn in images.views([torch.arange(n)], 0):
                with self._autocast():
                    value = loss(pixels, drawn)
                optimiser.zero_grad()
                value.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(parameters, loop.clip)
                optimiser.step()
                float(value.detach())
            trained.eval()

        seconds: float = self._timed(work, len(images)) * batch / len(images)
        return seconds

    def _per_image(self, answer: Callable[[Tensor, Batch], Any], size: int, *, cast: bool = True) -> float:
        """Seconds per validation image, without gradients."""
        images = self._some(self.splits.val, size, None)
        n = min(size, len(images))

        def work(count: int) -> None:
            for pixels, batch in images.views([torch.arange(count)], 0):
                with torch.no_grad(), self._autocast(cast):
                    answer(pixels, batch)

        return self._timed(work, n) / n

    def _timed(self, work: Callable[[int], None], wanted: int) -> float:
        part = min(PART, wanted)
        self._seconds(work, part)  # the first call of anything is slow
        small = self._seconds(work, part)
        if part == wanted or small * wanted / part > PATIENCE:
            return small * wanted / part
        return min(self._seconds(work, wanted) for _ in range(2))

    def _seconds(self, work: Callable[[int], None], n: int) -> float:
        started = time.perf_counter()
        work(n)
        if self.model.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    def _some(self, data: ImageData, n: int, augmentation: Augmentation | None) -> Images:
        how = decodes_by(self.model)
        some = data.subset(range(min(n + SPARE, len(data))))
        # Too few to judge by them how many images cannot be read
        opened = open_pixels(some, how, device=self.model.device, unreadable=Unreadable(quiet=True))
        return Images(self.model, _first(opened, n), augmentation, seed=0)

    def _decode(self) -> float:
        """Seconds to read and resize an image."""
        n = min(64, len(self.splits.train))
        started = time.perf_counter()
        self._some(self.splits.train, n, None)
        return (time.perf_counter() - started) / min(n + SPARE, len(self.splits.train))

    def _autocast(self, cast: bool = True) -> torch.autocast:
        return torch.autocast(self.model.device.type, torch.bfloat16, enabled=cast and self.model.device.type == "cuda")


def _first(source: PixelSource, n: int) -> PixelSource:
    if not isinstance(source, CachedPixels):
        return source
    return CachedPixels(source.pixels[:n], source.labels[:n], source.kept[:n])


def lines(stages: Iterable[StageTime]) -> list[str]:
    """The estimate in words, a line for each training and one for all."""
    stages = list(stages)
    if not stages:
        return []
    said = [f"{stage.name}: {about(stage.seconds)} ({stage.detail})" for stage in stages]
    return [*said, f"in all {about(sum(stage.seconds for stage in stages))}"]
