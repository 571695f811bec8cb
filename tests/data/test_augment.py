"""Augmentation against torch.flip, torchvision's crops and colours, and against itself in other batches."""

import math
import random
import shutil
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms.functional import adjust_hue, adjust_saturation

from vitshap.counter_rng import sample_keys, uniforms
from vitshap.data import Augmentation, normalised
from vitshap.data.augment import _NUMBERS, _blended, _grey, _hue_rotated
from vitshap.data.decode import as_picture, as_tensor

PLAIN: dict[str, Any] = {"mean": (0.0,), "std": (1.0,)}
WHOLE: dict[str, Any] = {"crop_scale": (1.0, 1.0), "crop_ratio": (1.0, 1.0)}


def _images(n: int, channels: int = 3, height: int = 12, width: int = 12) -> torch.Tensor:
    return torch.rand(n, channels, height, width, generator=torch.Generator().manual_seed(n))


def _numbers(n: int) -> torch.Tensor:
    return uniforms(sample_keys("augmentation", torch.arange(n), seed=0, epoch=0), _NUMBERS)


@given(data=st.data(), channels=st.sampled_from([1, 3]), seed=st.integers(0, 99), epoch=st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_augmentation_depends_only_on_seed_epoch_and_index(
    data: st.DataObject, channels: int, seed: int, epoch: int
) -> None:
    n = data.draw(st.integers(1, 9))
    indices = torch.tensor(data.draw(st.lists(st.integers(0, 10**6), min_size=n, max_size=n)))
    images = _images(n, channels, 9, 13)
    together = Augmentation()(images, indices, seed=seed, epoch=epoch, **PLAIN)
    order = torch.tensor(data.draw(st.permutations(range(n))))
    shuffled = Augmentation()(images[order], indices[order], seed=seed, epoch=epoch, **PLAIN)
    torch.testing.assert_close(shuffled, together[order], rtol=0, atol=1e-6)
    one = order[:1]
    alone = Augmentation()(images[one], indices[one], seed=seed, epoch=epoch, **PLAIN)
    torch.testing.assert_close(alone, together[one], rtol=0, atol=1e-6)


def test_augmentation_differs_by_epoch_seed_and_index() -> None:
    image = _images(1)
    made = [
        Augmentation()(image, torch.tensor([index]), seed=seed, epoch=epoch, **PLAIN)
        for index, seed, epoch in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
    ]
    for i, one in enumerate(made):
        assert all((one - other).abs().max() > 0.01 for other in made[i + 1 :])


@pytest.mark.parametrize(("across", "down"), [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.0, 0.0)])
def test_flips_without_crop_are_torchs(across: float, down: float) -> None:
    images = _images(4, height=7, width=10)
    still = Augmentation(
        crop_scale=(1.0, 1.2), crop_ratio=(0.5, 2.0), horizontal_flip=across, vertical_flip=down, jitter=0
    )
    sides = [side for side, flipped in ((3, across), (2, down)) if flipped]
    given_back = still(images, torch.arange(4), seed=0, epoch=0, **PLAIN)
    torch.testing.assert_close(given_back, images.flip(sides), rtol=0, atol=1e-5)


def test_half_are_flipped_and_four_fifths_jittered() -> None:
    n = 4000
    grid = torch.tensor([[0.2, 0.4], [0.6, 0.8]]).expand(n, 1, 2, 2)
    flipped = Augmentation(**WHOLE, jitter=0)(grid, torch.arange(n), seed=5, epoch=0, **PLAIN)
    for other in (grid.flip(3), grid.flip(2), grid.flip(2, 3)):
        assert (flipped - other).abs().amax((1, 2, 3)).lt(1e-5).double().mean() == pytest.approx(0.25, abs=0.03)
    same = Augmentation(**WHOLE, horizontal_flip=0, vertical_flip=0)(grid, torch.arange(n), seed=5, epoch=0, **PLAIN)
    assert (same - grid).abs().amax((1, 2, 3)).gt(1e-5).double().mean() == pytest.approx(0.8, abs=0.025)


@pytest.mark.parametrize(("height", "width"), [(224, 224), (100, 180), (200, 120)])
def test_crops_are_distributed_as_torchvisions(height: int, width: int) -> None:
    torch.manual_seed(0)
    random.seed(0)
    n, image = 4000, torch.empty(1, height, width)
    theirs = torch.tensor([RandomResizedCrop.get_params(image, [0.8, 1.2], [3 / 4, 4 / 3]) for _ in range(n)]).double()
    theirs = theirs[:, [1, 0, 3, 2]] / torch.tensor([width, height, width, height])  # left, top, width, height
    for whole_pixels in (False, True):
        ours = torch.stack(Augmentation(whole_pixels=whole_pixels).crops(_numbers(n), height, width), 1)
        assert (ours >= 0).all()
        assert (ours[:, :2] + ours[:, 2:] <= 1 + 1e-12).all()
        for column in range(4):
            low = torch.stack([ours[:, column], theirs[:, column]]).sort(1).values
            assert (low[0] - low[1]).abs().mean() < 0.01  # the distance of the two distributions, in shares of the side
    pixels = ours * torch.tensor([width, height, width, height])
    torch.testing.assert_close(pixels, pixels.round(), rtol=0, atol=1e-9)


def test_the_share_of_uncropped_images_is_the_authors() -> None:
    """11.6 % of 256-pixel squares, for crops of whole pixels; 12.7 % by the rule for any crops."""
    n = 60_000
    for whole_pixels, expected in ((True, 0.116), (False, 0.127)):
        _, _, wide, high = Augmentation(whole_pixels=whole_pixels).crops(_numbers(n), 256, 256)
        assert float(((wide == 1) & (high == 1)).double().mean()) == pytest.approx(expected, abs=0.004)


def test_crops_come_from_all_of_a_larger_image() -> None:
    side, seen = 32, 28
    x = ((torch.arange(side) + 0.5) / side).expand(400, 1, side, side)  # every pixel says how far right it is
    how = Augmentation(horizontal_flip=0, vertical_flip=0, jitter=0)
    made = how(x, torch.arange(400), seed=0, epoch=0, size=(seen, seen), **PLAIN)
    assert made.shape == (400, 1, seen, seen)
    left, _, wide, _ = (part.float() for part in how.crops(_numbers(400), side, side))
    expected = left[:, None] + wide[:, None] * (torch.arange(seen) + 0.5) / seen
    torch.testing.assert_close(made[:, 0, 0, 1:-1], expected[:, 1:-1], rtol=0, atol=1e-5)
    margin = (side - seen) / 2 / side
    assert float(made.min()) < margin / 2, "also from the margin, which the centre crop leaves out"
    assert float(made.max()) > 1 - margin / 2


def test_the_order_of_the_colour_steps_is_random_for_each_image() -> None:
    """Brightness and contrast do not commute: both orders of the two occur, as often as each other."""
    n = 2000
    images = _images(1).expand(n, -1, -1, -1)
    how = Augmentation(
        **WHOLE, horizontal_flip=0, vertical_flip=0, jitter=1, saturation=0, hue=0, jitter_order="random"
    )
    made = how(images, torch.arange(n), seed=0, epoch=0, **PLAIN)
    alone = how(images[:1], torch.tensor([7]), seed=0, epoch=0, **PLAIN)
    torch.testing.assert_close(alone[0], made[7])
    change = (2 * _numbers(n)[:, [3, 4]] - 1).float() * 0.2
    brightness, contrast = change[:, 0, None, None, None], change[:, 1, None, None, None]

    def contrasted(given: torch.Tensor) -> torch.Tensor:
        return _blended(given, _grey(given).mean((-2, -1), keepdim=True), contrast)

    first = contrasted((images * (1 + brightness)).clamp(0, 1))
    second = (contrasted(images) * (1 + brightness)).clamp(0, 1)
    is_first, is_second = ((made - other).abs().amax((1, 2, 3)) < 1e-5 for other in (first, second))
    assert (is_first | is_second).all()
    assert float((is_first & ~is_second).double().mean()) == pytest.approx(
        float((is_second & ~is_first).double().mean()), abs=0.06
    )
    fixed = replace(how, jitter_order="fixed")(images, torch.arange(n), seed=0, epoch=0, **PLAIN)
    torch.testing.assert_close(fixed, first, rtol=0, atol=1e-5)


def test_a_crop_is_the_drawn_part_of_the_image() -> None:
    height, width = 40, 60
    y, x = torch.meshgrid((torch.arange(height) + 0.5) / height, (torch.arange(width) + 0.5) / width, indexing="ij")
    images = torch.stack([x, y]).expand(50, 2, height, width)  # every pixel says where it is
    cropped = Augmentation(horizontal_flip=0, vertical_flip=0, jitter=0)(
        images, torch.arange(50), seed=0, epoch=0, **PLAIN
    )
    left, top, wide, high = (part.float() for part in Augmentation().crops(_numbers(50), height, width))
    inner = (slice(None), slice(1, -1), slice(1, -1))  # borders are repeated, not extrapolated
    expected_x, expected_y = left[:, None, None] + wide[:, None, None] * x, top[:, None, None] + high[:, None, None] * y
    torch.testing.assert_close(cropped[:, 0][inner], expected_x[inner], rtol=0, atol=1e-5)
    torch.testing.assert_close(cropped[:, 1][inner], expected_y[inner], rtol=0, atol=1e-5)


@pytest.mark.parametrize("turn", [-0.1, -0.03, 0.0, 0.07, 0.1])
def test_hue_and_saturation_are_torchvisions(turn: float) -> None:
    images = _images(3)
    images[0, :, :4] = 0.5  # grey has no hue
    images[1, 0] = images[1, 1]  # ties between channels
    turned = _hue_rotated(images, torch.full((3, 1, 1, 1), turn))
    torch.testing.assert_close(turned, adjust_hue(images, turn), rtol=0, atol=1e-5)
    ours = _blended(images, _grey(images), torch.full((3, 1, 1, 1), turn))
    torch.testing.assert_close(ours, adjust_saturation(images, 1 + turn), rtol=0, atol=2e-4)


@pytest.mark.parametrize("factor", [0.8, 1.2])
def test_brightness_and_contrast_are_pils(factor: float) -> None:
    pixels = (_images(1) * 255).to(torch.uint8)
    picture = as_picture(pixels[0])
    change = torch.full((1, 1, 1, 1), factor - 1)
    unit = pixels.float() / 255
    contrast = _blended(unit, _grey(unit).mean((-2, -1), keepdim=True), change)[0]
    theirs = as_tensor(ImageEnhance.Contrast(picture).enhance(factor)).float() / 255
    torch.testing.assert_close(contrast, theirs, rtol=0, atol=1.5 / 255)
    bright = Augmentation(
        **WHOLE, horizontal_flip=0, vertical_flip=0, jitter=1, brightness=1, contrast=0, saturation=0, hue=0
    )(pixels, torch.tensor([3]), seed=0, epoch=0, **PLAIN)[0]
    factor = float((bright / unit[0])[bright < 1].median())  # what was drawn; the rest was cut off at white
    theirs = as_tensor(ImageEnhance.Brightness(picture).enhance(factor)).float() / 255
    torch.testing.assert_close(bright, theirs, rtol=0, atol=1.5 / 255)


def test_weak_augmentation_has_the_authors_crops_and_pastes_nothing() -> None:
    milder = Augmentation(crop_scale=(0.25, 1.0), paste=0.5, hue=0.3).weak()
    assert (milder.crop_scale, milder.paste, milder.hue) == ((0.8, 1.0), 0.0, 0.3)
    assert Augmentation(crop_scale=(0.25, 0.5)).weak().crop_scale == (0.8, 0.8)
    assert Augmentation().weak() == Augmentation()


def test_half_the_images_get_a_rectangle_of_the_chosen_area() -> None:
    n, side = 2000, 40
    images, others = torch.zeros(n, 1, side, side), torch.ones(n, 1, side, side)
    still: dict[str, Any] = {**WHOLE, "horizontal_flip": 0, "vertical_flip": 0, "jitter": 0}
    pasting = Augmentation(**still, paste=0.5, paste_area=(0.2, 0.4))
    made = pasting(images, torch.arange(n), seed=3, epoch=1, partners=others, **PLAIN)
    share = made.mean((1, 2, 3))
    assert float((share > 0).float().mean()) == pytest.approx(0.5, abs=0.04)
    pasted = share[share > 0]
    assert float(pasted.min()) > 0.2 - 0.05  # whole pixels
    assert float(pasted.max()) < 0.4 + 0.05
    assert float(pasted.mean()) == pytest.approx(0.3, abs=0.01)
    for one in made[share > 0][:20, 0]:
        rows, columns = one.amax(1), one.amax(0)
        assert torch.equal(one, rows[:, None] * columns), "a rectangle"
        for line in (rows, columns):
            assert int((line[1:] != line[:-1]).sum()) <= 2, "in one piece"
    covered = made.amax((0, 1))
    assert all(bool(edge.any()) for edge in (covered[0], covered[-1], covered[:, 0], covered[:, -1]))
    alone = pasting(images[7:8], torch.tensor([7]), seed=3, epoch=1, partners=others[7:8], **PLAIN)
    assert torch.equal(alone, made[7:8])
    partners = pasting.partners(torch.arange(n), 50, seed=3, epoch=1)
    assert sorted(set(partners.tolist())) == list(range(50))


def test_normalisation_and_bytes() -> None:
    pixels = (_images(2) * 255).to(torch.uint8)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    by_hand = torch.stack([(pixels[:, c].float() / 255 - mean[c]) / std[c] for c in range(3)], 1)
    torch.testing.assert_close(normalised(pixels, mean, std), by_hand)
    args = {"seed": 0, "epoch": 0, "mean": mean, "std": std}
    of_bytes, of_floats = (Augmentation()(p, torch.arange(2), **args) for p in (pixels, pixels.float() / 255))
    torch.testing.assert_close(of_bytes, of_floats)
    still = Augmentation(**WHOLE, horizontal_flip=0, vertical_flip=0, jitter=0)(pixels, torch.arange(2), **args)
    torch.testing.assert_close(still, by_hand, rtol=0, atol=1e-5)


def test_values_stay_between_black_and_white() -> None:
    made = Augmentation(brightness=1, contrast=1, saturation=1, hue=0.5)(
        _images(50), torch.arange(50), seed=0, epoch=0, **PLAIN
    )
    assert made.min() >= -1e-6
    assert made.max() <= 1 + 1e-6
    assert math.isfinite(float(made.sum()))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Augmentation(horizontal_flip=1.5), "horizontal_flip"),
        (lambda: Augmentation(hue=0.6), "hue"),
        (lambda: Augmentation(crop_scale=(1.2, 0.8)), "crop_scale"),
        (lambda: Augmentation(paste=-0.1), "paste"),
        (lambda: Augmentation(paste_area=(0.5, 1.5)), "paste_area"),
        (lambda: normalised(_images(2).long(), (0.0,), (1.0,)), "uint8 or float"),
    ],
)
def test_bad_input_is_reported(call, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()


def test_one_channel_is_read_as_grey() -> None:
    picture = Image.new("L", (4, 4), 100)
    made = Augmentation(jitter=1)(as_tensor(picture)[None], torch.tensor([0]), seed=0, epoch=0, **PLAIN)
    assert made.shape == (1, 1, 4, 4)
    assert made.std() < 1e-6  # a flat image stays flat
    assert 0.8 * 100 / 255 - 1e-6 <= float(made.mean()) <= 1.2 * 100 / 255 + 1e-6


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "how", [Augmentation(jitter_order="random", whole_pixels=True), Augmentation(crop_scale=(0.25, 1.0), paste=0.5)]
)
def test_compiled_augmentation_is_one_graph_and_the_same_but_for_rounding(how: Augmentation, backend: str) -> None:
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler")
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (6, 3, 20, 20), generator=generator, dtype=torch.uint8)
    options: dict[str, Any] = {"seed": 0, "epoch": 1, "mean": (0.5,) * 3, "std": (0.2,) * 3, "size": (16, 16)}
    if how.paste:
        options["partners"] = images.flip(0)
    compiled = torch.compile(Augmentation.view, fullgraph=True, backend=backend)
    plain, found = (how(images, torch.arange(6), **options, view=view) for view in (None, compiled))
    assert found.shape == (6, 3, 16, 16)
    torch.testing.assert_close(found, plain, atol=1e-4, rtol=0)
