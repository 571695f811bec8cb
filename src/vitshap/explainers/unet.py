"""A U-Net on pixels: the trunk that does not depend on the explained model, as in the paper's ablation.

Contracting blocks of two convolutions, halved by max pooling; expanding blocks that join what was seen at the same
resolution on the way down. Its maps are averaged over each patch of the grid, so it works for any model that
``wrap`` accepts. Channels are normalised by groups within one image: unlike with batch norm, no image's values depend
on its batch.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROUPS = 8
"""Groups of the group norms; widths are multiples of twice this, so that a group has several values even in 1 x 1 maps."""


class UNet(nn.Module):
    """Images ``[B, C, H, W]`` to features of patches ``[B, N, width]``, row by row."""

    def __init__(
        self, channels: int, image_size: tuple[int, int], grid: tuple[int, int], *, width: int = 64, depth: int = 4
    ) -> None:
        """``width`` channels at full resolution, doubled at each of up to ``depth`` halvings; small images have fewer."""
        super().__init__()
        self.patch = (image_size[0] // grid[0], image_size[1] // grid[1])
        self.width = width
        widths = [width * 2**level for level in range(min(depth, _halvings(image_size)) + 1)]
        self.down = nn.ModuleList(_convolutions(a, b) for a, b in pairwise([channels, *widths]))
        self.up = nn.ModuleList(Expand(wide, narrow) for wide, narrow in pairwise(reversed(widths)))

    def forward(self, images: Tensor) -> Tensor:
        """``[B, C, H, W] -> [B, N, width]``."""
        maps = images.to(next(self.parameters()).dtype)  # whatever the explained model takes
        skips: list[Tensor] = []
        for block in self.down:
            maps = block(F.max_pool2d(maps, 2) if skips else maps)
            skips.append(maps)
        skips.pop()
        for block in self.up:
            maps = block(maps, skips.pop())
        return F.avg_pool2d(maps, self.patch).flatten(2).transpose(1, 2)


class Expand(nn.Module):
    """Twice the resolution, half the channels, joined with the map of that resolution from the way down."""

    def __init__(self, wide: int, narrow: int) -> None:
        """From ``wide`` channels to ``narrow``; the joined map has ``narrow`` too."""
        super().__init__()
        self.narrow = nn.Conv2d(wide, narrow, 3, padding=1)
        self.join = _convolutions(2 * narrow, narrow)

    def forward(self, maps: Tensor, skip: Tensor) -> Tensor:
        """``[B, wide, h, w]`` and ``[B, narrow, H, W]`` to ``[B, narrow, H, W]``."""
        # To the skip's size and not by two: odd sides were rounded down.
        maps = self.narrow(F.interpolate(maps, size=skip.shape[-2:], mode="nearest"))
        joined: Tensor = self.join(torch.cat([skip, maps], dim=1))
        return joined


def _convolutions(before: int, after: int) -> nn.Sequential:
    """Return two 3 x 3 convolutions with group norm and ReLU; the norms have biases, so the convolutions need none."""
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=False),
        nn.GroupNorm(GROUPS, after),
        nn.ReLU(),
        nn.Conv2d(after, after, 3, padding=1, bias=False),
        nn.GroupNorm(GROUPS, after),
        nn.ReLU(),
    )


def _halvings(image_size: tuple[int, int]) -> int:
    """Return how often an image can be halved with at least two pixels left on each side."""
    return max(min(image_size).bit_length() - 2, 0)
