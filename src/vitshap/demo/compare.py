"""Digits whose values are known exactly: the explainer and every method beside them, and Theorem 1.

The surrogate's answers about all coalitions are computed once and kept as a table; exact values and the theorem's losses
are sums over it. Methods are asked for the surrogate's own values, so that they differ in how they estimate alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from vitshap.coalitions import all_coalitions
from vitshap.estimators.exact import exact
from vitshap.estimators.reliability import correlation
from vitshap.explainers import Explainer
from vitshap.explanation import Explanation
from vitshap.game import Game
from vitshap.methods import Attribution, explain_game, list_methods, method, resolve_target
from vitshap.metrics import ErrorBound, error_bound
from vitshap.models import MaskedModel
from vitshap.models.masked import ImageGame
from vitshap.players import Players

BUDGETS = (128, 1024)
"""Evaluations per image of methods that sample."""
CHUNK = 1024
"""Coalitions of all images between two steps of the progress bar."""


class Line(NamedTuple):
    """One method; correlations are over patches with the exact values, means over images (and classes)."""

    method: str
    evaluations: int
    """Per image."""
    seconds: float
    """Per image."""
    own: float
    """Of the image's true class."""
    lowest: float
    """Of the image with the lowest for its true class."""
    others: float
    """Of the other classes."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """What was found for some images; explanations are for all classes."""

    images: Tensor  # [B, 1, 8, 8]
    labels: Tensor  # [B]
    explanations: dict[str, Explanation]
    """By what the table calls them, "exact" and "explainer" first."""
    lines: list[Line]
    theorem: ErrorBound
    """For the explainer."""


class Enumerated(Game):
    """A game that knows the values of all its coalitions."""

    players: Players

    def __init__(self, game: ImageGame, console: Console) -> None:
        """Ask ``game`` about each, with a progress bar."""
        d, self.players = game.num_players, game.players
        parts = all_coalitions(d, device=game.device).split(CHUNK)  # type: ignore[no-untyped-call]
        shown = track(parts, f"values of all {2**d:,} coalitions", console=console)
        table = torch.cat([game(part) for part in shown], 1)  # [B, 2^d, K]
        place = 2 ** torch.arange(d, device=game.device)

        def look_up(coalitions: Tensor) -> Tensor:
            row = (coalitions * place).sum(-1)[..., None]  # [B, S, 1]
            return table.gather(1, row.expand(-1, -1, table.shape[2]))

        super().__init__(
            look_up,
            num_players=d,
            num_outputs=game.num_outputs,
            batch_size=game.batch_size,
            device=game.device,
        )


def compare(
    explainer: Explainer, images: Tensor, labels: Tensor, console: Console, *, budgets: Sequence[int] = BUDGETS
) -> Comparison:
    """Exact values of ``images``, then the explainer, then every method there is."""
    model = explainer.surrogate
    started = time.perf_counter()
    game = Enumerated(model.game(images), console)
    truth = _exact(game, model, (time.perf_counter() - started) / len(images))
    explainer(images)  # the first call of anything is slow
    explanations = {"exact": truth, "explainer": explainer(images)}
    for name, explanation in track(list(_others(model, images, budgets)), "other methods", console=console):
        explanations[name] = explanation()
    lines = [line_of(name, one, truth, labels) for name, one in explanations.items()]
    return Comparison(images, labels, explanations, lines, error_bound(game, explanations["explainer"].values))


def line_of(name: str, explanation: Explanation, truth: Explanation, labels: Tensor) -> Line:
    """How far an explanation of all classes agrees with the exact one."""
    found = correlation(explanation.values.double(), truth.values.double())  # [B, K]
    own = torch.zeros_like(found, dtype=torch.bool).scatter(1, labels[:, None], True)
    return Line(
        method=name,
        evaluations=explanation.evaluations,
        seconds=explanation.seconds,
        own=float(found[own].mean()),
        lowest=float(found[own].min()),
        others=float(found[~own].mean()),
    )


def table(lines: Sequence[Line], images: int) -> Table:
    """The comparison for a terminal."""
    title = f"{images} unseen digits: correlation with the exact Shapley values"
    made = Table(title=title, title_justify="left", caption=NOTE, caption_justify="left", box=SIMPLE_HEAD)
    for heading in HEADINGS:
        made.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=heading == "method")
    for line in lines:
        made.add_row(*cells(line))
    return made


HEADINGS = ("method", "true class", "its lowest", "other classes", "evaluations", "seconds")


NOTE = "Means over digits; evaluations and seconds are per digit."


def cells(line: Line) -> list[str]:
    """One line as text."""
    own, lowest, others = (f"{number:.3f}" for number in (line.own, line.lowest, line.others))
    return [line.method, own, lowest, others, f"{line.evaluations:,}", f"{line.seconds:.2g}"]


def theorem_lines(theorem: ErrorBound) -> list[tuple[str, str]]:
    """What Theorem 1 says here: quantity, number and verdict."""
    verdict = "holds" if theorem.holds else "DOES NOT HOLD"
    last = theorem.num_players - 1
    return [
        ("mean Euclidean error of the explainer", f"{theorem.error:.4f}"),
        (f"bound sqrt(2 H_{last} (L - L*)), all coalitions enumerated", f"{theorem.bound:.4f}: {verdict}"),
        ("looser bound, with L* = 0", f"{theorem.loose_bound:.4f}: {verdict}"),
    ]


def _exact(game: Enumerated, model: MaskedModel, seconds: float) -> Explanation:
    return explain_game(
        game,
        Attribution(exact(game).values),
        resolve_target(None, game.grand, model.class_names),
        method="exact",
        additive=True,
        unit=model.unit,
        prediction_by="surrogate",
        class_names=model.class_names,
        seconds=seconds,
    )


class _Asked(NamedTuple):
    """A method that is ready to be called."""

    model: MaskedModel
    images: Tensor
    name: str
    options: dict[str, int]

    def __call__(self) -> Explanation:
        return method(self.name, self.model, prediction_by="surrogate", **self.options)(self.images)


def _others(model: MaskedModel, images: Tensor, budgets: Sequence[int]) -> Iterator[tuple[str, _Asked]]:
    """Every registered method but "exact" and "explainer", those that sample once for each budget."""
    for name in list_methods():
        if name in ("exact", Explainer.name):
            continue
        samples = method(name, model).samples
        for budget in budgets if samples else (0,):
            options = {"budget": budget} if samples else {}
            yield f"{name}, {budget:,}" if samples else name, _Asked(model, images, name, options)
