"""Players' values spread over pixels: the form that packages which know only images ask for.

A pixel belongs to the token that covers its centre, and every pixel of a player gets an equal share of its value. So the
pixels of a player add up to its value whatever the players are, and the pixels of an image to what all its players
have. Where the image divides into the grid, as every net's own input does, the tokens' pixels are exactly its patches.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vitshap.players import covering


def pixel_owners(labels: Tensor, size: Sequence[int], box: Sequence[float] | None = None) -> Tensor:
    """Which player each pixel belongs to, int64 ``[B or 1, H, W]``, from label maps ``[B or 1, rows, columns]``.

    ``size`` is (height, width). ``box`` (left, top, right, bottom) is where the grid lies in the image, by default all
    of it. Pixels outside the grid and those of nobody's tokens are -1.
    """
    if labels.ndim != 3:
        raise ValueError(f"only a grid of rows and columns lies over pixels, this one is {list(labels.shape[1:])}")
    (height, width), (rows, columns) = size, labels.shape[1:]
    left, top, right, bottom = (0, 0, width, height) if box is None else box
    row = covering(height, top, bottom, rows).to(labels.device)
    column = covering(width, left, right, columns).to(labels.device)
    framed = F.pad(labels, (0, 1, 0, 1), value=-1)  # one more row and column, for the pixels outside
    return framed[:, row[:, None], column[None, :]]


def spread(values: Tensor, owners: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values ``[B, d, T]`` over the pixels of their owners (``[B or 1, H, W]``): ``[B, T, H, W]`` on the owners' device.

    Shares are computed in float64 and rounded once; in half precision they may be subnormal, and their sums rough.
    """
    batch, players, explained = values.shape
    height, width = owners.shape[1:]
    flat = owners.flatten(1)
    flat = flat.where(flat >= 0, players)  # [B or 1, H * W]; nobody comes last
    count = torch.zeros(len(flat), players + 1, dtype=torch.int64, device=flat.device)
    count = count.scatter_add_(1, flat, torch.ones_like(flat))[:, :-1].to(values.device)
    lost = ((count == 0) & (values != 0).any(2)).nonzero()
    if len(lost):
        image, player = lost[0].tolist()
        raise ValueError(
            f"player {player} has no pixel in image {image} of {height} x {width}: "
            "the image is too small for the grid, or not the one that was explained"
        )
    shares = values.double() / count.clamp(min=1)[..., None]
    shares = F.pad(shares, (0, 0, 0, 1)).transpose(1, 2).to(dtype).to(owners.device)  # [B, T, d + 1]
    return shares.gather(2, flat[:, None, :].expand(batch, explained, -1)).view(batch, explained, height, width)
