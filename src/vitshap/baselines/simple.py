"""Baselines that only evaluate a game: leave-one-out and RISE; and random scores."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vitshap.explanation import Unit
from vitshap.game import Game
from vitshap.methods import Attribution, Method, game_in, image_generators, take_classes
from vitshap.models.precision import Precision


@dataclass(frozen=True, eq=False)
class OcclusionMethod(Method):
    """What leave-one-out and RISE share: players are withheld as the model was wrapped, or as ``removal`` says."""

    _: KW_ONLY
    removal: str | None = None
    """How patches are withheld, for example "pixels" as in the paper; None: as the model was wrapped."""
    precision: Precision = "auto"
    """Of the evaluations: "auto" is half precision for a float32 model on a GPU, otherwise the model's own."""

    def game(self, pixels: Tensor, /) -> Game:
        """Return the game of these images with that removal, evaluated in that precision."""
        model = self.model if self.removal is None else self.model.with_removal(self.removal)
        return game_in(model, pixels, self.players, self.precision)


@dataclass(frozen=True, eq=False)
class LeaveOneOut(OcclusionMethod):
    """``v(all) - v(all but i)`` for every player i. The values do not add up to the prediction."""

    name: ClassVar[str] = "leave-one-out"

    def compute(self, game: Game, pixels: Tensor, targets: Tensor, /) -> Attribution:
        """Evaluate the ``d`` coalitions without one player each."""
        all_but_one = ~torch.eye(game.num_players, dtype=torch.bool, device=game.device)
        without = torch.cat(list(game.stream(all_but_one, targets)), dim=1)  # [B, d, T]
        return Attribution(take_classes(game.grand[:, None, :], targets) - without)


@dataclass(frozen=True, eq=False)
class Rise(OcclusionMethod):
    """RISE (Petsiuk et al. 2018): mean output over random coalitions that contain the player."""

    _: KW_ONLY
    masks: int = 2000
    """Random coalitions per image; each contains a player with probability 1/2."""
    seed: int = 0

    name: ClassVar[str] = "rise"
    unit: ClassVar[Unit | None] = "score"
    """A mean of outputs, which has no meaningful zero: not comparable with differences of outputs."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` without masks."""
        super().__post_init__()
        if self.masks < 1:
            raise ValueError(f"masks must be at least 1, got {self.masks}")

    def compute(self, game: Game, pixels: Tensor, targets: Tensor, /) -> Attribution:
        """Draw coalitions for each image from its pixels and the seed, and average."""
        generators = image_generators(pixels, self.seed)
        size = self.masks, -(-game.num_players // 8)  # a byte has eight players
        drawn = torch.stack([torch.randint(256, size, generator=one, dtype=torch.uint8) for one in generators])
        bits = drawn.to(game.device)[..., None] >> torch.arange(8, device=game.device, dtype=torch.uint8)
        coalitions = (bits & 1).bool().flatten(2)[..., : game.num_players]  # [B, S, d]
        total = torch.zeros(len(pixels), game.num_players, targets.shape[1], device=game.device)
        chunk = game.bounded_chunk
        for start in range(0, self.masks, chunk):
            kept = coalitions[:, start : start + chunk]
            total += kept.mT.float() @ game(kept, targets).float()
        return Attribution(total / coalitions.sum(1).clamp(min=1)[..., None])


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
