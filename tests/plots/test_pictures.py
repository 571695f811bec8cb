"""Pictures of all kinds become the same pixels, in the frame of the original."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from vitshap import plots
from vitshap.plots.pictures import ENOUGH, frame


@pytest.mark.parametrize("kind", ["pil", "path", "uint8", "float", "tensor"])
def test_all_kinds_of_picture_give_the_same_pixels(kind, tmp_path):
    array = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    photo = Image.fromarray(array)
    photo.save(tmp_path / "photo.png")
    picture = {
        "pil": photo,
        "path": tmp_path / "photo.png",
        "uint8": array,
        "float": array / 255,
        "tensor": torch.from_numpy(array / 255).permute(2, 0, 1),
    }[kind]
    np.testing.assert_allclose(plots.as_pixels(picture), array / 255, atol=1e-7)
    np.testing.assert_array_equal(np.asarray(plots.thumbnail(picture, 7)), array)
    assert (frame(picture, np.ones((1, 1))).pixels() == array).all()


def test_a_normalised_tensor_is_stretched_and_grey_becomes_rgb():
    pixels = plots.as_pixels(torch.tensor([[[-2.0, 0.0, 2.0]]]))
    assert pixels.shape == (1, 3, 3)
    assert pixels[0, :, 0].tolist() == [0, 0.5, 1]


def test_a_photo_is_read_as_the_nets_read_it():
    turned = Image.new("RGB", (6, 4))
    turned.getexif()[0x0112] = 6  # a quarter turn
    assert plots.as_pixels(turned).shape == (6, 4, 3)
    clear = Image.new("RGBA", (2, 2), (0, 0, 0, 0))
    assert (plots.as_pixels(clear) == 1).all()
    deep = Image.fromarray(np.array([[0, 65535]], dtype=np.uint16))
    assert plots.as_pixels(deep)[0, :, 0].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("picture", "error", "message"),
    [
        (3, TypeError, "got int"),
        (torch.zeros(2, 3, 4, 4), RuntimeError, "number of dimensions"),
        (np.zeros((4, 4, 2)), ValueError, "1 or 3 channels"),
        (np.zeros((0, 4)), ValueError, "zero-size"),
        (np.full((4, 4), np.nan), ValueError, "not finite"),
    ],
)
def test_what_is_no_picture_is_refused(picture, error, message):
    with pytest.raises(error, match=message):
        plots.heatmap(np.zeros((2, 2)), picture)
    with pytest.raises(error, match=message):
        plots.overlay_png(np.zeros((2, 2)), picture)


@pytest.mark.parametrize(("size", "expected"), [((640, 427), (448, 299)), ((8, 8), (448, 448)), ((1, 4000), (1, 448))])
def test_a_thumbnail_has_the_longer_side_that_was_asked_for(size, expected):
    assert plots.thumbnail(Image.new("L", size), 448).size == expected


def test_pixels_of_a_tiny_picture_stay_squares():
    board = np.array([[0, 255], [255, 0]], dtype=np.uint8)
    enlarged = np.asarray(plots.thumbnail(board, 20))[..., 0]
    np.testing.assert_array_equal(enlarged, np.kron(board, np.ones((10, 10))))


def test_a_large_photo_is_shrunk_but_keeps_its_coordinates():
    photo = Image.new("RGB", (3 * ENOUGH, 2 * ENOUGH))
    figure = plots.heatmap(np.eye(2), photo, box=(ENOUGH, 0, 3 * ENOUGH, 2 * ENOUGH))
    image, overlay = figure.axes[0].get_images()
    assert image.get_array().shape == (ENOUGH * 2 // 3, ENOUGH, 3)
    assert tuple(image.get_extent()) == (0, 3 * ENOUGH, 2 * ENOUGH, 0)
    assert tuple(overlay.get_extent()) == (ENOUGH, 3 * ENOUGH, 2 * ENOUGH, 0)


@pytest.mark.parametrize("draw", [plots.heatmap, plots.overlay_png])
def test_a_crop_of_another_picture_is_refused_but_padding_is_not(draw):
    with pytest.raises(ValueError, match=r"crop \(12, 0, 20, 8\).*10 x 10 pixels: give the original"):
        draw(np.ones((2, 2)), np.ones((10, 10)), box=(12, 0, 20, 8))
    draw(np.ones((2, 2)), np.ones((10, 6)), box=(-2, 0, 8, 10))


@pytest.mark.parametrize("box", [(5, 0, 5, 9), (0, 9, 5, 2), (0, 0, np.nan, 5), (0, 0, 5)])
def test_what_is_no_box_is_refused(box):
    with pytest.raises(ValueError, match=r"left < right and top < bottom; got \["):
        plots.heatmap(np.ones((2, 2)), np.ones((10, 10)), box=box)


def test_matplotlib_is_imported_only_to_draw():
    code = "import sys; from vitshap import plots; print({'matplotlib', 'seaborn'} & set(sys.modules) or 'neither')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "neither"
