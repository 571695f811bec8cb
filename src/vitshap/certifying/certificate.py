"""``certify``: measure an explainer on images that it has not seen, and judge it.

Validation images choose the threshold of confidence, test images give the verdict. Corrupted test images and images of
other data sets show how far the verdict reaches: each set has its own. Reference values are stored set by set, so that an
interrupted run continues, and explainers of one surrogate share them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitshap import evaluation
from vitshap.certifying.corruptions import CORRUPTIONS, corruption
from vitshap.certifying.measure import FEWEST, TRUTH_BATCH, Compared, ImageSet, Progress, measure
from vitshap.certifying.verdict import Numbers, Verdict, judge
from vitshap.data import ImageData, Splits
from vitshap.estimators.kernel import kernelshap
from vitshap.evaluation import Comparison, Evaluation
from vitshap.evaluation.inputs import EXPLAINER
from vitshap.evaluation.result import RANDOM
from vitshap.explainers import Explainer
from vitshap.training.batches import Images
from vitshap.training.values.reference import sample_images
from vitshap.training.values.store import Evaluator

VALIDATION, TEST = "validation images", "test images"
WARNED = 0.05
"""Share of validation images below the threshold of confidence, where the bundle has none."""
METRICS = ("insertion", "deletion")
CONVERGED = 0.9
"""Reliability from which values are called converged without a note."""
FIRST_TIMED, MOST_TIMED, LONG_ENOUGH = 256, 5, 1.0
"""To estimate the time: evaluations of each image at first, most repetitions (each of four times as many), and the seconds
that make a measurement."""


@dataclass(frozen=True)
class Settings:
    """How much is measured."""

    images: int = 1000
    """Of each set, spread evenly: confidence, losses and metrics."""
    truth_images: int = 100
    """Test images with converged values."""
    drift_images: int = 16
    """Images with converged values of each corrupted and each other set."""
    budget: int = 65_536
    """Evaluations of each image with converged values."""
    coalitions: int = 64
    """Coalitions of each image for the losses, in pairs."""
    corruptions: tuple[str, ...] = tuple(CORRUPTIONS)
    metrics: tuple[str, ...] = METRICS
    """Metrics of the explainer and of random scores on the test images."""
    warned: float | None = None
    """Share of validation images below the threshold of confidence; None: the bundle's own threshold, or that of 5 %."""

    def __post_init__(self) -> None:
        if self.truth_images < FEWEST:
            raise ValueError(
                f"a certificate needs converged values of at least {FEWEST} images, got {self.truth_images}"
            )
        if self.coalitions < 2 or self.coalitions % 2:
            raise ValueError(f"coalitions come in pairs: give an even number, got {self.coalitions}")
        if self.warned is not None and not 0 < self.warned < 1:
            raise ValueError(f"the share of warned images is between 0 and 1, got {self.warned:g}")
        for name in self.corruptions:
            corruption(name, (0.0,), (1.0,))


class Part(NamedTuple):
    """A set of images that is going to be measured."""

    name: str
    data: ImageData
    images: int
    truth_images: int
    corrupt: Callable[[Tensor], Tensor] | None = None
    labelled: bool = True

    def evaluations(self, settings: Settings) -> int:
        """Return the evaluations of the model that it takes."""
        return self.images * (settings.coalitions + 1) + self.truth_images * settings.budget


@dataclass(frozen=True, eq=False)
class Certificate:
    """All that was measured of an explainer, and the verdict on it."""

    validation: ImageSet
    test: ImageSet
    drift: tuple[ImageSet, ...]
    """Corrupted test images, and images of other data sets."""
    threshold: float | None
    """Of confidence; None if the model has no probabilities of several classes."""
    evaluation: Evaluation | None
    """Metrics of the explainer and of random scores."""
    settings: Settings
    about: Mapping[str, Any] = field(default_factory=dict)
    """Where it comes from: bundle, data, device, date; JSON."""

    @property
    def verdict(self) -> Verdict:
        """On the test images."""
        return self.verdict_on(self.test)

    @property
    def compared(self) -> Compared:
        """Test images with converged values."""
        assert self.test.compared is not None
        return self.test.compared

    @property
    def notes(self) -> list[str]:
        """What a reader has to know about the verdict."""
        found, reliability = [], self.compared.reliability()
        if self.verdict.close:
            found.append("More images could change the verdict: at an end of an interval it would be another one.")
        if not reliability >= CONVERGED:
            found.append(
                f"{self.settings.budget:,} evaluations are too few for converged values: their reliability is "
                f"{reliability:.2f}. Figures are corrected for it, but more evaluations would make them safer."
            )
        return found

    def verdict_on(self, images: ImageSet) -> Verdict:
        """Return the verdict on one set of images."""
        compared = images.compared
        return judge(
            Numbers(
                correlation=None if compared is None else compared.correlation(),
                coverage=None if compared is None else compared.coverage(),
                improvement=None if compared is None else compared.improvement,
                below=images.below(self.threshold),
            ),
            judged=self.compared.judged,
        )

    def separation(self, images: ImageSet) -> float | None:
        """Return the area under the ROC curve: the probability that a test image has more confidence than one of these."""
        if images.confidence is None or self.test.confidence is None:
            return None
        return roc_auc(self.test.confidence, images.confidence)


class Step(NamedTuple):
    """A part of the work: its evaluations of the model (None: not known), and the expected seconds."""

    name: str
    evaluations: int | None
    seconds: float


@dataclass(eq=False)
class Certification:
    """A certificate that is ready to be computed: ``estimate`` says how long it takes, ``run`` computes it."""

    explainer: Explainer
    parts: list[Part]
    """Validation and test images first."""
    comparison: Comparison | None
    settings: Settings
    evaluate: Evaluator
    truth: Path
    """Folder of converged values."""
    about: Mapping[str, Any]

    def estimate(self) -> list[Step]:
        """Return the steps, timed on a few evaluations on this machine; converged values may be stored already."""
        rate = evaluations_per_second(self.evaluate, self.parts[1].data)
        counts = [(part.name, part.evaluations(self.settings)) for part in self.parts]
        found = [Step(name, count, count / rate) for name, count in counts]
        if self.comparison is not None:
            seconds = sum(step.seconds for step in self.comparison.estimate())
            found.append(Step(", ".join(self.settings.metrics), None, seconds))
        return found

    def run(self, progress: Progress = lambda step, done, total: None) -> Certificate:
        """Compute what is not stored; ``progress`` is called with a step's name, the images done and all images."""
        settings = self.settings
        validation, test, *drift = (
            measure(
                self.explainer,
                part.data,
                name=part.name,
                images=part.images,
                coalitions=settings.coalitions,
                truth_images=part.truth_images,
                budget=settings.budget,
                folder=self.truth,
                labelled=part.labelled,
                corrupt=part.corrupt,
                evaluate=self.evaluate,
                progress=progress,
            )
            for part in self.parts
        )
        return Certificate(
            validation=validation,
            test=test,
            drift=tuple(drift),
            threshold=_threshold(self.explainer, validation, settings.warned),
            evaluation=None if self.comparison is None else self.comparison.run(progress),
            settings=settings,
            about=self.about,
        )


def certify(
    explainer: Explainer,
    splits: Splits,
    /,
    *,
    folder: str | Path,
    others: Mapping[str, ImageData] | None = None,
    settings: Settings | None = None,
    truth: str | Path | None = None,
    compiled: bool = False,
    about: Mapping[str, Any] | None = None,
    progress: Progress = lambda step, done, total: None,
) -> Certificate:
    """Measure an explainer on the validation and test images of its own split, corrupted ones, and ``others``.

    Args:
        explainer: with its surrogate, whose Shapley values are the truth.
        splits: images divided as in the explainer's training; their classes are the surrogate's.
        folder: where finished parts are stored, and found again.
        others: further data sets by name; their classes need not be the surrogate's.
        settings: how much is measured.
        truth: folder of the converged values, to share them; default: in ``folder``.
        compiled: compile the surrogate's evaluation (GPU).
        about: what else is to be known about the certificate, as JSON.
        progress: called with a step's name, the images done and all images.
    """
    ready = prepare(
        explainer,
        splits,
        folder=folder,
        others=others,
        settings=settings,
        truth=truth,
        compiled=compiled,
        about=about,
    )
    return ready.run(progress)


def prepare(
    explainer: Explainer,
    splits: Splits,
    /,
    *,
    folder: str | Path,
    others: Mapping[str, ImageData] | None = None,
    settings: Settings | None = None,
    truth: str | Path | None = None,
    compiled: bool = False,
    about: Mapping[str, Any] | None = None,
) -> Certification:
    """Open the images, with the arguments of ``certify``; ``run`` computes, ``estimate`` times."""
    settings = settings or Settings()
    comparison = None
    if settings.metrics:
        comparison = evaluation.prepare(
            explainer.surrogate,
            splits.test,
            methods={EXPLAINER: explainer, RANDOM: (RANDOM, {"seed": 0})},
            metrics=settings.metrics,
            images=min(settings.images, len(splits.test)),
            folder=Path(folder) / "parts",
            compiled=compiled,
        )
    return Certification(
        explainer=explainer,
        parts=_parts(explainer, splits, others or {}, settings),
        comparison=comparison,
        settings=settings,
        evaluate=Evaluator(explainer.surrogate, compiled=compiled) if comparison is None else comparison.evaluate,
        truth=Path(folder) / "truth" if truth is None else Path(truth),
        about=dict(about or {}),
    )


def evaluations_per_second(evaluate: Evaluator, data: ImageData) -> float:
    """Return the speed of ``kernelshap``, by which converged values are computed, timed on a few evaluations."""
    model = evaluate.model
    on_gpu = model.device.type == "cuda"
    few, _ = sample_images(model, data.subset(range(min(TRUTH_BATCH, len(data)))), TRUTH_BATCH)
    pixels, budget, rate = few if on_gpu else few[:1], FIRST_TIMED, 0.0
    for repeat in range(MOST_TIMED):
        game = model.game(pixels.to(evaluate.dtype))
        started = time.perf_counter()
        found = kernelshap(game, budget=budget, seed=repeat)
        float(found.values.sum())  # waits for the device
        seconds = time.perf_counter() - started
        rate = len(pixels) * found.evaluations / seconds
        if (seconds >= LONG_ENOUGH and (repeat > 0 or not on_gpu)) or found.evaluations < budget // 2:
            break  # at first a GPU compiles
        pixels, budget = few, budget if repeat == 0 else 4 * budget
    return rate


def low_confidence_threshold(known: Tensor, share: float = WARNED) -> float:
    """Return the threshold, to two decimals, below which at most a share of the probabilities ``known`` falls."""
    return math.floor(float(known.double().quantile(share)) * 100) / 100


def roc_auc(known: Tensor, others: Tensor) -> float:
    """Return the probability that one of ``known`` is larger than one of ``others``; equal ones count half."""
    from sklearn.metrics import roc_auc_score

    is_known = torch.cat([torch.ones(len(known)), torch.zeros(len(others))])
    return float(roc_auc_score(is_known.numpy(), torch.cat([known, others]).numpy()))


def _parts(explainer: Explainer, splits: Splits, others: Mapping[str, ImageData], settings: Settings) -> list[Part]:
    """Return the image sets of a certificate."""
    validation, test = min(settings.images, len(splits.val)), _counts(splits.test, settings, settings.truth_images)
    if min(test) < FEWEST:
        raise ValueError(f"a certificate needs converged values of at least {FEWEST} test images, got {min(test)}")
    opened = Images(explainer.surrogate, splits.test.subset([0]), None, seed=0)  # knows how images are normalised
    found = [Part(VALIDATION, splits.val, validation, 0), Part(TEST, splits.test, *test)]
    for name in settings.corruptions:
        few = _counts(splits.test, settings, settings.drift_images)
        found.append(Part(f"test images, {name}", splits.test, *few, corruption(name, opened.mean, opened.std)))
    for name, data in others.items():
        found.append(Part(name, data, *_counts(data, settings, settings.drift_images), None, False))
    return found


def _counts(data: ImageData, settings: Settings, with_truth: int) -> tuple[int, int]:
    images = min(settings.images, len(data))
    return images, min(with_truth, images)


def _threshold(explainer: Explainer, validation: ImageSet, warned: float | None) -> float | None:
    if validation.confidence is None:
        return None
    stored = (explainer.quality or {}).get("unknown_threshold")
    if warned is None and isinstance(stored, int | float):
        return float(stored)
    return low_confidence_threshold(validation.confidence, WARNED if warned is None else warned)
