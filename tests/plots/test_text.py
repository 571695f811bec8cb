"""Words that fit."""

import logging

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plots.legible import assert_legible
from vitshap import plots
from vitshap.plots import text as texts
from vitshap.plots.text import fitted, height_of, width_of

LETTERS = st.text(st.characters(min_codepoint=32, max_codepoint=0x17F), max_size=80)


@settings(max_examples=100, deadline=None)
@given(LETTERS, st.floats(0.3, 4), st.integers(1, 4))
def test_lines_are_as_few_and_as_short_as_asked_for(text, inches, lines):
    written = fitted(text, inches, lines=lines)
    assert written.count("\n") < lines
    assert all(width_of(line, 9.0) <= inches for line in written.split("\n"))
    kept = "".join(written.split())
    whole = "".join(texts.drawable(text).split())
    assert kept == whole or (kept.endswith("…") and whole.startswith(kept[:-1]))


def test_lines_break_at_blanks_then_at_joints():
    assert fitted("integrated gradients", 1.0).split("\n") == ["integrated", "gradients"]
    assert fitted("a_first_part_then_another", 1.0).split("\n") == ["a_first_part_", "then_another"]
    assert fitted("short", 3.0) == "short"
    assert fitted("  \n ", 3.0) == ""


def test_height_counts_lines():
    assert height_of("", 9.0) == 0
    assert height_of("a\nb", 9.0) - height_of("a", 9.0) == pytest.approx(9 * 1.25 / 72)


@pytest.fixture
def fresh_fonts():
    """What is known of fonts is asked for again, before and after."""
    for cache in (texts._fonts_for, texts._warn_lacking, texts.width_of):
        cache.cache_clear()
    yield
    for cache in (texts._fonts_for, texts._warn_lacking, texts.width_of):
        cache.cache_clear()


def test_names_in_any_script_are_drawn_without_boxes(fresh_fonts, caplog, recwarn):
    name = "\N{CJK UNIFIED IDEOGRAPH-6559}\N{CJK UNIFIED IDEOGRAPH-5802} \N{HANGUL SYLLABLE HAN} \N{HIRAGANA LETTER A}"
    figure = plots.heatmap(np.eye(3), title=name, label=f"'{name}'")
    assert_legible(figure)
    title = figure.axes[0].title
    drawn = title.get_text()
    known = texts._fonts_for(frozenset(drawn))[1]
    assert not known, "every letter that is drawn has a font"
    if drawn == name:
        assert len(title.get_fontfamily()) > 1
    else:
        assert "\\u6559" in drawn
        assert len(caplog.records) == 1
    assert not [one for one in recwarn if "missing from" in str(one.message)]


def test_letters_that_no_font_has_are_code_points_and_that_is_said_once(fresh_fonts, caplog):
    private = "\U0010fff0"
    with caplog.at_level(logging.WARNING):
        assert fitted(f"a{private}b", 3.0) == "a\\u10fff0b"
        assert fitted(f"{private}{private}", 3.0) == "\\u10fff0\\u10fff0"
    (said,) = caplog.records
    assert "no installed font" in said.getMessage()
    assert "\n" not in said.getMessage()


def test_a_font_is_added_only_where_the_usual_one_lacks_a_letter(fresh_fonts):
    with matplotlib.rc_context({"font.family": ["cmss10"]}):  # comes with matplotlib and knows few letters
        assert texts.fallbacks("abc") == ()
        added = texts.fallbacks("Ж")
        assert added
        figure = plots.heatmap(np.eye(3), title="Ж")
        assert figure.axes[0].title.get_fontfamily() == ["cmss10", *added]
    texts._fonts_for.cache_clear()
    assert texts.fallbacks("é Ж") == ()
