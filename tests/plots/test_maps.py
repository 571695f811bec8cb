"""Maps: the right numbers reach matplotlib, in the right place, and nothing stays open."""

import sys
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from tests.plots.legible import JOINED, LONG, SHAPES, assert_legible, grey, panel_of, smooth_map
from tests.test_explanation import make, ragged
from vitshap import plots


def test_a_map_lies_over_its_box_of_the_picture_on_a_symmetric_scale():
    heat = np.array([[0.1, -0.4], [0.2, 0.3]])
    figure = plots.heatmap(heat, np.zeros((20, 30, 3)), box=(5, 2, 25, 18), unit="probability", title="a dog")
    image, overlay = figure.axes[0].get_images()
    assert overlay.get_interpolation() == "nearest"
    assert overlay.get_clim() == (-0.4, 0.4)
    assert tuple(overlay.get_extent()) == (5, 25, 18, 2)  # left, right, bottom, top
    assert tuple(image.get_extent()) == (0, 30, 20, 0)
    assert figure.axes[0].get_xlim() == (0, 30)
    assert figure.axes[0].get_ylim() == (20, 0)
    np.testing.assert_array_equal(overlay.get_array(), heat)
    assert figure.axes[0].get_title() == "a dog"
    written = [text.get_text() for text in figure.texts]
    assert written == ["lowers the class\n\N{MINUS SIGN}40 points", "raises the class\n+40 points", "0"]


def test_zero_is_transparent_and_the_photo_under_it_is_light_grey():
    photo = np.zeros((20, 20, 3))
    photo[:, :10] = (1.0, 0.0, 0.0)
    heat = np.array([[0.0, 0.4], [-0.4, 0.1]])
    image, overlay = plots.heatmap(heat, photo).axes[0].get_images()
    under = image.get_array() / 255
    np.testing.assert_allclose(under[0, 0], 0.25 + 0.75 * 0.2126, atol=1 / 255)
    np.testing.assert_allclose(under[0, -1], 0.25, atol=1 / 255)
    colours = overlay.to_rgba(overlay.get_array())
    assert colours[0, 0, 3] == 0
    np.testing.assert_allclose(colours[0, 1], (0.84, 0.10, 0.11, 0.85), atol=1e-6)
    np.testing.assert_allclose(colours[1, 0], (0.10, 0.33, 0.80, 0.85), atol=1e-6)
    np.testing.assert_allclose(colours[1, 1], (0.84, 0.10, 0.11, 0.85 * 0.25**0.7), atol=2e-3)


def test_looks_by_choice():
    heat, photo = np.array([[0.0, 1.0], [-1.0, 0.5]]), np.tile((0.2, 0.4, 0.8), (8, 8, 1))

    def drawn(**options):
        return plots.heatmap(heat, photo, look=plots.Look(**options)).axes[0].get_images()

    image, overlay = drawn(base="photo")
    np.testing.assert_allclose(image.get_array()[0, 0] / 255, (0.2, 0.4, 0.8), atol=1 / 255)
    image, overlay = drawn(style="paper")
    np.testing.assert_allclose(image.get_array()[0, 0] / 255, 0.15 + 0.85 * np.array([0.2, 0.4, 0.8]), atol=1 / 255)
    middle, top = overlay.get_cmap()(0.5), overlay.get_cmap()(1.0)
    assert middle[3] == top[3] == 0.9
    np.testing.assert_allclose(middle[:3], matplotlib.colormaps["icefire"](0.5)[:3], atol=0.01)
    values = overlay.get_array()
    np.testing.assert_allclose(values[: len(values) // 4, values.shape[1] // 2], 0.5, atol=0.02)  # bilinear: half way
    overlay = drawn(smooth=True)[1]
    values = overlay.get_array()
    quarter = len(values) // 4
    assert len(np.unique(values.round(6))) > 100
    assert values[quarter, 3 * quarter] == pytest.approx(1.0, abs=0.02)  # exact at the middle of a patch
    overlay = drawn(cmap="PiYG", overlay_alpha=0.5)[1]
    np.testing.assert_allclose(overlay.get_cmap()(1.0), (*matplotlib.colormaps["PiYG"](1.0)[:3], 0.5))
    assert overlay.get_cmap()(0.5)[3] == 0
    for wrong, message in (
        ({"style": "dark"}, '"default" or "paper"'),
        ({"base": "red"}, '"grey" or "photo"'),
        ({"cmap": "nosuch"}, "no colour map 'nosuch'"),
    ):
        with pytest.raises(ValueError, match=message):
            plots.Look(**wrong)


def test_a_value_whose_interval_includes_zero_is_pale_and_the_figure_says_so():
    heat, stderr = np.array([[1.0, 1.0], [-0.1, 0.0]]), np.array([[0.5, 0.52], [0.01, 0.0]])
    figure = plots.heatmap(heat, np.ones((10, 10)), stderr=stderr)
    overlay = figure.axes[0].get_images()[1]
    np.testing.assert_array_equal(overlay.get_alpha(), [[1, 0.5], [1, 1]])
    page = panel_of(figure)
    high, wide = page.shape[0] // 4, page.shape[1] // 4
    sure, doubtful = page[high, wide] / 255, page[high, 3 * wide] / 255
    np.testing.assert_allclose(1 - doubtful, (1 - sure) / 2, atol=0.01)  # half as far from white
    assert "1 paler patch: the 95 % interval includes zero" in [text.get_text() for text in figure.texts]
    assert_legible(figure)
    row = plots.class_row([heat, heat], titles=["a", "b"], stderrs=[stderr, stderr * 0])
    assert row.axes[1].get_images()[0].get_alpha().min() == 1
    assert any("1 paler patch" in text.get_text() for text in row.texts)
    assert_legible(row)
    with pytest.raises(ValueError, match="zip"):
        plots.class_row([heat, heat], titles=["a", "b"], stderrs=[stderr])


def test_what_the_net_does_not_see_is_dimmed_and_outlined():
    figure = plots.heatmap(np.zeros((2, 2)), np.ones((20, 40)), box=(10, 0, 30, 20))
    under = figure.axes[0].get_images()[0].get_array()[10, :, 0] / 255
    assert (under[10:30] == 1).all()
    assert (under[[0, 9, 30, 39]] < 0.8).all()
    (outline,) = figure.axes[0].patches
    assert outline.get_bbox().bounds == (10, 0, 20, 20)
    assert not plots.heatmap(np.zeros((2, 2)), np.ones((20, 40))).axes[0].patches


def test_a_crop_may_reach_over_the_edge():
    overlay = plots.heatmap(np.ones((2, 2)), np.ones((10, 6)), box=(-2, 0, 8, 10)).axes[0].get_images()[1]
    assert tuple(overlay.get_extent()) == (-2, 8, 10, 0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("title", "scale"), [("", 1e-9), ("short", 2e7), (LONG, 1e-9), (JOINED, 0.003)])
def test_one_map_is_legible(shape, title, scale):
    assert_legible(plots.heatmap(smooth_map(scale=scale), grey(shape), unit="probability", title=title))


@pytest.mark.parametrize("shape", [*SHAPES, None])
@pytest.mark.parametrize("classes", [1, 5, 6, 13])
def test_rows_are_legible(shape, classes):
    heats = [smooth_map(seed) for seed in range(classes)]
    titles = [LONG, "short", JOINED, "", "crane"] * 3
    picture = None if shape is None else grey(shape)
    figure = plots.class_row(heats, picture, titles=titles[:classes], unit=LONG, title=LONG)
    assert_legible(figure)
    assert len(figure.axes) == classes + (picture is not None) + 1  # and a bar


def test_a_dollar_sign_is_a_dollar_sign():
    figure = plots.heatmap(np.eye(2), title="$5 or $10_x")
    assert figure.axes[0].title.get_parse_math() is False
    assert_legible(figure)


def test_the_colour_of_zero_is_the_middle_and_nan_is_not_coloured():
    figure = plots.heatmap(np.array([[0.0, np.nan, 1.0]]))
    (overlay,) = figure.axes[0].get_images()
    colours = overlay.to_rgba(overlay.get_array())
    points = 1
    assert (colours[:, :points] == overlay.get_cmap()(0.5)).all()
    assert (colours[:, : 2 * points, 3] == 0).all()  # transparent
    assert (colours[:, -points:] == overlay.get_cmap()(1.0)).all()
    assert overlay.get_clim() == (-1, 1)


def test_a_cell_without_a_value_takes_nothing_from_its_neighbours():
    heat = np.full((5, 5), np.nan)
    heat[2, 2] = -3.0
    figure = plots.heatmap(heat, np.ones((50, 50)), look=plots.Look(smooth=True))
    drawn = figure.axes[0].get_images()[1].get_array()
    side = drawn.shape[0] // 5
    assert (~drawn.mask).sum() == side * side
    np.testing.assert_allclose(drawn[2 * side : 3 * side, 2 * side : 3 * side], -3)


@pytest.mark.parametrize("heat", [np.zeros((2, 2)), np.full((2, 2), np.nan)])
def test_a_map_of_nothing_can_be_drawn(heat):
    assert plots.heatmap(heat).axes[0].get_images()[0].get_clim() == (-1, 1)


def test_infinity_does_not_set_the_scale():
    assert plots.symmetric_limit(np.array([[np.inf, -2.0, np.nan]])) == 2.0


@pytest.mark.parametrize("shape", [(4,), (2, 2, 2), (0, 3)])
def test_what_is_no_map_is_refused(shape):
    for draw in (plots.heatmap, plots.overlay_png):
        with pytest.raises(ValueError, match=r"a map \[rows, columns\], got \["):
            draw(np.zeros(shape))


def test_a_row_has_the_picture_and_one_map_per_class_on_one_scale():
    heats = [np.full((2, 2), 0.1), np.full((2, 2), -0.7)]
    figure = plots.class_row(heats, np.ones((8, 8, 3)), titles=["cat", "dog"], title="exact", box=(1, 2, 7, 8))
    panels = figure.axes[:3]
    assert [axes.get_title() for axes in panels] == ["exact", "cat", "dog"]
    assert [len(axes.get_images()) for axes in panels] == [1, 2, 2]
    assert all(axes.get_images()[1].get_clim() == (-0.7, 0.7) for axes in panels[1:])
    assert all(tuple(axes.get_images()[1].get_extent()) == (1, 7, 8, 2) for axes in panels[1:])
    assert all((axes.get_xlim(), axes.get_ylim()) == ((0, 8), (8, 0)) for axes in panels)
    assert len(figure.axes) == 4  # one colour bar
    without = plots.class_row(heats, titles=["cat", "dog"], title="exact")
    assert [axes.get_title() for axes in without.axes[:2]] == ["cat", "dog"]
    assert without.get_suptitle() == "exact"
    with pytest.raises(ValueError, match="1 titles for 2 maps"):
        plots.class_row(heats, titles=["cat"])


@pytest.mark.parametrize(("classes", "rows"), [(5, [5]), (6, [3, 3]), (7, [4, 3]), (10, [5, 5]), (11, [4, 4, 3])])
def test_many_classes_are_wrapped_into_rows_beside_the_picture(classes, rows):
    heats = [np.eye(2)] * classes
    figure = plots.class_row(heats, np.ones((8, 8)), titles=["x"] * classes)
    places = [axes.get_position() for axes in figure.axes[: classes + 1]]
    heights = [round(place.y0, 6) for place in places[1:]]
    assert [heights.count(y) for y in sorted(set(heights), reverse=True)] == rows
    assert all(place.x0 > places[0].x1 for place in places[1:])
    assert len({(round(place.width, 6), round(place.height, 6)) for place in places}) == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_a_panel_has_the_shape_of_its_picture(shape):
    height, width = SHAPES[shape]
    figure = plots.heatmap(np.eye(3), grey(shape))
    figure.draw_without_rendering()
    drawn = figure.axes[0].get_window_extent()
    assert drawn.height / drawn.width == pytest.approx(height / width, rel=0.01)
    assert min(figure.get_size_inches()) > 1.5


def test_an_explanation_draws_itself(tmp_path):
    box = torch.tensor([[1.0, 2.0, 9.0, 8.0]] * 2)
    explanation = make(image_box=box)[1]
    photo = Image.new("RGB", (12, 10))
    figure = explanation.plot(photo, target="dog")
    assert isinstance(figure, Figure)
    overlay = figure.axes[0].get_images()[1]
    np.testing.assert_array_equal(overlay.get_array(), explanation.heatmap("dog")[0].numpy())
    assert tuple(overlay.get_extent()) == (1, 9, 8, 2)
    assert figure.axes[0].get_title() == f"dog (p={float(explanation.prediction[0, 1]):.3g})"
    assert [text.get_text().split("\n")[0] for text in figure.texts[:2]] == ["lowers 'dog'", "raises 'dog'"]
    # a tensor is the net's input: the map covers it whole
    inner = explanation.plot(torch.zeros(3, 4, 6), target=1).axes[0].get_images()[1]
    assert tuple(inner.get_extent()) == (0, 6, 4, 0)

    pale = replace(explanation, stderr=torch.full_like(explanation.values, 1e3)).plot(photo, target="dog", smooth=True)
    assert pale.axes[0].get_images()[1].get_alpha().max() == 0.5
    paper = explanation.plot(photo, target="dog", style="paper").axes[0].get_images()[1]
    assert paper.get_cmap()(0.5)[3] == 0.9
    row = explanation.plot(photo, target=["cat", 1])
    assert [axes.get_title().split()[0] for axes in row.axes[:3]] == ["made", "cat", "dog"]
    row.savefig(tmp_path / "row.png")
    assert Image.open(tmp_path / "row.png").size[0] > 900


def test_only_one_image_with_rows_and_columns_is_drawn():
    with pytest.raises(ValueError, match=r"explanation\[i\]"):
        make().plot()
    words = ragged(players=torch.tensor([[0, 1, 1, 2], [1, 0, 0, -1]]))[0]
    with pytest.raises(ValueError, match="rows, columns"):
        words.plot()
    with pytest.raises(ValueError, match="0 titles for 0 maps"):
        make()[0].plot(target=[])


def test_drawing_opens_no_figure(tmp_path):
    import matplotlib.pyplot

    before = matplotlib.pyplot.get_fignums()
    heat, curve = np.eye(2), np.linspace(0, 1, 5)
    figures = [
        plots.heatmap(heat),
        plots.class_row([heat], titles=["a"]),
        plots.method_grid([[heat]], column_titles=["a"]),
        plots.curves_figure(heat, None, curve, curve),
        plots.training_curves([{"loss": 1.0}]),
    ]
    for figure in figures:
        plots.save(figure, tmp_path / "figure.png")
    assert sys.modules["matplotlib.pyplot"].get_fignums() == before
