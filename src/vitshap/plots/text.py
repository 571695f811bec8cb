"""Text that fits: measured in its font, broken into lines, and if need be cut with an ellipsis.

Class names come from users: they may be long, without spaces, or with dollar signs. So the space for a text is known
before the figure is made, and nothing is parsed as mathematics (``parse_math=False``).
"""

from __future__ import annotations

import logging
import warnings
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = 9.0
"""Point size of titles and axis labels."""
NOTE = 7.5
"""Point size of ticks and of what is written beside a panel."""
GREY = "#555555"
FALLBACKS = (
    *(f"Noto Sans CJK {region}" for region in ("SC", "JP", "KR", "TC", "HK")),
    *(f"Noto Sans {region}" for region in ("SC", "JP", "KR", "TC", "HK")),
    "Source Han Sans",
    "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei",
    "Droid Sans Fallback",
    "IPAexGothic",
    "IPAGothic",
    "TakaoGothic",
    "NanumGothic",
    "Microsoft YaHei",
    "Yu Gothic",
    "Malgun Gothic",
    "PingFang SC",
    "Hiragino Sans",
    "Apple SD Gothic Neo",
    "Arial Unicode MS",
)
"""Fonts with Chinese, Japanese or Korean letters, tried first if the default font lacks a letter."""
_LOG = logging.getLogger(__name__)


@lru_cache(maxsize=4096)
def width_of(text: str, size: float) -> float:
    """Return the width of one line in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    with warnings.catch_warnings():  # of letters that the font lacks: one warning, where they are drawn, is enough
        warnings.simplefilter("ignore")
        font = FontProperties(family=[*FontProperties().get_family(), *fallbacks(text)], size=size)
        width: float = text_to_path.get_text_width_height_descent(text, font, False)[0]
    # Hinting at low resolution makes letters a little wider than their outlines.
    return 1.03 * width / 72


def height_of(text: str, size: float) -> float:
    """Return the height of the lines in inches, with the gap to what they belong to; 0 for no text."""
    return (text.count("\n") + 1) * size * 1.25 / 72 + 0.07 if text else 0.0


def fitted(text: str, inches: float, *, size: float = TITLE, lines: int = 2) -> str:
    """Return the text in at most ``lines`` lines of at most ``inches``; an ellipsis replaces the rest."""
    rest = " ".join(drawable(text).split())
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
    """Return as many words as fit, or, of a word that is too long, as many letters (at least one)."""
    fits = bisect_right(range(1, len(text) + 1), inches, key=lambda n: width_of(text[:n], size))
    if fits == len(text):
        return text
    blank = text.rfind(" ", 0, fits + 1)
    if blank > 0:
        return text[:blank]
    joint = max(text.rfind(mark, 0, fits) for mark in "_-/,.")  # file-like names break after a joint
    return text[: joint + 1] if joint > 0 else text[: max(fits, 1)]


def finished(figure: Figure) -> Figure:
    """Return the figure, with further fonts for texts whose letters the default font lacks."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        if isinstance(text, Text) and (extra := fallbacks(text.get_text())):
            text.set_fontfamily([*text.get_fontfamily(), *extra])
    return figure


def fallbacks(text: str) -> tuple[str, ...]:
    """Return installed font families that have the letters that the default font lacks."""
    return () if text.isascii() else _fonts_for(frozenset(text))[0]


def drawable(text: str) -> str:
    """Return the text with code points for letters that no installed font has; warn about them once."""
    if text.isascii():
        return text
    lacking = _fonts_for(frozenset(text))[1]
    if not lacking:
        return text
    _warn_lacking()
    return "".join(f"\\u{ord(letter):04x}" if letter in lacking else letter for letter in text)


@lru_cache(maxsize=1)
def _warn_lacking() -> None:
    _LOG.warning(
        "no installed font has all letters of the class names: the others are written as code points; "
        "for Chinese, Japanese and Korean install a font such as Noto Sans CJK (package fonts-noto-cjk)"
    )


@lru_cache(maxsize=4096)
def _fonts_for(letters: frozenset[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the families to add to the default one, and the letters that none of them has."""
    from matplotlib.font_manager import FontProperties, findfont

    missing = {letter for letter in letters if not letter.isspace()} - _letters(findfont(FontProperties()), letters)
    added = []
    for name, path in _installed() if missing else ():
        known = _letters(path, frozenset(missing))
        if known:
            added.append(name)
            missing -= known
        if not missing:
            break
    return tuple(added), frozenset(missing)


def _installed() -> Iterator[tuple[str, str]]:
    """Yield name and file of every installed font family, those for Chinese, Japanese and Korean first."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    for path in {*findSystemFonts()} - {font.fname for font in fontManager.ttflist}:  # matplotlib's list may be old
        with suppress(RuntimeError, OSError):
            fontManager.addfont(path)
    files = {font.name: font.fname for font in fontManager.ttflist if "Last Resort" not in font.name}  # it draws boxes
    order = [*(name for name in FALLBACKS if name in files), *sorted(files.keys() - set(FALLBACKS))]
    return ((name, files[name]) for name in order)


def _letters(path: str, letters: frozenset[str]) -> set[str]:
    """Return which of the letters a font file has; none for a font that cannot be drawn."""
    from matplotlib.font_manager import get_font

    try:
        font = get_font(path)
        return {letter for letter in letters if font.get_char_index(ord(letter))}
    except (RuntimeError, OSError):
        return set()
