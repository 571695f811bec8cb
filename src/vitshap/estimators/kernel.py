"""KernelSHAP, by default with the effect of a coalition's size regressed out.

``size_effect=True`` is an estimator of our own on top of KernelSHAP's characterisation of the Shapley values (derived in
docs/estimators.md). ``kernelshap_original`` is KernelSHAP as published; ``size_effect=False`` is the same but for few
evaluations, where ``moments="auto"`` takes the exact moment matrix. All evaluate the same coalitions for all inputs of a
batch, so that one factorisation serves every input and class.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from vitshap.estimators.adaptive import AdaptiveState
from vitshap.estimators.anytime import State, run
from vitshap.estimators.estimate import Estimate, Watcher
from vitshap.estimators.exact import exact
from vitshap.estimators.plain import PlainState
from vitshap.estimators.size_effect import Moments, Sampling, SizeEffectState
from vitshap.game import Game

__all__ = ["Moments", "Sampling", "check_choice", "kernelshap", "kernelshap_original"]


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
    target: Tensor | None = None,
    batch: int = 4096,
    seed: int = 0,
    progress: Watcher | None = None,
) -> Estimate:
    """Shapley values of every input and output from at most ``budget`` evaluations per input.

    ``budget`` counts the empty and the full coalition. With ``threshold`` it stops as soon as the largest standard error
    is below that share of the values' range, for every class of every input, or for the classes ``target`` (``[B]`` or
    ``[B, T]``) alone. ``progress`` is called with every partial estimate.
    ``moments``: "exact" subtracts size curves only (unbiased at any budget), "sampled" also regresses on the players,
    "auto" weighs between them by leave-one-out error. ``sampling``: how evaluations are split over sizes; "adaptive" learns
    it from the first eighth of them where that pays (otherwise "balanced"). ``batch`` coalitions are given to the game at a
    time.
    """
    check_choice("moments", moments, ("auto", "exact", "sampled"))
    check_choice("sampling", sampling, ("adaptive", "balanced", "shapley", "leverage"))
    if batch < 2:
        raise ValueError(f"batch is the number of coalitions evaluated at a time, at least 2; got {batch}")
    if game.num_players == 1:
        return exact(game)
    state: State
    if size_effect:
        adaptive = sampling == "adaptive" and paired and moments == "auto"
        state = (AdaptiveState if adaptive else SizeEffectState)(game, paired, moments, sampling, batch, seed)
    else:
        # As published, the moment matrix is sampled; few evaluations cannot determine it, and the exact one is known.
        sampled = moments == "sampled" or (moments == "auto" and budget >= 20 * game.num_players)
        state = PlainState(game, paired, sampled, sampling, batch, seed)
    return run(state, game, budget=budget, threshold=threshold, target=target, progress=progress)


def kernelshap_original(
    game: Game,
    /,
    *,
    budget: int,
    paired: bool = True,
    threshold: float | None = None,
    target: Tensor | None = None,
    batch: int = 4096,
    seed: int = 0,
    progress: Watcher | None = None,
) -> Estimate:
    """KernelSHAP as published (Lundberg and Lee, 2017; with ``paired`` as improved by Covert and Lee, 2021).

    Coalitions are drawn from the Shapley kernel, with replacement, by default each with its complement; the values are
    the least-squares fit to them, weighted equally, under the constraint that they add up. No effect of the size is
    regressed out, and the moment matrix is that of the sample at any budget. Arguments as for ``kernelshap``.
    """
    if batch < 2:
        raise ValueError(f"batch is the number of coalitions evaluated at a time, at least 2; got {batch}")
    if game.num_players == 1:
        return exact(game)
    state = PlainState(game, paired, True, "shapley", batch, seed)
    state.method = "kernelshap-original"
    return run(state, game, budget=budget, threshold=threshold, target=target, progress=progress)


def check_choice(name: str, given: str, choices: Sequence[str]) -> None:
    """Raise unless ``given`` is one of the choices."""
    if given not in choices:
        raise ValueError(f"{name} is one of {', '.join(choices)}; got {given!r}")
