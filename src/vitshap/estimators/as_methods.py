"""The estimators as methods that explain images, with each estimator's options as fields.

The estimators themselves work on games, so they can be used, tested and compared without a model.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from torch import Tensor

from vitshap.estimators.estimate import Estimate
from vitshap.estimators.exact import exact
from vitshap.estimators.kernel import check_choice, kernelshap, kernelshap_original
from vitshap.estimators.permutation import permutation
from vitshap.estimators.size_effect import Moments, Sampling
from vitshap.game import Game
from vitshap.methods import Attribution, Method, SamplingMethod, game_in, take_classes
from vitshap.models.precision import Precision

ThresholdFor: TypeAlias = Literal["auto", "explained", "predicted"]


@dataclass(frozen=True, eq=False)
class Exact(Method):
    """Exact Shapley values from all 2^d coalitions, for at most 20 players."""

    name = "exact"
    additive = True

    def compute(self, game: Game, pixels: Tensor, targets: Tensor, /) -> Attribution:
        """Enumerate all coalitions."""
        return Attribution(exact(game.only(targets)).values)


@dataclass(frozen=True, eq=False)
class _Sampled(SamplingMethod):
    """Options that all sampling estimators share."""

    threshold: float | None = None
    """Stop when the largest standard error is below this share of the values' range; see ``threshold_for``."""
    threshold_for: ThresholdFor = "auto"
    """Classes that the threshold applies to: "explained" is all of them, "predicted" the most probable one of each image.
    "auto" is "predicted" if every class of the model is explained, because the relative errors of improbable classes,
    whose values are tiny, would use up the budget; otherwise it is "explained"."""
    batch: int = 4096
    """Coalitions evaluated at a time."""
    precision: Precision = "auto"
    """Of the evaluations: "auto" is half precision for a float32 model on a GPU, otherwise the model's own."""

    additive = True

    def game(self, pixels: Tensor, /) -> Game:
        """Return the game of these images, evaluated in the chosen precision."""
        return game_in(self.model, pixels, self.players, self.precision)

    @abstractmethod
    def estimate(self, game: Game, target: Tensor | None, /) -> Estimate:
        """Estimate all outputs of ``game``; a threshold applies to the outputs ``target`` ``[B, T]`` (default: all)."""

    def compute(self, game: Game, pixels: Tensor, targets: Tensor, /) -> Attribution:
        """Estimate the values of the explained classes."""
        check_choice("threshold_for", self.threshold_for, get_args(ThresholdFor))
        everything = targets.shape[1] == game.num_outputs
        target = None
        if self.threshold_for == "predicted" or (self.threshold_for == "auto" and everything):
            target = take_classes(game.grand[:, None], targets)[:, 0].argmax(1, keepdim=True)
        estimate = self.estimate(game.only(targets), target)
        return Attribution(estimate.values, estimate.stderr, None if self.threshold is None else estimate.converged)


@dataclass(frozen=True, eq=False)
class KernelShap(_Sampled):
    """Weighted least squares on sampled coalitions, by default with the size effect regressed out."""

    paired: bool = True
    size_effect: bool = True
    moments: Moments = "auto"
    sampling: Sampling = "adaptive"

    name = "kernelshap"

    def estimate(self, game: Game, target: Tensor | None, /) -> Estimate:
        """Call ``vitshap.estimators.kernel.kernelshap``."""
        return kernelshap(
            game,
            budget=self.budget,
            paired=self.paired,
            size_effect=self.size_effect,
            moments=self.moments,
            sampling=self.sampling,
            threshold=self.threshold,
            target=target,
            batch=self.batch,
            seed=self.seed,
            progress=self.progress,
        )


@dataclass(frozen=True, eq=False)
class KernelShapOriginal(_Sampled):
    """KernelSHAP as published: coalitions drawn from the Shapley kernel, constrained least squares on them alone."""

    paired: bool = True
    """Sample every coalition together with its complement; False: independent coalitions."""

    name = "kernelshap-original"

    def estimate(self, game: Game, target: Tensor | None, /) -> Estimate:
        """Call ``vitshap.estimators.kernel.kernelshap_original``."""
        return kernelshap_original(
            game,
            budget=self.budget,
            paired=self.paired,
            threshold=self.threshold,
            target=target,
            batch=self.batch,
            seed=self.seed,
            progress=self.progress,
        )


@dataclass(frozen=True, eq=False)
class Permutation(_Sampled):
    """Antithetic permutation sampling."""

    name = "permutation"

    def estimate(self, game: Game, target: Tensor | None, /) -> Estimate:
        """Call ``vitshap.estimators.permutation.permutation``."""
        return permutation(
            game,
            budget=self.budget,
            threshold=self.threshold,
            target=target,
            batch=self.batch,
            seed=self.seed,
            progress=self.progress,
        )
