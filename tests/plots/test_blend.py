"""Bitmaps for reports: the colours of the figures, without a figure."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image
from sklearn.datasets import load_sample_image

from tests.plots.legible import smooth_map
from vitshap import plots
from vitshap.plots.colours import palette, upsampled


def rgb(value, alpha=1.0, under=1.0):
    """The colour of a share of the scale, over grey."""
    return alpha * np.array(palette()(value)[:3]) + (1 - alpha) * under


def assert_colour(pixel, expected):
    np.testing.assert_allclose(np.asarray(pixel) / 255, expected, atol=1 / 255)


def panel_of(figure):
    """The first panel's pixels, as matplotlib draws them."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    page = np.asarray(canvas.buffer_rgba())[..., :3]
    box = figure.axes[0].get_window_extent()
    top, bottom = (round(page.shape[0] - y) for y in (box.y1, box.y0))
    return page[top:bottom, round(box.x0) : round(box.x1)].astype(float)


@pytest.mark.parametrize("box", [None, (107, 0, 534, 427), (-40, 30, 300, 370), (500, 100, 700, 300)])
def test_a_bitmap_is_what_the_figure_shows(box):
    photo, heat = load_sample_image("china.jpg"), smooth_map()
    drawn = panel_of(plots.heatmap(heat, photo, box=box))
    height, width = drawn.shape[:2]
    bitmap = np.asarray(plots.overlay_png(heat, photo, box, max_side=width), dtype=float)
    assert bitmap.shape == (height, width, 3)
    # Edges of the crop may lie a pixel apart, and the photo is shrunk by another filter.
    apart = np.abs(drawn - bitmap).max(2)
    assert np.median(apart) <= 2
    assert (apart > 12).mean() < 0.02


def test_a_map_without_a_picture_is_what_the_figure_shows():
    heat = smooth_map(side=5)
    drawn = panel_of(plots.heatmap(heat))
    bitmap = np.asarray(plots.overlay_png(heat, max_side=drawn.shape[0]), dtype=float)
    assert np.abs(drawn - bitmap).mean() < 1


def test_zero_is_the_middle_of_the_palette_and_both_ends_the_largest_magnitude():
    heat = np.array([[0.0, 2.0, -1.0]])
    bitmap = np.asarray(plots.overlay_png(heat, np.full((10, 30), 0.2), max_side=30))
    under = 0.85 * 0.2 + 0.15
    assert_colour(bitmap[5, 0], rgb(0.5, 0.9, under))
    middle = np.asarray(plots.overlay_png(heat, np.full((10, 30), 0.2), max_side=33))[5]  # odd: a pixel at the centre
    assert_colour(middle[16], rgb(1.0, 0.9, under))
    assert_colour(bitmap[5, -1], rgb(0.25, 0.9, under))
    assert_colour(np.asarray(plots.overlay_png(heat, limit=4.0, max_side=33))[5, 16], rgb(0.75))


def test_the_map_covers_its_box_and_nothing_else():
    picture = np.full((20, 40), 0.6)
    bitmap = np.asarray(plots.overlay_png(np.ones((2, 2)), picture, (10, 5, 30, 15), max_side=80)).astype(int)
    coloured = (np.abs(bitmap - bitmap[0, 0]).max(2) > 3).nonzero()
    assert (coloured[0].min(), coloured[0].max(), coloured[1].min(), coloured[1].max()) == (10, 29, 20, 59)
    assert_colour(bitmap[0, 0], [0.85 * 0.6 + 0.15] * 3)


def test_nan_is_left_uncoloured_and_its_neighbours_stay_whole():
    heat = np.array([[1.0, np.nan, -1.0]])
    bitmap = np.asarray(plots.overlay_png(heat, max_side=30))
    assert_colour(bitmap[5, :10], [rgb(1.0)] * 10)
    assert (bitmap[:, 10:20] == 255).all()
    assert_colour(bitmap[5, 20:], [rgb(0.0)] * 10)


@pytest.mark.parametrize("shape", [(8, 8), (400, 3), (3, 400), (1, 1), (500, 700)])
@pytest.mark.parametrize("max_side", [1, 64, 448])
def test_any_picture_at_any_size(shape, max_side):
    image = plots.overlay_png(smooth_map(), np.full(shape, 0.5), max_side=max_side)
    assert isinstance(image, Image.Image)
    assert image.mode == "RGB"
    assert max(image.size) == max_side
    assert min(image.size) == max(round(max_side * min(shape) / max(shape)), 1)


def test_a_box_smaller_than_a_pixel_draws_nothing():
    picture = np.full((100, 100), 0.5)
    bitmap = np.asarray(plots.overlay_png(np.ones((2, 2)), picture, (0, 0, 1, 1), max_side=10))
    assert (bitmap == bitmap[5, 5]).all()


def test_interpolation_is_exact_at_the_middles_and_averages_where_it_shrinks():
    heat = np.arange(12.0).reshape(3, 4)
    np.testing.assert_allclose(upsampled(heat, np.arange(3) + 0.5, np.arange(4) + 0.5), heat)
    assert upsampled(heat, np.array([1.0]), np.array([1.5])) == pytest.approx(3.0)  # half way from 1 to 5
    assert upsampled(heat, np.array([0.0]), np.array([4.0])) == pytest.approx(3.0)  # the corner's own cell
    board = np.indices((64, 64)).sum(0) % 2.0
    few = (np.arange(4) + 0.5) * 16
    np.testing.assert_allclose(upsampled(board, few, few), 0.5, atol=0.01)


def test_the_strip_runs_from_the_lowest_to_the_highest():
    strip = np.asarray(plots.colour_scale_png(256, 10))
    assert strip.shape == (10, 256, 3)
    for column, value in ((0, 0.0), (128, 0.5), (255, 1.0)):
        assert_colour(strip[4, column], rgb(value, 0.9))
    upright = np.asarray(plots.colour_scale_png(10, 256, vertical=True))
    np.testing.assert_array_equal(upright[:, 0], strip[0, ::-1])


def test_what_cannot_be_drawn_is_refused():
    for limit in (0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="positive number, got"):
            plots.overlay_png(np.eye(2), limit=limit)
    for picture in (None, np.ones((4, 4))):
        with pytest.raises(ValueError, match="max_side is at least 1 pixel, got 0"):
            plots.overlay_png(np.eye(2), picture, max_side=0)
    with pytest.raises(ValueError, match="got 0 x 5"):
        plots.colour_scale_png(0, 5)
