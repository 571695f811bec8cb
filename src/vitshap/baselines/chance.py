"""Random scores: the rival every method must beat; it shows what a metric gives for knowing nothing.

One score per player for all classes, because chance knows no class; metrics then need one path per image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vitshap.explanation import Unit
from vitshap.game import Game
from vitshap.methods import Attribution, Method, image_generators


@dataclass(frozen=True, eq=False)
class Random(Method):
    """Scores drawn uniformly from 0..1: an image gets the same ones in every batch, another seed others."""

    seed: int = 0

    name = "random"
    class_specific = False
    unit: ClassVar[Unit | None] = "score"

    def compute(self, game: Game, pixels: Tensor, targets: Tensor, /) -> Attribution:
        """Draw; the game is not asked."""
        scores = [torch.rand(game.num_players, generator=g) for g in image_generators(pixels, self.seed)]
        return Attribution(torch.stack(scores)[:, :, None].repeat(1, 1, targets.shape[1]))  # [B, d, T]
