"""The output while patches are removed or added in the order of their values, for the slider of the report.

The report has no network, so the curve is evaluated when the photo is explained: at some numbers of patches, closer
together at both ends, in the order of the values of one class and, for comparison, in random orders. The viewer does the
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
from vitshap.models import MaskedModel
from vitshap.players import Players

FRACTIONS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5)
RANDOM_ORDERS = 3
HALF = 0.5
"""Share of the positive values that the patches of the report's first line make up."""


@dataclass(frozen=True, eq=False)
class RemovalCurve:
    """Outputs of all classes while the players of one image are removed, or added, by decreasing value of a class."""

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


def removal_curve(model: MaskedModel, pixels: Tensor, explanation: Explanation, index: int) -> RemovalCurve:
    """Evaluate the curve of one image (``pixels`` ``[1, C, H, W]``) in the order of the values for class ``index``."""
    d = explanation.values.shape[1]
    game = model.game(pixels, players=Players(explanation.players, d))
    order = [one.player for one in explanation.top(d, index)[0]]
    column = int((explanation.classes[0] == index).int().argmax())
    counts = point_counts(len(order), supporting_players(explanation.values[0, :, column]))
    random_orders = [[order[i] for i in shuffled(len(order), seed=seed, epoch=0)] for seed in range(RANDOM_ORDERS)]
    inner = counts[1:-1]
    shown = [order[count:] for count in inner] + [
        players[:count] for players in (order, *random_orders) for count in inner
    ]
    coalitions = torch.zeros(len(shown), d, dtype=torch.bool)
    for row, players in zip(coalitions, shown, strict=True):
        row[players] = True
    parts = list(game.stream(coalitions.to(game.device))) if shown else []
    outputs = torch.cat(parts, 1)[0].float().cpu() if parts else torch.empty(0, game.num_outputs)
    empty, full = game.null.float().cpu(), game.grand.float().cpu()  # [1, K]
    removed, *added = outputs.view(2 + RANDOM_ORDERS, len(inner), game.num_outputs)
    curves = [torch.cat([empty, part, full]) for part in added]
    random = torch.stack([curve[:, index] for curve in curves[1:]])
    return RemovalCurve(index, order, counts, torch.cat([full, removed, empty]), curves[0], random)
