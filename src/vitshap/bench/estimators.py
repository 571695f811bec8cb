"""Error against evaluations: our estimators, shapiq's and captum's on the same games with the same budgets.

Every estimator is given a budget in evaluations and the whole of it; what the game counts is what is reported, so that
an estimator that asks more than it was given is seen to. Errors are root mean squares over players, in units of the
true values' standard deviation over players.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from typing import TypeAlias

import torch
from torch import Tensor

from vitshap.analytic import random_unanimity
from vitshap.bench import digit_net
from vitshap.coalitions import all_coalitions
from vitshap.data import load_digits
from vitshap.estimators.exact import exact
from vitshap.estimators.kernel import kernelshap, kernelshap_original
from vitshap.estimators.permutation import permutation
from vitshap.game import Game
from vitshap.shapiq_games import as_shapiq

Contender: TypeAlias = Callable[[Game, int, int], Tensor]
"""Takes a game of one input and one output, a budget and a seed; returns values ``[d]``."""


@dataclass(frozen=True)
class Row:
    """One run of one estimator on one game."""

    game: str
    estimator: str
    budget: int
    seed: int
    evaluations: int
    """As counted by the game."""
    error: float
    """Root mean squared error over players, relative to the standard deviation of the true values."""


OURS: dict[str, Contender] = {
    "kernelshap": lambda game, budget, seed: kernelshap(game, budget=budget, seed=seed).values[0, :, 0],
    "kernelshap-original": lambda game, budget, seed: kernelshap_original(game, budget=budget, seed=seed).values[
        0, :, 0
    ],
    "permutation": lambda game, budget, seed: permutation(game, budget=budget, seed=seed).values[0, :, 0],
}


def theirs() -> dict[str, Contender]:
    """shapiq's and captum's estimators of Shapley values, with and without pairing where there is the choice."""
    return {
        "shapiq KernelSHAP": _shapiq("KernelSHAP"),
        "shapiq KernelSHAP paired": _shapiq("KernelSHAP", pairing_trick=True),
        "shapiq kADDSHAP": _shapiq("kADDSHAP"),
        "shapiq kADDSHAP paired, order 3": _shapiq("kADDSHAP", pairing_trick=True, max_order=3),
        "shapiq UnbiasedKernelSHAP": _shapiq("UnbiasedKernelSHAP"),
        "shapiq SVARM": _shapiq("SVARM"),
        "shapiq Permutation": _shapiq("PermutationSamplingSV"),
        "captum KernelShap": _captum_kernel,
        "captum ShapleyValueSampling": _captum_permutation,
    }


def compare(
    games: Mapping[str, Game] | None = None,
    /,
    *,
    budgets: Sequence[int] = (100, 200, 400, 800, 1600),
    seeds: Sequence[int] = range(20),
    contenders: Mapping[str, Contender] | None = None,
    truths: Mapping[str, Tensor] | None = None,
    note: Callable[[str], object] = lambda text: None,
) -> list[Row]:
    """Run every contender (default: all) on every game (default: 20 synthetic ones of 12 players).

    ``truths`` (``[d]`` each) are computed by enumeration where not given. Games have one input and one output. ``note``
    is called with the name of every game.
    """
    games = synthetic_games() if games is None else games
    contenders = {**OURS, **theirs()} if contenders is None else contenders
    rows = []
    for number, (title, game) in enumerate(games.items(), start=1):
        note(f"{title} ({number} of {len(games)}): {len(contenders)} estimators")
        if game.batch_size != 1 or game.num_outputs != 1:
            raise ValueError(f"{title} has {game.batch_size} inputs and {game.num_outputs} outputs: give one of each")
        truth = truths[title] if truths is not None and title in truths else exact(game).values[0, :, 0]
        spread = float(truth.std(correction=0))
        for name, contender in contenders.items():
            for budget in budgets:
                for seed in seeds:
                    before = game.evaluations
                    values = contender(game, budget, seed).to(truth)
                    error = float((values - truth).square().mean().sqrt()) / spread
                    rows.append(Row(title, name, budget, seed, game.evaluations - before, error))
    return rows


def compare_all(
    *, seeds: int = 20, captum_seeds: int = 5, digits: int = 5, note: Callable[[str], object] = lambda text: None
) -> dict[str, list[Row]]:
    """Ours, shapiq's and captum's estimators on 20 synthetic games and on ``digits`` digits of a small ViT.

    captum evaluates one coalition at a time in Python, so it gets fewer seeds. ``note`` is called with what comes next.
    """
    groups = {"20 games of 12 players": synthetic_games()}
    if digits:
        note("training a small net on digits")
        groups[f"{digits} digits, 16 players"] = digit_games(digits)
    everybody = {**OURS, **theirs()}
    slow = {name: contender for name, contender in everybody.items() if name.startswith("captum")}
    quick = {name: contender for name, contender in everybody.items() if name not in slow}
    return {
        title: compare(games, seeds=range(seeds), contenders=quick, note=note)
        + compare(games, seeds=range(captum_seeds), contenders=slow, note=note)
        for title, games in groups.items()
    }


def digit_games(number: int) -> dict[str, Game]:
    """Predicted classes of unseen digits: tables of all 65,536 coalitions of a small ViT trained with patches missing."""
    tables = digit_tables(number)
    return {f"digit {i}": from_table(table[:, [int(table[-1].argmax())]]) for i, table in enumerate(tables)}


def digit_tables(number: int) -> Tensor:
    """Values of all coalitions of unseen digits, float64 ``[number, 65536, 10]``."""
    torch.manual_seed(0)
    digits = load_digits()
    model = digit_net.train(digits)
    images = torch.stack([digits.test[i][0] for i in range(number)])
    return model.game(images)(all_coalitions(model.num_players)).double()


def evaluations_to_error(rows: Sequence[Row], error: float) -> dict[tuple[str, str], float]:
    """Budget at which the root mean squared error over seeds falls to ``error``, by (game, estimator).

    Interpolated between budgets on logarithmic axes; beyond the last one, extrapolated as one over the square root.
    """
    curves: dict[tuple[str, str], dict[int, list[float]]] = {}
    for row in rows:
        curves.setdefault((row.game, row.estimator), {}).setdefault(row.budget, []).append(row.error**2)
    needed = {}
    for key, curve in curves.items():
        points = [(budget, (sum(squares) / len(squares)) ** 0.5) for budget, squares in sorted(curve.items())]
        needed[key] = _crossing(points, error)
    return needed


def ours_over_theirs(rows: Sequence[Row], error: float, ours: str = "kernelshap") -> tuple[float, dict[str, float]]:
    """Evaluations that ``ours`` needs over those of the best of theirs: geometric mean over games, and each game's."""
    needed = evaluations_to_error(rows, error)
    ratios = {}
    for game in {row.game for row in rows}:
        rivals = [n for (title, name), n in needed.items() if title == game and name not in OURS]
        ratios[game] = needed[game, ours] / min(rivals)
    return exp(sum(log(ratio) for ratio in ratios.values()) / len(ratios)), ratios


def synthetic_games(d: int = 12, *, seed: int = 0) -> dict[str, Game]:
    """Twenty games of four kinds: interactions of any order, of low order, softmax and sigmoid outputs."""
    games: dict[str, Game] = {}
    for i in range(seed, seed + 5):
        games[f"unanimity {i}"] = random_unanimity(d, terms=60, seed=i)
        games[f"unanimity to order 4 {i}"] = random_unanimity(d, terms=60, seed=i, largest=4)
        games[f"softmax {i}"] = from_table(softmax_table(d, seed=i)[:, :1])
        games[f"sigmoid {i}"] = from_table(sigmoid_table(d, seed=i))
    return games


def softmax_table(d: int, num_outputs: int = 10, *, seed: int = 0) -> Tensor:
    """Values ``[2^d, K]`` of a classifier-like game: softmax of a random net, the first class favoured by every player."""
    generator = torch.Generator().manual_seed(seed)
    hidden = 32

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    s = all_coalitions(d).to(torch.float64)
    weights = normal(d, num_outputs)
    weights[:, 0] += 0.6  # more players, more evidence: the size effect
    features = torch.tanh(0.7 * (s - 0.3) @ normal(d, hidden) + 0.5 * normal(hidden))
    return torch.softmax(s @ weights + 4 * features @ normal(hidden, num_outputs) / hidden**0.5, dim=1)


def sigmoid_table(d: int, *, seed: int = 0) -> Tensor:
    """Values ``[2^d, 1]`` of a sigmoid of a sum with random interactions of two."""
    generator = torch.Generator().manual_seed(seed)
    s = all_coalitions(d).to(torch.float64)
    weights = torch.randn(d, generator=generator, dtype=torch.float64)
    pairs = torch.randn(d, d, generator=generator, dtype=torch.float64) / d**0.5
    return torch.sigmoid(2 * (s @ weights) + ((s @ pairs) * s).sum(1))[:, None]


def from_table(table: Tensor) -> Game:
    """A game that looks its values up: row number's bits are the members; ``[2^d, K]``."""
    d = (len(table) - 1).bit_length()
    if len(table) != 2**d:
        raise ValueError(f"a table has a value for each of 2^d coalitions, got {len(table)} rows")
    place = 2 ** torch.arange(d, device=table.device)

    def value(s: Tensor) -> Tensor:
        return table[(s * place).sum(-1)]

    return Game(value, num_players=d, num_outputs=table.shape[1], device=table.device)


def _crossing(points: Sequence[tuple[int, float]], error: float) -> float:
    tiny = 1e-12
    if points[0][1] <= error:
        return float(points[0][0])
    for (n, above), (m, below) in pairwise(points):
        if below <= error:
            share = log(above / error) / log(above / max(below, tiny))
            return exp(log(n) + share * log(m / n))
    return points[-1][0] * (points[-1][1] / error) ** 2


def _shapiq(name: str, **options: bool | int) -> Contender:
    def estimate(game: Game, budget: int, seed: int) -> Tensor:
        import shapiq

        approximator = getattr(shapiq.approximator, name)(n=game.num_players, random_state=seed, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = approximator.approximate(budget, as_shapiq(game, 0))
        return torch.tensor([result[(i,)] for i in range(game.num_players)])

    return estimate


def _captum_kernel(game: Game, budget: int, seed: int) -> Tensor:
    from captum.attr import KernelShap

    return _captum(KernelShap, game, budget, seed, perturbations=1)


def _captum_permutation(game: Game, budget: int, seed: int) -> Tensor:
    from captum.attr import ShapleyValueSampling

    orders = max((budget - 1) // game.num_players, 1)  # each walks through all players; the baseline is asked once
    return _captum(ShapleyValueSampling, game, orders, seed, perturbations=game.num_players)


def _captum(method: Callable[..., object], game: Game, samples: int, seed: int, perturbations: int) -> Tensor:
    """captum on the indicator vector of the players: 1 takes part, the baseline 0 does not."""

    def forward(indicator: Tensor) -> Tensor:
        return game(indicator > 0.5)[0, :, 0]

    everyone = torch.ones(1, game.num_players)
    torch.manual_seed(seed)
    attribution: Tensor = method(forward).attribute(  # type: ignore[attr-defined]
        everyone, baselines=0.0, n_samples=samples, perturbations_per_eval=perturbations
    )
    return attribution[0].detach()
