"""Words that fit: measured in the font that draws them, broken into lines, cut with an ellipsis at last.

Class names are other people's: long, without spaces, with dollar signs. So the room for a text is known before the figure
is made, and nothing is read as mathematics (``parse_math=False``).
"""

from __future__ import annotations

import warnings
from bisect import bisect_right
from functools import lru_cache

TITLE = 9.0
"""Point size of titles and axis labels."""
NOTE = 7.5
"""Point size of ticks and of what is written beside a panel."""
GREY = "#555555"


@lru_cache(maxsize=4096)
def width_of(text: str, size: float) -> float:
    """Width of one line, in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    with warnings.catch_warnings():  # of letters that the font lacks: one warning, where they are drawn, is enough
        warnings.simplefilter("ignore")
        width: float = text_to_path.get_text_width_height_descent(text, FontProperties(size=size), False)[0]
    # Hinting at low resolution makes letters a little wider than their outlines.
    return 1.03 * width / 72


def height_of(text: str, size: float) -> float:
    """Height of its lines, in inches, with the gap to what it is written at; 0 for no text."""
    return (text.count("\n") + 1) * size * 1.25 / 72 + 0.07 if text else 0.0


def fitted(text: str, inches: float, *, size: float = TITLE, lines: int = 2) -> str:
    """The text in at most so many lines of at most so many inches; what is left over becomes an ellipsis."""
    rest = " ".join(text.split())
    done: list[str] = []
    while rest and len(done) < lines:
        line = _first_line(rest, inches, size)
        done.append(line.rstrip())
        rest = rest[len(line) :].lstrip()
    if rest:
        last = done[-1]
        while last and width_of(last + "…", size) > inches:
            last = last[:-1]
        done[-1] = last.rstrip() + "…"
    return "\n".join(done)


def _first_line(text: str, inches: float, size: float) -> str:
    """As many words as fit, or, of a word that is too long, as many letters (at least one)."""
    fits = bisect_right(range(1, len(text) + 1), inches, key=lambda n: width_of(text[:n], size))
    if fits == len(text):
        return text
    blank = text.rfind(" ", 0, fits + 1)
    if blank > 0:
        return text[:blank]
    joint = max(text.rfind(mark, 0, fits) for mark in "_-/,.")  # file-like names break after a joint
    return text[: joint + 1] if joint > 0 else text[: max(fits, 1)]
