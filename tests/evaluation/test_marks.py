"""Which cells are bold or grey."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vitshap.evaluation.marks import Mark, Measured, mark

MEASURED = st.builds(Measured.around, st.floats(-10, 10, allow_nan=False), st.floats(0, 2, allow_nan=False))


def test_the_rule_on_numbers_as_they_are_published() -> None:
    random = Measured.around(0.700, 0.010)
    rows = [
        Measured.around(*one) for one in ((0.985, 0.002), (0.981, 0.002), (0.980, 0.002), (0.715, 0.005), (0.5, 0.01))
    ]
    found = mark([*rows, None], random)
    # 0.985 - 0.002 and 0.981 + 0.002 touch, which counts as an overlap; 0.980 + 0.002 does not reach
    assert [one.bold for one in found] == [True, True, False, False, False, False]
    assert [one.grey for one in found] == [False, False, False, True, True, False]
    lower = mark(rows, random, higher_is_better=False)
    assert [one.bold for one in lower] == [False, False, False, False, True]
    assert [one.grey for one in lower] == [True, True, True, True, False]
    assert mark(rows) == [one._replace(grey=False) for one in found[:-1]]
    assert mark([None]) == [Mark()]


@given(MEASURED, MEASURED)
def test_overlap_is_symmetric_and_that_of_closed_intervals(one: Measured, other: Measured) -> None:
    assert one.overlaps(other) == other.overlaps(one)
    gap = max(one.low, other.low) - min(one.high, other.high)
    if abs(gap) > 1e-7:
        assert one.overlaps(other) == (gap <= 0)
    assert one.overlaps(one)


@given(st.lists(MEASURED, min_size=1, max_size=6), MEASURED, st.booleans())
def test_the_best_is_bold_and_turning_the_scale_round_changes_nothing(
    rows: list[Measured], random: Measured, higher: bool
) -> None:
    found = mark(rows, random, higher_is_better=higher)
    best = (max if higher else min)(rows, key=lambda row: row.mean)
    assert found[rows.index(best)].bold
    turned = [Measured(-mean, -high, -low) for mean, low, high in rows]
    assert found == mark(turned, Measured(-random.mean, -random.high, -random.low), higher_is_better=not higher)
