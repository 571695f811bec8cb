"""The figure of one map and its curves."""

import numpy as np
import pytest
import torch

from tests.plots.legible import JOINED, LONG, SHAPES, assert_legible, grey, smooth_map
from vitshap import plots
from vitshap.metrics import Curve

RISING, FALLING = np.array([0.1, 0.7, 0.9, 0.9]), np.array([0.9, 0.3, 0.1, 0.1])


def test_curves_stand_beside_the_map_with_their_areas():
    heat = smooth_map()
    figure = plots.curves_figure(
        heat,
        np.ones((20, 40)),
        RISING,
        FALLING,
        box=(10, 0, 30, 20),
        unit="probability",
        title="cat",
        picture_title="photo",
        label="'cat'",
        name="exact",
        compare={"random": (np.array([0.1, 0.9]), np.array([0.9, 0.1]))},
    )
    picture, mapped, bar, insertion, deletion = figure.axes
    assert len(bar.get_images()) == 1
    assert f"raises 'cat'\n+{100 * np.abs(heat).max():.3g} points" in [text.get_text() for text in figure.texts]
    assert (picture.get_title(), mapped.get_title()) == ("photo", "cat")
    assert tuple(mapped.get_images()[1].get_extent()) == (10, 30, 20, 0)
    assert mapped.get_xlim() == picture.get_xlim() == (0, 40)
    np.testing.assert_array_equal(mapped.get_images()[1].get_array(), heat)
    own, other = insertion.get_lines()
    np.testing.assert_allclose(own.get_xdata(), [0, 1 / 3, 2 / 3, 1])
    np.testing.assert_array_equal(own.get_ydata(), RISING)
    np.testing.assert_array_equal(other.get_xdata(), [0, 1])
    np.testing.assert_array_equal(deletion.get_lines()[0].get_ydata(), FALLING)
    assert [text.get_text() for text in insertion.get_legend().get_texts()] == [
        "area 0.650, exact",
        "area 0.500, random",
    ]
    assert [text.get_text() for text in deletion.get_legend().get_texts()] == [
        "area 0.350, exact",
        "area 0.500, random",
    ]
    assert insertion.get_title() == "Insertion (higher is better)"
    assert deletion.get_xlabel() == "share of patches deleted"
    assert insertion.get_ylabel() == "probability"
    assert insertion.get_ylim() == deletion.get_ylim() == (0, 1.02)
    assert insertion.get_xlim() == (0, 1)


def test_a_metric_gives_what_is_drawn():
    """An image with 3 of 4 players, as ``metrics.insertion`` returns it."""
    points = torch.tensor([[[0.0, 0.6, 0.9, 0.9, torch.nan]]], dtype=torch.float64)
    fractions = torch.tensor([[0, 1 / 3, 2 / 3, 1, torch.nan]], dtype=torch.float64)
    curve = Curve(
        metric="insertion",
        values=points.nanmean(2),
        classes=torch.zeros(1, 1, dtype=torch.int64),
        higher_is_better=True,
        points=points,
        fractions=fractions,
    )
    plain, pair = curve.points[0, 0].numpy(), (curve.fractions[0].numpy(), curve.points[0, 0].numpy())
    figure = plots.curves_figure(np.eye(2), None, plain, pair)
    insertion, deletion = figure.axes[-2:]
    for axes in (insertion, deletion):
        np.testing.assert_allclose(axes.get_lines()[0].get_xdata(), [0, 1 / 3, 2 / 3, 1])
        assert axes.get_legend().get_texts()[0].get_text() == f"area {float(curve.values):.3f}, this map"


def test_uneven_points_have_an_area_too():
    shares, values = np.array([0.0, 0.1, 1.0]), np.array([0.0, 1.0, 1.0])
    figure = plots.curves_figure(np.eye(2), None, (shares, values), values)
    assert figure.axes[-2].get_legend().get_texts()[0].get_text() == "area 0.950, this map"


def test_a_small_area_keeps_its_digits():
    figure = plots.curves_figure(np.eye(2), None, RISING * 1e-4, FALLING)
    assert figure.axes[-2].get_legend().get_texts()[0].get_text() == "area 6.5e-05, this map"


@pytest.mark.parametrize(
    ("values", "label", "expected"),
    [
        ([0.0, 0.9], "probability", (0, 1.02)),
        ([0.01, 0.05], "probability", (0, 0.054)),
        ([-2.0, 2.0], "logit", (-2.2, 2.2)),
        ([3.0, 3.0], "logit", (2.5, 3.5)),
    ],
)
def test_the_range_suits_the_values(values, label, expected):
    figure = plots.curves_figure(np.eye(2), None, np.array(values), np.array(values), value_label=label)
    assert figure.axes[-1].get_ylim() == pytest.approx(expected)


@pytest.mark.parametrize("shape", [*SHAPES, None])
@pytest.mark.parametrize("others", [0, 6])
def test_curves_are_legible(shape, others):
    names = [LONG, "random", JOINED, "a", "b", "$c$"]
    figure = plots.curves_figure(
        smooth_map(scale=1e-3),
        None if shape is None else grey(shape),
        RISING,
        FALLING,
        title=LONG,
        picture_title=JOINED,
        name=LONG + "!",
        unit=LONG,
        value_label=LONG,
        compare=dict.fromkeys(names[:others], (RISING * 0.9, FALLING * 1.1)),
    )
    assert_legible(figure)


@pytest.mark.parametrize(
    ("insertion", "message"),
    [
        (np.zeros((2, 3)), r"the insertion of this map is a curve of values \[n\], got shape \[2, 3\]"),
        (np.full(3, np.nan), "with 0 finite"),
        ((np.array([0.0, 2.0]), np.zeros(2)), "ascend within 0..1"),
        ((np.array([0.5, 0.5]), np.zeros(2)), "ascend within 0..1"),
    ],
)
def test_what_is_no_curve_is_refused(insertion, message):
    with pytest.raises(ValueError, match=message):
        plots.curves_figure(np.eye(2), None, insertion, FALLING)


def test_a_comparison_may_have_the_name_of_the_map():
    figure = plots.curves_figure(np.eye(2), None, RISING, FALLING, name="exact", compare={"exact": (RISING, FALLING)})
    assert [len(axes.get_lines()) for axes in figure.axes[-2:]] == [2, 2]
