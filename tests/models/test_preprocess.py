"""Photos become the same tensors as by the libraries' own transforms, and the crop is found again."""

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_model_data_config

from tests.models import nets
from vitshap.models import Preprocess, wrap


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
