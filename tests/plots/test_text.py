"""Words that fit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitshap.plots.text import fitted, height_of, width_of

LETTERS = st.text(st.characters(min_codepoint=32, max_codepoint=0x17F), max_size=80)


@settings(max_examples=100, deadline=None)
@given(LETTERS, st.floats(0.3, 4), st.integers(1, 4))
def test_lines_are_as_few_and_as_short_as_asked_for(text, inches, lines):
    written = fitted(text, inches, lines=lines)
    assert written.count("\n") < lines
    assert all(width_of(line, 9.0) <= inches for line in written.split("\n"))
    kept = "".join(written.split())
    whole = "".join(text.split())
    assert kept == whole or (kept.endswith("…") and whole.startswith(kept[:-1]))


def test_lines_break_at_blanks_then_at_joints():
    assert fitted("integrated gradients", 1.0).split("\n") == ["integrated", "gradients"]
    assert fitted("a_first_part_then_another", 1.0).split("\n") == ["a_first_part_", "then_another"]
    assert fitted("short", 3.0) == "short"
    assert fitted("  \n ", 3.0) == ""


def test_height_counts_lines():
    assert height_of("", 9.0) == 0
    assert height_of("a\nb", 9.0) - height_of("a", 9.0) == pytest.approx(9 * 1.25 / 72)
