"""The colours of values, in figures and in bitmaps.

The photo is light grey, only the map has colours: red raises, blue lowers, and the larger a value, the more opaque its
colour; zero is transparent. ``style="paper"`` is the paper's look: the icefire palette at one opacity over the photo.
Values are interpolated before they are coloured: halfway between a positive and a negative patch is the colour of zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from numpy.typing import NDArray

Style: TypeAlias = Literal["default", "paper"]
Base: TypeAlias = Literal["grey", "photo"]
Interpolation: TypeAlias = Literal["nearest", "bilinear", "bicubic"]

RED, BLUE = (0.84, 0.10, 0.11), (0.10, 0.33, 0.80)
OPACITY, POWER = 0.85, 0.7
"""The opacity of a value is ``OPACITY * (|value| / limit) ** POWER``."""
LIGHTENED = 0.25
"""Least brightness of the grey photo under a map."""
IMAGE_ALPHA, OVERLAY_ALPHA = 0.85, 0.9
"""The paper's opacities of the photo and of the map over it."""
UNCERTAIN = 0.5
"""Factor on the opacity of a value whose 95 % interval includes zero."""
LEVEL = 0.95
"""Of the intervals that are shown."""
Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
"""Standard errors on each side of such an interval."""

UNIT_LABELS = {
    "probability": "change in probability",
    "logit": "change in logit",
    "output": "change in output",
    "score": "score (no unit)",
}


@dataclass(frozen=True, eq=False)
class Look:
    """How a map is drawn over its photo."""

    style: Style = "default"
    """"paper": icefire at one opacity, bilinear, over the photo's colours."""
    base: Base | None = None
    """The photo under the map: in light grey, or in its colours; the default depends on the style."""
    smooth: bool | None = None
    """Bicubic interpolation instead of one colour per patch; the default depends on the style."""
    cmap: str | Colormap | None = None
    """A colour map of matplotlib whose middle is zero."""
    overlay_alpha: float | None = None
    """Opacity of the largest values."""

    def __post_init__(self) -> None:
        if self.style not in get_args(Style) or self.base not in (None, *get_args(Base)):
            known = 'style is "default" or "paper", base "grey" or "photo"'
            raise ValueError(f"{known}; got style={self.style!r}, base={self.base!r}")
        if isinstance(self.cmap, str):
            _named(self.cmap)

    @property
    def interpolation(self) -> Interpolation:
        """How values between the centres of patches are computed."""
        if self.smooth is None:
            return "bilinear" if self.style == "paper" else "nearest"
        return "bicubic" if self.smooth else "nearest"

    def under(self, pixels: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what is drawn under the map, from the photo's RGB in 0..1."""
        if self.style == "paper" and self.base is None:
            faint: NDArray[np.float64] = IMAGE_ALPHA * pixels + (1 - IMAGE_ALPHA)
            return faint
        if self.base == "photo":
            return pixels
        grey = pixels @ np.array([0.2126, 0.7152, 0.0722])
        return np.repeat((LIGHTENED + (1 - LIGHTENED) * grey)[..., None], 3, axis=-1)

    def colormap(self, *, over_picture: bool = True) -> Colormap:
        """Return the colours with their opacities, for values from -limit to limit; NaN is transparent."""
        from matplotlib.colors import ListedColormap

        along = np.linspace(-1, 1, 1025)  # odd: the middle is zero
        if self.style == "paper":
            colours = _named(self.cmap or "icefire")((along + 1) / 2)
            colours[:, 3] = (OVERLAY_ALPHA if self.overlay_alpha is None else self.overlay_alpha) if over_picture else 1
        else:
            sides = np.where(along[:, None] < 0, [*BLUE, 0.0], [*RED, 0.0])
            colours = sides if self.cmap is None else _named(self.cmap)((along + 1) / 2)
            most = OPACITY if self.overlay_alpha is None else self.overlay_alpha
            colours[:, 3] = most * np.abs(along) ** POWER
        return ListedColormap(colours, name=self.style)  # NaN is transparent by default


DEFAULT = Look()


def _named(name: str | Colormap) -> Colormap:
    """Return a colour map of matplotlib or seaborn by its name."""
    import matplotlib

    if not isinstance(name, str):
        return name
    if name not in matplotlib.colormaps:
        import seaborn  # noqa: F401 (registers icefire)
    if name not in matplotlib.colormaps:
        raise ValueError(f"matplotlib has no colour map {name!r}; one with a neutral middle is 'coolwarm'")
    return matplotlib.colormaps[name]


def opacities(heat: NDArray[np.float64], stderr: NDArray[np.floating] | None) -> NDArray[np.float64] | None:
    """Return factors on the opacity of values: a half if the 95 % interval includes zero; None without standard errors."""
    if stderr is None:
        return None
    errors = np.asarray(stderr, dtype=np.float64)
    doubtful = np.nan_to_num(np.abs(heat)) <= Z * np.nan_to_num(errors)
    return np.where(doubtful & (np.nan_to_num(errors) > 0), UNCERTAIN, 1.0)


def as_map(heat: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the map as float64 ``[rows, columns]``, with NaN for values that are not finite."""
    values = np.asarray(heat, dtype=np.float64)
    if values.ndim != 2 or values.size == 0:
        raise ValueError(f"a picture needs a map [rows, columns], got {list(values.shape)}")
    return np.where(np.isfinite(values), values, np.nan)


def magnitude(heats: Sequence[NDArray[np.floating]]) -> float:
    """Return the largest magnitude in the maps; 0 if nothing is finite."""
    return max((float(np.abs(heat[np.isfinite(heat)]).max(initial=0.0)) for heat in heats), default=0.0)


def symmetric_limit(heat: NDArray[np.floating]) -> float:
    """Return the largest magnitude in the map, the value at the ends of its scale; 1 for a map of zeros."""
    return magnitude([np.asarray(heat)]) or 1.0


def common_limit(heats: Sequence[NDArray[np.floating]]) -> float:
    """Return the limit of a scale for several maps."""
    return magnitude(heats) or 1.0


def upsampled(
    heat: NDArray[np.float64],
    down: NDArray[np.float64],
    across: NDArray[np.float64],
    how: Interpolation = "bilinear",
) -> NDArray[np.float64]:
    """Return the map at the points ``down`` x ``across``, measured in cells; averaged if it is shrunk.

    A cell without a value is not coloured and does not affect its neighbours.
    """
    rows, columns = _weights(down, heat.shape[0], how), _weights(across, heat.shape[1], how)
    known = np.isfinite(heat)
    values = rows @ np.where(known, heat, 0.0) @ columns.T
    if known.all():
        return values
    nearest = np.ix_(_cell(down, heat.shape[0]), _cell(across, heat.shape[1]))
    weight = rows @ known.astype(np.float64) @ columns.T
    return np.where(known[nearest], values / np.maximum(weight, 1e-9), np.nan)


def _weights(points: NDArray[np.float64], cells: int, how: Interpolation) -> NDArray[np.float64]:
    """Return the weight of each cell in each point, ``[points, cells]``; the outermost cells extend to the edge."""
    step = abs(float(points[-1] - points[0])) / max(len(points) - 1, 1)
    if how == "nearest" and step <= 1:
        own: NDArray[np.float64] = np.eye(cells)[_cell(points, cells)]
        return own
    reach = max(step, 1.0)  # points further apart than cells average over the cells between them
    inside = points.clip(0.5, cells - 0.5)
    distance = np.abs(inside[:, None] - (np.arange(cells) + 0.5)) / reach
    near = np.maximum(1 - distance, 0.0)
    if how == "bicubic" and step <= 1:  # Catmull-Rom: exact at the centres
        near = np.where(
            distance < 1,
            1.5 * distance**3 - 2.5 * distance**2 + 1,
            np.where(distance < 2, -0.5 * distance**3 + 2.5 * distance**2 - 4 * distance + 2, 0.0),
        )
    shares: NDArray[np.float64] = near / near.sum(1, keepdims=True)
    return shares


def _cell(points: NDArray[np.float64], cells: int) -> NDArray[np.intp]:
    return np.floor(points).astype(np.intp).clip(0, cells - 1)
