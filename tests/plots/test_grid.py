"""The grid of methods: each map in its place, on the scale that it says."""

import numpy as np
import pytest

from tests.plots.legible import JOINED, LONG, SHAPES, assert_legible, grey, smooth_map
from vitshap import plots


def grid_of(rows, columns):
    return [[smooth_map(10 * i + j, scale=10.0**-j) for j in range(columns)] for i in range(rows)]


def test_every_map_has_its_own_scale_which_is_written_under_it():
    heats = [[np.array([[0.5, -0.25]]), np.array([[3.0, -12.0]])]]
    figure = plots.method_grid(
        heats, [np.ones((10, 20))], column_titles=["a", "b"], units=["probability", "score"], boxes=[(5, 0, 15, 10)]
    )
    picture, first, second, key = figure.axes
    assert [axes.get_title() for axes in (picture, first, second)] == ["image", "a", "b"]
    assert len(picture.get_images()) == 1
    assert [axes.get_images()[1].get_clim() for axes in (first, second)] == [(-0.5, 0.5), (-12, 12)]
    assert [axes.get_xlabel() for axes in (picture, first, second)] == ["", "±50 points", "±12 score"]
    np.testing.assert_array_equal(second.get_images()[1].get_array(), heats[0][1])
    assert all(tuple(axes.get_images()[1].get_extent()) == (5, 15, 10, 0) for axes in (first, second))
    assert all((axes.get_xlim(), axes.get_ylim()) == ((0, 20), (10, 0)) for axes in (picture, first, second))
    assert [label.get_text() for label in key.get_xticklabels()] == ["\N{MINUS SIGN}max", "0", "+max"]
    assert "max: the largest magnitude" in key.get_xlabel().replace("\n", " ")


def test_one_unit_for_all_stands_at_the_key():
    figure = plots.method_grid(grid_of(1, 2), column_titles=["a", "b"], units="logit")
    assert figure.axes[0].get_xlabel().startswith("±")
    assert "logit" not in figure.axes[0].get_xlabel()
    assert figure.axes[-1].get_xlabel().startswith("change in logit; ")


def test_a_row_with_one_scale_has_a_bar():
    heats = [[np.array([[0.1]]), np.array([[-0.4]])], [np.array([[2.0]]), None]]
    figure = plots.method_grid(heats, column_titles=["a", "b"], units="probability", scale="row")
    maps = [image for axes in figure.axes for image in axes.get_images() if image.get_array().ndim == 2]  # not bars
    assert [image.get_clim() for image in maps] == [(-0.4, 0.4), (-0.4, 0.4), (-2, 2)]
    written = [text.get_text().replace("\n", " ") for text in figure.texts]
    assert [one for one in written if one.startswith("raises")] == [
        "raises the class +40 points",
        "raises the class +200 points",
    ]
    assert all(axes.get_xlabel() == "" for axes in figure.axes)
    with pytest.raises(ValueError, match='logit, probability have no common scale: use scale="panel"'):
        plots.method_grid(heats, column_titles=["a", "b"], units=["probability", "logit"], scale="row")


def test_what_is_missing_or_zero_says_so():
    heats = [[None, np.zeros((2, 2)), np.full((2, 2), np.nan)]]
    figure = plots.method_grid(heats, [np.ones((4, 4))], column_titles=["a", "b", "c"])
    assert [axes.get_xlabel() for axes in figure.axes[1:4]] == ["", "all zero", "no value"]
    assert [text.get_text() for text in figure.axes[1].texts] == ["none"]
    assert_legible(figure)


@pytest.mark.parametrize("scale", ["panel", "row"])
@pytest.mark.parametrize(("columns", "pictured"), [(1, False), (1, True), (3, True), (10, False), (10, True)])
def test_grids_are_legible(columns, scale, pictured):
    names = [LONG, "LRP", JOINED, "RISE"] * 3
    units = "probability" if scale == "row" else (["probability", "score", "logit", LONG] * 3)[:columns]
    figure = plots.method_grid(
        grid_of(len(SHAPES), columns),
        [grey(shape) for shape in SHAPES] if pictured else None,
        column_titles=names[:columns],
        row_titles=[LONG, "", JOINED, LONG, "short"],
        units=units,
        scale=scale,
        title=LONG,
    )
    assert_legible(figure)
    assert figure.get_size_inches()[0] < 21


def test_pictures_of_unequal_shapes_keep_theirs_in_columns():
    figure = plots.method_grid(grid_of(5, 2), [grey(shape) for shape in SHAPES], column_titles=["a", "b"])
    figure.draw_without_rendering()
    panels = np.array(figure.axes[:15], dtype=object).reshape(5, 3)
    for row, (height, width) in zip(panels, SHAPES.values(), strict=True):
        drawn = [axes.get_window_extent() for axes in row]
        assert all(box.height / box.width == pytest.approx(height / width, rel=0.02) for box in drawn)
    for column in panels.T:
        middles = [(axes.get_window_extent().x0 + axes.get_window_extent().x1) / 2 for axes in column]
        assert np.ptp(middles) < 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"column_titles": ["a"]}, "zip"),
        ({"row_titles": ["x"]}, "zip"),
        ({"boxes": [None] * 3}, "zip"),
        ({"pictures": [np.ones((4, 4))]}, "zip"),
        ({"units": ["score"]}, "zip"),
        ({"scale": "column"}, '"panel" or "row", got \'column\''),
        ({"heats": [[np.ones(3), None]] * 2}, r"got \[3\]"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        plots.method_grid(**{"heats": grid_of(2, 2), "column_titles": ["a", "b"], **changes})
