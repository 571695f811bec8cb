"""Settings of each training. The docstring of a field is the help that ``vitshap train --keys`` prints for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from vitshap.data import Augmentation
from vitshap.data.pixels import free_bytes
from vitshap.explainers import ExplainerConfig
from vitshap.models import MaskedModel
from vitshap.training.values.labels import NoiseWeighting

Auto = Literal["auto"]
Procedure = Literal["values", "paper"]
SelectionMetric = Literal["accuracy", "kappa", "loss"]
Sampler = Literal["shapley", "authors"]
N = TypeVar("N", int, float)


def number(value: N | Auto) -> N:
    """Return a setting that ``resolve_auto`` has already replaced by a number."""
    assert value != "auto", 'fit_* and vitshap train replace "auto" by a number before this is read'
    return value


def check(settings: Any, keys: Iterable[str], allowed: Callable[[Any], bool], wanted: str) -> None:
    """Raise a ``ValueError`` for the first of these fields whose value is neither None, "auto" nor ``allowed``."""
    for key in keys:
        if (value := getattr(settings, key)) not in (None, "auto") and not allowed(value):
            raise ValueError(f"{key} must be {wanted}, got {value}")


@dataclass(frozen=True)
class LoopConfig:
    """Optimisation settings of one training; the defaults are the paper's for explainers."""

    epochs: int | Auto = 100
    """Passes over the training images; auto: chosen by device and number of images."""
    batch_size: int | Auto = 64
    """Samples per optimiser step, over all processes; auto: chosen by device, network and number of images."""
    learning_rate: float | Auto = 1e-4
    """Peak learning rate, reached after the warm-up and followed by a cosine decay to zero; auto: chosen by device and
    batch size."""
    warmup_steps: int = 500
    """Steps of the linear warm-up; see warmup."""
    warmup: Literal["capped", "exact"] = "capped"
    """"capped": the warm-up takes at most a tenth of all steps; "exact": it takes warmup_steps steps however short the
    training is, and starts at a rate of 0."""
    weight_decay: float = 1e-5
    """Weight decay of AdamW."""
    adam_epsilon: float = 1e-8
    """Epsilon of AdamW, added to the denominator."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm."""
    seed: int = 0
    """Seed of the order of samples, of augmentation, coalitions and dropout."""
    save_every: int = 500
    """Steps between checkpoints; another one is written at the end of an epoch if the last is older than 30 seconds."""
    validate_every: int = 1
    """Epochs between validations, each of which adds a line to the log; the last epoch is always validated."""
    patience: int | None = None
    """Stop after this many epochs without a better validation; null: never. The best weights are kept in any case. The
    learning rate decays over all epochs, so a patience below a third of them may stop a training that still improves."""

    def __post_init__(self) -> None:
        at_least_one = ("epochs", "batch_size", "save_every", "validate_every", "patience")
        check(self, at_least_one, lambda value: value >= 1, "at least 1")
        check(self, ("learning_rate", "max_grad_norm", "adam_epsilon"), lambda value: value > 0, "positive")
        check(self, ("seed", "warmup_steps", "weight_decay"), lambda value: value >= 0, "0 or more")

    def numbers(self) -> tuple[int, int, float]:
        """Return epochs, batch size and peak learning rate as numbers."""
        return number(self.epochs), number(self.batch_size), number(self.learning_rate)


@dataclass(frozen=True)
class ClassifierTraining:
    """Fine-tuning of the model to be explained."""

    loop: LoopConfig = field(default_factory=lambda: LoopConfig(epochs=25, learning_rate=1e-5))
    augmentation: Augmentation | None = field(default_factory=Augmentation)
    """Augmentation of the training images; null: none."""
    class_weights: Literal["balanced"] | tuple[float, ...] | None = None
    """Weights of the classes in the loss; "balanced": inverse to their frequency; null: all equal."""
    selection_metric: SelectionMetric = "accuracy"
    """Validation metric that selects the best weights: accuracy, Cohen's kappa or loss."""
    coalitions: int = 1
    """Random coalitions of patches per image and step, if the classifier is trained with masked patches (masked: true)."""
    validation_coalitions: int = 4
    """Fixed coalitions per validation image, if the classifier is trained with masked patches: its metrics are then of
    masked images."""
    validation_batch_size: int = 256
    """Images per batch in validation."""
    compiled: bool | Auto = False
    """Compile network and augmentation (GPU only; the network not with removal embeddings): faster where the GPU waits for
    kernel launches, as with small networks and batches, after a minute or two of compilation. With masked patches, withheld
    ones are computed too.
    auto: compile if the training is estimated to take more than five minutes without."""

    def __post_init__(self) -> None:
        if isinstance(given := self.class_weights, tuple) and (min(given, default=0) < 0 or not any(given)):
            raise ValueError(f"class_weights must be 0 or more, and not all 0, got {list(given)}")


@dataclass(frozen=True)
class SurrogateTraining:
    """Fine-tuning of a copy of the classifier that learns to predict with patches withheld."""

    loop: LoopConfig = field(default_factory=lambda: LoopConfig(epochs=50, learning_rate=1e-5))
    augmentation: Augmentation | None = field(default_factory=Augmentation)
    """Augmentation of the training images; null: none."""
    coalitions: int | Auto = 1
    """Random coalitions of patches per image and step; auto: 1 on a CPU, 2 on a GPU."""
    validation_coalitions: int = 16
    """Fixed coalitions per validation image."""
    validation_batch_size: int = 256
    """Images per batch in validation."""
    compiled: bool | Auto = False
    """Compile surrogate, classifier and augmentation (GPU only; the networks not with removal embeddings): faster where the
    GPU waits for kernel launches, as with small networks and batches, after a minute or two of compilation, although
    withheld patches are then computed too.
    auto: compile if the training is estimated to take more than five minutes without."""


@dataclass(frozen=True)
class ValuesConfig:
    """Coalition values from which an explainer is trained by the procedure "values"."""

    views: int | Auto = 50
    """Augmented views of each image whose coalitions are evaluated; after this many epochs they are used again.
    auto: 50 on a CPU; 50 to 400 on a GPU, depending on the number of images."""
    coalitions: int | Auto = 48
    """Evaluated coalitions per view; auto: 48 on a CPU, 128 on a GPU. At equal cost, many views with few coalitions train
    a better explainer than few views with many coalitions."""
    remove_size_effect: bool = True
    """Subtract the part of a coalition's value that its size alone explains, which reduces the noise without bias."""
    noise_weight_power: float = 1.0
    """Weight each view and class by its noise variance to the power of minus this; 0: equal weights."""
    noise_offset: float = 0.0
    """Constant added to every noise weight, where a view and class of average noise has the weight 1. It raises the weight
    of the largest values, on which insertion and deletion depend and which noise weights alone would make small."""
    predicted_class_weight: float = 0.5
    """Extra weight of probable classes: class k of an image has the weight 1 + this x (K - 1) x p(k) in the loss, with K
    classes of predicted probability p(k) (softmax only). The values of the predicted class are the largest and noisiest,
    so noise weights alone would leave it a small part of the loss."""
    weak_augmentation_fraction: float = 0.0
    """Fraction of the views, the last ones, with weak augmentation: crops of at least 0.8 of the area and nothing pasted.
    The explainer finishes its training on views that resemble the images it will explain."""
    low_confidence_oversampling: int = 1
    """Number of times each image of low confidence appears in the training set (largest probability of the surrogate below
    0.98; softmax only). Few training images are of low confidence, and they are the hardest to explain."""
    allocation: Literal["pilot", "shapley"] = "pilot"
    """Distribution of coalition sizes: "pilot" allocates them by the noise that a pilot on a few images measures; "shapley"
    draws pairs of complementary coalitions from the Shapley kernel."""
    loss: Literal["control_variate", "labels", "regression"] = "control_variate"
    """"labels": fit unbiased estimates of the Shapley values; "control_variate": the same with the explainer's own
    prediction as a control variate, which cancels noise (needs network.profiles, otherwise equal to "labels");
    "regression": fit the coalition values by weighted least squares."""
    memory_gib: float | None = None
    """Memory on the device for coalition values and the pixels of one view, in GiB; what does not fit is computed again.
    null: half of the free memory."""

    def __post_init__(self) -> None:
        check(self, ("weak_augmentation_fraction",), lambda value: 0 <= value <= 1, "between 0 and 1")
        check(self, ("low_confidence_oversampling",), lambda value: value >= 1, "at least 1")
        check(self, ("predicted_class_weight", "noise_offset"), lambda value: value >= 0, "0 or more")

    @property
    def noise_weighting(self) -> NoiseWeighting:
        """How views and classes are weighted by their noise."""
        return NoiseWeighting(self.noise_weight_power, self.noise_offset)


@dataclass(frozen=True)
class ExplainerTraining:
    """Training of the network that predicts Shapley values."""

    procedure: Procedure = "values"
    """"values": learn from coalition values that are computed once for many views, with reduced noise; "paper": draw new
    coalitions in every step and minimise the paper's loss."""
    loop: LoopConfig = field(default_factory=LoopConfig)
    augmentation: Augmentation | None = field(default_factory=Augmentation)
    """Augmentation of the training images; null: none."""
    network: ExplainerConfig | None = None
    """Architecture of the explainer; null: the default of the procedure."""
    coalitions: int = 32
    """Coalitions per image and step of the procedure "paper": half of them drawn, the other half their complements."""
    sampler: Sampler = "shapley"
    """Distribution of these coalitions and of the validation's: "shapley" is the Shapley kernel; "authors" is what the code
    of the paper's authors draws, with sizes shifted by one and 12 % of coalitions empty or full (for comparison only)."""
    values: ValuesConfig = field(default_factory=ValuesConfig)
    compiled: bool | Auto = False
    """Compile network, augmentation and evaluation of coalitions (GPU only): faster, after a minute or two of compilation.
    auto: compile if the training is estimated to take more than five minutes without."""
    validation_coalitions: int = 32
    """Fixed coalitions per validation image: half of them drawn, the other half their complements."""
    validation_batch_size: int = 256
    """Images per batch in validation."""

    def __post_init__(self) -> None:
        if self.network is not None and self.network.profiles and not self.uses_control_variate:
            # No loss would train these weights, which distributed training does not allow.
            raise ValueError('network.profiles needs procedure "values" with values.loss "control_variate"')

    @property
    def uses_control_variate(self) -> bool:
        """Whether the loss uses the explainer's own prediction as a control variate."""
        return self.procedure == "values" and self.values.loss == "control_variate"


@dataclass(frozen=True)
class CalibrationConfig:
    """Standard errors of the explainer's values, learned on validation images from converged values."""

    images: int = 100
    """Validation images, spread evenly; with fewer than 20 there are no standard errors."""
    evaluations: int = 2048
    """Evaluations of each of them. Their errors are taken into account: more images help more than more evaluations."""

    def __post_init__(self) -> None:
        check(self, ("images",), lambda value: value >= 20, "at least 20")
        check(self, ("evaluations",), lambda value: value >= 100, "at least 100")


T = TypeVar("T", ClassifierTraining, SurrogateTraining, ExplainerTraining)
ON_CPU = {ClassifierTraining: (25, 64, 1e-5), SurrogateTraining: (50, 64, 1e-5), ExplainerTraining: (100, 64, 1e-4)}
"""Epochs, batch size and learning rate that replace "auto" on a CPU: the paper's."""
ON_GPU = {
    ClassifierTraining: (25, 128, 2e-5),
    SurrogateTraining: (100, 512, 1.4e-4),
    ExplainerTraining: (100, 256, 3e-4),
}
"""The same on a GPU, which small batches would not use fully."""
EVALUATIONS = 100_000_000
"""Coalition values that an explainer is trained from on a GPU; they determine the number of views of each image."""
VIEWS = 50, 400
"""Smallest and largest number of these views."""
SMALL_NET = 25e6
"""Weights up to which a GPU trains with the batch sizes above; they are halved for every four times as many."""
GPU_MEMORY = 20 * 2**30
"""Bytes that a training with such a batch may need; on GPUs with less free memory batches are smaller."""
LEAST_STEPS = 700
"""Smallest number of optimiser steps on a GPU: with few images, batches are smaller."""


def resolve_auto(config: T, model: MaskedModel, samples: int) -> T:
    """Return ``config`` with numbers in place of "auto", by the device and size of ``model`` and the number of images.

    The batch size is a power of two, at most the number of images; on a GPU the learning rate falls with its square root.
    """
    gpu = model.device.type != "cpu"
    if isinstance(config, SurrogateTraining) and config.coalitions == "auto":
        config = replace(config, coalitions=2 if gpu else 1)
    if isinstance(config, ExplainerTraining):
        values = _resolve_values(config.values, gpu, samples)
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


def _resolve_values(values: ValuesConfig, gpu: bool, samples: int) -> ValuesConfig:
    if values.coalitions == "auto":
        values = replace(values, coalitions=128 if gpu else 48)
    if values.views == "auto":
        affordable = EVALUATIONS // (max(samples, 1) * (number(values.coalitions) + 1))
        values = replace(values, views=min(max(affordable, VIEWS[0]), VIEWS[1]) if gpu else VIEWS[0])
    return values


def _batch_size(model: MaskedModel, most: int, usual: int, epochs: int, samples: int) -> int:
    """Return ``most``, or less for a large network, little memory or few images, but at least ``usual`` if there are
    that many images."""
    size, weights = most, sum(p.numel() for p in model.net.parameters())
    while weights > SMALL_NET and size > usual:
        size, weights = size // 2, weights // 4
    least = GPU_MEMORY * size // most
    while size > usual and (epochs * (samples // size) < LEAST_STEPS or free_bytes(model.device) < least):
        size, least = size // 2, least // 2
    return min(size, 1 << (max(samples, 1).bit_length() - 1))
