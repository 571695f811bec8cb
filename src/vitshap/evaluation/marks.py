"""Which cells of a column are bold or grey, from means and intervals alone.

Two closed intervals overlap if they share a point, so touching ones do; which of the two is named first does not matter.
Published numbers are rounded: 0.985 - 0.002 and 0.981 + 0.002 touch, whatever binary fractions make of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ROUNDING = 1e-9
"""Intervals that miss each other by less than this share of their largest number touch."""
UNEVEN = 1.5
"""An interval whose longer side has more than this many times the length of the shorter is given by its ends."""


class Measured(NamedTuple):
    """A mean with its interval, whose ends are NaN where it has none, as for one image."""

    mean: float
    low: float
    high: float

    @classmethod
    def around(cls, mean: float, half_width: float, /) -> Measured:
        """Return a mean with an interval of equal width on both sides."""
        return cls(mean, mean - half_width, mean + half_width)

    @property
    def has_interval(self) -> bool:
        """Whether both ends are numbers."""
        return self.low == self.low and self.high == self.high

    def overlaps(self, other: Measured, /) -> bool:
        """Return whether there are two intervals and they share a point; symmetric."""
        if not (self.has_interval and other.has_interval):
            return False
        slack = ROUNDING * max(map(abs, (*self, *other)))
        return max(self.low, other.low) <= min(self.high, other.high) + slack

    def interval_text(self, digits: int, /) -> str:
        """Return the interval as it stands after the mean: half of it after a plus-minus sign, or its ends in brackets.

        An interval that is corrected for skewness reaches further to one side; half of it would say neither end. Empty
        without an interval.
        """
        if not self.has_interval:
            return ""
        half, sides = (self.high - self.low) / 2, (self.mean - self.low, self.high - self.mean)
        if max(sides) <= UNEVEN * min(sides) or half < 0.5 * 10**-digits:
            return f"\N{PLUS-MINUS SIGN} {half:.{digits}f}"
        return f"[{self.low:.{digits}f}, {self.high:.{digits}f}]"


class Mark(NamedTuple):
    """How a cell is shown."""

    bold: bool = False
    """Its interval overlaps that of the best row."""
    grey: bool = False
    """Its interval overlaps that of random scores, or lies on its wrong side."""


def mark(
    rows: Sequence[Measured | None], random: Measured | None = None, *, higher_is_better: bool = True
) -> list[Mark]:
    """Return the marks of the cells of one column; ``rows`` are those of all methods but ``random``.

    The best row is the one with the best mean. A row without a value (None) or without an interval has no mark and is not
    the best; without ``random``, or without its interval, no row is grey.
    """
    known = [row for row in rows if row is not None and row.has_interval]
    best = (max if higher_is_better else min)(known, key=lambda row: row.mean, default=None)
    return [
        Mark() if row is None or not row.has_interval else _mark(row, best, random, higher_is_better) for row in rows
    ]


def _mark(row: Measured, best: Measured | None, random: Measured | None, higher_is_better: bool) -> Mark:
    bold = best is not None and row.overlaps(best)
    if random is None:
        return Mark(bold)
    wrong_side = row.high < random.low if higher_is_better else row.low > random.high
    return Mark(bold, wrong_side or row.overlaps(random))
