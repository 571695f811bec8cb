"""About how long a recipe will take on this machine: a few real optimiser steps of each training, timed before anything
starts.

Steps run on throw-away copies with the real batch, net, augmentation and coalitions, and are extrapolated together with
validation, evaluation of coalitions, reading of images, checkpoints and the measurements at the end. Where a step of the
real batch would take more than two seconds, a part of it is timed and multiplied. Early stopping is not known beforehand,
nor what compiling will save, nor how many images the surrogate will be unsure of (a tenth is assumed): so a range is said.
"""

from __future__ import annotations

import copy
import math
import tempfile
import time
from collections.abc import Callable, Container, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import PartialState
from torch import Tensor

from vitshap import files
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
from vitshap.data.decode import Unreadable
from vitshap.data.pixels import free_bytes
from vitshap.explainers import Explainer
from vitshap.models import MaskedModel
from vitshap.training.batches import Images, decodes_by
from vitshap.training.configs import ExplainerTraining
from vitshap.training.explainer import PaperStep, network_config
from vitshap.training.fit import ClassifierStep, SurrogateStep
from vitshap.training.loop import SAVE_SECONDS, LoopConfig, autocast, number
from vitshap.training.objectives import explainer_loss
from vitshap.training.pilot import law_before_pilot
from vitshap.training.recipes import Recipe
from vitshap.training.values import PILOT_IMAGES, PILOT_REPEATS, ROWS, Evaluator

QUICK = 2.0
"""Seconds: where a step of the real size would take longer, a part of it that takes about a second is timed."""
PART = 2
"""Images that are timed first."""
SPARE = 8
"""Images that are read besides those that are timed, should some of these be unreadable."""
PILOT_SIZES = 14
"""About so many sizes of coalitions are asked by the pilot of the procedure "values"."""
UNSURE = 0.1
"""Share of the images that the surrogate is assumed to be unsure of, where ``values.unsure`` lets them be met again."""
RANGE = (0.85, 1.35)
"""Of what was counted, between which trainings have taken."""
COMPILING, COMPILED_SHARE = 90.0, 0.4
"""Seconds that compiling takes, and the least part of the time that is left by it."""
LONG = 300.0
"""Seconds of an explainer's training from which on compiling pays."""


class StageTime(NamedTuple):
    """An estimate for one training, or for reading the images."""

    name: str
    seconds: float
    detail: str
    """What it is made of."""
    compiled: bool = False
    """Whether it will be compiled, which is not counted in ``seconds``."""

    @property
    def span(self) -> tuple[float, float]:
        """Seconds between which it will probably be."""
        low, high = (self.seconds * factor for factor in RANGE)
        return (low * COMPILED_SHARE + COMPILING / 2, high + COMPILING) if self.compiled else (low, high)


def estimate(
    recipe: Recipe, model: MaskedModel, splits: Splits, *, done: Container[str] = frozenset()
) -> list[StageTime]:
    """Seconds of each training of the recipe that is not ``done``, on the device where ``model`` is, after those of reading
    the images; ``explainer.compiled`` is taken as false where it is "auto"."""
    names = needed(recipe, done)
    if not names:
        return []
    clock = _Clock(model, splits)
    stages = [clock.images()]
    if "classifier" in names:
        stages.append(clock.classifier(recipe))
    if "surrogate" in names:
        stages.append(clock.surrogate(recipe))
    if "explainer" in names:
        stages.append(clock.explainer(recipe.explainer))
    if model.device.type == "cuda":
        torch.cuda.empty_cache()
    return stages


def needed(recipe: Recipe, done: Container[str]) -> list[str]:
    """The trainings of a recipe that are not ``done``."""
    wanted = {
        "classifier": recipe.classifier is not None,
        "surrogate": recipe.surrogate is not None and not recipe.masked,
        "explainer": True,
    }
    return [name for name, there_is in wanted.items() if there_is and name not in done]


def about(seconds: float, low: float | None = None) -> str:
    """A duration as people say it: about 40 s, about 4 min, about 3 h, about 2 days; from ``low``: about 3 to 4 min."""
    for unit, length, limit in (("s", 1, 90), ("min", 60, 90 * 60), ("h", 3600, 48 * 3600), ("days", 86400, None)):
        if limit is None or seconds < limit:
            most = max(1, round(seconds / length))
            least = most if low is None else max(1, round(low / length))
            return f"about {least:,} to {most:,} {unit}" if least < most else f"about {most:,} {unit}"
    raise AssertionError("the last unit has no limit")


class _Clock:
    """Times parts of the work of one recipe's trainings."""

    def __init__(self, model: MaskedModel, splits: Splits) -> None:
        self.model, self.splits = model, splits
        self.decode, self.writing = self._decode(), self._writing()
        self.processes = PartialState().num_processes

    def images(self) -> StageTime:
        count = sum(len(part) for part in self.splits)
        return StageTime("images", count * self.decode, f"{count:,} images are read")

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
        return self._stage("classifier", config.loop, step, check, once=len(self.splits.test) * check)

    def surrogate(self, recipe: Recipe) -> StageTime:
        config, model = recipe.surrogate, copy.deepcopy(self.model)
        assert config is not None
        law, trained = uniform_size(model.num_players), SurrogateStep(model, self.model)

        def loss(pixels: Tensor, batch: Batch, coalitions: int = number(config.coalitions)) -> Tensor:
            return trained.forward(pixels, sample_coalitions(law, batch.indices, seed=0, epoch=0, n=coalitions))

        step = self._step(model, config.augmentation, config.loop, loss)
        check = self._per_image(lambda p, b: loss(p, b, config.validation_coalitions), config.validation_batch)
        return self._stage("surrogate", config.loop, step, check, once=len(self.splits.test) * check)

    def explainer(self, config: ExplainerTraining) -> StageTime:
        game = copy.deepcopy(self.model).eval()
        explainer = Explainer(game, network_config(config, game.num_players), classifier=game)
        evaluator = Evaluator(game)
        fresh, paper = config.procedure == "paper", PaperStep(explainer, compiled=False)
        asked = config.coalitions if fresh else number(config.values.coalitions)
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
        values = self._per_image(
            lambda p, b: evaluator(p, drawn(b, asked)),
            max(1, ROWS // (asked + 1)),
            cast=False,
            augmentation=None if fresh else config.augmentation,
        )
        again = 1.0 if fresh else 1 + UNSURE * (config.values.unsure - 1)
        unseen = len(self.splits.val) + len(self.splits.test)
        held_out = unseen * values * (config.validation_coalitions + 1) / (asked + 1) + len(self.splits.test) * check
        once = 0.0 if fresh else self._evaluated(config, again) * values / self.processes
        stage = self._stage("explainer", config.loop, step, check, once=once + held_out, asked=once, again=again)
        if again > 1:
            unsure = f"a tenth of the images met {config.values.unsure} times (values.unsure)"
            stage = stage._replace(detail=f"{stage.detail}, with {unsure}")
        return stage if config.compiled is not True or game.device.type != "cuda" else compiled(stage)

    def _evaluated(self, config: ExplainerTraining, again: float) -> float:
        """How many views are evaluated: each once, or again in every epoch if they are not kept; and those of the pilot."""
        values, images = config.values, len(self.splits.train) * again
        limit = free_bytes(self.model.device) // 2 if values.memory_gib is None else values.memory_gib * 2**30
        views, coalitions, epochs = number(values.views), number(values.coalitions), number(config.loop.epochs)
        needed = views * images * (coalitions + 1) * self.model.num_classes * 4
        rounds = min(views, epochs) if needed <= limit else epochs
        # A pilot asks some images about all sizes, as long as that is a fiftieth of all evaluations or it is four images.
        asked = 2 * PILOT_REPEATS * min(PILOT_SIZES, self.model.num_players // 2) / (coalitions + 1)
        return rounds * images + max(4 * asked, min(PILOT_IMAGES * asked, views * images / 50))

    def _stage(
        self,
        name: str,
        loop: LoopConfig,
        step: float,
        check: float,
        *,
        once: float = 0.0,
        asked: float = 0.0,
        again: float = 1.0,
    ) -> StageTime:
        train, val = round(len(self.splits.train) * again), len(self.splits.val)
        epochs, batch, _ = loop.numbers()
        steps = epochs * (train // batch)
        validations = -(-epochs // loop.validate_every)
        seconds = steps * step + validations * (val * check + self.writing) + once
        if not self._kept():  # read again in every epoch
            seconds += epochs * train * self.decode + validations * val * self.decode
        # Weights and two moments of each
        seconds += 3 * self.writing * max(steps / loop.save_every, seconds / SAVE_SECONDS)
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
        batch = -(-number(loop.batch_size) // self.processes)
        images = self._some(self.splits.train, batch, augmentation)
        parameters = [p for p in trained.parameters() if p.requires_grad]
        optimiser = torch.optim.AdamW(parameters, lr=1e-8)

        def work(n: int) -> None:
            trained.train()
            for pixels, drawn in images.views([torch.arange(n)], 0):
                with autocast(self.model.device):
                    value = loss(pixels, drawn)
                optimiser.zero_grad()
                value.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(parameters, loop.clip)
                optimiser.step()
                float(value.detach())
            trained.eval()

        seconds: float = self._timed(work, len(images)) * batch / len(images)
        return seconds

    def _per_image(
        self,
        answer: Callable[[Tensor, Batch], Any],
        size: int,
        *,
        cast: bool = True,
        augmentation: Augmentation | None = None,
    ) -> float:
        """Seconds per validation image, without gradients."""
        images = self._some(self.splits.val, size, augmentation)
        n = min(size, len(images))

        def work(count: int) -> None:
            for pixels, batch in images.views([torch.arange(count)], 0):
                with torch.no_grad(), autocast(self.model.device) if cast else nullcontext():
                    answer(pixels, batch)

        return self._timed(work, n) / n

    def _timed(self, work: Callable[[int], None], wanted: int) -> float:
        if self.model.device.type == "cuda":  # where a few images take as long as many: the real size
            return min(self._seconds(work, wanted) for _ in range(4))
        part = min(PART, wanted)
        self._seconds(work, part)  # the first call of anything is slow
        small = self._seconds(work, part)
        if part < wanted and small * wanted / part <= QUICK:
            self._seconds(work, wanted)
            return sum(self._seconds(work, wanted) for _ in range(2)) / 2
        larger = min(wanted, int(part / small))
        if larger > part:
            part, small = larger, self._seconds(work, larger)
        return small * wanted / part

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

    def _writing(self) -> float:
        """Seconds to write the net's weights."""
        with tempfile.TemporaryDirectory(prefix="vitshap-") as place:
            started = time.perf_counter()
            files.write_tensors(Path(place) / "weights.safetensors", self.model.state_dict())
            return time.perf_counter() - started

    def _kept(self) -> bool:
        """Whether images are read once."""
        sides = math.prod(self.model.image_size) * self.model.adapter.channels
        return sum(len(part) for part in self.splits) * sides <= free_bytes(self.model.device) // 2


def compiled(stage: StageTime) -> StageTime:
    """The estimate of a training that will be compiled, from its time without."""
    return stage._replace(compiled=True, detail=f"{stage.detail}, before it is compiled")


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
    low, high = (sum(stage.span[i] for stage in stages) for i in (0, 1))
    return [*said, f"in all {about(high, low)}, estimated from a few steps of each training"]
