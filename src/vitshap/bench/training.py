"""What trainings cost: real steps of the real loop on random weights and images, timed and extrapolated."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import mean
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch

from vitshap.bench.speed import Arch, Library, build_net, describe, synchronize
from vitshap.data import CachedPixels
from vitshap.experiments.tables import Column, Table
from vitshap.explainers import Explainer
from vitshap.models import MaskedModel, wrap
from vitshap.training.batches import Images, chunks
from vitshap.training.configs import ClassifierTraining, ExplainerTraining, Procedure, SurrogateTraining, number
from vitshap.training.explainer import explainer_task, make_store, network_config, validation_set
from vitshap.training.fit import classifier_task, surrogate_task
from vitshap.training.loop import StepTimer, Task
from vitshap.training.recipes import load_recipe
from vitshap.training.values.store import Evaluator, ValueStore

WARM_UP = 4
"""Steps before the clock starts: kernels are compiled and recorded in the first."""
UNSEEN = 16
"""Images of the validation, which is not timed."""
RECIPES: dict[Procedure, str] = {"values": "imagenette-deit-tiny", "paper": "paper-imagenette"}
"""Whose settings are timed, by the explainer's procedure."""
Stage = Literal["classifier", "surrogate", "explainer"]
STAGES: tuple[Stage, ...] = get_args(Stage)
Training: TypeAlias = ClassifierTraining | SurrogateTraining | ExplainerTraining


class Speed(NamedTuple):
    """One training."""

    training: Literal["classifier", "surrogate"] | Procedure
    """For an explainer its procedure."""
    batch: int
    step_seconds: float
    images_per_second: float
    evaluations_per_second: float | None
    """Of coalitions; by the procedure "values" they are evaluated before the steps, else in them. None: of whole images."""
    peak_gib: float | None
    """Of GPU memory."""

    def hours(self, epochs: int, images: int, evaluations: int = 0) -> float:
        """Of so many epochs, and so many evaluations of coalitions if those are not part of the steps."""
        steps = epochs * (images // self.batch) * self.step_seconds
        before = 0.0
        if self.training == "values":
            assert self.evaluations_per_second is not None
            before = evaluations / self.evaluations_per_second
        return (steps + before) / 3600


def training_for(
    stage: Stage,
    procedure: Procedure,
    *,
    batch: int | None = None,
    epochs: int | None = None,
    coalitions: int | None = None,
    views: int | None = None,
    compiled: bool = False,
) -> Training:
    """Return a training of the procedure's recipe with these changes; ``coalitions`` and ``views``: of the explainer."""
    config: Training | None = getattr(load_recipe(RECIPES[procedure]), stage)
    assert config is not None
    loop = replace(config.loop, batch_size=batch or config.loop.batch_size, epochs=epochs or config.loop.epochs)
    config = replace(config, loop=loop, compiled=compiled)
    if isinstance(config, ExplainerTraining):
        values = config.values
        values = replace(values, coalitions=coalitions or values.coalitions, views=views or values.views)
        config = replace(config, coalitions=coalitions or config.coalitions, values=values)
    return config


def compare(
    library: Library,
    arch: Arch,
    trainings: Mapping[Stage, Training],
    device: torch.device,
    *,
    steps: int,
    images: int,
    note: Callable[[str], object] = lambda text: None,
) -> Table:
    """Measure these trainings, a row for each, and project their time with so many images."""
    columns = (
        Column("stage"),
        Column("batch", "d"),
        Column("step", ".1f", title="ms/step"),
        Column("images", ",.0f", title="images/s"),
        Column("evaluations", ",.0f", title="values/s"),
        Column("gpu_memory", ".1f", "GiB", title="peak"),
        Column("training", ".2f", "h", title="projected"),
    )
    table = Table(f"{library} ViT-{arch}, {describe(device)}", columns)
    for stage, config in trainings.items():
        note(stage)
        speed = measure(library, arch, config, device, steps=steps)
        table.add(
            stage=stage,
            batch=speed.batch,
            step=speed.step_seconds * 1e3,
            images=speed.images_per_second,
            evaluations=speed.evaluations_per_second,
            gpu_memory=speed.peak_gib,
            training=projected_hours(speed, config, images),
        )
        how = f", procedure {config.procedure}" if isinstance(config, ExplainerTraining) else ""
        table.notes.append(f"{stage}: {config.loop.epochs} epochs of {images:,} images{how}")
    table.notes.append("values/s: evaluations of coalitions; peak: of GPU memory")
    table.notes.append(f"projected from {steps} steps, without validation, reading of images and checkpoints")
    return table


def measure(library: Library, arch: Arch, config: Training, device: torch.device, *, steps: int) -> Speed:
    """Time ``steps`` steps, after a few to warm up, of a net of random weights."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what an earlier measurement left
    model = wrap(build_net(library, arch).to(device).eval(), check=False)
    return measure_net(model, config, steps=steps)


def measure_net(model: MaskedModel, config: Training, *, steps: int) -> Speed:
    """The same for any net."""
    device, batch = model.device, number(config.loop.batch_size)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    pixels = _random_images(model, (steps + WARM_UP) * batch)
    images = Images(model, pixels, config.augmentation, seed=0, compiled=config.compiled is True)
    unseen = Images(model, _random_images(model, UNSEEN), None, seed=0)
    evaluations: float | None = None  # per second, if they are not in the steps
    if isinstance(config, ExplainerTraining):
        task, evaluations = _explainer(model, images, unseen, config)
    elif isinstance(config, SurrogateTraining):
        task = surrogate_task(copy.deepcopy(model), model, images, unseen, config)
    else:
        task = classifier_task(model, images, unseen, config, masked=False)
    step = mean(StepTimer(task, config.loop)(chunks(len(images), batch))[WARM_UP:])
    if isinstance(config, SurrogateTraining):
        evaluations = batch * number(config.coalitions) / step
    elif isinstance(config, ExplainerTraining) and evaluations is None:
        evaluations = batch * (config.coalitions + 1) / step
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    return Speed(_name(config), batch, step, batch / step, evaluations, peak)


def projected_hours(speed: Speed, config: Training, images: int) -> float:
    """Return the hours of the whole training with so many images, without validation and reading of images."""
    evaluations = 0
    if isinstance(config, ExplainerTraining):
        evaluations = number(config.values.views) * images * (number(config.values.coalitions) + 1)
    return speed.hours(number(config.loop.epochs), images, evaluations)


def _name(config: Training) -> Literal["classifier", "surrogate"] | Procedure:
    if isinstance(config, ExplainerTraining):
        return config.procedure
    return "surrogate" if isinstance(config, SurrogateTraining) else "classifier"


def _explainer(
    model: MaskedModel, images: Images, unseen: Images, config: ExplainerTraining
) -> tuple[Task, float | None]:
    """Return the task, and the evaluations per second of the procedure "values"."""
    evaluate = Evaluator(model, compiled=config.compiled is True)
    store: ValueStore | None = None
    evaluations = None
    if config.procedure == "values":
        store = make_store(evaluate, images, replace(config.values, views=2))
        # The second of two views compiles; the first comes after, so that its pixels are kept as in a training.
        next(store.batches([torch.arange(1)], 1))
        spent = _seconds(model.device, store.fill)
        evaluations = len(images) * (number(config.values.coalitions) + 1) / spent
    torch.manual_seed(0)
    explainer = Explainer(model, network_config(config, model.num_players))
    validation = validation_set(None, evaluate, unseen, explainer, config, store)
    return explainer_task(explainer, images, validation, config, store), evaluations


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
