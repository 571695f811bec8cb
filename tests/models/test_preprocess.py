"""Photos become the same tensors as by the libraries' own transforms, and the crop is found again."""

import os
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_model_data_config

from tests.models import nets
from vitshap.models import Preprocess, wrap
from vitshap.models.preprocess import open_image


def _photo(width: int, height: int, mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((width, height)).convert(mode)


@pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "vit_base_patch16_clip_224", "vit_base_patch16_siglip_224"])
@pytest.mark.parametrize("size", [(320, 240), (200, 333), (224, 224)])
def test_equal_to_timms_transform(name: str, size: tuple[int, int]) -> None:
    net = timm.create_model(name, depth=1, embed_dim=32, num_heads=2, num_classes=3)
    config = resolve_model_data_config(net)
    photo = _photo(*size)
    expected = create_transform(**config, is_training=False)(photo)
    torch.testing.assert_close(Preprocess.from_timm(net, (224, 224))(photo), expected, rtol=0, atol=1e-6)


class _Processor:
    """The attributes by which transformers' image processors describe themselves."""

    size = {"shortest_edge": 40}  # noqa: RUF012
    crop_size = {"height": 32, "width": 32}  # noqa: RUF012
    do_center_crop = True
    do_normalize = True
    resample = 3
    image_mean = (0.5, 0.4, 0.3)
    image_std = (0.2, 0.3, 0.4)


def test_from_an_image_processor() -> None:
    preprocess = Preprocess.from_image_processor(_Processor(), (32, 32))
    assert preprocess == Preprocess((32, 32), (40, 40), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), "bicubic")
    with pytest.raises(ValueError, match="224 x 224"):
        Preprocess.from_image_processor(_Processor(), (224, 224))


def test_the_box_is_where_the_crop_lies() -> None:
    preprocess = Preprocess((32, 32), (40, 40), (0.0,) * 3, (1.0,) * 3)
    photo = _photo(200, 100)
    left, top, right, bottom = preprocess.box(photo)
    assert (right - left, bottom - top) == (80.0, 80.0)
    assert ((left + right) / 2, (top + bottom) / 2) == (100.0, 50.0)


def test_photos_and_paths_go_through_preprocess(tmp_path: Path) -> None:
    preprocess = Preprocess((32, 32), (40, 40), (0.5,) * 3, (0.5,) * 3)
    model = wrap(nets.build("transformers ViT"), preprocess=preprocess)
    photo = _photo(60, 50)
    path = tmp_path / "photo.png"
    photo.save(path)
    prepared = model.prepare([photo, path, str(path)])
    assert prepared.pixels.shape == (3, 3, 32, 32)
    assert prepared.boxes.shape == (3, 4)
    assert torch.equal(prepared.pixels[0], preprocess(photo))
    assert torch.equal(prepared.pixels[1], prepared.pixels[2])
    torch.testing.assert_close(model(photo), model(prepared.pixels[:1]))


def test_rotated_and_grey_photos() -> None:
    preprocess = Preprocess((32, 32), (32, 32), (0.0,) * 3, (1.0,) * 3)
    upright = _photo(64, 32, "L")
    turned = upright.transpose(Image.Transpose.ROTATE_90)
    turned.getexif()[0x0112] = 6  # "rotate by 90 degrees clockwise to see it upright"
    assert torch.equal(preprocess(turned), preprocess(upright))
    assert preprocess.box(turned) == preprocess.box(upright)


def test_denormalised_undoes_the_normalisation() -> None:
    preprocess = Preprocess((32, 32), (32, 32), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    plain = Preprocess((32, 32), (32, 32), (0.0,) * 3, (1.0,) * 3)
    photo = _photo(40, 40)
    torch.testing.assert_close(preprocess.denormalised(preprocess(photo)), plain(photo), rtol=0, atol=1e-6)


def test_a_net_that_does_not_say_how_asks_for_it() -> None:
    with pytest.raises(ValueError, match="preprocess="):
        wrap(nets.build("transformers ViT"))(_photo(40, 40))


def _array(seed: int = 0, size: tuple[int, int] = (40, 52)) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)


def test_arrays_and_single_tensors_are_images() -> None:
    model = wrap(nets.build("timm ViT"), check=False)
    photos = [_array(seed) for seed in (0, 1)]
    prepared = model.prepare([Image.fromarray(photo) for photo in photos])
    for given in (photos, np.stack(photos)):
        found = model.prepare(given)
        assert torch.equal(found.pixels, prepared.pixels)
        assert found.boxes is not None
        assert torch.equal(found.boxes, prepared.boxes)
    assert torch.equal(model.prepare(photos[1]).pixels, prepared.pixels[1:])
    grey = photos[0][..., 0]
    assert torch.equal(model.prepare(grey).pixels, model.prepare(Image.fromarray(grey)).pixels)
    one, several = prepared.pixels[0], prepared.pixels
    assert torch.equal(model.prepare(one).pixels, several[:1])
    for array in (
        several.numpy(),
        several.double().numpy(),
        several.numpy().astype(">f4"),
        several.flip(0).numpy()[::-1],
    ):
        assert torch.equal(model.prepare(array).pixels, several)
    assert torch.equal(model.prepare(one.numpy()).pixels, several[:1])
    assert torch.equal(model(one), model(several[:1]))
    double = wrap(nets.build("timm ViT").double(), check=False)
    assert double.prepare(one.numpy()).pixels.dtype == torch.float64


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.zeros((32, 32, 3)), r"\[32, 32, 3\]; floats may be in 0 to 1, in 0 to 255 or normalised"),
        (np.zeros((2, 32, 32, 3), np.float32), r"\[2, 32, 32, 3\]; floats may be in 0 to 1"),
        (np.zeros((3, 32, 32), np.uint8), r"uint8 \[H, W, 3\]; the model's own input .*; got uint8 \[3, 32, 32\]"),
        (np.zeros((3, 32, 3), np.uint8), r"got uint8 \[3, 32, 3\]"),
        (np.zeros((3, 24, 32)), r"float \[3, 32, 32\], with or without a batch; got float64 \[3, 24, 32\]"),
        (np.zeros((32, 32, 3), np.int64), "got int64"),
        (np.zeros((0, 3, 32, 32)), "at least one; got"),
        (np.zeros((0, 0, 3), np.uint8), "got uint8"),
        (np.zeros(()), "got float64"),
        (np.full((3, 32, 32), np.nan), "not finite"),
    ],
)
def test_arrays_that_may_be_anything_are_refused(array: np.ndarray, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        wrap(nets.build("timm ViT"), check=False).prepare(array)
    assert "\n" not in str(caught.value)


def test_photos_are_opened_one_at_a_time(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    count = 40
    paths = [tmp_path / f"{i}.png" for i in range(count)]
    for i, path in enumerate(paths):
        Image.fromarray(_array(i)).save(path)
    model = wrap(nets.build("timm ViT"), check=False)
    model.prepare(paths[0])  # whatever is loaded once is loaded now
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(name) for name in os.listdir("/dev/fd")}
    free = [number for number in range(count + len(taken)) if number not in taken]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[count // 2], limits[1]))
    try:
        assert len(model.prepare(paths).pixels) == count
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("removal", ["attention", "pixels"])
def test_nets_of_a_thousand_classes_have_names(removal: str) -> None:
    small = {**nets.SMALL, "img_size": 32, "patch_size": 8}
    net = timm.create_model("vit_tiny_patch16_224", **{**small, "num_classes": 1000})
    names = wrap(net, check=False, removal=removal).class_names
    assert names is not None
    assert len(set(names)) == 999  # two are called crane
    assert len(names) == 1000
    assert names[:2] == ["tench", "goldfish"]
    mixer = timm.create_model("resnet10t", num_classes=1000)
    assert wrap(mixer, removal="pixels", image_size=32).class_names == names
    assert wrap(nets.build("timm ViT"), check=False).class_names is None
    assert wrap(net, check=False, class_names=[str(i) for i in range(1000)]).class_names == [
        str(i) for i in range(1000)
    ]


def test_a_pipe_is_no_photo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(OSError, match="not a regular file"), open_image(tmp_path / "pipe.jpg"):
        pass
