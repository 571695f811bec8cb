"""shap's plots are drawn from vitshap's explanations and show the values."""

import subprocess
import sys
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import shap
import torch
from PIL import Image

from tests.explanation.small_vit import GRID, NAMES, PATCH, SIZE, SUPERPIXELS, random_images, small_vit
from tests.test_explanation import make, ragged
from vitshap.explanation.export import pixel_owners
from vitshap.methods import method

plt.switch_backend("Agg")


@pytest.fixture(scope="module")
def model():
    return small_vit()


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def ink(figure) -> int:
    """Pixels of the drawn figure that are not white."""
    figure.canvas.draw()
    return int((np.asarray(figure.canvas.buffer_rgba())[..., :3] < 250).any(-1).sum())


def test_players_and_classes_are_converted_unchanged(model):
    explanation = method("kernelshap", model, budget=64)(random_images(2))
    given = explanation.to_shap()
    assert isinstance(given, shap.Explanation)
    assert np.array_equal(given.values, explanation.values.numpy())
    assert np.array_equal(given.base_values, explanation.base_values.numpy())
    assert np.array_equal(given.error_std, explanation.stderr.numpy(), equal_nan=True)
    assert given.output_names == NAMES
    assert given.feature_names == ["patch 0,0", "patch 0,1", "patch 1,0", "patch 1,1", "patch 2,0", "patch 2,1"]
    assert np.array_equal(given[:, :, "crane"].values, explanation.values[:, :, 2].numpy())
    total = given.values.sum(1) + given.base_values
    np.testing.assert_allclose(total, explanation.full_values.numpy(), atol=1e-5)


def test_one_class_has_no_axis_of_outputs(model):
    everything = method("exact", model)(random_images(2))
    one = everything.to_shap(target="dog")
    assert one.shape == (2, 6)
    assert one.output_names == "dog"
    assert np.array_equal(one.values, everything.values[..., 1].numpy())
    assert np.array_equal(one.base_values, everything.base_values[:, 1].numpy())
    assert np.array_equal(method("exact", model)(random_images(2), target=1).to_shap().values, one.values)
    with pytest.raises(ValueError, match="heron was not explained for image 0; explained: cat, dog"):
        method("exact", model)(random_images(2), target=[0, 1]).to_shap(target="heron")


def test_bar_and_waterfall_show_the_largest_players(model):
    explanation = method("exact", model)(random_images(2), target=3)
    axes = shap.plots.bar(explanation.to_shap()[0], show=False, max_display=7)
    lengths = sorted((float(bar.get_width()) for bar in axes.patches), key=abs)
    np.testing.assert_allclose(lengths, sorted(explanation.values[0, :, 0].tolist(), key=abs), rtol=1e-5)
    best = int(explanation.values[0, :, 0].abs().argmax())
    assert axes.get_yticklabels()[0].get_text() == f"patch {best // 2},{best % 2}"
    assert ink(axes.figure) > 1000
    plt.close("all")
    axes = shap.plots.bar(explanation.to_shap(), show=False, max_display=7)  # over all images
    lengths = sorted(float(bar.get_width()) for bar in axes.patches)
    np.testing.assert_allclose(lengths, sorted(explanation.values[..., 0].abs().mean(0).tolist()), rtol=1e-5)
    plt.close("all")
    axes = shap.plots.waterfall(explanation.to_shap()[1], show=False)
    assert ink(axes.figure) > 1000
    written = " ".join(text.get_text() for other in axes.figure.axes for text in other.texts + other.get_xticklabels())
    assert f"{float(explanation.full_values[1, 0]):.3f}" in written.replace("\N{MINUS SIGN}", "-")


def test_pixels_of_patches_add_up(model):
    images = random_images(2)
    explanation = method("exact", model)(images)
    given = explanation.to_shap(images=images)
    assert given.values.shape == (2, *SIZE, 3, 4)
    assert given.data.shape == (2, *SIZE, 3)
    assert 0 <= given.data.min() < given.data.max() <= 1
    blocks = given.values.astype(np.float64).reshape(2, GRID[0], PATCH, GRID[1], PATCH, 3, 4).sum((2, 4, 5))
    np.testing.assert_allclose(blocks.reshape(2, 6, 4), explanation.values.numpy(), rtol=1e-6, atol=1e-6)
    assert np.array_equal(given.base_values, explanation.base_values.numpy())


def test_image_plot_draws_a_map_per_class_and_image(model):
    images = random_images(2)
    explanation = method("exact", model)(images, target=[2, 0])
    shap.image_plot(explanation.to_shap(images=images), show=False)
    figure = plt.gcf()
    assert len(figure.axes) == 2 * 3 + 1  # picture and two classes for each image, and the colour bar
    assert [axes.get_title() for axes in figure.axes[:3]] == ["", "crane", "cat"]
    assert ink(figure) > 5000
    drawn = figure.axes[1].images[-1].get_array()
    expected = explanation.heatmap(2)[0].numpy().repeat(PATCH, 0).repeat(PATCH, 1) / PATCH**2
    np.testing.assert_allclose(drawn, expected, rtol=1e-5)


def test_every_image_with_its_own_class(model):
    images = random_images(2)
    explanation = method("exact", model)(images, target=torch.tensor([[2, 0], [1, 3]]))
    given = explanation.to_shap(images=images)
    assert given[1].output_names.tolist() == ["dog", "heron"]
    shap.image_plot(given, show=False)
    titles = [axes.get_title() for axes in plt.gcf().axes[:-1]]
    assert titles == ["", "crane", "cat", "", "dog", "heron"]
    assert explanation.to_shap().output_names.tolist() == [["crane", "cat"], ["dog", "heron"]]


def test_as_many_images_as_channels(model):
    """shap guesses axes by their sizes: [3 images, T] names would pass for [3 channels, T] outputs."""
    images = random_images(3)
    explanation = method("exact", model)(images, target=torch.tensor([[2], [1], [2]]))
    given = explanation.to_shap(images=images)
    assert given.output_names == ["crane / dog"]
    assert given[1].values.shape == (*SIZE, 3, 1)
    shap.image_plot(given, show=False)
    assert len(plt.gcf().axes) == 3 * 2 + 1
    assert explanation.to_shap().output_names == "crane / dog"
    many = make(images=6, explained=2, classes=torch.tensor([[i % 4, (i + 1) % 4] for i in range(6)]), class_names=None)
    assert many.to_shap().output_names == ["class 0 / class 1 / class 2 / ...", "class 1 / class 2 / class 3 / ..."]


def test_superpixels(model):
    images = random_images(2)
    explanation = method("exact", model, players=SUPERPIXELS)(images, target=1)
    players = explanation.to_shap()
    assert players.feature_names == ["player 0", "player 1", "player 2"]
    pixels = explanation.to_shap(images=images).values[..., 0].astype(np.float64).sum(-1)
    owner = pixel_owners(SUPERPIXELS[None], SIZE)[0].numpy()
    for player in range(3):
        np.testing.assert_allclose(pixels[:, owner == player].sum(1), players.values[:, player], rtol=1e-6, atol=1e-6)
    assert not pixels[:, owner == -1].any()
    shap.plots.bar(players, show=False)
    assert ink(plt.gcf()) > 1000


def test_players_of_each_image_keep_their_numbers():
    given = ragged().to_shap(allow_non_additive=True)
    assert given.feature_names == ["player 0", "player 1", "player 2"]
    pixels = ragged().to_shap(images=torch.rand(2, 3, 2, 8), allow_non_additive=True).values.sum((1, 3, 4))
    by_token = pixels.reshape(2, 4, 2).sum(2)
    np.testing.assert_allclose(by_token, [[1, 1.5, 1.5, 2], [-2, -0.5, -0.5, 0]], rtol=1e-6)


@pytest.mark.parametrize("name", ["leave-one-out", "random"])
def test_values_that_are_not_additive_need_the_option(model, name):
    images = random_images(2)
    explanation = method(name, model)(images)
    with pytest.raises(ValueError, match=f"{name} is not additive.*allow_non_additive=True"):
        explanation.to_shap()
    with pytest.raises(ValueError, match="not additive"):
        explanation.to_shap(images=images)
    given = explanation.to_shap(allow_non_additive=True)
    assert given.base_values is None
    shap.plots.bar(given[:, :, 0], show=False)
    assert ink(plt.gcf()) > 1000
    plt.close("all")
    shap.image_plot(explanation.to_shap(images=images, target="cat", allow_non_additive=True), show=False)
    assert ink(plt.gcf()) > 1000


def test_originals_carry_the_map_in_the_explained_crop():
    explanation = make(images=1, grid=(2, 2), image_box=torch.tensor([[4.0, 2.0, 12.0, 10.0]]))
    photo = Image.effect_noise((20, 14), 90).convert("RGB")
    for images in (photo, [photo], np.asarray(photo)[None]):
        given = explanation.to_shap(images=images)
        assert given.values.shape == (1, 14, 20, 3, 3)
        inside = given.values[:, 2:10, 4:12].sum(3)  # [1, 8, 8, T]
        sums = inside.reshape(1, 2, 4, 2, 4, 3).sum((2, 4)).reshape(1, 4, 3)
        np.testing.assert_allclose(sums, explanation.values.numpy(), rtol=1e-5)
        np.testing.assert_allclose(given.values.sum((1, 2, 3)), explanation.values.sum(1).numpy(), rtol=1e-4, atol=1e-5)
        assert not given.values[:, :2].any()
    tensor = explanation.to_shap(images=torch.rand(1, 1, 8, 8))  # a tensor is the crop itself
    assert tensor.values.shape == (1, 8, 8, 1, 3)
    assert tensor.values.all()


def test_pictures_that_do_not_fit_are_refused():
    explanation = make(images=2)
    with pytest.raises(ValueError, match=r"one picture per image \(2\).*got 1 of 8 x 9 x 3"):
        explanation.to_shap(images=torch.rand(1, 3, 8, 9))
    photos = [Image.new("RGB", (9, 8)), Image.new("RGB", (8, 8))]
    with pytest.raises(ValueError, match="one size; got 2 of 8 x 8 x 3, 8 x 9 x 3"):
        explanation.to_shap(images=photos)
    with pytest.raises(ValueError, match="has no pixel in image 0 of 1 x 1"):
        explanation.to_shap(images=torch.rand(2, 3, 1, 1))


def test_without_shap_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "shap", None)
    with pytest.raises(ImportError, match=r"pip install vitshap\[shap\]"):
        make().to_shap()


def test_no_optional_package_is_imported_before_it_is_used():
    code = "import sys, vitshap; print(sorted({'shap', 'captum', 'quantus'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_slices_convert_their_images(model):
    explanation = method("exact", model)(random_images(3))
    again = replace(explanation, class_names=None)[1].to_shap(target=2)
    assert again.shape == (1, 6)
    assert again.output_names == "class 2"
