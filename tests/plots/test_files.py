"""Figures to files: by extension, whole or not at all."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

import vitshap
from vitshap import plots


@pytest.fixture
def figure():
    return plots.heatmap(np.eye(3), np.full((30, 30), 0.5))


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.jpeg", "a.webp", "a.PNG"])
def test_the_extension_says_the_format(figure, tmp_path, name):
    path = plots.save(figure, tmp_path / name)
    expected = {"png": "PNG", "jpg": "JPEG", "jpeg": "JPEG", "webp": "WEBP"}[name.lower().split(".")[1]]
    with Image.open(path) as image:
        assert image.format == expected
        size = [round(inches * 120) for inches in figure.get_size_inches()]
        np.testing.assert_allclose(image.size, size, atol=1)
    assert [one.name for one in tmp_path.iterdir()] == [name]  # nothing temporary is left


def test_documents(figure, tmp_path):
    assert plots.save(figure, tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    assert "<svg" in plots.save(figure, str(tmp_path / "a.svg")).read_text()


def test_a_file_says_what_made_it(figure, tmp_path):
    with Image.open(plots.save(figure, tmp_path / "a.png")) as image:
        assert image.info["Software"] == f"vitshap {vitshap.__version__}"
    assert f"<dc:title>vitshap {vitshap.__version__}<" in plots.save(figure, tmp_path / "a.svg").read_text()


def test_in_a_document_the_map_and_the_picture_keep_their_transparency(figure, tmp_path):
    text = plots.save(figure, tmp_path / "a.svg").read_text()
    images = [Image.open(io.BytesIO(base64.b64decode(found))) for found in re.findall(r'base64,([^"]+)"', text)]
    picture, overlay, _ = images  # and the bar
    assert np.asarray(picture.convert("RGB"))[0, 0].tolist() == [160, 160, 160]  # 0.25 + 0.75 * 0.5
    alphas = np.asarray(overlay)[..., 3]
    assert np.unique(alphas).tolist() == [0, int(0.85 * 255)]
    assert (alphas > 0).mean() == pytest.approx(1 / 3, abs=0.01)


def test_resolution(figure, tmp_path):
    with Image.open(plots.save(figure, tmp_path / "a.png", dpi=60)) as image:
        np.testing.assert_allclose(image.size, figure.get_size_inches() * 60, atol=1)


@pytest.mark.parametrize(("name", "given"), [("a.gif", "the extension .gif"), ("figure", "no extension")])
def test_unknown_extensions_are_refused(figure, tmp_path, name, given):
    with pytest.raises(
        ValueError, match=f"{name} has {given}; figures are saved as .png, .jpg, .jpeg, .webp, .pdf, .svg"
    ):
        plots.save(figure, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_missing_folders_are_made_and_a_file_in_the_way_is_named(figure, tmp_path):
    assert plots.save(figure, tmp_path / "new" / "deep" / "a.png").exists()
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "a.png", tmp_path / "file" / "deep" / "a.png"):
        with pytest.raises(OSError, match=r"(exists|Not a directory): .*file"):
            plots.save(figure, path)


def test_a_failure_leaves_the_old_file_and_nothing_else(figure, tmp_path):
    path = tmp_path / "a.png"
    path.write_text("old")
    figure.axes[0].set_title("$\\nonsense$", parse_math=True)  # fails when it is drawn
    with pytest.raises(ValueError, match="nonsense"):
        plots.save(figure, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
