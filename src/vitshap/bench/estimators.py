"""Error against evaluations: our estimators, shapiq's and captum's on the same games with the same budgets.

Every estimator is given the same budget of evaluations. The evaluations reported are those that the game counts, so that
an estimator that exceeds its budget shows. Errors are root mean squares over players, relative to the standard deviation
over players of the exact values.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import exp, log
from statistics import geometric_mean
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from vitshap.analytic import random_unanimity
from vitshap.coalitions import all_coalitions, uniform_size
from vitshap.data import Splits, load_digits
from vitshap.estimators.exact import exact
from vitshap.estimators.kernel import kernelshap, kernelshap_original
from vitshap.estimators.permutation import permutation
from vitshap.estimators.refine import refine
from vitshap.experiments.tables import Column, Table
from vitshap.game import Game
from vitshap.models import MaskedModel, wrap
from vitshap.shapiq_games import as_shapiq

Contender: TypeAlias = Callable[[Game, int, int], Tensor]
"""Takes a game of one input and one output, a budget and a seed; returns values ``[d]``."""


COLUMNS = (
    Column("game"),
    Column("estimator"),
    Column("budget", ",d"),
    Column("seed", "d"),
    Column("evaluations", ",d"),
    Column("error", ".4f"),
)
"""Of a table with one row per run of an estimator on a game."""
ERRORS = (0.2, 0.1, 0.05, 0.03)
"""Errors that the summary has columns for."""
EPOCHS, BATCH, RATE = 40, 128, 3e-3
"""Training of the network whose digits are explained."""

OURS: dict[str, Contender] = {
    "kernelshap": lambda game, budget, seed: kernelshap(game, budget=budget, seed=seed).values[0, :, 0],
    "refine": lambda game, budget, seed: refine(game, budget=budget, seed=seed).values[0, :, 0],
    "kernelshap-original": lambda game, budget, seed: kernelshap_original(game, budget=budget, seed=seed).values[
        0, :, 0
    ],
    "permutation": lambda game, budget, seed: permutation(game, budget=budget, seed=seed).values[0, :, 0],
}


def theirs() -> dict[str, Contender]:
    """Return shapiq's and captum's estimators of Shapley values, with and without pairing where there is a choice."""
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
    title: str = "runs",
    note: Callable[[str], object] = lambda text: None,
) -> Table:
    """Run every contender (default: all) on every game (default: 20 synthetic ones of 12 players).

    The exact values are computed by enumeration. Games have one input and one output. ``note`` is called with the name of
    every game.
    """
    games = synthetic_games() if games is None else games
    contenders = {**OURS, **theirs()} if contenders is None else contenders
    table = Table(title, COLUMNS)
    for number, (game_name, game) in enumerate(games.items(), start=1):
        note(f"{game_name} ({number} of {len(games)}): {len(contenders)} estimators")
        truth = exact(game).values[0, :, 0]
        spread = float(truth.std(correction=0))
        for name, contender in contenders.items():
            for budget in budgets:
                for seed in seeds:
                    before = game.evaluations
                    values = contender(game, budget, seed).to(truth)
                    error = float((values - truth).square().mean().sqrt()) / spread
                    used = game.evaluations - before
                    table.add(game=game_name, estimator=name, budget=budget, seed=seed, evaluations=used, error=error)
    return table


def compare_all(
    *, seeds: int = 20, captum_seeds: int = 5, digits: int = 5, note: Callable[[str], object] = lambda text: None
) -> list[Table]:
    """Compare ours, shapiq's and captum's estimators on 20 synthetic games and on ``digits`` digits of a small ViT.

    captum evaluates one coalition at a time in Python, so it gets fewer seeds. ``note`` is called with what is measured
    next.
    """
    groups = {"20 games of 12 players": synthetic_games()}
    if digits:
        note("training a small network on digits")
        groups[f"{digits} digits, 16 players"] = digit_games(digits)
    everybody = {**OURS, **theirs()}
    slow = {name: contender for name, contender in everybody.items() if name.startswith("captum")}
    quick = {name: contender for name, contender in everybody.items() if name not in slow}
    tables = []
    for title, games in groups.items():
        table = compare(games, seeds=range(seeds), contenders=quick, title=title, note=note)
        table.rows += compare(games, seeds=range(captum_seeds), contenders=slow, note=note).rows
        tables.append(table)
    return tables


def summary(runs: Table, errors: Sequence[float] = ERRORS) -> Table:
    """Summarise runs: evaluations that each estimator needs to reach an error, geometric mean over games."""
    columns = (Column("estimator"), *(Column(f"error {error:g}", ",.0f") for error in errors))
    table = Table(f"{runs.title}: evaluations to a relative error, geometric mean", columns)
    needed = {f"error {error:g}": evaluations_to_error(runs, error) for error in errors}
    for name in dict.fromkeys(runs.values("estimator")):
        means = {
            key: geometric_mean([n for (_, own), n in found.items() if own == name]) for key, found in needed.items()
        }
        table.add(estimator=name, **means)
    shown = (f"{ours_over_theirs(runs, error)[0]:.2f} at error {error:g}" for error in errors)
    table.notes.append(f"kernelshap / best of theirs on each game: {', '.join(shown)}")
    return table


def digit_games(number: int) -> dict[str, Game]:
    """Return games of the predicted classes of test digits: all 65,536 coalitions of a small ViT, looked up."""
    tables = digit_tables(number)
    return {f"digit {i}": from_table(table[:, [int(table[-1].argmax())]]) for i, table in enumerate(tables)}


def digit_tables(number: int) -> Tensor:
    """Compute the values of all coalitions of test digits, float64 ``[number, 65536, 10]``."""
    torch.manual_seed(0)
    digits = load_digits()
    model = train_on_digits(digits)
    images = torch.stack([digits.test[i][0] for i in range(number)])
    return model.game(images)(all_coalitions(model.num_players)).double()


def train_on_digits(digits: Splits, *, epochs: int = EPOCHS, image_size: int = 8, layers: int = 3) -> MaskedModel:
    """Train a ViT of width 32 with patches of 2 x 2, withheld at random, so that it is its own surrogate."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=image_size,
        patch_size=2,
        num_channels=1,
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=64,
        id2label={i: str(i) for i in range(10)},
        label2id={str(i): i for i in range(10)},
    )
    model = wrap(ViTForImageClassification(config))
    images, labels = digits.train.images, digits.train.labels
    assert isinstance(images, Tensor)
    steps = epochs * -(-len(images) // BATCH)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(BATCH):  # type: ignore[no-untyped-call]
            coalitions = uniform_size(model.num_players).sample(len(batch))[:, None]  # one each, [B, 1, d]
            logits = model.logits(images[batch], coalitions)[:, 0]
            loss = F.cross_entropy(logits, labels[batch])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
    return model.eval()


def evaluations_to_error(runs: Table, error: float) -> dict[tuple[str, str], float]:
    """Compute the budget at which the root mean squared error over seeds falls to ``error``, by (game, estimator).

    It is interpolated between budgets on logarithmic axes and, beyond the largest one, extrapolated as one over the
    square root.
    """
    curves: dict[tuple[str, str], dict[int, list[float]]] = {}
    for game, estimator, budget, found in zip(
        *(runs.values(key) for key in ("game", "estimator", "budget", "error")), strict=True
    ):
        curves.setdefault((game, estimator), {}).setdefault(budget, []).append(found**2)
    needed = {}
    for key, curve in curves.items():
        points = [(budget, (sum(squares) / len(squares)) ** 0.5) for budget, squares in sorted(curve.items())]
        needed[key] = _crossing(points, error)
    return needed


def ours_over_theirs(runs: Table, error: float, ours: str = "kernelshap") -> tuple[float, dict[str, float]]:
    """Compute how many evaluations ``ours`` needs over the best of theirs: geometric mean over games, and each game's."""
    needed = evaluations_to_error(runs, error)
    ratios = {}
    for game in dict.fromkeys(runs.values("game")):
        others = [n for (title, name), n in needed.items() if title == game and name not in OURS]
        ratios[game] = needed[game, ours] / min(others)
    return geometric_mean(ratios.values()), ratios


def synthetic_games(d: int = 12, *, seed: int = 0) -> dict[str, Game]:
    """Return twenty games of four kinds: interactions of any order, of low order, softmax and sigmoid outputs."""
    games: dict[str, Game] = {}
    for i in range(seed, seed + 5):
        games[f"unanimity {i}"] = random_unanimity(d, terms=60, seed=i)
        games[f"unanimity to order 4 {i}"] = random_unanimity(d, terms=60, seed=i, largest=4)
        games[f"softmax {i}"] = from_table(softmax_table(d, seed=i)[:, :1])
        games[f"sigmoid {i}"] = from_table(sigmoid_table(d, seed=i))
    return games


def softmax_table(d: int, num_outputs: int = 10, *, seed: int = 0) -> Tensor:
    """Return values ``[2^d, K]`` of a game like a classifier: softmax of a random network, every player for class 0."""
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
    """Return values ``[2^d, 1]`` of a sigmoid of a sum with random pairwise interactions."""
    generator = torch.Generator().manual_seed(seed)
    s = all_coalitions(d).to(torch.float64)
    weights = torch.randn(d, generator=generator, dtype=torch.float64)
    pairs = torch.randn(d, d, generator=generator, dtype=torch.float64) / d**0.5
    return torch.sigmoid(2 * (s @ weights) + ((s @ pairs) * s).sum(1))[:, None]


def from_table(table: Tensor) -> Game:
    """Return a game that looks its values up in ``[2^d, K]``: the bits of a row's number are the coalition's members."""
    d = (len(table) - 1).bit_length()
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

    orders = max((budget - 1) // game.num_players, 1)  # each goes through all players; the baseline is evaluated once
    return _captum(ShapleyValueSampling, game, orders, seed, perturbations=game.num_players)


def _captum(method: Callable[..., object], game: Game, samples: int, seed: int, perturbations: int) -> Tensor:
    """Run captum on the indicator vector of a coalition; its baseline is the empty coalition."""

    def forward(indicator: Tensor) -> Tensor:
        return game(indicator > 0.5)[0, :, 0]

    everyone = torch.ones(1, game.num_players)
    torch.manual_seed(seed)
    attribution: Tensor = method(forward).attribute(  # type: ignore[attr-defined]
        everyone, baselines=0.0, n_samples=samples, perturbations_per_eval=perturbations
    )
    return attribution[0].detach()
