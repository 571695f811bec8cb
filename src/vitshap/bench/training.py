"""What training an explainer costs: real steps of the real loop on random images, timed and extrapolated."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import mean
from typing import NamedTuple

import torch

from vitshap.bench.speed import Arch, Library, build_net, synchronize
from vitshap.data import CachedPixels
from vitshap.explainers import Explainer
from vitshap.models import MaskedModel, wrap
from vitshap.training.batches import Images, chunks
from vitshap.training.configs import ExplainerTraining, Procedure, number
from vitshap.training.explainer import explainer_task, make_store, network_config, validation_set
from vitshap.training.loop import StepTimer
from vitshap.training.recipes import load_recipe
from vitshap.training.values.store import Evaluator

WARM_UP = 4
"""Steps before the clock starts: kernels are compiled and recorded in the first three."""
UNSEEN = 16
"""Images of the validation, which is not timed."""
RECIPES: dict[Procedure, str] = {"values": "imagenette-deit-tiny", "paper": "paper-imagenette"}
"""Whose settings are timed, but for the batch and the coalitions."""


class Speed(NamedTuple):
    """One procedure."""

    procedure: Procedure
    batch: int
    step_seconds: float
    images_per_second: float
    evaluations_per_second: float
    """Of coalitions; in the paper's procedure they are evaluated in the step, else before it."""
    peak_gib: float | None
    """Of GPU memory."""

    def hours(self, epochs: int, images: int, evaluations: int) -> float:
        """Of so many epochs, and so many evaluations of coalitions if those are not part of the steps."""
        steps = epochs * (images // self.batch) * self.step_seconds
        before = evaluations / self.evaluations_per_second if self.procedure == "values" else 0.0
        return (steps + before) / 3600


def training_for(procedure: Procedure, *, batch: int, coalitions: int, compiled: bool) -> ExplainerTraining:
    """One epoch of a shipped recipe of the procedure; ``coalitions`` per image."""
    config = load_recipe(RECIPES[procedure]).explainer
    return replace(
        config,
        loop=replace(config.loop, epochs=1, batch_size=batch),
        coalitions=coalitions,
        values=replace(config.values, views=2, coalitions=coalitions),
        compiled=compiled,
    )


def measure(library: Library, arch: Arch, config: ExplainerTraining, device: torch.device, *, steps: int) -> Speed:
    """Time ``steps`` steps, after a few to warm up, of a net of random weights."""
    model = wrap(build_net(library, arch).to(device).eval(), check=False)
    return measure_net(model, config, steps=steps)


def measure_net(model: MaskedModel, config: ExplainerTraining, *, steps: int) -> Speed:
    """The same for any net."""
    device, batch = model.device, number(config.loop.batch_size)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    images = Images(model, _random_images(model, (steps + WARM_UP) * batch), config.augmentation, seed=0)
    unseen = Images(model, _random_images(model, UNSEEN), None, seed=0)
    evaluate = Evaluator(model, compiled=config.compiled is True)
    store, evaluations = None, 0.0
    if config.procedure == "values":
        store = make_store(evaluate, images, config.values)
        # The second of two views compiles; the first comes after, so that its pixels are kept as in a training.
        next(store.batches([torch.arange(1)], 1))
        evaluations = len(images) * (number(config.values.coalitions) + 1) / _seconds(device, store.fill)
    torch.manual_seed(0)
    explainer = Explainer(model, network_config(config, model.num_players))
    validation = validation_set(None, evaluate, unseen, explainer, config, store)
    timer = StepTimer(explainer_task(explainer, images, validation, config, store), config.loop)
    step = mean(timer(chunks(len(images), batch))[WARM_UP:])
    if store is None:
        evaluations = batch * (config.coalitions + 1) / step
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    return Speed(config.procedure, batch, step, batch / step, evaluations, peak)


def _random_images(model: MaskedModel, count: int) -> CachedPixels:
    generator = torch.Generator().manual_seed(0)
    shape = (count, model.adapter.channels, *model.adapter.image_size)
    pixels = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8).to(model.device)
    numbers = torch.arange(count, device=model.device)
    return CachedPixels(pixels, torch.zeros_like(numbers), numbers)


def _seconds(device: torch.device, work: Callable[[], None]) -> float:
    synchronize(device)
    started = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - started
