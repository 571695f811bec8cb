"""Pictures as text inside of the page, small enough that hundreds fit: the photo once, and over it the colours of maps."""

from __future__ import annotations

import base64
import io

from PIL import Image

from vitshap import plots
from vitshap.report.entries import Explained

PHOTO_SIDE, PANORAMA_SIDE = 640, 1600
"""Pixels of the photo's longer side, at most; of one that is seen in part alone, the more."""
LEAST_SIDE = 160
_QUALITY = 80


def photo_uri(entry: Explained) -> str:
    """The photo."""
    most = PANORAMA_SIDE if entry.zoomed else PHOTO_SIDE
    # No more pixels than the photo can fill: a photo of 32 pixels says no more at 640.
    return data_uri(plots.thumbnail(entry.picture, min(most, max(LEAST_SIDE, 4 * max(entry.picture.size)))))


def map_uri(entry: Explained, index: int, limit: float) -> str:
    """The colours of one class's map, to be laid over what the net sees of the photo."""
    heat, errors = entry.explanation.heatmap(index)[0], entry.explanation.stderr_map(index)
    stderr = None if errors is None else errors[0].numpy()
    return data_uri(plots.colours_png(heat.numpy(), stderr=stderr, limit=limit), lossless=True)


def scale_uri() -> str:
    """The colours from the lowest value to the highest."""
    return data_uri(plots.colour_scale_png(256, 1), lossless=True)


def data_uri(image: Image.Image, *, lossless: bool = False) -> str:
    """The image as a ``data:`` address: WebP, which every browser of today reads, or PNG."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True) if lossless else image.save(buffer, "WEBP", quality=_QUALITY, method=2)
    kind = "png" if lossless else "webp"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
