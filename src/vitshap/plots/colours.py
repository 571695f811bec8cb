"""Which colour a value has, in a figure and in a bitmap.

The photo is grey and light, the map alone has colours: red raises, blue lowers, and the larger a value, the denser its
colour; zero is transparent. ``style="paper"`` is the paper's look: the icefire palette at one opacity over the photo.
Values are interpolated before they are coloured: half way between a positive and a negative patch lies the colour of zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
"""Share of its opacity that is left to a value whose 95 % interval includes zero."""
Z = 1.96
"""Standard errors on each side of a 95 % interval."""

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
    """What lies under the map: the photo in light grey, or in its colours; by default as the style has it."""
    smooth: bool | None = None
    """Bicubic interpolation instead of one colour per patch; by default as the style has it."""
    cmap: str | Colormap | None = None
    """A colour map of matplotlib whose middle stands for zero."""
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
        """How values between the middles of two patches are found."""
        if self.smooth is None:
            return "bilinear" if self.style == "paper" else "nearest"
        return "bicubic" if self.smooth else "nearest"

    def under(self, pixels: NDArray[np.float64]) -> NDArray[np.float64]:
        """What lies under the map, from the photo's RGB in 0..1."""
        if self.style == "paper" and self.base is None:
            faint: NDArray[np.float64] = IMAGE_ALPHA * pixels + (1 - IMAGE_ALPHA)
            return faint
        if self.base == "photo":
            return pixels
        grey = pixels @ np.array([0.2126, 0.7152, 0.0722])
        return np.repeat((LIGHTENED + (1 - LIGHTENED) * grey)[..., None], 3, axis=-1)

    def colormap(self, *, over_picture: bool = True) -> Colormap:
        """Colours with their opacities, for values from -limit to limit; NaN is transparent."""
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
        return ListedColormap(colours, name=self.style)  # NaN is transparent unless told otherwise


DEFAULT = Look()


def _named(name: str | Colormap) -> Colormap:
    """A colour map by its name; seaborn's are known too."""
    import matplotlib

    if not isinstance(name, str):
        return name
    if name not in matplotlib.colormaps:
        import seaborn  # noqa: F401 (registers icefire)
    if name not in matplotlib.colormaps:
        raise ValueError(f"matplotlib has no colour map {name!r}; one with a neutral middle is 'coolwarm'")
    return matplotlib.colormaps[name]


def opacities(heat: NDArray[np.float64], stderr: NDArray[np.floating] | None) -> NDArray[np.float64] | None:
    """Shares of their opacity that values keep: half where the 95 % interval includes zero; None where all keep theirs."""
    if stderr is None:
        return None
    errors = np.asarray(stderr, dtype=np.float64)
    doubtful = np.nan_to_num(np.abs(heat)) <= Z * np.nan_to_num(errors)
    return np.where(doubtful & (np.nan_to_num(errors) > 0), UNCERTAIN, 1.0)


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


def upsampled(
    heat: NDArray[np.float64],
    down: NDArray[np.float64],
    across: NDArray[np.float64],
    how: Interpolation = "bilinear",
) -> NDArray[np.float64]:
    """The map at the points ``down`` x ``across``, measured in cells; averaged where it is shrunk.

    A cell without a value colours nothing and takes nothing from its neighbours, which keep their own area whole.
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
    """Share of each cell in each point, ``[points, cells]``; outermost cells reach on to the edge."""
    step = abs(float(points[-1] - points[0])) / max(len(points) - 1, 1)
    if how == "nearest" and step <= 1:
        own: NDArray[np.float64] = np.eye(cells)[_cell(points, cells)]
        return own
    reach = max(step, 1.0)  # points further apart than the cells average over all that lie between
    inside = points.clip(0.5, cells - 0.5)
    distance = np.abs(inside[:, None] - (np.arange(cells) + 0.5)) / reach
    near = np.maximum(1 - distance, 0.0)
    if how == "bicubic" and step <= 1:  # Catmull and Rom's: exact at the middles
        near = np.where(
            distance < 1,
            1.5 * distance**3 - 2.5 * distance**2 + 1,
            np.where(distance < 2, -0.5 * distance**3 + 2.5 * distance**2 - 4 * distance + 2, 0.0),
        )
    shares: NDArray[np.float64] = near / near.sum(1, keepdims=True)
    return shares


def _cell(points: NDArray[np.float64], cells: int) -> NDArray[np.intp]:
    return np.floor(points).astype(np.intp).clip(0, cells - 1)
