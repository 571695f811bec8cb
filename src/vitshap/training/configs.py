"""What can be set for each training. The documentation of a field is the help that the command prints for it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from vitshap.data import Augmentation
from vitshap.data.pixels import free_bytes
from vitshap.explainers import ExplainerConfig
from vitshap.models import MaskedModel
from vitshap.training.loop import Auto, LoopConfig, number
from vitshap.training.noise import Weighing

Procedure = Literal["values", "paper"]
Select = Literal["accuracy", "kappa", "loss"]
Sampler = Literal["shapley", "authors"]


@dataclass(frozen=True)
class ClassifierTraining:
    """Fine-tuning of the net that is to be explained."""

    loop: LoopConfig = field(default_factory=lambda: LoopConfig(epochs=25, learning_rate=1e-5))
    augmentation: Augmentation | None = field(default_factory=Augmentation)
    """How training images are varied; null: not at all."""
    class_weights: Literal["balanced"] | tuple[float, ...] | None = None
    """Weights of the classes in the loss; "balanced": inversely to their frequency; null: all the same."""
    select: Select = "accuracy"
    """Validation metric that chooses the best weights: accuracy, Cohen's kappa or loss."""
    coalitions: int = 1
    """Random subsets of patches per image and step, where the classifier is trained with missing patches."""
    validation_coalitions: int = 4
    """Fixed subsets of each validation image, where it is trained so: metrics are then of answers with missing patches."""
    validation_batch: int = 256
    """Images at once in validation."""


@dataclass(frozen=True)
class SurrogateTraining:
    """Fine-tuning of a copy of the classifier so that it answers with missing patches."""

    loop: LoopConfig = field(default_factory=lambda: LoopConfig(epochs=50, learning_rate=1e-5))
    augmentation: Augmentation | None = field(default_factory=Augmentation)
    """How training images are varied; null: not at all."""
    coalitions: int | Auto = 1
    """Random subsets of patches per image and step; auto: 1 on a CPU, 2 on a GPU."""
    validation_coalitions: int = 16
    """Fixed subsets of each validation image."""
    validation_batch: int = 256
    """Images at once in validation."""


@dataclass(frozen=True)
class ValuesConfig:
    """Values of coalitions that an explainer learns from in the procedure "values"."""

    views: int | Auto = 50
    """Varied views of each image that are evaluated; after so many epochs they are used again.
    auto: 50 on a CPU; on a GPU 50 to 400, by the number of images."""
    coalitions: int | Auto = 48
    """Evaluations per view; auto: 48 on a CPU, 128 on a GPU. Many views with few evaluations each teach more than few with
    many."""
    size_effect: bool = True
    """Remove what the size of a coalition alone explains: an unbiased reduction of noise."""
    noise_weights: float = 1.0
    """Weigh each view and class by its noise variance to the power of minus this; 0: all the same."""
    alike: float = 0.0
    """Added to these weights for all views and classes alike, where typical noise has the weight 1: raises those of the
    largest values, on which insertion and deletion depend and which noise weights alone make small."""
    emphasis: float = 0.5
    """The predicted class counts as much as itself and this times all others together (softmax). Its values are the
    largest and noisiest, so that noise weights alone would leave it a small part of the loss."""
    milder: float = 0.0
    """Share of the views, the last ones, whose crops are no smaller than .8 of the area and have nothing pasted: what is
    learned from hard views settles on images as they will be met."""
    unsure: int = 1
    """How many times images count among the samples that the surrogate is unsure of (largest probability below .98,
    softmax): few of a training set are, and they are the hardest to explain."""
    allocation: Literal["pilot", "shapley"] = "pilot"
    """Sizes of coalitions: where a pilot on a few images finds the noise, or those of the Shapley kernel, in pairs."""
    loss: Literal["cancelled", "labels", "regression"] = "cancelled"
    """Fit unbiased estimates of the Shapley values: with the noise cancelled that the explainer can predict (needs
    network.profiles, else it is the next), or as they are ("labels"); or fit the values of coalitions ("regression")."""
    memory_gib: float | None = None
    """Memory for values on the device, and for one view's pixels; what does not fit is computed again. null: half of
    what is free."""

    def __post_init__(self) -> None:
        if not 0 <= self.milder <= 1:
            raise ValueError(f"values.milder is a share between 0 and 1, got {self.milder}")
        if self.unsure < 1:
            raise ValueError(f"values.unsure is 1 or more, got {self.unsure}")
        for name in ("emphasis", "alike"):
            if getattr(self, name) < 0:
                raise ValueError(f"values.{name} is 0 or more, got {getattr(self, name)}")

    @property
    def weighing(self) -> Weighing:
        """How views and classes are weighed by their noise."""
        return Weighing(self.noise_weights, self.alike)


@dataclass(frozen=True)
class ExplainerTraining:
    """Training of the network that outputs Shapley values."""

    procedure: Procedure = "values"
    """"values": from values computed for many views, noise removed; "paper": fresh subsets, the paper's loss."""
    loop: LoopConfig = field(default_factory=LoopConfig)
    augmentation: Augmentation | None = field(default_factory=Augmentation)
    """How training images are varied; null: not at all."""
    network: ExplainerConfig | None = None
    """What the network is made of; null: what suits the procedure."""
    coalitions: int = 32
    """Subsets per image and step of the procedure "paper": half of them drawn, with their complements."""
    sampler: Sampler = "shapley"
    """Distribution of these subsets and of the validation's: "shapley", the Shapley kernel, or "authors", what the code of
    the paper's authors draws: sizes shifted by one, and 12 % of subsets empty or full (for comparison only)."""
    values: ValuesConfig = field(default_factory=ValuesConfig)
    compiled: bool | Auto = False
    """Compile network and evaluations (GPU): faster, but a minute or two pass before it starts. auto: where ``vitshap
    train`` expects the explainer's training to take more than five minutes without."""
    validation_coalitions: int = 32
    """Fixed subsets of each validation image, half of them drawn, with their complements."""
    validation_batch: int = 256
    """Images at once in validation."""

    def __post_init__(self) -> None:
        if self.network is not None and self.network.profiles and not self.cancels:
            # nothing would train them, which several processes do not forgive
            raise ValueError('network.profiles needs procedure "values" with values.loss "cancelled"')

    @property
    def cancels(self) -> bool:
        """Whether predicted noise is cancelled."""
        return self.procedure == "values" and self.values.loss == "cancelled"


T = TypeVar("T", ClassifierTraining, SurrogateTraining, ExplainerTraining)
ON_CPU = {ClassifierTraining: (25, 64, 1e-5), SurrogateTraining: (50, 64, 1e-5), ExplainerTraining: (100, 64, 1e-4)}
"""Epochs, batch size and learning rate that "auto" stands for: the paper's."""
ON_GPU = {
    ClassifierTraining: (25, 128, 2e-5),
    SurrogateTraining: (100, 512, 1.4e-4),
    ExplainerTraining: (100, 256, 3e-4),
}
"""The same on a GPU, which small batches leave idle."""
EVALUATIONS = 100_000_000
"""Coalition values that an explainer is trained from on a GPU; they decide how many views each image has."""
VIEWS = 50, 400
"""Least and greatest number of these views."""
SMALL_NET = 25e6
"""Weights up to which a GPU's batches are these; they are halved for every four times as many."""
GPU_MEMORY = 20 * 2**30
"""Bytes that a training with such a batch may take; with less, batches are smaller."""
LEAST_STEPS = 700
"""Optimiser steps that a training on a GPU has at least: with few images batches are smaller."""


def suited(config: T, model: MaskedModel, samples: int) -> T:
    """``config`` with numbers in place of "auto", by the device and size of ``model`` and the number of images.

    A batch is a power of two that the images fill; on a GPU the learning rate falls with its square root.
    """
    gpu = model.device.type != "cpu"
    if isinstance(config, SurrogateTraining) and config.coalitions == "auto":
        config = replace(config, coalitions=2 if gpu else 1)
    if isinstance(config, ExplainerTraining):
        values = _suited_values(config.values, gpu, samples)
        config = replace(config, values=values)  # type: ignore[call-arg]
    usual_epochs, usual, usual_rate = ON_CPU[type(config)]
    epochs, most, rate = ON_GPU[type(config)] if gpu else (usual_epochs, usual, usual_rate)
    if isinstance(config, ExplainerTraining) and config.procedure == "values":
        epochs = max(epochs, number(config.values.views))
    loop = config.loop if config.loop.epochs != "auto" else replace(config.loop, epochs=epochs)
    size = loop.batch_size
    if size == "auto":
        size = _batch_size(model, most, usual, number(loop.epochs), samples)
    loop = replace(loop, batch_size=size)
    if loop.learning_rate == "auto":
        loop = replace(loop, learning_rate=max(usual_rate, rate * min(1.0, size / most) ** 0.5))
    return replace(config, loop=loop)


def _suited_values(values: ValuesConfig, gpu: bool, samples: int) -> ValuesConfig:
    if values.coalitions == "auto":
        values = replace(values, coalitions=128 if gpu else 48)
    if values.views == "auto":
        affordable = EVALUATIONS // (max(samples, 1) * (number(values.coalitions) + 1))
        values = replace(values, views=min(max(affordable, VIEWS[0]), VIEWS[1]) if gpu else VIEWS[0])
    return values


def _batch_size(model: MaskedModel, most: int, usual: int, epochs: int, samples: int) -> int:
    """``most``, less for large nets, little memory or few images; not below ``usual`` unless there are fewer images."""
    size, weights = most, sum(p.numel() for p in model.net.parameters())
    while weights > SMALL_NET and size > usual:
        size, weights = size // 2, weights // 4
    least = GPU_MEMORY * size // most
    while size > usual and (epochs * (samples // size) < LEAST_STEPS or free_bytes(model.device) < least):
        size, least = size // 2, least // 2
    return min(size, 1 << (max(samples, 1).bit_length() - 1))
