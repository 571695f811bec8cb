"""The estimators as methods: the call that every method answers, with each estimator's options as fields.

The estimators themselves know games and nothing of images, so they can be used, tested and compared without a net.
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
from vitshap.methods import Attribution, Method, SamplingMethod, take_classes
from vitshap.models import MaskedModel
from vitshap.models.precision import Precision

ThresholdFor: TypeAlias = Literal["auto", "explained", "predicted"]


@dataclass(frozen=True, eq=False)
class Exact(Method):
    """All 2^d coalitions, for at most 20 players."""

    name = "exact"
    additive = True

    def compute(self, game: Game, pixels: Tensor, targets: Tensor, /) -> Attribution:
        """Enumerate."""
        return Attribution(exact(game.only(targets)).values)


@dataclass(frozen=True, eq=False)
class _Sampled(SamplingMethod):
    """What sampling estimators share."""

    threshold: float | None = None
    """Stop when the largest standard error is below this share of the values' range; see ``threshold_for``."""
    threshold_for: ThresholdFor = "auto"
    """Classes that the threshold is for: "explained" is all of them, "predicted" the most probable one of each image.
    "auto" is "explained", but "predicted" where every class of the net is explained: values of improbable classes are
    tiny, and their relative error alone would use up the budget."""
    batch: int = 4096
    """Coalitions given to the net at a time."""
    precision: Precision = "auto"
    """Of the evaluations: "auto" is half precision for a float32 net on a GPU, else the net's own."""

    additive = True

    def game(self, pixels: Tensor, /) -> Game:
        """The game of these images, evaluated in the chosen precision."""
        if isinstance(self.model, MaskedModel):
            return self.model.game(pixels, players=self.players, precision=self.precision)
        if self.precision != "auto":
            raise TypeError(f"precision= is for nets made by vitshap.wrap, got {type(self.model).__name__}")
        return super().game(pixels)

    @abstractmethod
    def estimate(self, game: Game, target: Tensor | None, /) -> Estimate:
        """Values of all outputs of ``game``; a threshold is for the outputs ``target`` ``[B, T]``, by default all."""

    def compute(self, game: Game, pixels: Tensor, targets: Tensor, /) -> Attribution:
        """Estimate the explained classes."""
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
        """By ``vitshap.estimators.kernel.kernelshap``."""
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
    """Every coalition together with its complement; False: independent coalitions."""

    name = "kernelshap-original"

    def estimate(self, game: Game, target: Tensor | None, /) -> Estimate:
        """By ``vitshap.estimators.kernel.kernelshap_original``."""
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
    """Antithetic permutations."""

    name = "permutation"

    def estimate(self, game: Game, target: Tensor | None, /) -> Estimate:
        """By ``vitshap.estimators.permutation.permutation``."""
        return permutation(
            game,
            budget=self.budget,
            threshold=self.threshold,
            target=target,
            batch=self.batch,
            seed=self.seed,
            progress=self.progress,
        )
