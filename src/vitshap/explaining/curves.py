"""The output while patches are removed or added in the order of their values, for the slider of the report.

The report has no network, so the curve is evaluated when the photo is explained: at some numbers of patches, closer
together at both ends, in the order of the values of each class and, for comparison, in random orders. The viewer does the
same with a server's answers (``curve.js``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitshap.counter_rng import shuffled
from vitshap.explanation import Explanation
from vitshap.explanation.view import rounded
from vitshap.game import Game
from vitshap.models import MaskedModel
from vitshap.players import Players

FRACTIONS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5)
RANDOM_ORDERS = 3
CLASSES = 5
"""Most classes that have a curve of their own: the first takes some 65 evaluations, each further one some 30."""
HALF = 0.5
"""Share of the positive values that the patches of the report's first line make up."""


@dataclass(frozen=True, eq=False)
class RemovalCurve:
    """Outputs of all classes while the players of one image are removed, or added, by decreasing value of a class."""

    method: str
    index: int
    """The class whose values give the order."""
    order: list[int]
    counts: list[int]
    """Number of players at each point, the same from both ends."""
    remove: Tensor
    """Outputs with the first ``count`` players of the order removed, float32 ``[points, K]``."""
    add: Tensor
    """Outputs with only these shown, float32 ``[points, K]``."""
    random: Tensor
    """Output of the class with ``count`` players shown in random orders, float32 ``[orders, points]``."""

    def without(self, count: int) -> float | None:
        """Return the output of the class without the first ``count`` players; None if that was not evaluated."""
        return float(self.remove[self.counts.index(count), self.index]) if count in self.counts else None

    def view_data(self, classes: list[int]) -> dict[str, Any]:
        """Return the curve for the viewer, with the outputs of these classes."""

        def table(outputs: Tensor) -> list[list[float]]:
            return [[rounded(value) for value in row] for row in outputs.tolist()]

        return {
            "method": self.method,
            "class": self.index,
            "order": self.order,
            "counts": self.counts,
            "classes": classes,
            "remove": table(self.remove[:, classes]),
            "add": table(self.add[:, classes]),
            "random": table(self.random),
        }


def supporting_players(values: Tensor) -> int:
    """Return how many players, by decreasing value (float ``[d]``), make up half of the positive values; 0 if none is."""
    support = values.double().clamp(min=0).sort(descending=True).values.cumsum(0)
    return int((support < HALF * support[-1]).sum()) + 1 if float(support[-1]) > 0 else 0


def point_counts(players: int, also: int) -> list[int]:
    """Return the numbers of players at which a curve is evaluated, among them ``also``, the same from both ends."""
    low = {*(int(share * players + 0.5) for share in FRACTIONS), also}
    return sorted({*low, *(players - count for count in low)})


def removal_curves(
    model: MaskedModel, pixels: Tensor, explanation: Explanation, main: int, *, classes: int = CLASSES
) -> tuple[RemovalCurve, ...]:
    """Evaluate the curves of one image (``pixels`` ``[1, C, H, W]``): of class ``main``, then of the most probable others.

    ``classes`` is the number of curves; the random orders are the same for all of them.
    """
    d = explanation.values.shape[1]
    game = model.game(pixels, players=Players(explanation.players, d))
    explained = explanation.classes[0].tolist()
    others = sorted({*explained} - {main}, key=lambda index: -float(explanation.prediction[0, index]))
    indices = [main, *others][:classes]
    orders = [[one.player for one in explanation.top(d, index)[0]] for index in indices]
    inner = [
        point_counts(len(order), supporting_players(explanation.values[0, :, explained.index(index)]))[1:-1]
        for index, order in zip(indices, orders, strict=True)
    ]
    every = sorted({count for counts in inner for count in counts})
    random_orders = [
        [orders[0][i] for i in shuffled(len(orders[0]), seed=seed, epoch=0)] for seed in range(RANDOM_ORDERS)
    ]
    ranked = list(zip(orders, inner, strict=True))
    shown = [
        *(order[count:] for order, counts in ranked for count in counts),
        *(order[:count] for order, counts in ranked for count in counts),
        *(order[:count] for order in random_orders for count in every),
    ]
    sizes = [*(len(counts) for counts in inner), *(len(counts) for counts in inner), *[len(every)] * RANDOM_ORDERS]
    parts = torch.split(_outputs(game, shown), sizes)
    removed, added, random = parts[: len(indices)], parts[len(indices) : -RANDOM_ORDERS], parts[-RANDOM_ORDERS:]
    empty, full = game.null.float().cpu(), game.grand.float().cpu()  # [1, K]
    return tuple(
        RemovalCurve(
            explanation.method,
            index,
            order,
            [0, *counts, len(order)],
            torch.cat([full, removed[i], empty]),
            torch.cat([empty, added[i], full]),
            torch.stack(
                [torch.cat([empty, part[[every.index(count) for count in counts]], full])[:, index] for part in random]
            ),
        )
        for i, (index, order, counts) in enumerate(zip(indices, orders, inner, strict=True))
    )


def _outputs(game: Game, shown: list[list[int]]) -> Tensor:
    """Return the outputs of all classes with these players shown, float32 ``[S, K]`` on the CPU."""
    coalitions = torch.zeros(len(shown), game.num_players, dtype=torch.bool)
    for row, players in zip(coalitions, shown, strict=True):
        row[players] = True
    parts = list(game.stream(coalitions.to(game.device))) if shown else []
    return torch.cat(parts, 1)[0].float().cpu() if parts else torch.empty(0, game.num_outputs)
