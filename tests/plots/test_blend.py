"""Bitmaps for reports: the colours of the figures, without a figure."""

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

from tests.plots.legible import panel_of, smooth_map
from vitshap import plots
from vitshap.plots.colours import upsampled

RED, BLUE = np.array([0.84, 0.10, 0.11]), np.array([0.10, 0.33, 0.80])
PAPER = plots.Look(style="paper")


def rgb(share, under=1.0):
    """The colour of a value, as a share of the limit, over grey."""
    alpha = 0.85 * abs(share) ** 0.7
    return alpha * (RED if share > 0 else BLUE) + (1 - alpha) * under


def assert_colour(pixel, expected):
    np.testing.assert_allclose(np.asarray(pixel) / 255, expected, atol=1 / 255)


LOOKS = [{}, {"smooth": True}, {"base": "photo", "cmap": "PiYG"}, {"style": "paper"}]


@pytest.mark.parametrize("look", LOOKS, ids=str)
@pytest.mark.parametrize("box", [None, (107, 0, 534, 427), (-40, 30, 300, 370), (500, 100, 700, 300)])
def test_a_bitmap_is_what_the_figure_shows(box, look):
    photo, heat, made = load_sample_image("china.jpg"), smooth_map(), plots.Look(**look)
    stderr = np.where(smooth_map(1) > 0.1, 1.0, 0.001)
    drawn = panel_of(plots.heatmap(heat, photo, box=box, stderr=stderr, look=made))
    height, width = drawn.shape[:2]
    bitmap = np.asarray(plots.overlay_png(heat, photo, box, stderr=stderr, max_side=width, look=made), dtype=float)
    assert bitmap.shape == (height, width, 3)
    # Edges of the crop may lie a pixel apart, and the photo is shrunk by another filter.
    apart = np.abs(drawn - bitmap).max(2)
    assert np.median(apart) <= 2
    assert (apart > 12).mean() < 0.04


def test_a_map_without_a_picture_is_what_the_figure_shows():
    heat = smooth_map(side=5)
    drawn = panel_of(plots.heatmap(heat))
    bitmap = np.asarray(plots.overlay_png(heat, max_side=drawn.shape[0]), dtype=float)
    assert np.abs(drawn - bitmap).mean() < 1


def test_zero_is_transparent_and_both_ends_are_the_largest_magnitude():
    heat = np.array([[0.0, 2.0, -1.0]])
    bitmap = np.asarray(plots.overlay_png(heat, np.full((10, 30), 0.2), max_side=30))
    under = 0.25 + 0.75 * 0.2
    assert_colour(bitmap[5, 0], [under] * 3)
    assert_colour(bitmap[5, 15], rgb(1.0, under))
    assert_colour(bitmap[5, -1], rgb(-0.5, under))
    assert_colour(np.asarray(plots.overlay_png(heat, limit=4.0, max_side=33))[5, 16], rgb(0.5))


def test_the_colours_alone_are_for_a_page_to_lay_over_its_photo():
    heat, stderr = np.array([[0.0, 2.0], [-1.0, np.nan]]), np.array([[0.0, 0.0], [1.0, 1.0]])
    image = plots.colours_png(heat, stderr=stderr, least_side=50)
    assert (image.mode, image.size) == ("RGBA", (50, 50))
    pixels = np.asarray(image)[[10, 10, 40, 40], [10, 40, 10, 40]] / 255
    np.testing.assert_allclose(pixels[:, 3], [0, 0.85, 0.5 * 0.85 * 0.5**0.7, 0], atol=1 / 255)
    np.testing.assert_allclose(pixels[1, :3], RED, atol=1 / 255)


def test_the_map_covers_its_box_and_nothing_else():
    picture = np.full((20, 40), 0.6)
    bitmap = np.asarray(plots.overlay_png(np.ones((2, 2)), picture, (10, 5, 30, 15), max_side=80)).astype(int)
    coloured = (np.abs(bitmap - bitmap[0, 0]).max(2) > 3).nonzero()
    assert (coloured[0].min(), coloured[0].max(), coloured[1].min(), coloured[1].max()) == (10, 29, 20, 59)
    assert bitmap[0, 0, 0] < 0.9 * 255 * (0.25 + 0.75 * 0.6), "what the net does not see is dimmed"
    assert_colour(bitmap[10, 20:60], [[0.25] * 3] * 40)  # and outlined
    paper = np.asarray(plots.overlay_png(np.ones((2, 2)), picture, (10, 5, 30, 15), max_side=80, look=PAPER))
    assert_colour(paper[0, 0], [0.85 * 0.6 + 0.15] * 3)


def test_nan_is_left_uncoloured_and_its_neighbours_stay_whole():
    heat = np.array([[1.0, np.nan, -1.0]])
    bitmap = np.asarray(plots.overlay_png(heat, max_side=30))
    assert_colour(bitmap[5, :10], [rgb(1.0)] * 10)
    assert (bitmap[:, 10:20] == 255).all()
    assert_colour(bitmap[5, 20:], [rgb(-1.0)] * 10)


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
    bitmap = np.asarray(plots.overlay_png(np.ones((2, 2)), picture, (0, 0, 1, 1), max_side=10, look=PAPER))
    assert (bitmap == bitmap[5, 5]).all()


def test_interpolation_is_exact_at_the_middles_and_averages_where_it_shrinks():
    heat = np.arange(12.0).reshape(3, 4)
    np.testing.assert_allclose(upsampled(heat, np.arange(3) + 0.5, np.arange(4) + 0.5), heat)
    assert upsampled(heat, np.array([1.0]), np.array([1.5])) == pytest.approx(3.0)  # half way from 1 to 5
    assert upsampled(heat, np.array([0.0]), np.array([4.0])) == pytest.approx(3.0)  # the corner's own cell
    board = np.indices((64, 64)).sum(0) % 2.0
    few = (np.arange(4) + 0.5) * 16
    np.testing.assert_allclose(upsampled(board, few, few), 0.5, atol=0.01)
    np.testing.assert_allclose(upsampled(heat, np.arange(3) + 0.5, np.arange(4) + 0.5, "bicubic"), heat)
    assert upsampled(heat, np.array([0.9]), np.array([1.9]), "nearest") == 1
    np.testing.assert_allclose(upsampled(board, few, few, "nearest"), 0.5, atol=0.01)


def test_the_strip_runs_from_the_lowest_to_the_highest():
    strip = np.asarray(plots.colour_scale_png(256, 10))
    assert strip.shape == (10, 256, 3)
    for column in (0, 64, 191, 255):
        assert_colour(strip[4, column], rgb((2 * column + 1) / 256 - 1))
    assert (strip[4, 127:129] > 240).all()
    upright = np.asarray(plots.colour_scale_png(10, 256, vertical=True))
    np.testing.assert_array_equal(upright[:, 0], strip[0, ::-1])
