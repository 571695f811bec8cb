"""Baselines that need no more than a game: leave-one-out and random scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vitshap.explanation import Unit
from vitshap.game import Game
from vitshap.methods import Attribution, Method, image_generators, take_classes


@dataclass(frozen=True, eq=False)
class LeaveOneOut(Method):
    """The difference ``v(all) - v(all but i)`` for every player i.

    The differences have no meaningful sum: a player gets 0 if another one carries the same information.
    """

    name = "leave-one-out"

    def compute(self, game: Game, pixels: Tensor, targets: Tensor, /) -> Attribution:
        """Evaluate the ``d`` coalitions without one player each."""
        all_but_one = ~torch.eye(game.num_players, dtype=torch.bool, device=game.device)
        without = torch.cat(list(game.stream(all_but_one, targets)), dim=1)  # [B, d, T]
        return Attribution(take_classes(game.grand[:, None, :], targets) - without)


@dataclass(frozen=True, eq=False)
class Random(Method):
    """Random scores, the baseline that every method must beat: what a metric gives without any knowledge.

    Uniform in 0 to 1, from the image's pixels and the seed alone; one score per player for all classes.
    """

    seed: int = 0

    name = "random"
    class_specific = False
    unit: ClassVar[Unit | None] = "score"

    def compute(self, game: Game, pixels: Tensor, targets: Tensor, /) -> Attribution:
        """Draw the scores; the game is not evaluated."""
        scores = [torch.rand(game.num_players, generator=g) for g in image_generators(pixels, self.seed)]
        return Attribution(torch.stack(scores)[:, :, None].repeat(1, 1, targets.shape[1]))  # [B, d, T]
