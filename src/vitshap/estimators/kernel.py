"""KernelSHAP, by default with the effect of a coalition's size regressed out.

``size_effect=True`` is a new estimator that builds on KernelSHAP's characterisation of the Shapley values (derived in
docs/estimators.md). ``kernelshap_original`` is KernelSHAP as published; ``size_effect=False`` differs from it only for few
evaluations, where ``moments="auto"`` uses the exact moment matrix. All evaluate the same coalitions for all inputs of a
batch, so that one factorisation is used for every input and class.

``PlainState`` is KernelSHAP without the size effect: independent coalitions, weighted least squares under the efficiency
constraint. Writing ``x = s - |s|/d`` and ``phi = (v(1) - v(0))/d + psi`` with psi summing to zero removes the constraint:
psi is the regression of ``y = v(s) - v(0) - |s|/d (v(1) - v(0))`` on x, weighted by the ratio of the Shapley kernel to the
sampling distribution. With pairing the units are pairs and y is half the difference of the two. With exact moments
``E[x x']`` is ``(I - 11'/d) / (2 H_{d-1})``, so ``psi = 2 H E[x (v(s) - v(0))]`` needs no matrix (Covert and Lee's
unbiased form).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vitshap.coalitions import CoalitionLaw, Coalitions, harmonic_number, shapley_kernel
from vitshap.estimators.adaptive import AdaptiveState
from vitshap.estimators.anytime import State, require_batch, run
from vitshap.estimators.estimate import Estimate, ProgressCallback, endpoints
from vitshap.estimators.exact import exact
from vitshap.estimators.size_effect import Moments, Sampling, SizeEffectState
from vitshap.game import Game


def kernelshap(
    game: Game,
    /,
    *,
    budget: int,
    paired: bool = True,
    size_effect: bool = True,
    moments: Moments = "auto",
    sampling: Sampling = "adaptive",
    threshold: float | None = None,
    accuracy: float | None = None,
    target: Tensor | None = None,
    batch: int = 4096,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> Estimate:
    """Estimate Shapley values of every input and output from at most ``budget`` evaluations per input.

    ``budget`` counts the empty and the full coalition. With ``threshold`` it stops as soon as the largest standard error
    is below that share of the values' range, for every class of every input, or only for the classes ``target`` (``[B]``
    or ``[B, T]``); with ``accuracy`` as soon as the estimated correlation of their values with the exact ones is that.
    ``progress`` is called with every partial estimate.
    ``moments``: "exact" subtracts size curves only (unbiased at any budget), "sampled" also regresses on the players,
    "auto" chooses between them by leave-one-out error. ``sampling``: how evaluations are split over sizes; "adaptive"
    learns it from the first of them, a pilot, if that lowers the error, and is otherwise "balanced". ``batch`` coalitions
    are evaluated at a time.
    """
    if game.num_players == 1:
        return exact(game)
    state = kernelshap_state(
        game,
        budget=budget,
        paired=paired,
        size_effect=size_effect,
        moments=moments,
        sampling=sampling,
        batch=batch,
        seed=seed,
    )
    return run(state, game, budget=budget, threshold=threshold, accuracy=accuracy, target=target, progress=progress)


def kernelshap_state(
    game: Game,
    /,
    *,
    budget: int,
    paired: bool = True,
    size_effect: bool = True,
    moments: Moments = "auto",
    sampling: Sampling = "adaptive",
    batch: int = 4096,
    seed: int = 0,
) -> State:
    """Return the estimator of ``kernelshap`` before any evaluation; arguments as there."""
    check_choice("moments", moments, ("auto", "exact", "sampled"))
    check_choice("sampling", sampling, ("adaptive", "balanced", "shapley", "leverage"))
    require_batch(batch)
    if size_effect:
        adaptive = sampling == "adaptive" and paired and moments == "auto"
        return (AdaptiveState if adaptive else SizeEffectState)(game, paired, moments, sampling, batch, seed)
    # As published, the moment matrix is sampled; few evaluations do not determine it, so the exact one is used.
    sampled = moments == "sampled" or (moments == "auto" and budget >= 20 * game.num_players)
    return PlainState(game, paired, sampled, sampling, batch, seed)


def kernelshap_original(
    game: Game,
    /,
    *,
    budget: int,
    paired: bool = True,
    threshold: float | None = None,
    accuracy: float | None = None,
    target: Tensor | None = None,
    batch: int = 4096,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> Estimate:
    """KernelSHAP as published (Lundberg and Lee, 2017; with ``paired`` as improved by Covert and Lee, 2021).

    Coalitions are drawn from the Shapley kernel, with replacement, by default each with its complement; the values are
    the equally weighted least-squares fit to them under the constraint that they add up. No size effect is regressed out,
    and the moment matrix is that of the sample at any budget. Arguments as for ``kernelshap``.
    """
    require_batch(batch)
    if game.num_players == 1:
        return exact(game)
    state = original_state(game, paired=paired, batch=batch, seed=seed)
    return run(state, game, budget=budget, threshold=threshold, accuracy=accuracy, target=target, progress=progress)


def original_state(game: Game, /, *, paired: bool = True, batch: int = 4096, seed: int = 0) -> State:
    """Return the estimator of ``kernelshap_original`` before any evaluation."""
    state = PlainState(game, paired, True, "shapley", batch, seed)
    state.method = "kernelshap-original"
    return state


def check_choice(name: str, given: str, choices: Sequence[str]) -> None:
    """Raise ``ValueError`` unless ``given`` is one of the choices."""
    if given not in choices:
        raise ValueError(f"{name} is one of {', '.join(choices)}; got {given!r}")


class PlainState:
    """Coalitions evaluated so far; implements ``State``."""

    posterior, known_before = False, False
    error_spread: Tensor | None = None
    evaluated_error: Tensor | None = None

    def __init__(self, game: Game, paired: bool, sampled: bool, sampling: str, batch: int, seed: int) -> None:
        """Start without evaluations."""
        self.method = "kernelshap-plain"
        self._game, self._paired, self._sampled, self._batch = game, paired, sampled, batch
        d = game.num_players
        kernel = shapley_kernel(d)
        law = _uniform_inner_size(d) if sampling == "leverage" else kernel
        self._law = law
        self._per_unit = 2 if paired else 1
        self._weight = torch.zeros(d + 1, dtype=torch.float64, device=game.device)
        self._weight[1:d] = (kernel.size_probabilities[1:d] / law.size_probabilities[1:d]).to(game.device)
        self._generator = torch.Generator(device=game.device).manual_seed(seed)
        self.smallest = 2 + self._per_unit * (d if sampled else 2)
        self.first_check = 2 + self._per_unit * 8 * d  # by then the moment matrix is hardly ever singular
        self._parts: list[tuple[Coalitions, Tensor]] = []

    def advance(self, evaluations: int) -> int:
        """Draw and evaluate up to ``evaluations`` in total."""
        had = sum(len(members) for members, _ in self._parts)
        new = (evaluations - 2) // self._per_unit - had
        step = max(self._batch // self._per_unit, 1)
        for first in range(0, new, step):
            number = min(step, new - first) * self._per_unit
            drawn = self._law.sample(number, paired=self._paired, generator=self._generator, device=self._game.device)
            values = self._game(drawn).transpose(0, 1).flatten(1)  # [S, B K]
            if self._paired:
                self._parts.append((drawn[::2], (values[::2] - values[1::2]) / 2))
            else:
                self._parts.append((drawn, values))
        return 2 + self._per_unit * (had + max(new, 0))

    def estimate(self) -> tuple[Tensor, Tensor | None]:
        """Return values and standard errors, ``[B, d, K]`` each."""
        game, d = self._game, self._game.num_players
        base, full = endpoints(game)
        null, share = base.flatten(), (full - base).flatten() / d  # [O]
        members = torch.cat([part for part, _ in self._parts])  # [n, d]
        size = members.sum(1)
        x = members.to(torch.float64) - size.to(torch.float64)[:, None] / d
        y = torch.cat([part for _, part in self._parts]).to(torch.float64)  # [n, O]
        if not self._paired:
            y = y - null
        weight = self._weight[size][:, None]  # [n, 1]
        variance: Tensor | None
        if self._sampled:
            # Half the difference of a pair's sizes stands for the size of a single coalition.
            y = y - (size - d / 2 if self._paired else size)[:, None] * share
            psi, variance = _least_squares(x, y, weight)
            units = members ^ ~members[:, :1] if self._paired else members  # a pair in the other order is the same
            needed = 1 if self._paired and d == 2 else d  # two players have one pair, which is all there is to know
            # Coefficients that fit all values leave no residuals to tell their errors; a few units nearly always show that
            # there are more.
            if all(len(some.unique(dim=0)) < needed for some in (units[: 4 * d], units)):  # type: ignore[no-untyped-call]
                variance = None
        else:
            psi, variance = _mean(2 * harmonic_number(d - 1) * weight * x, y)
        shape = (d, game.batch_size, game.num_outputs)
        values = (psi + share).view(shape).transpose(0, 1)
        return values, None if variance is None else variance.view(shape).transpose(0, 1).sqrt()


def _least_squares(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return coefficients ``[d, O]`` that sum to zero, and their variances by the sandwich formula."""
    n, d = x.shape
    moment = x.T @ (weight * x) / n
    spectrum = torch.linalg.eigvalsh(moment)
    if float(spectrum[1]) <= 1e-10 * float(spectrum[-1]):  # only the constant direction may have eigenvalue 0
        raise ValueError(
            f"singular moment matrix: {n} sampled coalitions do not distinguish all {d} players; "
            f"give a larger budget, or moments='exact'"
        )
    inverse = torch.linalg.inv(moment + 1 / d)
    coefficients = inverse @ (x.T @ (weight * y)) / n
    coefficients = coefficients - coefficients.mean(0)
    influence = (weight * x) @ inverse  # [n, d]
    leverage = ((x @ inverse) * x).sum(1, keepdim=True) * weight / n
    residual = (y - x @ coefficients) / (1 - leverage).clamp(min=1e-6)
    return coefficients, (influence**2).T @ residual**2 / n**2


def _mean(factors: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of ``factors * y`` over the units, ``[d, O]``, and its variance."""
    n = len(y)
    mean = factors.T @ y / n
    squares = (factors**2).T @ y**2 / n
    return mean, (squares - mean**2).clamp(min=0) / (n - 1)


def _uniform_inner_size(d: int) -> CoalitionLaw:
    """Return the distribution with equally likely sizes 1..d-1: sampling by leverage scores (Musco and Witter, 2025)."""
    probabilities = torch.zeros(d + 1, dtype=torch.float64)
    probabilities[1:d] = 1 / (d - 1)
    return CoalitionLaw(d, probabilities)
