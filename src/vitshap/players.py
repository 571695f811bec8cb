"""What a player is: a patch, a block of patches, a superpixel, any group of tokens.

One mechanism serves all: a label map says which player each token of the grid belongs to, and a coalition over players
becomes a keep-mask over tokens by looking the labels up. A token that belongs to nobody (label -1) is always kept, so
that the grand coalition is always the whole image.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from vitshap.coalitions import Coalitions

MANY_PLAYERS = 400


@dataclass(frozen=True, eq=False)
class Players:
    """Who plays: ``labels`` maps every token of the grid to a player (or -1, nobody)."""

    labels: Tensor
    """int64 ``[1, *grid]`` (one map for all images) or ``[B, *grid]`` (one per image)."""
    num_players: int

    @property
    def grid(self) -> tuple[int, ...]:
        """Shape of the token grid."""
        return tuple(self.labels.shape[1:])

    @property
    def per_image(self) -> bool:
        """Whether every image has a map of its own."""
        return self.labels.shape[0] > 1

    @property
    def player_mask(self) -> Tensor:
        """Which players exist in which image, bool ``[B or 1, d]``."""
        flat = self.labels.flatten(1)
        present = torch.zeros(flat.shape[0], self.num_players + 1, dtype=torch.bool, device=flat.device)
        present.scatter_(1, flat.where(flat >= 0, self.num_players), True)
        return present[:, :-1]

    def keep_tokens(self, coalitions: Coalitions, image: Tensor | None = None) -> Tensor:
        """Turn coalitions ``[n, d]`` into keep-masks over tokens ``[n, N]``; ``image`` says whose map each row uses."""
        if self.one_token_each:
            return coalitions
        flat = self.labels.flatten(1).to(coalitions.device)
        everyone = torch.cat([coalitions, coalitions.new_ones(len(coalitions), 1)], dim=1)
        flat = flat.where(flat >= 0, self.num_players)
        if not self.per_image:
            return everyone[:, flat[0]]
        if image is None:
            raise ValueError("players differ between images: say which image each coalition is about")
        return everyone.gather(1, flat[image])

    def __getitem__(self, images: slice) -> Players:
        """The players of some of the images."""
        return Players(self.labels[images], self.num_players) if self.per_image else self

    @property
    def one_token_each(self) -> bool:
        """Whether every token is a player, in order: then values and coalitions of tokens are those of players."""
        # Known from the shape and a cheap comparison, mostly on the CPU, where the shared map lives.
        tokens = math.prod(self.grid)
        if self.per_image or self.num_players != tokens:
            return False
        return torch.equal(self.labels.flatten(), torch.arange(tokens, device=self.labels.device))


PlayersLike: TypeAlias = "str | int | Tensor | Players"
"""``"patch"``, a block's side length in patches, a label map, or ``Players``."""


def patches(grid: Sequence[int]) -> Players:
    """Every token of the grid is a player."""
    return Players(torch.arange(math.prod(grid)).view(1, *grid), math.prod(grid))


def blocks(grid: Sequence[int], side: int) -> Players:
    """Square blocks of ``side`` x ``side`` patches; blocks at the far edges may be smaller."""
    if isinstance(side, bool) or not isinstance(side, int):
        raise TypeError(f"a block's side is an int, got {type(side).__name__}")
    if side < 1:
        raise ValueError(f"a block's side is at least 1 patch, got {side}")
    rows, columns = grid
    across = -(-columns // side)
    row, column = torch.arange(rows) // side, torch.arange(columns) // side
    labels = row[:, None] * across + column[None, :]
    return Players(labels[None], int(labels.max()) + 1)


def from_labels(labels: Tensor, grid: Sequence[int]) -> Players:
    """Players from a label map ``[*grid]``, or ``[B, *grid]`` with one map per image; -1 is nobody.

    Images may have unequal numbers of players: ``num_players`` is the largest, and a player that an image lacks changes
    nothing there.
    """
    if not isinstance(labels, Tensor):
        raise TypeError(f"a label map is an integer tensor, got {type(labels).__name__}")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f"a label map is an integer tensor, got {labels.dtype}")
    labels = labels.to(torch.int64)
    if tuple(labels.shape) == tuple(grid):
        labels = labels[None]
    if tuple(labels.shape[1:]) != tuple(grid) or labels.shape[0] == 0:
        shape = " x ".join(map(str, grid))
        raise ValueError(
            f"a label map has the shape of the grid ({shape}), one or one per image; got {list(labels.shape)}"
        )
    if int(labels.min()) < -1:
        raise ValueError(f"labels are -1 (nobody) or a player's number; the smallest given is {int(labels.min())}")
    num_players = int(labels.max()) + 1
    if num_players == 0:
        raise ValueError("the label map gives every token to nobody: there is no player")
    players = Players(labels if labels.shape[0] > 1 else labels.cpu(), num_players)
    missing = (~players.player_mask.any(0)).nonzero().flatten().tolist()
    if missing:
        raise ValueError(f"players 0 to {num_players - 1} are expected, but no token belongs to {missing[:5]}")
    return players


def resolve(players: PlayersLike, grid: Sequence[int]) -> Players:
    """Make ``Players`` for this grid from whatever the user wrote."""
    if isinstance(players, Players):
        if players.grid != tuple(grid):
            raise ValueError(f"these players are of a grid {players.grid}, the net's grid is {tuple(grid)}")
        resolved = players
    elif isinstance(players, Tensor):
        resolved = from_labels(players, grid)
    elif isinstance(players, str):
        if players != "patch":
            raise ValueError(f'players is "patch", a block\'s side, a label map or Players; got "{players}"')
        resolved = patches(grid)
    elif isinstance(players, int) and not isinstance(players, bool):
        resolved = blocks(grid, players)
    else:
        raise TypeError(f'players is "patch", a block\'s side, a label map or Players; got {type(players).__name__}')
    if resolved.num_players > MANY_PLAYERS:
        warnings.warn(
            f"{resolved.num_players} players: Shapley values of so many need very many evaluations. "
            f"players=2 makes blocks of 2 x 2 patches, or give a label map.",
            stacklevel=3,
        )
    return resolved
