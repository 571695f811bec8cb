"""Pictures as text inside of the page, small enough that hundreds fit: WebP, which every browser of today reads."""

from __future__ import annotations

import base64
import io

from PIL import Image

from vitshap import plots
from vitshap.report.entries import Explained

PHOTO_SIDE = 560
MAP_SIDE = 320
"""Pixels of the longer sides, at most."""
LEAST_SIDE = 160
MAP_ALPHA = 0.72
"""Lighter than in the paper's figures: on a page the photo under the map should be recognised."""
_QUALITY = 80


def photo_uri(entry: Explained) -> str:
    """The photo."""
    return data_uri(plots.thumbnail(entry.picture, _side(entry, PHOTO_SIDE)))


def map_uri(entry: Explained, index: int) -> str:
    """The map of one class over the photo, on its own scale."""
    heat = entry.explanation.heatmap(index)[0].numpy()
    side = _side(entry, MAP_SIDE)
    return data_uri(plots.overlay_png(heat, entry.picture, entry.picture_box, max_side=side, overlay_alpha=MAP_ALPHA))


def scale_uri() -> str:
    """The colours from the lowest value to the highest."""
    return data_uri(plots.colour_scale_png(256, 1, overlay_alpha=MAP_ALPHA), lossless=True)


def data_uri(image: Image.Image, *, lossless: bool = False) -> str:
    """The image as a ``data:`` address."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG") if lossless else image.save(buffer, "WEBP", quality=_QUALITY, method=2)
    kind = "png" if lossless else "webp"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _side(entry: Explained, most: int) -> int:
    """No more pixels than the photo can fill: a photo of 32 pixels says no more at 560."""
    return min(most, max(LEAST_SIDE, 4 * max(entry.picture.size)))
