"""Training of an explainer by one of two procedures; the optimum of both are the Shapley values.

"paper": new coalitions of a new view in every step, with the paper's loss. "values": coalition values of many views are
computed once; the effect of the coalition size is removed, sizes are allocated by noise, and views and classes are weighted
by their noise (see ``values/labels.py``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from vitshap.coalitions import CoalitionLaw, authors_sampler, shapley_kernel
from vitshap.data import sample_coalitions
from vitshap.explainers import Explainer, ExplainerConfig
from vitshap.models import MaskedModel
from vitshap.training.batches import Images
from vitshap.training.compilation import Compilable
from vitshap.training.configs import ExplainerTraining, Sampler, ValuesConfig, number, resolve_auto
from vitshap.training.fit import kept_or_temporary
from vitshap.training.loop import Task, best_record, train
from vitshap.training.objectives import class_importance, explainer_loss
from vitshap.training.processes import kept_random_state, seed_device
from vitshap.training.values.labels import Plan, Prediction, Residuals, weighted_halves
from vitshap.training.values.pilot import plan_evaluations
from vitshap.training.values.store import Evaluator, ValueStore, training_images
from vitshap.training.values.validation import ValidationSet

PROFILE_LOSS_SCALE = 0.01
"""Scale of the loss of the size profiles, which are learned beside the values."""
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
    """Train an explainer of ``surrogate`` for all classes at once, without reference values.

    ``data``, ``val``: images (labels are not used). ``classifier``: the model to be explained; needed if the network starts
    from its weights, or if ``save_pretrained`` is to include it.
    ``folder``: for checkpoints and the log, from which ``resume`` continues; None: nothing is kept.
    """
    config, console = config or ExplainerTraining(), console or Console(quiet=True)
    surrogate = copy.deepcopy(surrogate).eval()
    opened = Images(surrogate, data, None, seed=config.loop.seed).source
    config = resolve_auto(config, surrogate, len(opened))
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
        validation = validation_set(place, evaluate, unseen, explainer, config, store)
        train_explainer(explainer, images, validation, place, config, store=store, resume=resume, console=console)
    return explainer


def train_explainer(
    explainer: Explainer,
    images: Images,
    validation: ValidationSet,
    folder: Path,
    config: ExplainerTraining,
    *,
    store: ValueStore | None = None,
    resume: bool = False,
    console: Console,
) -> list[dict[str, float]]:
    """Train ``explainer`` itself, see ``explainer_task``; return one record per validation."""
    task = explainer_task(explainer, images, validation, config, store)
    history = train(task, config.loop, folder, resume=resume, console=console)
    best = best_record(history, task.selection_metric)
    if best["loss"] >= best["uniform_loss"]:
        console.print(
            f"The explainer has learned nothing: its validation loss {best['loss']:.4g} is no better than that of equal "
            f"values for all players, {best['uniform_loss']:.4g}. Try more epochs or another learning rate."
        )
    return history


def explainer_task(
    explainer: Explainer, images: Images, validation: ValidationSet, config: ExplainerTraining, store: ValueStore | None
) -> Task:
    """Return the task of training ``explainer`` itself, from values in ``store`` or (None) by the paper's procedure."""
    if store is None:
        return _paper_task(explainer, images, validation, config)
    return _values_task(explainer, store, validation, config)


def validation_set(
    folder: Path | None,
    evaluate: Evaluator,
    unseen: Images,
    explainer: Explainer,
    config: ExplainerTraining,
    store: ValueStore | None,
) -> ValidationSet:
    """Return the validation set of a training; ``folder`` None: its values are not stored."""
    return ValidationSet(
        folder,
        evaluate,
        unseen,
        law=SAMPLERS[config.sampler](explainer.surrogate.num_players),
        pairs=config.validation_coalitions,
        plan=None if store is None else store.plan,
        planned=0 if store is None else store.coalitions,
        weighting=config.values.noise_weighting,
        predicted_class_weight=config.values.predicted_class_weight,
    )


def make_store(evaluate: Evaluator, images: Images, config: ValuesConfig, *, scale: Tensor | None = None) -> ValueStore:
    """Run the pilot and return a store of the values that ``config`` describes, which computes them when they are needed.

    ``scale``: unit ``[K]`` in which outputs are learned, see ``Explainer.set_scale``.
    """
    plan = plan_evaluations(evaluate, images, config, scale)
    memory = None if config.memory_gib is None else int(config.memory_gib * 2**30)
    views, coalitions = number(config.views), number(config.coalitions)
    return ValueStore(evaluate, images, plan, views=views, coalitions=coalitions, memory=memory)


def network_config(config: ExplainerTraining, num_players: int) -> ExplainerConfig:
    """Return the configured architecture, or the default of the procedure."""
    if num_players < 2:
        raise ValueError("the image is a single patch, so there are no players to explain")
    if config.network is not None:
        return config.network
    if config.procedure == "paper":
        return ExplainerConfig()
    # Values are of the order of 1/d: outputs in that unit are learned faster and need no bound.
    return ExplainerConfig(
        tanh=False, output_scale=2 / num_players, magnitudes=True, profiles=config.uses_control_variate
    )


def _deviations(evaluate: Evaluator, images: Images) -> Tensor:
    """Return the standard deviation of each output on whole images, ``[K]``."""
    if len(images) < 2:
        raise ValueError(
            "a regression's outputs are learned in units of their spread over validation images: give two or more"
        )
    whole = evaluate.model.num_players
    found = []
    for pixels, _ in images.in_order(256):
        found.append(evaluate(pixels, torch.ones(len(pixels), 1, whole, dtype=torch.bool, device=pixels.device)).full)
    return torch.cat(found).std(0)


def _paper_task(explainer: Explainer, images: Images, validation: ValidationSet, config: ExplainerTraining) -> Task:
    law, seed = SAMPLERS[config.sampler](explainer.surrogate.num_players), config.loop.seed

    def batches(order: Iterable[Tensor], epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        for pixels, batch in images.views(order, epoch):
            drawn = sample_coalitions(law, batch.indices, seed=seed, epoch=epoch, n=config.coalitions, paired=True)
            yield pixels, drawn

    def validate() -> dict[str, float]:
        return validation.losses(explainer, config.validation_batch_size)

    step = PaperStep(explainer, validation.evaluator, compiled=config.compiled is True)
    return Task(step, explainer, batches, len(images), validate)


def _values_task(explainer: Explainer, store: ValueStore, validation: ValidationSet, config: ExplainerTraining) -> Task:
    def batches(order: Iterable[Tensor], epoch: int) -> Iterator[tuple[Tensor, ...]]:
        return store.batches(list(order), epoch)

    def validate() -> dict[str, float]:
        return validation.losses(explainer, config.validation_batch_size)

    step = ValuesStep(explainer, store.plan, config.values, compiled=config.compiled is True)
    return Task(step, explainer, batches, len(store.images), validate, selection_metric=validation.selection_metric)


class _Step(nn.Module):
    """The explainer's prediction for a batch, by the compiled network if configured."""

    def __init__(self, explainer: Explainer, *, compiled: bool) -> None:
        super().__init__()
        self.explainer = explainer
        self._outputs = Compilable(explainer.network.outputs, explainer.network, wanted=compiled)

    def predict(self, pixels: Tensor, full: Tensor, base: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return values ``[B, d, K]``, and the coefficients of size profiles if the network has them."""
        values, shares = self._outputs(pixels)
        return self.explainer.efficient(self.explainer.surrogate.players.sum_tokens(values), full, base), shares


class PaperStep(_Step):
    """Returns the paper's loss of a batch with new coalitions."""

    def __init__(self, explainer: Explainer, evaluate: Evaluator, *, compiled: bool) -> None:
        super().__init__(explainer, compiled=compiled)
        self._evaluate = evaluate  # no module: it holds a copy of the surrogate, which is not trained
        self._checked = False

    def forward(self, pixels: Tensor, coalitions: Tensor) -> Tensor:
        with torch.no_grad(), torch.autocast(pixels.device.type, enabled=False):
            # The first batch shows whether half precision suffices; waiting for each would take longer than the step.
            evaluate = self._evaluate.unchecked if self._checked else self._evaluate
            full, coalition_values = evaluate(pixels, coalitions)
            self._checked, base = True, self.explainer.base_values(pixels)
        (values, _), scale = self.predict(pixels, full, base), self.explainer.scale
        return explainer_loss(values / scale, coalitions, coalition_values / scale, base / scale)


class ValuesStep(_Step):
    """Returns the loss of a batch from stored values."""

    def __init__(self, explainer: Explainer, plan: Plan, config: ValuesConfig, *, compiled: bool) -> None:
        super().__init__(explainer, compiled=compiled)
        self.plan, self.config = plan, config

    def forward(self, pixels: Tensor, coalitions: Tensor, full: Tensor, coalition_values: Tensor) -> Tensor:
        with torch.autocast(pixels.device.type, enabled=False):  # v(0) is as exact as the stored values
            base, scale = self.explainer.base_values(pixels), self.explainer.scale
        values, shares = self.predict(pixels, full, base)
        values, base, full = values.float() / scale, base / scale, full / scale
        prediction = None
        if shares is not None and self.config.loss == "control_variate":
            prediction = Prediction(values.detach(), shares)
        with torch.autocast(pixels.device.type, enabled=False):
            halves = weighted_halves(
                self.plan,
                coalitions,
                coalition_values / scale,
                base,
                full,
                weighting=self.config.noise_weighting,
                remove_size_effect=self.config.remove_size_effect,
                prediction=prediction,
                predicted=values.detach(),
            )
            importance = class_importance(full, self.explainer.surrogate.output, self.config.predicted_class_weight)
            errors = [
                (importance * weights * self._errors(half, values, prediction)).mean() for half, weights in halves
            ]
            units = sum(half.values.shape[1] for half, _ in halves)
            return units * torch.stack(errors).mean()

    def _errors(self, left: Residuals, values: Tensor, prediction: Prediction | None) -> Tensor:
        """Return the errors of views and classes, ``[B, K]``."""
        if self.config.loss == "regression":
            return left.squared_errors(values).mean(1)
        labels = left.labels().detach()
        if prediction is None:
            return (values - values.mean(1, keepdim=True) - labels).square().sum(1)
        # The labels estimate the error of the prediction. The profiles learn to leave little noise, by a loss so small that
        # it hardly counts when gradients are clipped; AdamW is invariant to its scale.
        unexplained = (left.weights[..., None] * left.values.square()).mean(1)
        return (values - prediction.values - labels).square().sum(1) + PROFILE_LOSS_SCALE * unexplained
