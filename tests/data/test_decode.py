"""Images of every mode are decoded to what they show."""

import io
import os
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.trees import picture
from vitshap.data import ImageData, UnreadableImage, read_image
from vitshap.data.decode import as_picture, as_tensor, eight_bit

RAMP = np.linspace(0, 255, 12 * 10).round().astype(np.uint8).reshape(10, 12)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_are_scaled_not_clipped(tmp_path: Path, suffix: str) -> None:
    Image.fromarray(RAMP.astype(np.uint16) * 257).save(tmp_path / f"deep.{suffix}")
    grey = read_image(tmp_path / f"deep.{suffix}", channels=1)
    assert np.array_equal(np.array(grey), RAMP)
    colour = read_image(tmp_path / f"deep.{suffix}")
    assert colour.mode == "RGB"
    assert all(np.array_equal(np.array(colour)[..., c], RAMP) for c in range(3))


@pytest.mark.parametrize(
    "values",
    [RAMP.astype(np.int32) * 257, RAMP.astype(np.int32), RAMP.astype(np.float32) / 255, RAMP.astype(np.float32)],
)
def test_thirty_two_bits_are_scaled_by_their_range(values: np.ndarray) -> None:
    assert np.array_equal(np.array(eight_bit(Image.fromarray(values), channels=1)), RAMP)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_rotated_photos_are_set_upright(tmp_path: Path, orientation: int) -> None:
    upright = picture(0, height=16, width=24)
    turn_back = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    stored = upright if turn_back is None else upright.transpose(turn_back)
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "photo.png", exif=exif)
    assert np.array_equal(np.array(read_image(tmp_path / "photo.png")), np.array(upright))


def test_transparency_becomes_white(tmp_path: Path) -> None:
    palette = Image.new("P", (4, 2), 0)
    palette.putpalette([200, 10, 30, 0, 0, 255])
    palette.putpixel((0, 0), 1)
    palette.save(tmp_path / "palette.png", transparency=0)
    pixels = np.array(read_image(tmp_path / "palette.png"))
    assert pixels[0, 0].tolist() == [0, 0, 255]
    assert (pixels[1] == 255).all()
    Image.new("RGBA", (4, 2), (0, 0, 0, 0)).save(tmp_path / "alpha.png")
    assert (np.array(read_image(tmp_path / "alpha.png", channels=1)) == 255).all()
    Image.new("LA", (4, 2), (40, 255)).save(tmp_path / "opaque.png")
    assert (np.array(read_image(tmp_path / "opaque.png")) == 40).all()


@pytest.mark.parametrize(
    ("mode", "name", "colour"),
    [
        ("CMYK", "a.jpg", (200, 40, 90)),
        ("CMYK", "a.tif", (200, 40, 90)),
        ("YCbCr", "a.jpg", (200, 40, 90)),
        ("RGB", "a.webp", (200, 40, 90)),
        ("P", "a.gif", (204, 51, 102)),
        ("L", "a.jpg", (120, 120, 120)),
        ("1", "a.png", (255, 255, 255)),
    ],
)
def test_other_modes_keep_their_colours(tmp_path: Path, mode: str, name: str, colour: tuple[int, int, int]) -> None:
    flat = Image.new("RGB", (16, 16), colour)
    flat.convert(mode).save(tmp_path / name)
    for channels, expected in ((1, flat.convert("L")), (3, flat)):
        pixels = as_tensor(read_image(tmp_path / name, channels=channels))
        torch.testing.assert_close(pixels.float(), as_tensor(expected).float(), rtol=0, atol=4)


def test_tensors_and_pictures_are_converted_without_loss() -> None:
    for mode in ("L", "RGB"):
        image = picture(3).convert(mode)
        assert np.array_equal(np.array(as_picture(as_tensor(image))), np.array(image))


def _jpeg() -> bytes:
    buffer = io.BytesIO()
    picture(0, height=60, width=60).save(buffer, "jpeg")
    return buffer.getvalue()


@pytest.mark.parametrize("content", [b"", b"not an image", _jpeg()[:300], _jpeg()[:-200]])
def test_an_unreadable_file_is_reported(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken.jpg").write_bytes(content)
    with pytest.raises(UnreadableImage, match=r"broken\.jpg: \w+Error"):
        read_image(tmp_path / "broken.jpg")


def test_a_data_set_reads_files_on_access(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.png" for i in range(3)]
    for i, path in enumerate(paths):
        picture(i).save(path)
    data = ImageData(paths, torch.tensor([0, 1, 1]), ("a", "b"), groups=("p", "q", "q"))
    pixels, label = data[2]
    assert label == 1
    assert np.array_equal(pixels.permute(1, 2, 0).numpy(), np.array(picture(2)))
    part = data.subset([2, 0])
    assert part.groups == ("q", "p")
    assert torch.equal(part[0][0], pixels)
    assert part.class_counts().tolist() == [1, 1]
    assert len(list(data)) == 3
    with pytest.raises(IndexError):
        data[3]


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)
    # Whoever waits for a pipe that nobody writes to waits for ever: this one is ended then.
    ended = threading.Timer(20, lambda: os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)))
    ended.start()
    try:
        with pytest.raises(UnreadableImage, match=r"pipe\.png is not a regular file"):
            read_image(pipe)
    finally:
        ended.cancel()


def test_a_decompression_bomb_is_an_unreadable_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(0, height=60, width=60).save(tmp_path / "large.png")
    for limit, kind in ((1000, "DecompressionBombError"), (3000, "DecompressionBombWarning")):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UnreadableImage, match=rf"large\.png: {kind}"):
                read_image(tmp_path / "large.png")
