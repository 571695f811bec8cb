"""Digits with exact Shapley values: the explainer and every method compared with them, Theorem 1, and pictures.

The surrogate's values of all coalitions are computed once and kept as a table; exact Shapley values and the theorem's
losses are sums over it. All methods explain the surrogate, so they differ only in how they estimate.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from vitshap import plots
from vitshap.coalitions import all_coalitions
from vitshap.estimators.estimate import correlation
from vitshap.estimators.exact import exact
from vitshap.experiments.tables import Column, Table
from vitshap.explainers import Explainer
from vitshap.explanation import Explanation
from vitshap.game import Game
from vitshap.methods import Attribution, MethodLike, SamplingMethod, explain_game, list_methods, method, resolve_target
from vitshap.metrics import ErrorBound, error_bound
from vitshap.models import MaskedModel
from vitshap.models.masked import ImageGame
from vitshap.players import Players
from vitshap.training.loop import LOG
from vitshap.training.recipes.recipe import STAGES

BUDGETS = (128, 1024)
"""Evaluations per image of sampling methods."""
CHUNK = 1024
"""Coalitions of all images between two steps of the progress bar."""
COLUMNS = (
    Column("method"),
    Column("true_class", ".3f"),
    Column("lowest", ".3f", title="lowest of true class"),
    Column("other_classes", ".3f"),
    Column("evaluations", ",.0f"),
    Column("seconds", ".2g"),
)
NOTE = (
    "Pearson correlations over patches, means over digits; evaluations and seconds are per digit. A number after a "
    "method's name is its budget."
)
CLASSES = 5
"""Most probable classes whose maps are drawn."""
CAPTIONS = {
    "classifier": "The classifier: cross-entropy and accuracy by epoch.",
    "surrogate": "The surrogate: distance of its outputs for withheld patches from the classifier's for whole digits.",
    "explainer": "The explainer: its loss on unseen digits, beside the loss of equal values for all patches.",
}
SELECTION = "selection_loss"
"""What selects the best epoch of an explainer trained on stored values."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """The results for some images; explanations are for all classes."""

    images: Tensor  # [B, 1, 8, 8]
    labels: Tensor  # [B]
    explanations: dict[str, Explanation]
    """By their name in the table, "exact" and "explainer" first."""
    table: Table
    """A row per explanation: correlation with the exact values."""
    theorem: ErrorBound
    """For the explainer."""


class EnumeratedGame(Game):
    """A game that looks up the values of its coalitions in a table of all of them."""

    players: Players

    def __init__(self, game: ImageGame, console: Console) -> None:
        """Evaluate ``game`` on all coalitions, with a progress bar."""
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
    """Compare the explainer and all other methods with the exact values of ``images``."""
    model = explainer.surrogate
    started = time.perf_counter()
    game = EnumeratedGame(model.game(images), console)
    truth = _exact(game, model, (time.perf_counter() - started) / len(images))
    explainer(images)  # the first call is slow
    explanations = {"exact": truth, "explainer": explainer(images)}
    for name, other in track(list(_other_methods(model, budgets)), "other methods", console=console):
        explanations[name] = other(images)
    table = Table(f"{len(images)} unseen digits: correlation with the exact Shapley values", COLUMNS, notes=[NOTE])
    for name, explanation in explanations.items():
        add_row(table, name, explanation, truth, labels)
    return Comparison(images, labels, explanations, table, error_bound(game, explanations["explainer"].values))


def add_row(table: Table, name: str, explanation: Explanation, truth: Explanation, labels: Tensor) -> None:
    """Add how well an explanation of all classes correlates with the exact one."""
    found = correlation(explanation.values.double(), truth.values.double())  # [B, K]
    own = torch.zeros_like(found, dtype=torch.bool).scatter(1, labels[:, None], True)
    table.add(
        method=name,
        true_class=float(found[own].mean()),
        lowest=float(found[own].min()),
        other_classes=float(found[~own].mean()),
        evaluations=explanation.evaluations,
        seconds=explanation.seconds,
    )


def theorem_lines(theorem: ErrorBound) -> list[tuple[str, str]]:
    """Return the quantities of Theorem 1, with their numbers and whether the bounds hold."""
    verdict = "holds" if theorem.holds else "DOES NOT HOLD"
    last = theorem.num_players - 1
    return [
        ("mean Euclidean error of the explainer", f"{theorem.mean:.4f}"),
        (f"bound sqrt(2 H_{last} (L - L*)), all coalitions enumerated", f"{theorem.bound:.4f}: {verdict}"),
        ("looser bound, with L* = 0", f"{theorem.loose_bound:.4f}: {verdict}"),
    ]


def _exact(game: EnumeratedGame, model: MaskedModel, seconds: float) -> Explanation:
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


def _other_methods(model: MaskedModel, budgets: Sequence[int]) -> Iterator[tuple[str, MethodLike]]:
    """Yield every registered method but those that are compared with or need references; sampling ones for each budget."""
    for name in list_methods():
        if name in ("exact", Explainer.name, "expected-gradients"):
            continue
        made = method(name, model, prediction_by="surrogate")
        if isinstance(made, SamplingMethod):
            yield from ((f"{name}, {budget:,}", made.with_budget(budget)) for budget in budgets)
        else:
            yield name, made


class Drawn(NamedTuple):
    """A picture and what it shows."""

    path: Path
    caption: str


def draw_digits(comparison: Comparison, folder: Path) -> Iterator[Drawn]:
    """Draw all methods side by side for the true class, then for each digit several classes, exact and learned."""
    yield _methods(comparison, folder / "methods.png")
    for i in range(len(comparison.images)):
        yield _classes(comparison, i, folder / f"digit-{i}.png")


def draw_training(folder: Path, training: Path) -> Iterator[Drawn]:
    """Draw the curves of every training that left a log under ``training``."""
    for stage in STAGES:
        log = training / stage / LOG
        if not log.is_file():
            continue
        records = [json.loads(line) for line in log.read_text().splitlines()]
        select = SELECTION if SELECTION in records[0] else None
        if select is not None:  # the training loss is weighted by noise: on its scale, the others would be flat
            records = [{name: value for name, value in line.items() if name != "train_loss"} for line in records]
        figure = plots.training_curves(records, select=select, title=f"Training the {stage}")
        yield Drawn(plots.save(figure, folder / f"training-{stage}.png"), CAPTIONS[stage])


def _methods(comparison: Comparison, path: Path) -> Drawn:
    """Draw the methods whose values have the unit of the exact ones: only they have a common scale."""
    unit = comparison.explanations["exact"].unit
    shown = {name: one for name, one in comparison.explanations.items() if one.unit == unit}
    labels = comparison.labels.tolist()
    figure = plots.method_grid(
        [[one[i].heatmap(label)[0].numpy() for one in shown.values()] for i, label in enumerate(labels)],
        [image.clamp(0, 1) for image in comparison.images],
        column_titles=list(shown),
        row_titles=[f"a {label}" for label in labels],
        units=unit,
        scale="row",
    )
    return Drawn(plots.save(figure, path), "Values for the true class of each digit; a row has one scale.")


def _classes(comparison: Comparison, i: int, path: Path) -> Drawn:
    true, learned = (comparison.explanations[name][i] for name in ("exact", "explainer"))
    best = true.prediction[0].topk(CLASSES).indices.tolist()
    label = int(comparison.labels[i])
    figure = plots.class_row(
        [one.heatmap(index)[0].numpy() for one in (true, learned) for index in best],
        comparison.images[i].clamp(0, 1),
        titles=[
            f"{name}, class {index}" + (f" ({100 * float(true.prediction[0, index]):.1f} %)" if name == "exact" else "")
            for name in ("exact", "explainer")
            for index in best
        ],
        unit=true.unit,
        title=f"a {label}",
    )
    caption = f"A {label}: exact values above, the explainer's below, for the {CLASSES} most probable classes."
    return Drawn(plots.save(figure, path), caption)
