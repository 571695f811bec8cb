"""The rules of the verdict at their boundaries."""

import math

import pytest

from vitshap.certifying.verdict import COVERAGE, GOOD_CORRELATION, MOST_BELOW, USABLE_CORRELATION, Numbers, judge
from vitshap.evaluation.marks import Measured

TINY = 1e-9


def point(value: float | None) -> Measured | None:
    return None if value is None else Measured.around(value, 0.0)


def level(
    correlation: float | None = 0.95,
    coverage: float | None = 0.95,
    improvement: float | None = 0.8,
    below: float | None = 0.05,
) -> str:
    return judge(Numbers(*map(point, (correlation, coverage, improvement, below)))).level


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({}, "reliable"),
        ({"correlation": GOOD_CORRELATION}, "reliable"),
        ({"correlation": GOOD_CORRELATION - TINY}, "use with care"),
        ({"correlation": USABLE_CORRELATION}, "use with care"),
        ({"correlation": USABLE_CORRELATION - TINY}, "not usable"),
        ({"coverage": COVERAGE[0]}, "reliable"),
        ({"coverage": COVERAGE[0] - TINY}, "use with care"),
        ({"coverage": COVERAGE[1]}, "reliable"),
        ({"coverage": COVERAGE[1] + TINY}, "use with care"),
        ({"improvement": TINY}, "reliable"),
        ({"improvement": 0.0}, "not usable"),
        ({"improvement": -0.1}, "not usable"),
        ({"below": MOST_BELOW}, "reliable"),
        ({"below": MOST_BELOW + TINY}, "other images"),
        ({"coverage": None}, "reliable"),
        ({"below": None}, "reliable"),
        ({"improvement": None}, "reliable"),
        ({"improvement": math.nan}, "reliable"),
        ({"correlation": None}, "no verdict"),
        ({"correlation": None, "improvement": -1.0}, "no verdict"),
    ],
)
def test_each_limit(numbers: dict[str, float | None], expected: str) -> None:
    assert level(**numbers) == expected


def test_the_first_of_several_verdicts_is_given() -> None:
    assert level(correlation=0.1, below=0.5) == "other images"
    assert level(correlation=None, below=0.5) == "other images"
    assert level(correlation=0.7, improvement=-0.2) == "not usable"
    assert level(correlation=0.3, coverage=0.5) == "not usable"
    assert level(correlation=0.95, coverage=0.5) == "use with care"


def test_what_a_verdict_says() -> None:
    verdict = judge(Numbers(point(0.95), point(0.5), point(0.8), point(0.05)))
    assert verdict.reasons == ["50.0 % of values lie within their 95 % intervals: the intervals are too narrow."]
    assert "refine" in verdict.sentence
    wide = judge(Numbers(point(0.95), point(0.999), point(0.8), None))
    assert "too wide" in wide.reasons[0]
    assert [one.level for one in wide.findings] == [None, "reliable", "reliable", "use with care"]
    assert "\N{MINUS SIGN}0.220" in judge(Numbers(point(-0.22), None, point(0.1), None)).findings[2].sentence


def test_it_is_said_when_more_images_could_change_it() -> None:
    sure = Numbers(Measured(0.95, 0.93, 0.97), None, Measured(0.8, 0.7, 0.9), Measured(0.05, 0.0, 0.1))
    assert not judge(sure).close
    assert judge(Numbers(Measured(0.92, 0.89, 0.95), None, sure.improvement, sure.below)).close
    assert judge(Numbers(sure.correlation, None, sure.improvement, Measured(0.1, 0.02, 0.25))).close
    # A number near its limit does not matter where another one decides.
    bad = Numbers(Measured(0.1, 0.0, 0.2), None, Measured(-0.1, -0.2, 0.1), Measured(0.05, 0.0, 0.1))
    assert not judge(bad).close
    assert not judge(Numbers(Measured(0.95, math.nan, math.nan), None, None, None)).close
