"""The estimators as methods that explain images, with each estimator's options as fields.

The estimators themselves work on games, so they can be used, tested and compared without a model.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, get_args

import torch
from torch import Tensor

from vitshap.estimators.anytime import Run, State, Stop, run, run_together
from vitshap.estimators.estimate import Estimate
from vitshap.estimators.exact import exact
from vitshap.estimators.kernel import check_choice, kernelshap_state, original_state
from vitshap.estimators.permutation import PermutationState
from vitshap.estimators.posterior import Prior
from vitshap.estimators.priors import PriorMethod, check_prior, explained_prior, read_tokens, token_prior
from vitshap.estimators.refine import RefineState, correction_needs
from vitshap.estimators.size_effect import Moments, Sampling
from vitshap.explanation import Explanation
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
    accuracy: float | None = None
    """Stop each image when the estimated correlation of its values with the exact ones is this, for the most probable of
    its explained classes; with ``threshold_for="explained"`` for all of them. ``budget`` is the most for one image."""
    total_budget: int | None = None
    """Evaluations of all images together, spent where they are expected to help most; takes the place of ``budget``."""
    threshold_for: ThresholdFor = "auto"
    """Classes that the threshold applies to: "explained" is all of them, "predicted" the most probable one of each image.
    "auto" is "predicted" if every class of the model is explained, because the relative errors of improbable classes,
    whose values are tiny, would use up the budget; otherwise it is "explained"."""
    batch: int = 4096
    """Coalitions evaluated at a time."""
    precision: Precision = "auto"
    """Of the evaluations: "auto" is half precision for a float32 model on a GPU, otherwise the model's own."""

    additive = True

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for options that contradict each other."""
        super().__post_init__()
        check_choice("threshold_for", self.threshold_for, get_args(ThresholdFor))
        Stop(self.threshold, self.accuracy)
        if self.total_budget is not None and self.total_budget < 2:
            raise ValueError(f"total_budget is the evaluations of all images together, got {self.total_budget}")

    def game(self, pixels: Tensor, /) -> Game:
        """Return the game of these images, evaluated in the chosen precision."""
        return game_in(self.model, pixels, self.players, self.precision)

    def before(self, game: Game, pixels: Tensor, targets: Tensor, /) -> Prior | None:
        """Return what is known of the values of these images before any evaluation, if the method uses it."""
        return None

    @abstractmethod
    def state(self, game: Game, prior: Prior | None, /) -> State:
        """Return the estimator of ``game``, whose outputs are the explained classes, before any evaluation."""

    def compute(self, game: Game, pixels: Tensor, targets: Tensor, /) -> Attribution:
        """Estimate the values of the explained classes."""
        prior = self.before(game, pixels, targets)
        if (self.accuracy is None and self.total_budget is None) or game.num_players == 1:
            estimate = self._run(game.only(targets), prior, self._judged(game, targets), self.budget)
            asked = None if self.threshold is None and self.accuracy is None else estimate.converged
            return Attribution(estimate.values, estimate.stderr, asked, posterior=estimate.posterior)
        return self._each(game, pixels, targets, prior)

    def _run(self, game: Game, prior: Prior | None, judged: Tensor | None, budget: int) -> Estimate:
        if game.num_players == 1:
            return exact(game)
        return run(
            self.state(game, prior),
            game,
            budget=budget,
            threshold=self.threshold,
            accuracy=self.accuracy,
            target=judged,
            progress=self.progress,
        )

    def _each(self, game: Game, pixels: Tensor, targets: Tensor, prior: Prior | None) -> Attribution:
        """Estimate image by image, each until it is accurate enough or the evaluations are spent."""
        judged = self._judged(game, targets)
        total = self.total_budget
        estimates: list[Estimate] = []
        runs: list[Run] = []
        for i in range(game.batch_size):
            one = slice(i, i + 1)
            alone = game if game.batch_size == 1 else self._game_of(game, pixels, one)
            own = alone.only(targets[one])
            known, checked = None if prior is None else prior[one], None if judged is None else judged[one]
            if total is None:
                estimates.append(self._run(own, known, checked, self.budget))
                continue
            stop = Stop(self.threshold, self.accuracy)
            state = self.state(own, known)
            runs.append(Run(state, own, budget=total, stop=stop, target=checked, progress=self.progress, stepwise=True))
        if total is not None:
            run_together(runs, total)
            estimates = [one.estimate for one in runs if one.estimate is not None]
        errors = [one.stderr for one in estimates if one.stderr is not None]
        asked = self.threshold is not None or self.accuracy is not None
        return Attribution(
            torch.cat([one.values for one in estimates]),
            torch.cat(errors) if len(errors) == len(estimates) else None,
            torch.cat([one.converged for one in estimates]) if asked else None,
            evaluations=torch.tensor([one.evaluations for one in estimates]),
            posterior=estimates[0].posterior,
        )

    def _game_of(self, game: Game, pixels: Tensor, one: slice) -> Game:
        players = self.players if game.players is None else game.players[one]
        return game_in(self.model, pixels[one], players, self.precision)

    def _judged(self, game: Game, targets: Tensor) -> Tensor | None:
        """Return the columns of ``targets`` that decide when to stop, ``[B, 1]``; None: all."""
        everything = targets.shape[1] == game.num_outputs or self.accuracy is not None
        if self.threshold_for == "predicted" or (self.threshold_for == "auto" and everything):
            return take_classes(game.grand[:, None], targets)[:, 0].argmax(1, keepdim=True)
        return None


@dataclass(frozen=True, eq=False)
class KernelShap(_Sampled):
    """Weighted least squares on sampled coalitions, by default with the size effect regressed out."""

    paired: bool = True
    size_effect: bool = True
    moments: Moments = "auto"
    sampling: Sampling = "adaptive"

    name = "kernelshap"

    def state(self, game: Game, prior: Prior | None, /) -> State:
        """Return the estimator of ``vitshap.estimators.kernel.kernelshap``."""
        return kernelshap_state(
            game,
            budget=self.budget,
            paired=self.paired,
            size_effect=self.size_effect,
            moments=self.moments,
            sampling=self.sampling,
            batch=self.batch,
            seed=self.seed,
        )


@dataclass(frozen=True, eq=False)
class KernelShapOriginal(_Sampled):
    """KernelSHAP as published: coalitions drawn from the Shapley kernel, constrained least squares on them alone."""

    paired: bool = True
    """Sample every coalition together with its complement; False: independent coalitions."""

    name = "kernelshap-original"

    def state(self, game: Game, prior: Prior | None, /) -> State:
        """Return the estimator of ``vitshap.estimators.kernel.kernelshap_original``."""
        return original_state(game, paired=self.paired, batch=self.batch, seed=self.seed)


@dataclass(frozen=True, eq=False)
class Permutation(_Sampled):
    """Antithetic permutation sampling."""

    name = "permutation"

    def state(self, game: Game, prior: Prior | None, /) -> State:
        """Return the estimator of ``vitshap.estimators.permutation.permutation``."""
        return PermutationState(game, self.batch, self.seed)


@dataclass(frozen=True, eq=False)
class Refine(_Sampled):
    """A prior corrected by evaluations: the posterior mean, with its intervals."""

    prior: Any = "tokens"
    """An ``Explainer`` of the same model, an additive ``Explanation`` of the same images, or "tokens": equal values,
    where patches whose tokens look alike have alike deviations from them."""

    name = "refine"

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for a prior that belongs to another model, ``TypeError`` for what is no prior."""
        super().__post_init__()
        if isinstance(self.prior, str):
            check_choice("prior", self.prior, ("tokens",))
        elif isinstance(self.prior, PriorMethod):
            theirs, ours = self.prior.surrogate, self.model
            if theirs is not ours and theirs.fingerprint() != cast(Any, ours).fingerprint():
                raise ValueError(
                    f"prior: this explainer belongs to the surrogate {theirs.fingerprint()[:12]}..., the model has the "
                    f"fingerprint {cast(Any, ours).fingerprint()[:12]}...; refine explainer.surrogate"
                )
        elif not isinstance(self.prior, Explanation):
            given = type(self.prior).__name__
            raise TypeError(f'prior is "tokens", an Explainer or an additive Explanation; got {given}')

    def before(self, game: Game, pixels: Tensor, targets: Tensor, /) -> Prior:
        """Return the prior for these images, checked."""
        self._warn_if_too_few(game)
        tokens = None
        if game.players is not None:
            tokens = read_tokens(self.model.adapter, pixels, game.players)
        if isinstance(self.prior, str):
            return token_prior(game.only(targets), tokens)
        explanation = self.prior if isinstance(self.prior, Explanation) else self.prior(pixels, target=targets.cpu())
        check_prior(explanation, game, targets, game.players)
        known = getattr(self.prior, "calibration", None)
        return explained_prior(explanation, game, targets, tokens, known)

    def state(self, game: Game, prior: Prior | None, /) -> State:
        """Return the estimator of ``vitshap.estimators.refine.refine``."""
        return RefineState(game, cast(Prior, prior), self.batch, self.seed)

    def _warn_if_too_few(self, game: Game) -> None:
        needed = correction_needs(game.num_players)
        if game.num_players > 1 and self.total_budget is None and self.budget < needed:
            warnings.warn(
                f"{self.budget} evaluations are fewer than the {needed} that one correction of {game.num_players} players "
                "needs: the values are the prior's",
                stacklevel=4,
            )
