"""An explanation as the viewer takes it: plain data, the same as the answer of the server's ``/v1/explanations``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from vitshap.viewer import frame_html, page_html, photo_uri, view_html

if TYPE_CHECKING:
    from vitshap.explanation.result import Explanation

LISTED = 20
"""Classes whose predictions are stored, besides the explained ones."""
DIGITS = 5
"""Digits of stored values."""
IMAGES_SHOWN = 8
"""Most images of an explanation that a notebook shows."""
PHOTO_SIDE = 800
_HEIGHT, _MORE_HEIGHT = 1000, 900


class Original(NamedTuple):
    """The photo that was explained."""

    picture: Image.Image
    """The whole photo, upright, in RGB, perhaps shrunk."""
    size: tuple[int, int]
    """Width and height of the upright original, in whose pixels the box of an explanation is."""


def stderr_from(e: Explanation, held_out: int | None = None) -> str | None:
    """Return where the standard errors come from, in words; None if there are none, or all are zero.

    ``held_out`` is the number of images that a stored explainer was calibrated on, if it is known.
    """
    if e.stderr is None or not bool(e.stderr.any()):
        return None
    if e.method == "explainer":
        return f"calibrated on {'' if held_out is None else f'{held_out:,} '}held-out images"
    return "from the prior and the evaluations" if e.posterior else "from sampling"


def view_data(e: Explanation, size: tuple[int, int] | None = None) -> dict[str, Any]:
    """Return the explanation of one image for the viewer; ``size`` is that of the photo, by default as its box ends."""
    (rows, columns), outputs = e.grid, e.prediction[0]
    box = [0.0, 0.0, float(columns), float(rows)] if e.image_box is None else e.image_box[0].tolist()
    if e.image_box is None and size is not None:
        box = [0.0, 0.0, float(size[0]), float(size[1])]
    listed = dict.fromkeys([*outputs.argsort(descending=True, stable=True)[:LISTED].tolist(), *e.classes[0].tolist()])
    predictions = sorted(listed, key=lambda index: -float(outputs[index]))
    return {
        "method": e.method,
        "grid": [rows, columns],
        "players": e.players[0].flatten().tolist(),
        "image_size": [box[2], box[3]] if size is None else list(size),
        "box": [rounded(edge) for edge in box],
        "unit": e.unit,
        "outputs": "output" if e.unit == "output" else "probability",
        "additive": e.additive,
        "stderr_from": stderr_from(e),
        "predictions": [
            {"index": i, "name": e._name(i), "probability": rounded(float(outputs[i]))} for i in predictions
        ],
        "classes": [_class(e, column) for column in range(e.classes.shape[1])],
        "evaluations": e.evaluations,
        "seconds": rounded(e.seconds),
    }


def notebook_html(e: Explanation) -> str:
    """Return what a notebook shows of an explanation: the viewer, with the photos if they are known."""
    views = []
    for i in range(min(len(e), IMAGES_SHOWN)):
        original = None if e.originals is None else e.originals[i]
        data = view_data(e[i], None if original is None else original.size)
        picture = None if original is None else photo_uri(original.picture, most=PHOTO_SIDE)
        views.append(view_html({**data, "picture": picture, "name": ""}))
    return frame_html(page_html(repr(e), views), repr(e), _HEIGHT if len(views) == 1 else _HEIGHT + _MORE_HEIGHT)


def rounded(value: float) -> float:
    """Return a number with as many digits as are stored."""
    return float(f"{value:.{DIGITS}g}")


def _class(e: Explanation, column: int) -> dict[str, Any]:
    index = int(e.classes[0, column])
    return {
        "index": index,
        "name": e._name(index),
        "probability": rounded(float(e.prediction[0, index])),
        "base": None if e.base_values is None else rounded(float(e.base_values[0, column])),
        "values": [rounded(value) for value in e.values[0, :, column].tolist()],
        "stderr": None if e.stderr is None else [rounded(value) for value in e.stderr[0, :, column].tolist()],
    }
