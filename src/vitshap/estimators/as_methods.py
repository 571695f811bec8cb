"""The estimators as methods: the call that every method answers, with each estimator's options as fields.

The estimators themselves know games and nothing of images, so they can be used, tested and compared without a net.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitshap.estimators.estimate import Estimate, Watcher
from vitshap.estimators.exact import exact
from vitshap.estimators.kernel import Moments, Sampling, kernelshap
from vitshap.estimators.permutation import permutation
from vitshap.game import Game
from vitshap.methods import Attribution, Method


@dataclass(frozen=True, eq=False)
class Exact(Method):
    """All 2^d coalitions, for at most 20 players."""

    name = "exact"
    additive = True

    def compute(self, game: Game, pixels: Tensor, targets: Tensor, /) -> Attribution:
        """Enumerate."""
        return Attribution(exact(game.only(targets)).values)


@dataclass(frozen=True, eq=False)
class _Sampled(Method):
    """What sampling estimators share."""

    budget: int = 4096
    """Evaluations per image, the empty and the full coalition included; never exceeded."""
    threshold: float | None = None
    """Stop when the largest standard error is below this share of the values' range, for every explained class."""
    batch: int = 4096
    """Coalitions given to the net at a time."""
    seed: int = 0
    progress: Watcher | None = None
    """Called with every partial estimate; see ``vitshap.estimators.progress.progress_bar``."""

    additive = True

    def _attribution(self, estimate: Estimate) -> Attribution:
        converged = None if self.threshold is None else estimate.converged
        return Attribution(estimate.values, estimate.stderr, converged)


@dataclass(frozen=True, eq=False)
class KernelShap(_Sampled):
    """Weighted least squares on sampled coalitions, by default with the size effect regressed out."""

    paired: bool = True
    size_effect: bool = True
    moments: Moments = "auto"
    sampling: Sampling = "adaptive"

    name = "kernelshap"

    def compute(self, game: Game, pixels: Tensor, targets: Tensor, /) -> Attribution:
        """Estimate the explained classes."""
        estimate = kernelshap(
            game.only(targets),
            budget=self.budget,
            paired=self.paired,
            size_effect=self.size_effect,
            moments=self.moments,
            sampling=self.sampling,
            threshold=self.threshold,
            batch=self.batch,
            seed=self.seed,
            progress=self.progress,
        )
        return self._attribution(estimate)


@dataclass(frozen=True, eq=False)
class Permutation(_Sampled):
    """Antithetic permutations."""

    name = "permutation"

    def compute(self, game: Game, pixels: Tensor, targets: Tensor, /) -> Attribution:
        """Estimate the explained classes."""
        estimate = permutation(
            game.only(targets),
            budget=self.budget,
            threshold=self.threshold,
            batch=self.batch,
            seed=self.seed,
            progress=self.progress,
        )
        return self._attribution(estimate)
