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


def test_without_an_interval_there_are_no_marks() -> None:
    nan = float("nan")
    best, other, random = Measured(0.9, nan, nan), Measured.around(0.5, 0.1), Measured.around(0.45, 0.1)
    assert best.interval_text(3) == ""
    assert not best.overlaps(best)
    assert mark([best, other], random) == [Mark(), Mark(bold=True, grey=True)]
    assert mark([other], random._replace(low=nan, high=nan)) == [Mark(bold=True)]


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


def test_an_interval_that_reaches_further_to_one_side_is_given_by_its_ends() -> None:
    """RISE on 45 radiographs: 0.960 - 0.028 would be above the 0.915 of random scores, which its interval overlaps."""
    uneven = Measured(0.960, 0.913, 0.968)
    assert uneven.interval_text(3) == "[0.913, 0.968]"
    assert mark([uneven], Measured(0.871, 0.804, 0.915))[0].grey
    assert Measured.around(0.985, 0.002).interval_text(3) == "\N{PLUS-MINUS SIGN} 0.002"
    assert Measured(0.5, 0.49, 0.512).interval_text(3) == "\N{PLUS-MINUS SIGN} 0.011"
    assert Measured(0.0021, 0.0020, 0.0026).interval_text(3) == "\N{PLUS-MINUS SIGN} 0.000", "nothing to be seen of it"
