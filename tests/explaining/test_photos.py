"""Names to files, files to pictures, and a plain word for each that is none."""

import io
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from tests.explaining import made
from vitshap.data import UnreadableImage
from vitshap.explaining import find_photos, read_photo
from vitshap.explaining.photos import SHOWN


def test_files_folders_and_patterns_each_once_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made.photos(tmp_path / "b" / "deep", 1)
    made.photos(tmp_path / "a", 2)
    for name in (".hidden.png", "words.txt"):
        (tmp_path / "a" / name).write_bytes(b"")
    (tmp_path / "odd").write_bytes(b"")
    found = find_photos(["odd", "b", "a/1.png", "a", "a/*.png", "**/0.png"])
    assert list(map(str, found.photos)) == ["odd", "b/deep/0.png", "a/1.png", "a/0.png"]
    assert not found.missing


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("no image")
    made.photos(tmp_path / "photos", 1)
    names = [str(tmp_path / name) for name in ("photos", "nowhere.jpg", "*.gif")]
    (tmp_path / "empty").mkdir()
    found = find_photos([*names, str(tmp_path / "empty")])
    assert [path.name for path in found.photos] == ["0.png"]
    reasons = ["no such file", "no file matches", "holds no image"]
    for one, said in zip(found.missing, reasons, strict=True):
        assert said in one.reason


def test_results_are_never_taken_for_photos(tmp_path: Path) -> None:
    made.photos(tmp_path, 1)
    made.photos(tmp_path / "results", 2)
    found = find_photos([str(tmp_path), str(tmp_path / "**" / "*.png")], leave_out=tmp_path / "results")
    assert found.photos == [tmp_path / "0.png"]
    with pytest.raises(ValueError, match="cannot go to the folder that is searched"):
        find_photos([str(tmp_path)], leave_out=tmp_path)


@pytest.mark.parametrize(("name", "case"), made.UNSOUND.items(), ids=list(made.UNSOUND))
def test_unsound_files_are_named_with_a_plain_reason(tmp_path: Path, name: str, case: tuple[bytes, str]) -> None:
    content, said = case
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnreadableImage) as caught:
        read_photo(tmp_path / name)
    assert re.search(said, caught.value.reason)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_gone_or_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UnreadableImage, match="gone or cannot be reached"):
        read_photo(tmp_path / "gone.png")
    with pytest.raises(UnreadableImage, match="it is a folder"):
        read_photo(tmp_path)


def test_of_an_animation_the_first_frame_is_shown_and_that_is_said(tmp_path: Path) -> None:
    red, blue = (Image.new("RGB", (8, 6), colour) for colour in ("red", "blue"))
    for name in ("a.gif", "a.webp", "a.png"):
        red.save(tmp_path / name, save_all=True, append_images=[blue])
        opened = read_photo(tmp_path / name)
        assert np.array(opened.picture)[3, 4].tolist() == pytest.approx([255, 0, 0], abs=3)
        assert opened.notes == ("it is animated: the first frame is explained",)
    red.save(tmp_path / "a.tif", save_all=True, append_images=[blue])
    assert read_photo(tmp_path / "a.tif").notes == ("it has several pages: the first page is explained",)
    red.save(tmp_path / "still.gif")
    assert read_photo(tmp_path / "still.gif").notes == ()


def test_transparent_cmyk_and_deep_pixels_look_as_they_should(tmp_path: Path) -> None:
    Image.new("RGBA", (8, 6), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    opened = read_photo(tmp_path / "clear.png")
    assert (np.array(opened.picture) == 255).all()
    assert opened.notes == ("it may be partly transparent: transparent parts become white",)
    Image.new("RGB", (8, 6), (200, 40, 90)).convert("CMYK").save(tmp_path / "print.jpg")
    assert np.array(read_photo(tmp_path / "print.jpg").picture)[3, 4].tolist() == pytest.approx([200, 40, 90], abs=6)
    Image.fromarray(np.full((6, 8), 128 * 257, dtype=np.uint16)).save(tmp_path / "deep.png")
    assert np.array(read_photo(tmp_path / "deep.png").picture)[3, 4].tolist() == [128] * 3


def test_turned_photos_are_upright_and_large_ones_small(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright: the top is stored on the right
    stored = Image.new("RGB", (2 * SHOWN, SHOWN), "red")
    stored.save(tmp_path / "turned.jpg", exif=exif)
    opened = read_photo(tmp_path / "turned.jpg")
    assert opened.size == (SHOWN, 2 * SHOWN)
    assert opened.picture.size == (SHOWN // 2, SHOWN)
    assert made.PREPROCESS.box(opened.image)[2] <= SHOWN, "the box is in the upright image"
    Image.new("RGB", (4 * SHOWN, SHOWN)).save(tmp_path / "panorama.png")
    assert read_photo(tmp_path / "panorama.png").picture.size == (2 * SHOWN, SHOWN // 2)
    Image.new("RGB", (8 * SHOWN, 20)).save(tmp_path / "strip.png")
    assert read_photo(tmp_path / "strip.png").picture.size[0] == 4 * SHOWN


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_very_large_but_readable_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made.picture(0, 60, 40).save(tmp_path / "large.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1500)
    assert "very large" in read_photo(tmp_path / "large.png").notes[0]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(UnreadableImage, match="too large"):
        read_photo(tmp_path / "large.png")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    (path,) = made.photos(tmp_path, 1)
    path.chmod(0)
    with pytest.raises(UnreadableImage, match="permission denied"):
        read_photo(path)


DAMAGED_EXIF = b"Exif\0\0" + b"\0" * 100


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp"])
def test_damaged_exif_data_are_no_damage_to_the_photo(tmp_path: Path, kind: str) -> None:
    picture = made.picture(0)
    picture.save(tmp_path / "photo", kind, exif=DAMAGED_EXIF)
    picture.save(tmp_path / "without", kind)
    opened, without = read_photo(tmp_path / "photo"), read_photo(tmp_path / "without")
    assert opened.size == picture.size
    assert np.array_equal(opened.picture, without.picture)
    assert torch.equal(made.PREPROCESS(opened.image), made.PREPROCESS(without.image))
    assert made.PREPROCESS.box(opened.image) == made.PREPROCESS.box(without.image)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["jpeg", "tiff"])
def test_photos_are_turned_once(tmp_path: Path, orientation: int, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    made.picture(0).save(tmp_path / "photo", kind, exif=exif)
    opened = read_photo(tmp_path / "photo")
    with Image.open(tmp_path / "photo") as image:
        expected = ImageOps.exif_transpose(image)
    assert opened.size == expected.size == opened.image.size
    assert np.array_equal(opened.image, expected)
    assert torch.equal(made.PREPROCESS(opened.image), made.PREPROCESS(expected))


def test_pipes_sockets_and_devices_are_no_photos(tmp_path: Path) -> None:
    """All of this would wait without end if one of them were opened."""
    os.mkfifo(tmp_path / "pipe.png")
    made.photos(tmp_path, 1)
    named = str(tmp_path / "pipe.png")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket.png"))
        assert find_photos([str(tmp_path), str(tmp_path / "*.png")]).photos == [tmp_path / "0.png"]
    for name in (named, "/dev/null"):
        found = find_photos([name])
        assert not found.photos
        assert "not a file" in found.missing[0].reason
        with pytest.raises(UnreadableImage, match="not a file"):
            read_photo(name)


def test_streams_are_read_and_damaged_ones_named(tmp_path: Path) -> None:
    assert read_photo(io.BytesIO(made.jpeg())).size == (120, 80)
    for content, said in ((b"", "empty"), (b"words", "not an image"), (made.jpeg()[:-300], "truncated")):
        with pytest.raises(UnreadableImage, match=said):
            read_photo(io.BytesIO(content))


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("name", ["a.jpg", "a.png", "clear.png", "palette.png", "deep.png", "turned.jpg"])
def test_large_photos_are_shrunk_while_they_are_read(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture, exif = made.picture(3, 401, 303), Image.Exif()
    exif[0x0112] = 6
    modes = {"clear.png": "RGBA", "palette.png": "P", "deep.png": "I;16"}
    stored = picture.convert("L").convert("I").point(lambda value: value * 257) if name == "deep.png" else picture
    stored = stored.convert(modes.get(name, "RGB"))
    stored.save(tmp_path / name, **({"exif": exif} if name == "turned.jpg" else {}))
    whole = read_photo(tmp_path / name)
    for limit, value in (("LARGE", 100_000), ("ENOUGH", 5_000), ("SHORT_SIDE", 70)):
        monkeypatch.setattr(f"vitshap.explaining.photos.{limit}", value)
    shrunk = read_photo(tmp_path / name)
    assert shrunk.size == whole.size
    assert shrunk.image.size == tuple(-(-side // 4) for side in whole.size)
    both = [np.array(opened.picture.resize((40, 30)), dtype=float) for opened in (whole, shrunk)]
    assert np.abs(both[0] - both[1]).mean() < 3


PEAK = """
import resource, sys
from pathlib import Path
from vitshap.explaining import explain_photos, open_bundle
source = open_bundle(sys.argv[1])
peaks = []
for names in (sys.argv[2:3], sys.argv[3:]):
    for entry in explain_photos([Path(name) for name in names], source, threads=4, batch=1):
        assert entry.explanation
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(peaks[1] - peaks[0])
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["jpg", "png"])
def test_many_large_photos_take_little_more_memory_than_one(tmp_path: Path, bundle: Path, kind: str) -> None:
    """Six of 64 megapixels, 256 MB each as Pillow holds them, of which preprocessing makes copies."""
    small, large = tmp_path / "small.png", tmp_path / f"large.{kind}"
    made.picture(0).save(small)
    Image.new("RGB", (8000, 8000), "red").save(large)
    command = [sys.executable, "-c", PEAK, str(bundle), str(small), *[str(large)] * 6]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 900_000, "kilobytes"
