"""The paper's trainings as functions: a classifier (with or without missing patches), a surrogate, an explainer.

Each is a ``Task`` for the one loop: a module that returns its loss, batches drawn from (seed, epoch, sample), and a
validation on a fixed, seeded set of (image, coalition) tuples from unseen images.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn

from vitshap.coalitions import CoalitionLaw, fixed_size, shapley_kernel, uniform_size
from vitshap.data import Augmentation, PixelSource, normalised, open_pixels, sample_coalitions
from vitshap.data.items import MapStyle
from vitshap.explainers import Explainer, ExplainerConfig
from vitshap.models import MaskedModel, Preprocess
from vitshap.training.loop import LoopConfig, Task, train
from vitshap.training.objectives import classification_loss, explainer_loss, surrogate_loss, uniform_explanation

VALIDATION = "validation"
"""Purpose of the validation's coalitions: training never meets them."""


@dataclass(frozen=True)
class FitConfig:
    """What all trainings share."""

    loop: LoopConfig = field(default_factory=LoopConfig)
    augmentation: Augmentation | None = field(default_factory=Augmentation)
    """None: images as they are."""
    coalitions: int = 1
    """Coalitions per image and step; for explainers half of them, with their complements."""
    validation_coalitions: int = 16
    validation_batch: int = 256


def fit_classifier(
    model: MaskedModel,
    data: MapStyle,
    val: MapStyle,
    folder: str | Path,
    /,
    config: FitConfig | None = None,
    *,
    masked: bool = False,
    class_weights: Tensor | None = None,
    resume: bool = False,
    console: Console | None = None,
) -> MaskedModel:
    """Train a copy of ``model`` on (image, label); with ``masked`` on random subsets of patches, so that it is its own
    surrogate. The best by validation accuracy is returned."""
    config = config or FitConfig(LoopConfig(epochs=25, learning_rate=1e-5))
    model = copy.deepcopy(model)
    step = _ClassifierStep(model, class_weights)
    law = uniform_size(model.num_players) if masked else fixed_size(model.num_players, model.num_players)
    images = _Images(model, data, val, config, law, paired=False)

    def validate() -> dict[str, float]:
        right, total, losses = 0, 0, 0.0
        for pixels, labels, _ in images.validation():
            logits = model.logits(pixels)
            losses += float(classification_loss(logits, labels, model.output, class_weights)) * len(labels)
            hits = logits.argmax(1) == labels if model.output == "softmax" else (logits > 0) == labels.view_as(logits)
            right, total = right + int(hits.sum()), total + hits.numel()
        return {"loss": losses / len(images.val), "accuracy": right / total}

    task = Task(step, model, images.training, len(images.data), validate, select="accuracy", higher_is_better=True)
    train(task, config.loop, folder, resume=resume, console=console)
    return model


def fit_surrogate(
    classifier: MaskedModel,
    data: MapStyle,
    val: MapStyle,
    folder: str | Path,
    /,
    config: FitConfig | None = None,
    *,
    resume: bool = False,
    console: Console | None = None,
) -> MaskedModel:
    """Fine-tune a copy of ``classifier`` so that its answers with missing patches are the classifier's on whole images."""
    config = config or FitConfig(LoopConfig(epochs=50, learning_rate=1e-5))
    surrogate = copy.deepcopy(classifier)
    classifier = copy.deepcopy(classifier).eval()
    step = _SurrogateStep(surrogate, classifier)
    images = _Images(surrogate, data, val, config, uniform_size(surrogate.num_players), paired=False)

    def validate() -> dict[str, float]:
        losses = [float(step(*batch)) * len(batch[0]) for batch in images.validation()]
        return {"loss": sum(losses) / len(images.val)}

    task = Task(step, surrogate, images.training, len(images.data), validate)
    train(task, config.loop, folder, resume=resume, console=console)
    return surrogate


def fit_explainer(
    surrogate: MaskedModel,
    data: MapStyle,
    val: MapStyle,
    folder: str | Path,
    /,
    config: FitConfig | None = None,
    *,
    network: ExplainerConfig | None = None,
    resume: bool = False,
    console: Console | None = None,
) -> Explainer:
    """Train an explainer of ``surrogate`` by the paper's objective: no ground truth, all classes at once."""
    config = config or FitConfig(coalitions=32, validation_coalitions=32)
    surrogate = copy.deepcopy(surrogate).eval()
    torch.manual_seed(config.loop.seed)
    explainer = Explainer(surrogate, network)
    step = _ExplainerStep(explainer)
    images = _Images(surrogate, data, val, config, shapley_kernel(surrogate.num_players), paired=True)

    # The tuples are the same in every epoch and the surrogate does not change: what knowing nothing costs is known once.
    uniform = sum(float(step.uniform_loss(pixels, c)) * len(pixels) for pixels, _, c in images.validation())

    def validate() -> dict[str, float]:
        losses = sum(float(step(*batch)) * len(batch[0]) for batch in images.validation())
        return {"loss": losses / len(images.val), "uniform_loss": uniform / len(images.val)}

    task = Task(step, explainer, images.training, len(images.data), validate)
    history = train(task, config.loop, folder, resume=resume, console=console)
    best = min(history, key=lambda line: line["loss"])
    if console is not None and best["loss"] >= best["uniform_loss"]:
        console.print(
            f"The explainer has learned nothing: its validation loss {best['loss']:.4g} is no better than that of giving "
            f"every player the same value, {best['uniform_loss']:.4g}. Try more epochs or another learning rate."
        )
    return explainer


class _ClassifierStep(nn.Module):
    def __init__(self, model: MaskedModel, class_weights: Tensor | None) -> None:
        super().__init__()
        self.model, self.class_weights = model, class_weights

    def forward(self, pixels: Tensor, labels: Tensor, coalitions: Tensor) -> Tensor:
        logits = self.model.logits(pixels, coalitions)  # [B, S, K]
        labels = labels.repeat_interleave(logits.shape[1], 0)
        return classification_loss(logits.flatten(0, 1), labels, self.model.output, self.class_weights)


class _SurrogateStep(nn.Module):
    def __init__(self, surrogate: MaskedModel, classifier: MaskedModel) -> None:
        super().__init__()
        self.surrogate = surrogate
        self._classifier = [classifier]  # in a list: it is asked, not trained

    def forward(self, pixels: Tensor, labels: Tensor, coalitions: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = self._classifier[0].logits(pixels)
        return surrogate_loss(wanted, self.surrogate.logits(pixels, coalitions), self.surrogate.output)


class _ExplainerStep(nn.Module):
    def __init__(self, explainer: Explainer) -> None:
        super().__init__()
        self.explainer = explainer

    def forward(self, pixels: Tensor, labels: Tensor, coalitions: Tensor) -> Tensor:
        full, worth = self._game(pixels, coalitions)
        values = self.explainer.values(pixels, full)
        return explainer_loss(values, coalitions, worth, self.explainer.null_values.expand_as(full))

    def uniform_loss(self, pixels: Tensor, coalitions: Tensor) -> Tensor:
        """The loss of the explanation that knows nothing."""
        full, worth = self._game(pixels, coalitions)
        base = self.explainer.null_values.expand_as(full)
        return explainer_loss(uniform_explanation(base, full, coalitions.shape[2]), coalitions, worth, base)

    def _game(self, pixels: Tensor, coalitions: Tensor) -> tuple[Tensor, Tensor]:
        """v(1) ``[B, K]`` and v(s) ``[B, S, K]``."""
        with torch.no_grad():
            surrogate = self.explainer.surrogate
            return surrogate(pixels), surrogate(pixels, coalitions)


class _Images:
    """Training and validation batches of (pixels, labels, coalitions) for a model."""

    def __init__(
        self, model: MaskedModel, data: MapStyle, val: MapStyle, config: FitConfig, law: CoalitionLaw, *, paired: bool
    ) -> None:
        self.config, self.law, self.paired = config, law, paired
        how = model.preprocess if isinstance(model.preprocess, Preprocess) else None
        channels = model.adapter.channels
        self.mean = how.mean if how else (0.0,) * channels
        self.std = how.std if how else (1.0,) * channels
        self.data: PixelSource = open_pixels(data, how, device=model.device)
        self.val: PixelSource = open_pixels(val, how, device=model.device)

    def training(self, order: Iterable[Tensor], epoch: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Varied images with fresh coalitions."""
        config = self.config
        for batch in self.data.batches(order):
            if config.augmentation is None:
                pixels = normalised(batch.pixels, self.mean, self.std)
            else:
                pixels = config.augmentation(
                    batch.pixels, batch.indices, seed=config.loop.seed, epoch=epoch, mean=self.mean, std=self.std
                )
            coalitions = sample_coalitions(
                self.law, batch.indices, seed=config.loop.seed, epoch=epoch, n=config.coalitions, paired=self.paired
            )
            yield pixels, batch.labels, coalitions

    def validation(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Unseen images as they are, with coalitions that are the same in every epoch."""
        everything = torch.arange(len(self.val)).split(self.config.validation_batch)  # type: ignore[no-untyped-call]
        for batch in self.val.batches(everything):
            coalitions = sample_coalitions(
                self.law,
                batch.indices,
                seed=self.config.loop.seed,
                epoch=0,
                n=self.config.validation_coalitions,
                paired=self.paired,
                purpose=VALIDATION,
            )
            yield normalised(batch.pixels, self.mean, self.std), batch.labels, coalitions
