"""A stand-in for a wrapped net: the same attributes, a game that is a small function of the pixels."""

from __future__ import annotations

from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from vitshap.game import Game
from vitshap.players import Players, PlayersLike, resolve

PATCH = 2


class StandInPrepared(NamedTuple):
    pixels: Tensor
    boxes: Tensor | None


class StandInGame(Game):
    players: Players


class StandInModel:
    """Softmax of the kept patches' features plus their products with the next patch: an interacting game."""

    unit = "probability"
    device = torch.device("cpu")

    def __init__(self, grid=(3, 3), num_classes=4, class_names=None, players: PlayersLike = "patch"):
        self.grid = grid
        self.num_classes = num_classes
        self.class_names = class_names
        self.default_players = resolve(players, grid)
        self.num_players = self.default_players.num_players
        self.weights = torch.randn(
            3 * PATCH * PATCH, num_classes, generator=torch.Generator().manual_seed(7), dtype=torch.float64
        )

    def random_images(self, count: int, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(count, 3, self.grid[0] * PATCH, self.grid[1] * PATCH, generator=generator)

    def prepare(self, images, /) -> StandInPrepared:
        if isinstance(images, Tensor):
            return StandInPrepared(images, None)
        if isinstance(images, Image.Image):
            images = [images]
        size = (self.grid[1] * PATCH, self.grid[0] * PATCH)
        box = (1, 2, 1 + size[0], 2 + size[1])
        crops = [torch.tensor(list(photo.crop(box).tobytes())) for photo in images]
        pixels = torch.stack([crop.view(size[1], size[0], 3).permute(2, 0, 1) / 255 for crop in crops])
        return StandInPrepared(pixels, torch.tensor([box] * len(images), dtype=torch.float32))

    def game(self, images, /, *, players: PlayersLike | None = None) -> StandInGame:
        pixels = self.prepare(images).pixels
        who = self.default_players if players is None else resolve(players, self.grid)
        tokens = torch.nn.functional.unfold(pixels.double(), PATCH, stride=PATCH).transpose(1, 2)
        features = (tokens - 0.5) @ self.weights  # [B, N, K]
        together = features * features.roll(1, dims=1)

        def value(coalitions: Tensor) -> Tensor:
            batch, rows, _ = coalitions.shape
            image = torch.arange(batch).repeat_interleave(rows)
            kept = who.keep_tokens(coalitions.flatten(0, 1), image).view(batch, rows, -1).double()
            return (kept @ features + (kept * kept.roll(1, dims=2)) @ together).softmax(-1)

        game = StandInGame(
            value,
            num_players=who.num_players,
            num_outputs=self.num_classes,
            batch_size=len(pixels),
            player_mask=who.player_mask if who.per_image else None,
        )
        game.players = who
        return game
