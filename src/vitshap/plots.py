"""Arrays in, matplotlib figures out.

Figures are built directly, never through pyplot, so that drawing in a server or a loop leaves no open figure
behind. Colours follow the paper: the diverging icefire palette scaled to +-max|value|, so that its dark
middle is exactly zero, laid (alpha .9, bilinear) over the image (alpha .85). matplotlib and seaborn are
imported only when something is drawn.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from PIL import Image, ImageOps
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

IMAGE_ALPHA = 0.85
OVERLAY_ALPHA = 0.9
PANEL = 3.2  # inches

UNIT_LABELS = {
    "probability": "change in probability",
    "logit": "change in logit",
    "output": "change in output",
    "score": "score (no unit)",
}

Picture: TypeAlias = "Image.Image | str | os.PathLike[str] | NDArray[np.generic] | Tensor"
"""An image as a user has it: PIL, a path, an array ``[H, W]`` or ``[H, W, 3]``, or a tensor ``[C, H, W]``."""
Box: TypeAlias = Sequence[float]
"""Left, top, right, bottom of the explained crop, in pixels of the picture."""


def heatmap(
    heat: NDArray[np.floating],
    picture: Picture | None = None,
    *,
    box: Box | None = None,
    unit: str = "score",
    title: str = "",
    overlay_alpha: float = OVERLAY_ALPHA,
) -> Figure:
    """One map ``[rows, columns]`` over its picture, with a colour bar in the unit of the values.

    ``box`` says which part of the picture the map covers (default: all of it). NaN is left uncoloured.
    """
    shown = _shown(picture)
    figure, (axes,) = _figure(1, heat if shown is None else shown)
    drawn = _draw_overlay(axes, heat, shown, box, symmetric_limit(heat), overlay_alpha)
    _write_title(axes, title)
    _colour_bar(figure, drawn, axes, unit)
    return figure


def class_row(
    heats: Sequence[NDArray[np.floating]],
    picture: Picture | None = None,
    *,
    titles: Sequence[str],
    box: Box | None = None,
    unit: str = "score",
    title: str = "",
    overlay_alpha: float = OVERLAY_ALPHA,
) -> Figure:
    """The picture, then one map ``[rows, columns]`` per class, all on one scale so that classes compare."""
    if len(heats) == 0 or len(heats) != len(titles):
        raise ValueError(f"one title per map is expected, got {len(titles)} titles for {len(heats)} maps")
    shown = _shown(picture)
    first = 0 if shown is None else 1
    figure, panels = _figure(first + len(heats), heats[0] if shown is None else shown)
    if shown is not None:
        panels[0].imshow(shown)
        _write_title(panels[0], title)
    limit = symmetric_limit(np.stack(heats))
    for axes, heat, name in zip(panels[first:], heats, titles, strict=True):
        drawn = _draw_overlay(axes, heat, shown, box, limit, overlay_alpha)
        _write_title(axes, name)
    _colour_bar(figure, drawn, panels[-1], unit)
    return figure


def symmetric_limit(heat: NDArray[np.floating]) -> float:
    """The largest magnitude in the map, which both ends of the scale stand for; 1 for a map of zeros."""
    finite = np.abs(heat[np.isfinite(heat)])
    return float(finite.max()) if finite.size and finite.max() > 0 else 1.0


def as_pixels(picture: Picture) -> NDArray[np.float64]:
    """RGB in 0..1, ``[H, W, 3]``, of any picture.

    A tensor is a net's input, normalised in a way unknown here: if it leaves 0..1, it is stretched to fit.
    """
    if isinstance(picture, str | os.PathLike):
        with Image.open(picture) as opened:
            return as_pixels(opened)
    if isinstance(picture, Image.Image):
        return np.asarray(ImageOps.exif_transpose(picture).convert("RGB"), dtype=np.float64) / 255
    if isinstance(picture, Tensor):
        if picture.ndim != 3:
            raise ValueError(f"a tensor picture is [C, H, W], got {list(picture.shape)}")
        return _rgb(_to_unit_range(picture.detach().cpu().double().permute(1, 2, 0).numpy()))
    if isinstance(picture, np.ndarray):
        scale = 255 if picture.dtype == np.uint8 else 1
        return _rgb(_to_unit_range(picture.astype(np.float64) / scale))
    raise TypeError(f"a picture is a PIL image, a path, an array or a tensor; got {type(picture).__name__}")


def _to_unit_range(pixels: NDArray[np.float64]) -> NDArray[np.float64]:
    if not np.isfinite(pixels).all():
        raise ValueError("the picture has pixels that are not finite (NaN or infinity)")
    low, high = float(pixels.min()), float(pixels.max())
    if low >= 0 and high <= 1:
        return pixels
    return (pixels - low) / max(high - low, 1e-12)


def _rgb(pixels: NDArray[np.float64]) -> NDArray[np.float64]:
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3):
        raise ValueError(f"a picture has 1 or 3 channels, got [H, W, C] = {list(pixels.shape)}")
    return np.broadcast_to(pixels, (*pixels.shape[:2], 3))


def _shown(picture: Picture | None) -> NDArray[np.float64] | None:
    return None if picture is None else as_pixels(picture)


def _figure(panels: int, content: NDArray[np.floating]) -> tuple[Figure, list[Axes]]:
    """A row of panels of the content's shape, with room for the colour bar and two-line titles."""
    from matplotlib.figure import Figure

    height = PANEL * min(max(content.shape[0] / content.shape[1], 0.3), 3.0)
    figure = Figure(figsize=(PANEL * panels + 1.0, height + 0.7), dpi=120, layout="constrained")
    row = figure.subplots(1, panels, squeeze=False)[0]
    for axes in row:
        axes.set_axis_off()
    return figure, list(row)


def _draw_overlay(
    axes: Axes,
    heat: NDArray[np.floating],
    shown: NDArray[np.float64] | None,
    box: Box | None,
    limit: float,
    overlay_alpha: float,
) -> ScalarMappable:
    import seaborn

    if heat.ndim != 2:
        raise ValueError(f"a picture needs a map [rows, columns], got {list(heat.shape)}")
    rows, columns = heat.shape
    height, width = (rows, columns) if shown is None else shown.shape[:2]
    left, top, right, bottom = (0, 0, width, height) if box is None or shown is None else box
    # A crop may reach a little over the edge (padding); one that lies elsewhere is of another picture.
    seen = max(min(right, width) - max(left, 0), 0) * max(min(bottom, height) - max(top, 0), 0)
    if seen < 0.5 * (right - left) * (bottom - top):
        crop = ", ".join(f"{edge:g}" for edge in (left, top, right, bottom))
        raise ValueError(
            f"the map is of the crop ({crop}), not inside this picture of {width} x {height} pixels: "
            "give the original image that was explained"
        )
    if shown is not None:
        axes.imshow(shown, alpha=IMAGE_ALPHA, extent=(0, width, height, 0))
    drawn = axes.imshow(
        np.ma.masked_invalid(heat),
        cmap=seaborn.color_palette("icefire", as_cmap=True),
        vmin=-limit,
        vmax=limit,
        interpolation="bilinear",
        alpha=1.0 if shown is None else overlay_alpha,
        extent=(left, right, bottom, top),
    )
    # The second imshow would shrink the view to the crop: the frame is the whole picture's.
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    return drawn


def _write_title(axes: Axes, title: str) -> None:
    import textwrap

    axes.set_title("\n".join(textwrap.wrap(title, 34, max_lines=2)), fontsize=9)


def _colour_bar(figure: Figure, drawn: ScalarMappable, axes: Axes, unit: str) -> None:
    bar = figure.colorbar(drawn, ax=axes, fraction=0.06, pad=0.03)
    bar.set_label(UNIT_LABELS.get(unit, unit), fontsize=9)
    bar.ax.tick_params(labelsize=8)
