"""Players: patches, blocks of patches, superpixels, or any other groups of tokens.

A label map assigns each token of the grid to a player, and turns a coalition of players into a mask of the tokens to keep.
A token that belongs to no player (label -1) is always kept, so the full coalition is always the whole image.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitshap.coalitions import Coalitions

MANY_PLAYERS = 400


@dataclass(frozen=True, eq=False)
class Players:
    """The players of a game of images: ``labels`` maps every token of the grid to a player, or to -1 (no player)."""

    labels: Tensor
    """int64 ``[1, *grid]`` (one map for all images) or ``[B, *grid]`` (one per image)."""
    num_players: int

    @property
    def grid(self) -> tuple[int, ...]:
        """Shape of the token grid."""
        return tuple(self.labels.shape[1:])

    @property
    def per_image(self) -> bool:
        """Whether every image has its own label map."""
        return self.labels.shape[0] > 1

    @property
    def player_mask(self) -> Tensor:
        """Which players exist in which image, bool ``[B or 1, d]``."""
        flat = self.labels.flatten(1)
        present = torch.zeros(flat.shape[0], self.num_players + 1, dtype=torch.bool, device=flat.device)
        present.scatter_(1, flat.where(flat >= 0, self.num_players), True)
        return present[:, :-1]

    def keep_tokens(self, coalitions: Coalitions, image: Tensor | None = None) -> Tensor:
        """Turn coalitions ``[n, d]`` into keep-masks over tokens ``[n, N]``; ``image`` is the image of each row."""
        if self.one_token_each:
            return coalitions
        flat = self.labels.flatten(1).to(coalitions.device)
        padded = torch.cat([coalitions, coalitions.new_ones(len(coalitions), 1)], dim=1)
        flat = flat.where(flat >= 0, self.num_players)
        if not self.per_image:
            return padded[:, flat[0]]
        return padded.gather(1, flat[image])

    def sum_tokens(self, scores: Tensor) -> Tensor:
        """Sum scores of tokens ``[B, N, ...]`` into players, ``[B, d, ...]``; tokens of no player are ignored."""
        if self.one_token_each:
            return scores
        flat = self.labels.flatten(1).to(scores.device).expand(len(scores), -1)
        index = flat.where(flat >= 0, self.num_players).view(*flat.shape, *[1] * (scores.ndim - 2)).expand_as(scores)
        sums = scores.new_zeros(len(scores), self.num_players + 1, *scores.shape[2:])
        return sums.scatter_add(1, index, scores)[:, :-1]

    def __getitem__(self, images: slice) -> Players:
        """Return the players of some of the images."""
        return Players(self.labels[images], self.num_players) if self.per_image else self

    @property
    def one_token_each(self) -> bool:
        """Whether player i is token i, so that token masks and scores need no conversion."""
        # Cheap: a map that is shared by all images is on the CPU.
        tokens = math.prod(self.grid)
        if self.per_image or self.num_players != tokens:
            return False
        return torch.equal(self.labels.flatten(), torch.arange(tokens, device=self.labels.device))


PlayersLike: TypeAlias = "str | int | Tensor | Players"
"""``"patch"``, a block's side length in patches, a label map, or ``Players``."""


def patches(grid: Sequence[int]) -> Players:
    """Make every token of the grid a player."""
    return Players(torch.arange(math.prod(grid)).view(1, *grid), math.prod(grid))


def blocks(grid: Sequence[int], side: int) -> Players:
    """Make square blocks of ``side`` x ``side`` patches; blocks at the right and bottom edges may be smaller."""
    if side < 1:
        raise ValueError(f"a block's side is at least 1 patch, got {side}")
    rows, columns = grid
    across = -(-columns // side)
    row, column = torch.arange(rows) // side, torch.arange(columns) // side
    labels = row[:, None] * across + column[None, :]
    return Players(labels[None], int(labels.max()) + 1)


def from_labels(labels: Tensor | NDArray[Any], grid: Sequence[int]) -> Players:
    """Make players from a label map ``[*grid]``, or ``[B, *grid]`` with one map per image; -1 means no player.

    Images may have different numbers of players: ``num_players`` is the largest, and players that are absent from an
    image have no effect on it.
    """
    labels = _as_labels(labels)
    if tuple(labels.shape) == tuple(grid):
        labels = labels[None]
    if tuple(labels.shape[1:]) != tuple(grid) or labels.shape[0] == 0:
        shape = " x ".join(map(str, grid))
        raise ValueError(
            f"a label map has the shape of the grid ({shape}), one or one per image; got {list(labels.shape)}"
        )
    used = labels.unique().tolist()  # type: ignore[no-untyped-call]
    num_players = used[-1] + 1
    if used[0] < -1 or num_players == 0 or used[-num_players:] != list(range(num_players)):
        raise ValueError(f"labels must be 0 to d - 1, each at least once, or -1 for no player; got {used[:8]}")
    return Players(labels if labels.shape[0] > 1 else labels.cpu(), num_players)


def from_pixels(labels: Tensor | NDArray[Any], grid: Sequence[int], *, box: Sequence[float] | None = None) -> Players:
    """Make players from a segmentation of the pixels, ``[H, W]`` or ``[B, H, W]``, as scikit-image returns it.

    ``labels`` cover the model's input, at any resolution. If they cover a larger picture, ``box`` (left, top, right,
    bottom; ``model.prepare(photo).boxes[0]``) is the part of it that the model sees. Every patch belongs to the segment
    with the most of its pixels; ties go to the smallest label. A patch whose most frequent label is negative belongs to
    no player and is always kept. Players are numbered in the order of the labels. Segments that win no patch are
    dropped with a warning.
    """
    pixels = _as_labels(labels).cpu()
    if pixels.ndim == 2:
        pixels = pixels[None]
    rows, columns = grid
    left, top, right, bottom = (0.0, 0.0, *pixels.shape[:0:-1]) if box is None else (float(edge) for edge in box)
    if not (left < right and top < bottom):
        raise ValueError(
            f"box is left, top, right, bottom of the model's input in the map, got {[left, top, right, bottom]}"
        )
    row = covering(pixels.shape[1], top, bottom, rows)
    column = covering(pixels.shape[2], left, right, columns)
    inside = ((row < rows)[:, None] & (column < columns)).flatten()
    patch = (row[:, None] * columns + column).flatten()[inside]
    bare = int((torch.bincount(patch, minlength=rows * columns) == 0).sum())
    if bare:
        height, width = pixels.shape[1:]
        raise ValueError(
            f"{bare} of {rows} x {columns} patches contain no pixel of this map of {height} x {width} pixels"
        )
    maps, lost, segments = [], 0, 0
    for one in pixels.flatten(1)[:, inside]:
        names, index = one.where(one >= 0, -1).unique(return_inverse=True)
        votes = torch.zeros(rows * columns, len(names), dtype=torch.int64)
        votes.index_put_((patch, index), torch.ones_like(patch), accumulate=True)
        winners, owner = names[votes.argmax(1)].unique(return_inverse=True)
        maps.append((owner - int(winners[0] < 0)).view(rows, columns))
        segments += int((names >= 0).sum())
        lost += int((names >= 0).sum()) - int((winners >= 0).sum())
    if lost:
        warnings.warn(
            f"{lost} of {segments} segments win no patch by their number of pixels and are dropped", stacklevel=2
        )
    return from_labels(torch.stack(maps), grid)


def covering(pixels: int, start: float, end: float, cells: int) -> Tensor:
    """Return which of ``cells`` between ``start`` and ``end`` covers each pixel's centre; ``cells`` if none does."""
    centres = torch.arange(pixels, dtype=torch.float64) + 0.5
    cell = ((centres - start) * (cells / (end - start))).floor().long()
    return cell.where((cell >= 0) & (cell < cells), cells)


def _as_labels(labels: Tensor | NDArray[Any]) -> Tensor:
    """Convert an integer tensor or array to int64."""
    given = torch.from_numpy(np.ascontiguousarray(labels)) if isinstance(labels, np.ndarray) else labels
    if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
        raise TypeError(f"a label map is an integer tensor, got {given.dtype}")
    return given.to(torch.int64)


def resolve(players: PlayersLike, grid: Sequence[int]) -> Players:
    """Make ``Players`` for this grid from any of the forms of ``PlayersLike``."""
    if isinstance(players, Players):
        if players.grid != tuple(grid):
            raise ValueError(f"these players belong to a grid of {players.grid}, the model's grid is {tuple(grid)}")
        resolved = players
    elif isinstance(players, Tensor):
        resolved = from_labels(players, grid)
    elif isinstance(players, str) and players == "patch":
        resolved = patches(grid)
    elif isinstance(players, int) and not isinstance(players, bool):
        resolved = blocks(grid, players)
    else:
        raise ValueError(f'players is "patch", the side of a block, a label map or Players; got {players!r}')
    if resolved.num_players > MANY_PLAYERS:
        warnings.warn(
            f"{resolved.num_players} players: Shapley values of that many need very many evaluations. "
            f"players=2 makes blocks of 2 x 2 patches, or give a label map.",
            stacklevel=3,
        )
    return resolved
