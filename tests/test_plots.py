"""Pictures: the right numbers reach matplotlib, in the right place, and nothing stays open."""

import sys

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from tests.test_explanation import make, ragged
from vitshap import plots


def drawn_images(axes):
    return axes.get_images()


def test_a_map_lies_over_its_box_of_the_picture_on_a_symmetric_scale():
    heat = np.array([[0.1, -0.4], [0.2, 0.3]])
    figure = plots.heatmap(heat, np.zeros((20, 30, 3)), box=(5, 2, 25, 18), unit="probability", title="a dog")
    image, overlay = drawn_images(figure.axes[0])
    assert image.get_alpha() == 0.85
    assert overlay.get_alpha() == 0.9
    assert overlay.get_interpolation() == "bilinear"
    assert overlay.get_cmap().name == "icefire"
    assert overlay.get_clim() == (-0.4, 0.4)
    assert tuple(overlay.get_extent()) == (5, 25, 18, 2)  # left, right, bottom, top
    assert tuple(image.get_extent()) == (0, 30, 20, 0)
    assert figure.axes[0].get_xlim() == (0, 30)
    assert figure.axes[0].get_ylim() == (20, 0)
    np.testing.assert_array_equal(overlay.get_array(), heat)
    assert figure.axes[0].get_title() == "a dog"
    assert figure.axes[1].get_ylabel() == "change in probability"


def test_a_crop_of_another_picture_is_refused_but_padding_is_not():
    with pytest.raises(ValueError, match=r"crop \(12, 0, 20, 8\).*10 x 10 pixels: give the original"):
        plots.heatmap(np.ones((2, 2)), np.ones((10, 10)), box=(12, 0, 20, 8))
    overlay = drawn_images(plots.heatmap(np.ones((2, 2)), np.ones((10, 6)), box=(-2, 0, 8, 10)).axes[0])[1]
    assert tuple(overlay.get_extent()) == (-2, 8, 10, 0)


@pytest.mark.parametrize("title", ["short", "a name so long that it must be broken into two lines to be read"])
@pytest.mark.parametrize("shape", [(20, 20), (20, 50), (50, 20)])
def test_nothing_is_cut_off(title, shape):
    figure = plots.class_row([np.eye(4)] * 2, np.ones(shape), titles=[title, title], title=title)
    figure.draw_without_rendering()
    for axes in figure.axes:
        box = axes.get_tightbbox()
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1 + 1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1 + 1


def test_the_colour_of_zero_is_the_middle_and_nan_is_not_coloured():
    figure = plots.heatmap(np.array([[0.0, np.nan, 1.0]]))
    (overlay,) = drawn_images(figure.axes[0])
    colours = overlay.to_rgba(overlay.get_array())
    assert tuple(colours[0, 0]) == overlay.get_cmap()(0.5)
    assert colours[0, 1, 3] == 0  # transparent
    assert tuple(colours[0, 2]) == overlay.get_cmap()(1.0)


def test_a_map_of_zeros_can_be_drawn():
    figure = plots.heatmap(np.zeros((2, 2)))
    assert drawn_images(figure.axes[0])[0].get_clim() == (-1, 1)


def test_a_row_has_the_picture_and_one_map_per_class_on_one_scale():
    heats = [np.full((2, 2), 0.1), np.full((2, 2), -0.7)]
    figure = plots.class_row(heats, np.ones((8, 8, 3)), titles=["cat", "dog"], title="exact")
    panels = figure.axes[:3]
    assert [axes.get_title() for axes in panels] == ["exact", "cat", "dog"]
    assert [len(drawn_images(axes)) for axes in panels] == [1, 2, 2]
    assert all(drawn_images(axes)[1].get_clim() == (-0.7, 0.7) for axes in panels[1:])
    assert len(figure.axes) == 4  # one colour bar
    without = plots.class_row(heats, titles=["cat", "dog"])
    assert [axes.get_title() for axes in without.axes[:2]] == ["cat", "dog"]
    with pytest.raises(ValueError, match="1 titles for 2 maps"):
        plots.class_row(heats, titles=["cat"])


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


def test_a_normalised_tensor_is_stretched_and_grey_becomes_rgb():
    pixels = plots.as_pixels(torch.tensor([[[-2.0, 0.0, 2.0]]]))
    assert pixels.shape == (1, 3, 3)
    assert pixels[0, :, 0].tolist() == [0, 0.5, 1]


def test_a_photo_is_turned_as_its_exif_says():
    photo = Image.new("RGB", (6, 4))
    photo.getexif()[0x0112] = 6  # a quarter turn
    assert plots.as_pixels(photo).shape == (6, 4, 3)


@pytest.mark.parametrize(
    ("picture", "error", "message"),
    [
        (3, TypeError, "got int"),
        (torch.zeros(2, 3, 4, 4), ValueError, r"\[C, H, W\], got \[2, 3, 4, 4\]"),
        (np.zeros((4, 4, 2)), ValueError, "1 or 3 channels"),
        (np.full((4, 4), np.nan), ValueError, "not finite"),
    ],
)
def test_what_is_no_picture_is_refused(picture, error, message):
    with pytest.raises(error, match=message):
        plots.heatmap(np.zeros((2, 2)), picture)


def test_an_explanation_draws_itself(tmp_path):
    box = torch.tensor([[1.0, 2.0, 9.0, 8.0]] * 2)
    explanation = make(image_box=box)[1]
    photo = Image.new("RGB", (12, 10))
    figure = explanation.plot(photo, target="dog")
    assert isinstance(figure, Figure)
    overlay = drawn_images(figure.axes[0])[1]
    np.testing.assert_array_equal(overlay.get_array(), explanation.heatmap("dog")[0].numpy())
    assert tuple(overlay.get_extent()) == (1, 9, 8, 2)
    assert figure.axes[0].get_title() == f"dog (p={float(explanation.prediction[0, 1]):.3g})"
    # a tensor is the net's input: the map covers it whole
    inner = drawn_images(explanation.plot(torch.zeros(3, 4, 6), target=1).axes[0])[1]
    assert tuple(inner.get_extent()) == (0, 6, 4, 0)

    row = explanation.plot(photo, target=["cat", 1])
    assert [axes.get_title().split()[0] for axes in row.axes[:3]] == ["made", "cat", "dog"]
    row.savefig(tmp_path / "row.png")
    assert Image.open(tmp_path / "row.png").size[0] > 900


def test_only_one_image_with_rows_and_columns_is_drawn():
    with pytest.raises(ValueError, match=r"explanation\[i\]"):
        make().plot()
    words = ragged(players=torch.tensor([[0, 1, 1, 2], [1, 0, 0, -1]]))[0]
    with pytest.raises(ValueError, match="rows and columns"):
        words.plot()
    with pytest.raises(ValueError, match="0 titles for 0 maps"):
        make()[0].plot(target=[])


def test_drawing_opens_no_figure():
    plots.heatmap(np.ones((2, 2)))
    assert sys.modules["matplotlib.pyplot"].get_fignums() == []
