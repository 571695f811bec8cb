"""Names to files, files to pictures, and a plain word for each that is none."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

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
    with pytest.raises(UnreadableImage, match="damaged"):
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
    assert opened.notes == ("it may be transparent in parts: they are taken as white",)
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
