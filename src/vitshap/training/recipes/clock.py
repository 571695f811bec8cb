"""Times real optimiser steps of each training, and what comes before and after them.

Steps are taken by copies of the model with the recipe's batch, augmentation and coalitions. Where a step of the full batch
would take more than two seconds, a part of the batch is timed and extrapolated.
"""

from __future__ import annotations

import copy
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import PartialState
from torch import Tensor

from vitshap import files
from vitshap.coalitions import shapley_kernel
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
from vitshap.training.batches import Images, decoding
from vitshap.training.compilation import can_compile
from vitshap.training.configs import (
    CalibrationConfig,
    ClassifierTraining,
    ExplainerTraining,
    LoopConfig,
    SurrogateTraining,
    number,
)
from vitshap.training.explainer import PaperStep, ValuesStep, network_config
from vitshap.training.fit import classifier_task, surrogate_task
from vitshap.training.loop import SAVE_SECONDS, StepTimer, Task, autocast
from vitshap.training.recipes.recipe import Recipe
from vitshap.training.values.pilot import PILOT_IMAGES, PILOT_REPEATS, default_plan, law_before_pilot
from vitshap.training.values.store import ROWS, Evaluator

QUICK = 2.0
"""Seconds: if a step of the full batch would take longer, a part of it that takes about a second is timed."""
PART = 2
"""Images that are timed first."""
SPARE = 8
"""Images that are read in addition to those that are timed, in case some are unreadable."""
PILOT_SIZES = 14
"""Approximate number of coalition sizes in the pilot of the procedure "values"."""
LOW_CONFIDENCE_SHARE = 0.1
"""Assumed share of images of low confidence, where ``values.low_confidence_oversampling`` repeats them."""
RANGE = (0.85, 1.35)
"""Actual over estimated times lie between these."""
COMPILING, COMPILED_SHARE = 90.0, 0.4
"""Seconds that compilation takes, and the smallest fraction of the time that a compiled training takes."""


class StageTime(NamedTuple):
    """The estimate for one training, or for reading the images."""

    name: str
    seconds: float
    detail: str
    """How the estimate is composed."""
    compiled: bool = False
    """Whether the training will be compiled, which ``seconds`` does not include."""

    @property
    def span(self) -> tuple[float, float]:
        """Range of seconds."""
        low, high = (self.seconds * factor for factor in RANGE)
        return (low * COMPILED_SHARE + COMPILING / 2, high + COMPILING) if self.compiled else (low, high)


def duration(seconds: float, low: float | None = None) -> str:
    """Return a rounded duration: 40 s, 4 min, 3 h, 2 days; with ``low`` a range: 3 to 4 min."""
    units = (("s", 1, 90), ("min", 60, 90 * 60), ("h", 3600, 48 * 3600), ("days", 86400, math.inf))
    unit, length = next((unit, length) for unit, length, limit in units if seconds < limit)
    most = max(1, round(seconds / length))
    least = most if low is None else max(1, round(low / length))
    return f"{least:,} to {most:,} {unit}" if least < most else f"{most:,} {unit}"


def compiled(stage: StageTime) -> StageTime:
    """Return the estimate of a training that will be compiled, from its time without."""
    return stage._replace(compiled=True, detail=f"{stage.detail}, before compilation")


class Clock:
    """Times the parts of the trainings of one recipe."""

    def __init__(self, model: MaskedModel, splits: Splits) -> None:
        self.model, self.splits = model, splits
        self.decode, self.writing = self._decode(), self._writing()
        self.processes = PartialState().num_processes

    def images(self) -> StageTime:
        count = sum(len(part) for part in self.splits)
        return StageTime("images", count * self.decode, f"{count:,} images to read")

    def classifier(self, recipe: Recipe) -> StageTime:
        config, model = recipe.classifier, copy.deepcopy(self.model)
        assert config is not None

        def task(images: Images, coalitions: int) -> Task:
            # A few images may lack a class, and compilation is not part of the estimate.
            some = replace(config, coalitions=coalitions, class_weights=None, compiled=False)
            return classifier_task(model, images, images, some, masked=recipe.masked)

        step = self._step(lambda images: task(images, config.coalitions), config.augmentation, config.loop)
        check = self._forward(lambda images: task(images, config.validation_coalitions), config.validation_batch_size)
        stage = self._stage("classifier", config.loop, step, check, once=len(self.splits.test) * check)
        return self._as_configured(stage, config)

    def surrogate(self, recipe: Recipe) -> StageTime:
        config, model = recipe.surrogate, copy.deepcopy(self.model)
        assert config is not None

        def task(images: Images, coalitions: int) -> Task:
            some = replace(config, coalitions=coalitions, compiled=False)
            return surrogate_task(model, self.model, images, images, some)

        step = self._step(lambda images: task(images, number(config.coalitions)), config.augmentation, config.loop)
        check = self._forward(lambda images: task(images, config.validation_coalitions), config.validation_batch_size)
        stage = self._stage("surrogate", config.loop, step, check, once=len(self.splits.test) * check)
        return self._as_configured(stage, config)

    def explainer(self, config: ExplainerTraining, calibration: CalibrationConfig | None) -> StageTime:
        surrogate = copy.deepcopy(self.model).eval()
        explainer = Explainer(surrogate, network_config(config, surrogate.num_players), classifier=surrogate)
        evaluator, null = Evaluator(surrogate), explainer.null_values
        paper = config.procedure == "paper"
        count = config.coalitions if paper else number(config.values.coalitions)
        # Closer to the sizes that a pilot will choose than those of the kernel, whose evaluation takes far longer
        piloted = not paper and config.values.allocation == "pilot"
        law = law_before_pilot(surrogate.evaluation_cost()) if piloted else shapley_kernel(surrogate.num_players)

        def drawn(batch: Batch) -> Tensor:
            return sample_coalitions(law, batch.indices, seed=0, epoch=0, n=count + count % 2, paired=not piloted)[
                :, :count
            ]

        def task(images: Images) -> Task:
            def batches(order: Iterable[Tensor], epoch: int) -> Iterator[tuple[Tensor, ...]]:
                for pixels, batch in images.views(order, epoch):
                    full = null.expand(len(pixels), -1)
                    # Coalition values are computed before the steps; their time is added below.
                    values = () if paper else (full, full[:, None].expand(-1, count, -1))
                    yield pixels, drawn(batch), *values

            step = (
                PaperStep(explainer, evaluator, compiled=False)
                if paper
                else ValuesStep(explainer, default_plan(surrogate), config.values, compiled=False)
            )
            return Task(step, explainer, batches, len(images), dict)

        step = self._step(task, config.augmentation, config.loop)
        check = self._per_image(lambda p, _: explainer.values(p, null.expand(len(p), -1)), config.validation_batch_size)
        values = self._per_image(
            lambda p, b: evaluator(p, drawn(b)),
            max(1, ROWS // (count + 1)),
            cast=False,
            augmentation=None if paper else config.augmentation,
        )
        repeats = 1.0 if paper else 1 + LOW_CONFIDENCE_SHARE * (config.values.low_confidence_oversampling - 1)
        val, test = len(self.splits.val), len(self.splits.test)
        evaluated = (val + test) * (config.validation_coalitions + 1)
        if calibration is not None:
            evaluated += min(calibration.images, val) * calibration.evaluations
        held_out = evaluated * values / (count + 1) + test * check
        before = 0.0 if paper else self._evaluated(config, repeats) * values / self.processes
        stage = self._stage(
            "explainer", config.loop, step, check, once=before + held_out, values=before, repeats=repeats
        )
        if repeats > 1:
            oversampling = config.values.low_confidence_oversampling
            stage = stage._replace(detail=f"{stage.detail}, with a tenth of the images repeated {oversampling} times")
        return self._as_configured(stage, config)

    def _as_configured(
        self, stage: StageTime, config: ClassifierTraining | SurrogateTraining | ExplainerTraining
    ) -> StageTime:
        return compiled(stage) if config.compiled is True and can_compile(self.model.device) else stage

    def _evaluated(self, config: ExplainerTraining, repeats: float) -> float:
        """Return how many views are evaluated: each once, or in every epoch if they are not stored; and the pilot's."""
        values, images = config.values, len(self.splits.train) * repeats
        limit = free_bytes(self.model.device) // 2 if values.memory_gib is None else values.memory_gib * 2**30
        views, coalitions, epochs = number(values.views), number(values.coalitions), number(config.loop.epochs)
        bytes_needed = views * images * (coalitions + 1) * self.model.num_classes * 4
        rounds = min(views, epochs) if bytes_needed <= limit else epochs
        # The pilot evaluates all sizes for some images: at most a fiftieth of all evaluations, but at least four images.
        pilot = 2 * PILOT_REPEATS * min(PILOT_SIZES, self.model.num_players // 2) / (coalitions + 1)
        return rounds * images + max(4 * pilot, min(PILOT_IMAGES * pilot, views * images / 50))

    def _stage(
        self,
        name: str,
        loop: LoopConfig,
        step: float,
        check: float,
        *,
        once: float = 0.0,
        values: float = 0.0,
        repeats: float = 1.0,
    ) -> StageTime:
        """Add up a training: ``check`` seconds per validation image, ``once`` seconds in addition, ``values`` of them for
        coalition values."""
        train, val = round(len(self.splits.train) * repeats), len(self.splits.val)
        epochs, batch, _ = loop.numbers()
        steps = epochs * (train // batch)
        validations = -(-epochs // loop.validate_every)
        seconds = steps * step + validations * (val * check + self.writing) + once
        if not self._cached():  # read again in every epoch
            seconds += epochs * train * self.decode + validations * val * self.decode
        # Weights and two moments of each
        seconds += 3 * self.writing * max(steps / loop.save_every, seconds / SAVE_SECONDS)
        detail = f"{steps:,} steps of {step:.3g} s"
        if values:
            detail += f", coalition values about {duration(values)}"
        return StageTime(name, seconds, detail)

    def _step(self, make: Callable[[Images], Task], augmentation: Augmentation | None, loop: LoopConfig) -> float:
        """Return the seconds of an optimiser step with the recipe's batch."""
        batch = -(-number(loop.batch_size) // self.processes)
        images = self._some(self.splits.train, batch, augmentation)
        timer = StepTimer(make(images), loop)
        seconds: float = self._timed(lambda n: timer([torch.arange(n)]), len(images)) * batch / len(images)
        return seconds

    def _forward(self, make: Callable[[Images], Task], size: int) -> float:
        """Return the seconds per validation image of a task's loss, without gradients."""
        images = self._some(self.splits.val, size, None)
        task, n = make(images), min(size, len(images))

        def work(count: int) -> None:
            with torch.no_grad(), autocast(self.model.device):
                for batch in task.batches([torch.arange(count)], 0):
                    task.step.eval()(*batch)

        return self._timed(work, n) / n

    def _per_image(
        self,
        answer: Callable[[Tensor, Batch], Any],
        size: int,
        *,
        cast: bool = True,
        augmentation: Augmentation | None = None,
    ) -> float:
        """Return the seconds per validation image of ``answer``, without gradients."""
        images = self._some(self.splits.val, size, augmentation)
        n = min(size, len(images))

        def work(count: int) -> None:
            for pixels, batch in images.views([torch.arange(count)], 0):
                with torch.no_grad(), autocast(self.model.device) if cast else nullcontext():
                    answer(pixels, batch)

        return self._timed(work, n) / n

    def _timed(self, work: Callable[[int], Any], wanted: int) -> float:
        if self.model.device.type == "cuda":  # where a few images take as long as many: the full size
            return min(self._seconds(work, wanted) for _ in range(4))
        part = min(PART, wanted)
        self._seconds(work, part)  # warm-up
        small = self._seconds(work, part)
        if part < wanted and small * wanted / part <= QUICK:
            self._seconds(work, wanted)
            return sum(self._seconds(work, wanted) for _ in range(2)) / 2
        larger = min(wanted, int(part / small))
        if larger > part:
            part, small = larger, self._seconds(work, larger)
        return small * wanted / part

    def _seconds(self, work: Callable[[int], Any], n: int) -> float:
        started = time.perf_counter()
        work(n)
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)
        return time.perf_counter() - started

    def _some(self, data: ImageData, n: int, augmentation: Augmentation | None) -> Images:
        how = decoding(self.model)
        some = data.subset(range(min(n + SPARE, len(data))))
        # Too few to judge how many images are unreadable
        opened = open_pixels(some, how, device=self.model.device, unreadable=Unreadable(quiet=True))
        return Images(self.model, _first(opened, n), augmentation, seed=0)

    def _decode(self) -> float:
        """Return the seconds to read and resize an image."""
        n = min(64, len(self.splits.train))
        started = time.perf_counter()
        self._some(self.splits.train, n, None)
        return (time.perf_counter() - started) / min(n + SPARE, len(self.splits.train))

    def _writing(self) -> float:
        """Return the seconds to write the model's weights."""
        with tempfile.TemporaryDirectory(prefix="vitshap-") as place:
            started = time.perf_counter()
            files.write_tensors(Path(place) / "weights.safetensors", self.model.state_dict())
            return time.perf_counter() - started

    def _cached(self) -> bool:
        """Whether all images fit into memory, so that they are read once."""
        sides = math.prod(self.model.image_size) * self.model.adapter.channels
        return sum(len(part) for part in self.splits) * sides <= free_bytes(self.model.device) // 2


def _first(source: PixelSource, n: int) -> PixelSource:
    if not isinstance(source, CachedPixels):
        return source
    return CachedPixels(source.pixels[:n], source.labels[:n], source.kept[:n])
