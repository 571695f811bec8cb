"""Leave-one-out: what the output loses when one player alone is withheld.

It asks the game and nothing else, so how a player is withheld (attention mask, zeroed pixels, ...) is the
model's choice. The losses do not add up to anything: a player whose part another can take over loses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitshap.game import Game
from vitshap.methods import Attribution, Method, take_classes


@dataclass(frozen=True, eq=False)
class LeaveOneOut(Method):
    """``v(all) - v(all but i)`` for every player i."""

    name = "leave-one-out"

    def compute(self, game: Game, pixels: Tensor, targets: Tensor, /) -> Attribution:
        """Evaluate the ``d`` coalitions that lack one player."""
        all_but_one = ~torch.eye(game.num_players, dtype=torch.bool, device=game.device)
        without = torch.cat(list(game.stream(all_but_one, targets)), dim=1)  # [B, d, T]
        return Attribution(take_classes(game.grand[:, None, :], targets) - without)
