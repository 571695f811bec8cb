"""Training of an explainer, by two procedures with the same optimum: the Shapley values.

"paper": fresh subsets of a fresh view in every step, the paper's loss. "values": values of many views computed once, the
size's part removed, sizes drawn where the noise is, views and classes weighed by their noise (see ``noise.py``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from vitshap.coalitions import CoalitionLaw, Coalitions, authors_sampler, shapley_kernel
from vitshap.data import sample_coalitions
from vitshap.explainers import Explainer, ExplainerConfig
from vitshap.explainers.network import sum_over_players
from vitshap.models import MaskedModel
from vitshap.training.batches import Images
from vitshap.training.configs import ExplainerTraining, Sampler, ValuesConfig, suited
from vitshap.training.fit import kept_or_temporary
from vitshap.training.held_out import HeldOut
from vitshap.training.loop import Task, number, train
from vitshap.training.noise import Known, Plan, Residuals, weighted_halves, weights_by_noise
from vitshap.training.objectives import class_importance, explainer_loss
from vitshap.training.pilot import pilot
from vitshap.training.processes import kept_random_state, seed_device
from vitshap.training.repeats import repeat_unsure
from vitshap.training.values import PILOT_IMAGES, PILOT_REPEATS, Evaluator, ValueStore, null_values, pilot_values

ASIDE = 0.01
"""Scale of the loss of what is learned beside the values."""
SAMPLERS: dict[Sampler, Callable[[int], CoalitionLaw]] = {"shapley": shapley_kernel, "authors": authors_sampler}


def fit_explainer(
    surrogate: MaskedModel,
    data: Any,
    val: Any,
    /,
    folder: str | Path | None = None,
    config: ExplainerTraining | None = None,
    *,
    classifier: MaskedModel | None = None,
    resume: bool = False,
    console: Console | None = None,
) -> Explainer:
    """Train an explainer of ``surrogate`` without ground truth, for all classes at once.

    ``data``, ``val``: images (labels are not used). ``classifier``: the net that is explained; needed where the network
    starts from its weights, and where ``save_pretrained`` is to include it.
    ``folder`` takes checkpoints and the log, and with ``resume`` gives them back; None: nothing is kept.
    """
    config, console = config or ExplainerTraining(), console or Console(quiet=True)
    surrogate = copy.deepcopy(surrogate).eval()
    opened = Images(surrogate, data, None, seed=config.loop.seed).source
    config = suited(config, surrogate, len(opened))
    images = training_images(surrogate, opened, config)
    unseen = Images(surrogate, val, None, seed=config.loop.seed)
    evaluate = Evaluator(surrogate, compiled=config.compiled is True)
    with kept_random_state(surrogate.device):
        seed_device(config.loop.seed, surrogate.device)
        explainer = Explainer(surrogate, network_config(config, surrogate.num_players), classifier=classifier)
    if surrogate.output == "identity":
        explainer.set_scale(_deviations(evaluate, unseen))
    store = None
    if config.procedure == "values":
        store = make_store(evaluate, images, config.values, scale=explainer.scale)
        console.print(store.describe())
    with kept_or_temporary(folder) as place:
        held_out = hold_out(place, evaluate, unseen, explainer, config, store)
        train_explainer(explainer, images, held_out, place, config, store=store, resume=resume, console=console)
    return explainer


def training_images(surrogate: MaskedModel, data: Any, config: ExplainerTraining) -> Images:
    """Images of ``data`` as the training meets them."""
    if config.procedure == "paper":
        return Images(surrogate, data, config.augmentation, seed=config.loop.seed)
    values = config.values
    milder_from = round(number(values.views) * (1 - values.milder))
    images = Images(surrogate, data, config.augmentation, seed=config.loop.seed, milder_from=milder_from)
    if values.unsure > 1:
        repeat_unsure(images, surrogate, values.unsure)
    return images


def train_explainer(
    explainer: Explainer,
    images: Images,
    held_out: HeldOut,
    folder: Path,
    config: ExplainerTraining,
    *,
    store: ValueStore | None = None,
    resume: bool = False,
    console: Console,
) -> list[dict[str, float]]:
    """Train ``explainer`` itself, from values in ``store`` or (None) by the paper's procedure; one record per epoch."""
    task = explainer_task(explainer, images, held_out, config, store)
    history = train(task, config.loop, folder, resume=resume, console=console)
    best = min(history, key=lambda line: line[task.select])
    if best["loss"] >= best["uniform_loss"]:
        console.print(
            f"The explainer has learned nothing: its validation loss {best['loss']:.4g} is no better than that of giving "
            f"every player the same value, {best['uniform_loss']:.4g}. Try more epochs or another learning rate."
        )
    return history


def explainer_task(
    explainer: Explainer, images: Images, held_out: HeldOut, config: ExplainerTraining, store: ValueStore | None
) -> Task:
    """What the loop trains: from values in ``store``, or (None) by the paper's procedure."""
    if store is None:
        return _paper_task(explainer, images, held_out, config)
    return _values_task(explainer, store, held_out, config)


def hold_out(
    folder: Path | None,
    evaluate: Evaluator,
    unseen: Images,
    explainer: Explainer,
    config: ExplainerTraining,
    store: ValueStore | None,
) -> HeldOut:
    """The validation tuples of a training."""
    return HeldOut(
        folder,
        evaluate,
        unseen,
        law=SAMPLERS[config.sampler](explainer.surrogate.num_players),
        pairs=config.validation_coalitions,
        plan=None if store is None else store.plan,
        planned=0 if store is None else store.coalitions,
        weighing=config.values.weighing,
        emphasis=config.values.emphasis,
    )


def make_store(evaluate: Evaluator, images: Images, config: ValuesConfig, *, scale: Tensor | None = None) -> ValueStore:
    """The values that ``config`` asks for; computed when they are met, but for the pilot's.

    ``scale``: unit ``[K]`` in which outputs are learned, see ``Explainer.set_scale``.
    """
    plan = plan_evaluations(evaluate, images, config, scale)
    memory = None if config.memory_gib is None else int(config.memory_gib * 2**30)
    views, coalitions = number(config.views), number(config.coalitions)
    return ValueStore(evaluate, images, plan, views=views, coalitions=coalitions, memory=memory)


def network_config(config: ExplainerTraining, num_players: int) -> ExplainerConfig:
    """What the network is made of: as configured, or what suits the procedure."""
    if num_players < 2:
        raise ValueError("the image is one patch: there is nothing to share among players, and nothing to learn")
    if config.network is not None:
        return config.network
    if config.procedure == "paper":
        return ExplainerConfig()
    # Values are of the order of 1/d: outputs in that unit are learned faster, and need no bound.
    return ExplainerConfig(tanh=False, output_scale=2 / num_players, magnitudes=True, profiles=config.cancels)


def plan_evaluations(evaluate: Evaluator, images: Images, config: ValuesConfig, scale: Tensor | None = None) -> Plan:
    """What a pilot on a few images (at most a fiftieth of the evaluations) finds best, or pairs from the Shapley kernel.

    ``scale``: unit of the outputs ``[K]``.
    """
    unit = 1.0 if scale is None else scale
    null = null_values(evaluate) if evaluate.model.same_null else None
    d = evaluate.model.num_players
    fixed = shapley_kernel(d) if config.allocation == "shapley" else None
    affordable = number(config.views) * len(images) * number(config.coalitions) // 50

    def values(coalitions: Coalitions) -> tuple[Tensor, Tensor, Tensor]:
        count = max(4, min(PILOT_IMAGES, affordable // len(coalitions)))
        if null is not None:
            full, worth = pilot_values(evaluate, images, coalitions, count=count)
            return worth / unit, (null / unit).expand_as(full), full / unit
        nobody = torch.zeros_like(coalitions[:1])
        full, worth = pilot_values(evaluate, images, torch.cat([nobody, coalitions]), count=count)
        return worth[:, 1:] / unit, worth[:, 0] / unit, full / unit

    def weigh(noise: Tensor, full: Tensor) -> Tensor:
        """As the loss will."""
        importance = class_importance(full, evaluate.model.output, config.emphasis)
        return importance * weights_by_noise(noise, float(noise.mean()), config.weighing)

    cost = evaluate.model.evaluation_cost()
    return pilot(values, d, seed=images.seed, repeats=PILOT_REPEATS, weigh=weigh, cost=cost, fixed=fixed)


def _deviations(evaluate: Evaluator, images: Images) -> Tensor:
    """Standard deviation of each output on whole images, ``[K]``."""
    whole = evaluate.model.num_players
    found = []
    for pixels, _ in images.in_order(256):
        found.append(evaluate(pixels, torch.ones(len(pixels), 1, whole, dtype=torch.bool, device=pixels.device)).full)
    return torch.cat(found).std(0)


def _paper_task(explainer: Explainer, images: Images, held_out: HeldOut, config: ExplainerTraining) -> Task:
    law, seed = SAMPLERS[config.sampler](explainer.surrogate.num_players), config.loop.seed

    def batches(order: Iterable[Tensor], epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        for pixels, batch in images.views(order, epoch):
            drawn = sample_coalitions(law, batch.indices, seed=seed, epoch=epoch, n=config.coalitions, paired=True)
            yield pixels, drawn

    def validate() -> dict[str, float]:
        return held_out.losses(explainer, config.validation_batch)

    return Task(PaperStep(explainer, compiled=config.compiled is True), explainer, batches, len(images), validate)


def _values_task(explainer: Explainer, store: ValueStore, held_out: HeldOut, config: ExplainerTraining) -> Task:
    def batches(order: Iterable[Tensor], epoch: int) -> Iterator[tuple[Tensor, ...]]:
        return store.batches(list(order), epoch)

    def validate() -> dict[str, float]:
        return held_out.losses(explainer, config.validation_batch)

    step = _ValuesStep(explainer, store.plan, config.values, compiled=config.compiled is True)
    return Task(step, explainer, batches, len(store.images), validate, select=held_out.select)


class _Step(nn.Module):
    """Values of a batch, through the compiled network where that is asked for: launching its kernels one by one takes a
    GPU longer than computing them, so they are recorded once (CUDA graphs) and launched together."""

    def __init__(self, explainer: Explainer, *, compiled: bool) -> None:
        super().__init__()
        self.explainer = explainer
        self._outputs = explainer.network.outputs
        if compiled and explainer.null_values.device.type == "cuda":
            # Validation has other shapes and stays as it is.
            self._outputs = torch.compile(self._outputs, dynamic=False, mode="reduce-overhead")

    def learned(self, pixels: Tensor, full: Tensor, base: Tensor) -> tuple[Tensor, Tensor | None]:
        """Values ``[B, d, K]``, and shares of profiles where the network learns them."""
        values, shares = self._outputs(pixels)
        return self.explainer.efficient(sum_over_players(values, self.explainer.surrogate.players), full, base), shares


class PaperStep(_Step):
    """Returns the paper's loss of a batch with fresh coalitions."""

    def forward(self, pixels: Tensor, coalitions: Tensor) -> Tensor:
        surrogate = self.explainer.surrogate
        with torch.no_grad():
            full, worth = (surrogate.link(surrogate.logits(pixels, s, finite=False)) for s in (None, coalitions))
            base = self.explainer.base_values(pixels)
        (values, _), scale = self.learned(pixels, full, base), self.explainer.scale
        return explainer_loss(values / scale, coalitions, worth / scale, base / scale)


class _ValuesStep(_Step):
    def __init__(self, explainer: Explainer, plan: Plan, config: ValuesConfig, *, compiled: bool) -> None:
        super().__init__(explainer, compiled=compiled)
        self.plan, self.config = plan, config

    def forward(self, pixels: Tensor, coalitions: Tensor, full: Tensor, worth: Tensor) -> Tensor:
        base, scale = self.explainer.base_values(pixels), self.explainer.scale
        values, shares = self.learned(pixels, full, base)
        values, base, full, worth = values.float() / scale, base / scale, full / scale, worth / scale
        known = None
        if shares is not None and self.config.loss == "cancelled":
            known = Known(values.detach(), shares)
        with torch.autocast(pixels.device.type, enabled=False):
            halves = weighted_halves(
                self.plan,
                coalitions,
                worth,
                base,
                full,
                weighing=self.config.weighing,
                size_effect=self.config.size_effect,
                known=known,
                explained=values.detach(),
            )
            importance = class_importance(full, self.explainer.surrogate.output, self.config.emphasis)
            errors = [(importance * weights * self._errors(half, values, known)).mean() for half, weights in halves]
            units = sum(half.values.shape[1] for half, _ in halves)
            return units * torch.stack(errors).mean()

    def _errors(self, left: Residuals, values: Tensor, known: Known | None) -> Tensor:
        """Of views and classes, ``[B, K]``."""
        if self.config.loss == "regression":
            return left.squared_errors(values).mean(1)
        labels = left.labels().detach()
        if known is None:
            return (values - values.mean(1, keepdim=True) - labels).square().sum(1)
        # Labels of what the known values miss. Profiles learn to leave little, by a loss so small that it hardly counts
        # when gradients are clipped: the optimiser does not mind its scale.
        unexplained = (left.weights[..., None] * left.values.square()).mean(1)
        return (values - known.values - labels).square().sum(1) + ASIDE * unexplained
