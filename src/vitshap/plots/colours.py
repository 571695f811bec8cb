"""Which colour a value has, in a figure and in a bitmap alike.

Colours follow the paper: the diverging icefire palette scaled to +-max|value|, so that its dark middle is exactly
zero, laid (alpha .9, bilinear) over the image (alpha .85). Values are interpolated before they are coloured: half way
between a positive and a negative patch lies the colour of zero, not a mixture of orange and blue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from numpy.typing import NDArray

IMAGE_ALPHA = 0.85
OVERLAY_ALPHA = 0.9

UNIT_LABELS = {
    "probability": "change in probability",
    "logit": "change in logit",
    "output": "change in output",
    "score": "score (no unit)",
}


def palette() -> Colormap:
    """The icefire palette; its middle, 0.5, stands for zero."""
    import seaborn

    colours: Colormap = seaborn.color_palette("icefire", as_cmap=True)
    return colours


def as_map(heat: NDArray[np.floating]) -> NDArray[np.float64]:
    """The map as float64 ``[rows, columns]``, with NaN for whatever is not finite."""
    values = np.asarray(heat, dtype=np.float64)
    if values.ndim != 2 or values.size == 0:
        raise ValueError(f"a picture needs a map [rows, columns], got {list(values.shape)}")
    return np.where(np.isfinite(values), values, np.nan)


def magnitude(heats: Sequence[NDArray[np.floating]]) -> float:
    """The largest magnitude in the maps; 0 where nothing is finite."""
    return max((float(np.abs(heat[np.isfinite(heat)]).max(initial=0.0)) for heat in heats), default=0.0)


def symmetric_limit(heat: NDArray[np.floating]) -> float:
    """The largest magnitude in the map, which both ends of the scale stand for; 1 for a map of zeros."""
    return magnitude([np.asarray(heat)]) or 1.0


def common_limit(heats: Sequence[NDArray[np.floating]]) -> float:
    """The symmetric limit of several maps that are to be compared."""
    return magnitude(heats) or 1.0


def upsampled(heat: NDArray[np.float64], down: NDArray[np.float64], across: NDArray[np.float64]) -> NDArray[np.float64]:
    """The map at the points ``down`` x ``across``, measured in cells: bilinear where enlarged, averaged where shrunk.

    A cell without a value colours nothing and takes nothing from its neighbours, which keep their own area whole.
    """
    rows, columns = _weights(down, heat.shape[0]), _weights(across, heat.shape[1])
    known = np.isfinite(heat)
    values = rows @ np.where(known, heat, 0.0) @ columns.T
    if known.all():
        return values
    nearest = np.ix_(_cell(down, heat.shape[0]), _cell(across, heat.shape[1]))
    weight = rows @ known.astype(np.float64) @ columns.T
    return np.where(known[nearest], values / np.maximum(weight, 1e-9), np.nan)


def _weights(points: NDArray[np.float64], cells: int) -> NDArray[np.float64]:
    """Share of each cell in each point, ``[points, cells]``; outermost cells reach on to the edge."""
    step = abs(float(points[-1] - points[0])) / max(len(points) - 1, 1)
    reach = max(step, 1.0)  # points further apart than the cells average over all that lie between
    inside = points.clip(0.5, cells - 0.5)
    hats = np.maximum(1 - np.abs(inside[:, None] - (np.arange(cells) + 0.5)) / reach, 0.0)
    shares: NDArray[np.float64] = hats / hats.sum(1, keepdims=True)
    return shares


def _cell(points: NDArray[np.float64], cells: int) -> NDArray[np.intp]:
    return np.floor(points).astype(np.intp).clip(0, cells - 1)
