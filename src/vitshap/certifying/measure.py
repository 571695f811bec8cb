"""What is measured of an explainer on one set of images.

One pass and a few coalitions of every image give the model's confidence, the loss of the explainer's values and that of
equal values for all players (the uniform explanation). Some of the images have converged Shapley values too, in which the
explainer's values have a distance, a correlation, and intervals that hold them or not. For efficient values a loss exceeds
its optimum by the squared distance from the exact values divided by 2 H_{d-1} (see ``vitshap.metrics.bound``): this gives
the optimum L*, and the loss that the explainer saves, without the noise of sampled coalitions. Losses and distances are in
the explainer's unit of each output, as in training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vitshap import metrics
from vitshap.certifying.verdict import ALL_OUTPUTS, ONLY, PREDICTED
from vitshap.coalitions import harmonic_number, sample_coalitions, shapley_kernel
from vitshap.data import UNLABELLED, ImageData
from vitshap.estimators import truth as reference
from vitshap.estimators.estimate import reliability_from_errors
from vitshap.evaluation.marks import Measured
from vitshap.evaluation.selection import image_names
from vitshap.evaluation.store import tensor_digest
from vitshap.explainers import Explainer
from vitshap.explanation import Explanation
from vitshap.metrics.bound import SampledBound
from vitshap.metrics.statistics import is_constant
from vitshap.metrics.truth_error import MIN_RELIABILITY, TruthError, inside_intervals
from vitshap.training.batches import Images, evenly
from vitshap.training.objectives import uniform_explanation
from vitshap.training.values.store import Evaluator

PURPOSE = "certificate"
"""Of the coalitions in the counter-based generator: neither training nor validation draws them."""
BATCH = 32
"""Images at a time."""
TRUTH_BATCH = 4
"""Images at a time whose reference values are computed."""
FEWEST = 2
"""Images with converged values: one has no interval."""

Classes = Literal["target", "others"]
"""What is judged of each image (the predicted or only class, all outputs of a regression), or the mean over all others."""
Progress = Callable[[str, int, int], object]
"""Called with a step's name, the images done and all images."""


@dataclass(frozen=True, eq=False)
class Compared:
    """The explainer's values of some images beside their converged Shapley values, for all classes."""

    names: tuple[str, ...]
    pixels: Tensor
    """As the model takes them, on the CPU, ``[m, C, H, W]``."""
    explanation: Explanation
    truth: reference.Truth
    error: TruthError
    losses: Tensor
    """Sampled loss of each of these images, unscaled, float64 ``[m]``."""
    scale: Tensor
    """The explainer's unit of each output, float64 ``[K]``; ones for probabilities."""

    @property
    def judged(self) -> str:
        """Which outputs of each image are judged, in words."""
        if self.explanation.unit == "output":
            return ALL_OUTPUTS
        return ONLY if self.explanation.prediction.shape[1] == 1 else PREDICTED

    @property
    def target(self) -> Tensor:
        """The outputs that are judged, bool ``[m, K]``."""
        prediction = self.explanation.prediction
        if self.judged == ALL_OUTPUTS:
            return torch.ones_like(prediction, dtype=torch.bool)
        return torch.zeros_like(prediction, dtype=torch.bool).scatter(1, prediction.argmax(1, keepdim=True), True)

    def correlations(self, classes: Classes = "target", kind: Literal["pearson", "spearman"] = "pearson") -> Tensor:
        """Return each image's correlation with the converged values, not corrected, ``[m]``; NaN: the model's output has
        no differences between players. Values of the explainer without differences have the correlation 0."""
        found = getattr(self.error, kind)
        flat = is_constant(self.explanation.values.transpose(1, 2))
        return self.of(torch.where(flat, 0.0, found), classes)

    def correlation(
        self, classes: Classes = "target", kind: Literal["pearson", "spearman"] = "pearson"
    ) -> Measured | None:
        """Return the mean correlation, corrected for the reference's reliability; None: too low, or too few images."""
        found, reliability = self.correlations(classes, kind), self.reliability(classes)
        if not reliability >= MIN_RELIABILITY or int((~found.isnan()).sum()) < FEWEST:
            return None
        scale = float(self.of(self.truth.reliability.clamp(min=0).sqrt(), classes).nanmean())
        mean, low, high = (one / scale for one in _measured(found))
        return Measured(mean, max(low, -1.0), min(high, max(mean, 1.0)))

    def reliability(self, classes: Classes = "target") -> float:
        """Return the mean reliability of the converged values; NaN if there are no such classes."""
        return float(self.of(self.truth.reliability.clamp(min=0), classes).nanmean())

    def distance(self, classes: Classes | Literal["all"] = "all") -> Measured:
        """Return the Shapley value estimation error: the mean Euclidean distance, corrected for the reference's errors."""
        return _measured(self.distances.mean(1) if classes == "all" else self.of(self.distances, classes))

    @property
    def distances(self) -> Tensor:
        """Corrected distance of each image and output, ``[m, K]``."""
        return self.error.corrected_l2 / self.scale

    @property
    def excess(self) -> Tensor:
        """L - L* of each image, mean over classes, ``[m]``, from the distance to the converged values."""
        return self._excess(self.explanation.values.double())

    @property
    def uniform_excess(self) -> Tensor:
        """The same of the uniform explanation."""
        known, d = self.truth, self.truth.values.shape[1]
        return self._excess(uniform_explanation(known.base_values, known.full_values, d))

    @property
    def improvement(self) -> Measured:
        """Part of the loss above its optimum that the explainer saves of the uniform explanation's: 1 at best, 0 if it is
        no better, negative if it is worse."""
        left, whole = self.excess, self.uniform_excess
        if not float(whole.mean()) > 0:
            return Measured(*(float("nan"),) * 3)
        share = left.mean() / whole.mean()
        mean, low, high = _measured(1 - share - (left - share * whole) / whole.mean())  # of a ratio, linearised
        return Measured(mean, low, min(high, 1.0))

    @property
    def optimum(self) -> float:
        """L*, estimated on these images."""
        return max(float(self.losses.mean() - self.excess.mean()), 0.0)

    def coverage(self, where: Tensor | None = None) -> Measured | None:
        """Return the share of values within their 95 % intervals, over players and classes; None without intervals.

        ``where``: of these images only, bool ``[m]``.
        """
        found = self.error.coverage.mean(1)[slice(None) if where is None else where]
        if bool(found.isnan().any()) or not len(found):
            return None
        mean, low, high = _measured(found)
        return Measured(mean, max(low, 0.0), min(high, 1.0))

    @property
    def least_coverage(self) -> float | None:
        """Of the player that is covered least, over images and classes; None without intervals."""
        if self.explanation.stderr is None:
            return None
        return float(
            inside_intervals(self.explanation, self.truth.values, self.truth.stderr).double().mean((0, 2)).min()
        )

    def _excess(self, values: Tensor) -> Tensor:
        squared = (values - self.truth.values).square().sum(1) - self.truth.stderr.square().sum(1)  # [m, K]
        return (squared / self.scale.square()).mean(1) / (2 * harmonic_number(values.shape[1] - 1))

    def of(self, numbers: Tensor, classes: Classes = "target") -> Tensor:
        """Return the mean of numbers ``[m, K]`` over what is judged, or over the others; ``[m]``."""
        return numbers.masked_fill(~self.target if classes == "target" else self.target, torch.nan).nanmean(1)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """What was measured on one set of images."""

    name: str
    num_players: int
    losses: Tensor
    """``L`` of the explainer's values of each image, over sampled coalitions and all classes, unscaled, float64 ``[n]``."""
    uniform_losses: Tensor
    """The same of the uniform explanation."""
    largest: Tensor | None
    """Largest loss that each image could have with its values, ``[n]``; None if the outputs have no bounds."""
    confidence: Tensor | None
    """Largest probability of each image, ``[n]``; None if the outputs are not probabilities of several classes."""
    accuracy: float | None
    """Of the surrogate; None without labels."""
    promised: Tensor | None
    """Correlation with the exact values that the explainer's error bars promise, of what is judged, ``[n]``."""
    compared: Compared | None

    @property
    def images(self) -> int:
        """How many images were measured."""
        return len(self.losses)

    @property
    def loss(self) -> Measured:
        """On the scale of training: d times the mean of ``losses``."""
        return _measured(self.num_players * self.losses)

    @property
    def uniform_loss(self) -> Measured:
        """The same of the uniform explanation."""
        return _measured(self.num_players * self.uniform_losses)

    def below(self, threshold: float | None) -> Measured | None:
        """Return the share of images whose largest probability is below the threshold of confidence."""
        if threshold is None or self.confidence is None:
            return None
        return _measured((self.confidence < threshold).double(), binary=True)

    @property
    def bound(self) -> SampledBound:
        """Theorem 1's bound with L* = 0."""
        return SampledBound(self.losses, self.num_players, self._most)

    @property
    def estimated_bound(self) -> SampledBound | None:
        """Theorem 1's bound with L* from converged values; None without them."""
        return None if self.compared is None else SampledBound(self.compared.excess, self.num_players, self._most)

    @property
    def _most(self) -> float | None:
        return None if self.largest is None else float(self.largest.max())


def measure(
    explainer: Explainer,
    data: ImageData,
    /,
    *,
    name: str,
    images: int,
    coalitions: int = 64,
    truth_images: int = 0,
    budget: int = 65_536,
    folder: Path | None = None,
    labelled: bool = True,
    corrupt: Callable[[Tensor], Tensor] | None = None,
    evaluate: Evaluator | None = None,
    progress: Progress = lambda step, done, total: None,
) -> ImageSet:
    """Measure an explainer on so many images, spread evenly over the data; ``truth_images`` of them with converged values.

    ``coalitions``: of each image, from the Shapley kernel, in pairs. ``budget``: evaluations of each image with converged
    values, which are stored in ``folder`` and found there again. ``labelled``: whether labels are the model's classes.
    ``corrupt`` changes the model's input. ``evaluate``: the surrogate as it is evaluated, by default in half precision on a
    GPU.
    """
    evaluate = evaluate or Evaluator(explainer.surrogate)
    positions = evenly(len(data), images)
    opened = Images(explainer.surrogate, data.subset(positions), None, seed=0)
    wanted = set(evenly(len(positions), truth_images).tolist()) if truth_images else set()
    listed, parts, kept, kept_rows, done = image_names(data), [], [], [], 0
    for pixels, batch in opened.in_order(BATCH):
        pixels = pixels if corrupt is None else corrupt(pixels)
        explanation = explainer(pixels)
        indices = batch.indices.tolist()
        some = [i for i, index in enumerate(indices) if index in wanted]
        kept.append((pixels[some], [listed[int(positions[indices[i]])] for i in some]))
        kept_rows += [done + i for i in some]
        parts.append(_part(explainer, evaluate, pixels, explanation, batch.indices, batch.labels, coalitions))
        done += len(pixels)
        progress(name, done, len(positions))
    joined = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    compared = None
    if kept_rows:
        assert folder is not None, "reference values need a folder"
        known = torch.cat([one for one, _ in kept])
        names = tuple(one for _, some_names in kept for one in some_names)
        step = lambda done, total: progress(f"{name}, converged values", done, total)  # noqa: E731
        compared = _compare(explainer, evaluate, known, names, joined["losses"][kept_rows], budget, folder, step)
    hits = joined.get("hit")
    return ImageSet(
        name=name,
        num_players=explainer.surrogate.num_players,
        losses=joined["losses"],
        uniform_losses=joined["uniform_losses"],
        largest=joined.get("largest"),
        confidence=joined.get("confidence"),
        accuracy=None if hits is None or not labelled or data.class_names == UNLABELLED else float(hits.mean()),
        promised=joined.get("promised"),
        compared=compared,
    )


def _part(
    explainer: Explainer,
    evaluate: Evaluator,
    pixels: Tensor,
    explanation: Explanation,
    indices: Tensor,
    labels: Tensor,
    coalitions: int,
) -> dict[str, Tensor]:
    """Return what one pass and sampled coalitions tell about some images, float64 ``[n]`` each."""
    surrogate, scale = explainer.surrogate, explainer.scale.double().cpu()
    law = shapley_kernel(surrogate.num_players)
    drawn = sample_coalitions(law, indices, seed=0, epoch=0, n=coalitions, paired=True, purpose=PURPOSE)
    outputs = evaluate(pixels, drawn).values.double().cpu()  # [n, S, K]
    values, prediction = explanation.values.double(), explanation.prediction.double()
    base = explainer.base_values(pixels).double().cpu()
    gains, shown = outputs - base[:, None], drawn.double().cpu()
    equal = uniform_explanation(base, prediction, values.shape[1])
    found = {
        "losses": ((gains - shown @ values) / scale).square().mean((1, 2)),
        "uniform_losses": ((gains - shown @ equal) / scale).square().mean((1, 2)),
    }
    if surrogate.unit == "probability":
        # v(s) is between 0 and 1, and s'phi between the sums of negative and positive values
        positive, negative = values.clamp(min=0).sum(1), -values.clamp(max=0).sum(1)  # [n, K]
        found["largest"] = (torch.maximum(1 - base + negative, base + positive) / scale).square().mean(1)
        if surrogate.num_classes > 1:
            found["confidence"] = prediction.amax(1)
    if surrogate.output == "softmax" and labels.ndim == 1 and not labels.is_floating_point():
        found["hit"] = (prediction.argmax(1) == labels.cpu()).double()
    if explanation.stderr is not None:
        promised = reliability_from_errors(explanation).clamp(min=0).sqrt()  # [n, K]
        one = prediction.argmax(1, keepdim=True)
        found["promised"] = promised.mean(1) if surrogate.output == "identity" else promised.gather(1, one)[:, 0]
    return found


def _compare(
    explainer: Explainer,
    evaluate: Evaluator,
    pixels: Tensor,
    names: tuple[str, ...],
    losses: Tensor,
    budget: int,
    folder: Path,
    progress: Callable[[int, int], Any],
) -> Compared:
    """Compute converged values of images, or read them from ``folder``, where they lie under the hash of the pixels."""
    key = f"{tensor_digest(pixels)[:16]}-{evaluate.fingerprint()[:8]}-{budget}"
    known = reference.compute(
        folder / key,
        lambda part: evaluate.game(pixels[part]),
        num_inputs=len(pixels),
        surrogate=evaluate.fingerprint(),
        budget=budget,
        batch=TRUTH_BATCH,
        progress=progress,
    )
    explanation = explainer(pixels)
    error = metrics.error(explainer.surrogate, pixels, explanation, truth=known)
    return Compared(names, pixels.cpu(), explanation, known, error, losses, explainer.scale.double().cpu())


def _measured(numbers: Tensor, *, binary: bool = False) -> Measured:
    """Return the mean over images, which are independent of each other, with its 95 % interval (as ``mean_interval``)."""
    return Measured(float(numbers.nanmean()), *metrics.mean_interval(numbers, binary=binary))
