"""The exported page in a real browser: photos are prepared as Pillow does, values equal torch's, and it works offline."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import PIL
import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser

from tests import chromium
from tests.chromium import DESKTOP, PHONE, Tab
from tests.explaining import made
from tests.full_disk import full_disk
from vitshap.bench.export import static_host
from vitshap.errors import CommandError
from vitshap.explainers import Explainer
from vitshap.exporting import export, export_web, web
from vitshap.exporting.command import Format, Options, run
from vitshap.models import Preprocess

TOLERANCE = 1e-4
PILLOW = int(PIL.__version__.partition(".")[0])


def encoded(photo: Image.Image, kind: str = "png") -> str:
    buffer = io.BytesIO()
    photo.save(buffer, kind)
    return base64.b64encode(buffer.getvalue()).decode()


@pytest.fixture(scope="module")
def runtime(request: pytest.FixtureRequest) -> Path:
    """The files of onnxruntime-web, fetched once and kept in pytest's cache; without them a test is skipped."""
    folder = Path(request.config.cache.mkdir(f"onnxruntime-web-{web.RUNTIME_VERSION}"))  # type: ignore[union-attr]
    if any(not (folder / name).is_file() for name in web.RUNTIME_FILES):
        try:
            web.copy_runtime(folder, None)
        except (ValueError, CommandError) as error:
            pytest.skip(f"there is no onnxruntime-web here: {error}")
    return folder


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small explainer with standard errors."""
    return made.bundle(tmp_path_factory.mktemp("web") / "insects", calibrated=True)


@pytest.fixture(scope="module")
def folder(bundle: Path, runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command writes."""
    out = tmp_path_factory.mktemp("web") / "page"
    assert run(Options(str(bundle), format=Format.web, out=out, onnxruntime_web=runtime)) == 0
    return out


@contextmanager
def opened(browser: Browser, folder: Path, size: tuple[int, int] = DESKTOP, dark: bool = False) -> Iterator[Tab]:
    """The page with its model loaded; whatever is done, it asks no other host and complains of nothing."""
    with static_host(folder) as address, chromium.tab(browser, address, size=size, dark=dark) as found:
        found.until("window.vitshap?.model")
        yield found
        assert found.complaints == []
        assert all(url.startswith((address, "data:", "blob:")) for url in found.requests)


FILE = """const file = (text, name = "photo.png") =>
  new File([Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))], name);"""
PREPARED = f"""async ([text, preprocess, pillow]) => {{
  {FILE}
  const {{ decodePhoto, modelInput }} = await import("./static/photo-input.js");
  const {{ pixels, box }} = modelInput(await decodePhoto(file(text)), preprocess, pillow);
  return {{ pixels: [...pixels], box }};
}}"""
EXPLAINED = f"""async ([text, coalitions]) => {{
  {FILE}
  const photo = file(text);
  const {{ backend }} = window.vitshap;
  return {{ explanation: await backend.explain(photo, {{}}), game: await backend.predict(photo, coalitions) }};
}}"""


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """Sharp edges everywhere: any other way of resizing would differ."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


THREE, ONE = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), ((0.5,), (0.25,))
PREPARATIONS = {
    "bicubic, shrunk": (noise(301, 207), Preprocess((32, 32), (36, 36), *THREE)),
    "bicubic, enlarged": (noise(13, 9), Preprocess((32, 32), (32, 32), *THREE)),
    "bilinear, tall": (noise(57, 211), Preprocess((24, 40), (30, 45), *THREE, interpolation="bilinear")),
    "lanczos, squashed": (noise(90, 41), Preprocess((32, 32), (32, 32), *THREE, interpolation="lanczos", squash=True)),
    "nearest": (noise(101, 64), Preprocess((32, 32), (37, 37), *THREE, interpolation="nearest")),
    "one channel": (noise(80, 50), Preprocess((32, 32), (33, 33), *ONE)),
    "grey": (noise(80, 50).convert("L"), Preprocess((32, 32), (33, 33), *THREE)),
    "tall, shrunk": (noise(120, 260), Preprocess((32, 32), (100, 100), *THREE)),
    "narrow": (noise(64, 300), Preprocess((48, 48), (60, 50), *THREE, squash=True)),
    "very long": (noise(3000, 2), Preprocess((224, 224), (224, 224), *THREE)),
    "very tall": (noise(2, 3000), Preprocess((224, 224), (224, 224), *THREE)),
}


def test_photos_are_prepared_as_in_python(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text('<!doctype html><link rel="icon" href="data:,"><title>empty</title>')
    static = Path(web.__file__).parents[1] / "viewer" / "static"
    (tmp_path / "static").symlink_to(static)
    with static_host(tmp_path) as address, chromium.tab(browser, address) as found:
        for name, (photo, preprocess) in PREPARATIONS.items():
            got = found.page.evaluate(PREPARED, [encoded(photo), preprocess.__dict__, PILLOW])
            assert got["pixels"] == pytest.approx(preprocess(photo).flatten().tolist(), abs=1e-6), name
            assert got["box"] == pytest.approx(preprocess.box(photo), abs=1e-6), name
        turned = noise(60, 40)
        exif = Image.Exif()
        exif[0x0112] = 6
        buffer = io.BytesIO()
        turned.save(buffer, "png", exif=exif)
        preprocess = PREPARATIONS["bicubic, shrunk"][1]
        text = base64.b64encode(buffer.getvalue()).decode()
        got = found.page.evaluate(PREPARED, [text, preprocess.__dict__, PILLOW])
        with Image.open(buffer) as photo:
            assert got["pixels"] == pytest.approx(preprocess(photo).flatten().tolist(), abs=1e-6)
        assert found.complaints == []


def test_values_equal_torch(browser: Browser, folder: Path, bundle: Path) -> None:
    explainer = Explainer.from_pretrained(bundle)
    described = json.loads((folder / "model" / "description.json").read_text())
    assert described["precision"] == "float16"
    generator = torch.Generator().manual_seed(0)
    with opened(browser, folder) as found:
        for seed in range(5):
            photo = noise(70 + seed, 50, seed) if seed % 2 else made.picture(seed)
            coalitions = torch.rand(5, 16, generator=generator) < 0.5
            bits = ["".join(str(int(one)) for one in row) for row in coalitions]
            got = found.page.evaluate(EXPLAINED, [encoded(photo), bits])
            expected, answer = explainer(photo), got["explanation"]
            assert answer["prediction"] == pytest.approx(expected.prediction[0].tolist(), abs=5 * TOLERANCE)
            assert [one["index"] for one in answer["classes"]] == expected.prediction[0].argsort(
                descending=True
            ).tolist()
            for one in answer["classes"]:
                values, errors = (table[0, :, one["index"]].tolist() for table in (expected.values, expected.stderr))
                assert one["values"] == pytest.approx(values, abs=5 * TOLERANCE)
                assert one["stderr"] == pytest.approx(errors, rel=0.05)  # of float16 weights
                assert 0 <= one["reliability"] <= 1
            assert answer["stderr_from"] == "calibrated on 120 held-out images"
            order = torch.tensor([[one["index"] for one in answer["classes"]]])
            own = torch.tensor([one["values"] for one in answer["classes"]], dtype=torch.float64).T[None]
            prediction = torch.tensor([answer["prediction"]], dtype=torch.float64)
            assert explainer.calibration is not None
            formula = explainer.calibration.stderr(own, order, prediction, True)[0].T
            for one, errors in zip(answer["classes"], formula.tolist(), strict=True):
                assert one["stderr"] == pytest.approx(errors, rel=TOLERANCE)
            model = explainer.surrogate
            outputs = model.game(model.prepare(photo).pixels)(coalitions[None])[0]
            assert np.abs(np.array(got["game"]["predictions"]) - outputs.numpy()).max() < 5 * TOLERANCE
            assert got["game"]["base"] == pytest.approx(explainer.null_values[0].tolist(), abs=1e-6)


def test_it_plays_without_a_network(browser: Browser, folder: Path, bundle: Path, tmp_path: Path) -> None:
    explainer = Explainer.from_pretrained(bundle)
    (photo,) = made.photos(tmp_path, 1)
    with static_host(folder) as address, chromium.tab(browser, address) as found:
        found.until("window.vitshap?.model")
        found.page.context.set_offline(True)
        found.page.goto("about:blank")
        found.page.goto(address)
        found.until("window.vitshap?.model")
        found.page.set_input_files("#file", photo)
        found.until("window.vitshap.panes[0]?.viewer?.curve")
        full = explainer.surrogate(photo)[0]
        assert made.NAMES[int(full.argmax())] in found.page.locator(".say").inner_text()
        assert not found.page.locator(".methods").is_visible(), "there is one method"
        box = found.page.locator("canvas.map").first.bounding_box()
        assert box is not None
        found.page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.5 * box["height"])
        found.page.mouse.down()
        found.page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.5 * box["height"], steps=8)
        found.page.mouse.up()
        found.until("window.vitshap.panes[0].viewer.now !== null && !window.vitshap.panes[0].viewer.asking")
        hidden = found.page.evaluate("[...window.vitshap.panes[0].viewer.coalition.hidden]")
        assert 2 <= sum(hidden) < 16
        shown = ~torch.tensor(hidden, dtype=torch.bool)
        expected = explainer.surrogate.game(explainer.surrogate.prepare(photo).pixels)(shown[None, None])[0, 0]
        now = found.page.evaluate("[...window.vitshap.panes[0].viewer.now.values()]")
        assert now == pytest.approx(expected.tolist(), abs=5 * TOLERANCE)
        with found.page.expect_download() as download:
            found.page.get_by_role("button", name="Report").click()
        assert made.NAMES[int(full.argmax())] in Path(download.value.path()).read_text()
        assert found.complaints == []
        assert all(url.startswith((address, "data:", "blob:", "about:")) for url in found.requests)


@pytest.mark.parametrize(("size", "dark"), [(DESKTOP, False), (PHONE, True)])
def test_it_can_be_read_by_everyone(browser: Browser, folder: Path, size: tuple[int, int], dark: bool) -> None:
    with opened(browser, folder, size, dark) as found:
        for sample in (False, True):
            if sample:
                found.page.locator("#samples button").first.click()
                found.until("window.vitshap.panes[0]?.viewer?.curve")
            assert found.page.evaluate(chromium.FAINT) == []
            assert found.page.evaluate(chromium.UNNAMED) == []
            assert found.page.evaluate(chromium.CUT_OFF, size[0]) == []


def test_a_photo_may_be_chosen_before_the_model_is_there(browser: Browser, folder: Path, tmp_path: Path) -> None:
    (photo,) = made.photos(tmp_path, 1)
    held_back = (
        "navigator.serviceWorker.register = () => new Promise((_, reject) => { window.goOn = () => reject(Error()); });"
    )
    with static_host(folder) as address, chromium.tab(browser, address) as found:
        found.page.add_init_script(held_back)
        found.page.goto(address)
        found.until("!!window.goOn")
        found.page.set_input_files("#file", photo)
        assert found.page.evaluate("window.vitshap.model") is None
        found.page.evaluate("window.goOn()")
        found.until("window.vitshap.panes[0]?.viewer?.curve")
        assert found.complaints == []


def test_what_cannot_be_read_is_said(browser: Browser, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "words.jpg"
    path.write_text("these are words")
    with opened(browser, folder) as found:
        found.page.set_input_files("#file", path)
        found.until("!document.getElementById('fault').hidden")
        assert "words.jpg could not be explained" in found.page.locator("#fault").inner_text()


def test_files_of_the_page(folder: Path, runtime: Path) -> None:
    page = (folder / "index.html").read_text()
    assert "static/web.js" in page
    assert "Content-Security-Policy" in page
    for name, expected in web.RUNTIME_FILES.items():
        assert export.sha256(folder / "onnxruntime-web" / name) == expected
    worker = (folder / "service-worker.js").read_text()
    listed = json.loads(worker.split("const PAGE = ")[1].split(";\n")[0])
    assert all((folder / path).exists() for path in listed)
    texts = [path.read_text() for path in folder.rglob("*") if path.suffix in (".js", ".html", ".css", ".json")]
    assert not any("https://" in text for text in texts), "nothing is loaded from elsewhere"


def test_runtime_of_another_version(runtime: Path, tmp_path: Path) -> None:
    explainer = made.explainer()
    for name in web.RUNTIME_FILES:
        (tmp_path / "dist").mkdir(exist_ok=True)
        (tmp_path / "dist" / name).write_bytes((runtime / name).read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"SHA-256.*expected 11e64bd8ffe1.*version 1\.30\.0"):
        export_web(explainer, tmp_path / "out", runtime=tmp_path)
    with pytest.raises(ValueError, match="does not hold ort-wasm"):
        export_web(explainer, tmp_path / "out", runtime=tmp_path / "dist" / "none")
    with full_disk(1_000_000), pytest.raises(OSError, match="could not be written"):
        export_web(explainer, tmp_path / "out", runtime=runtime)
    assert [path.name for path in tmp_path.iterdir()] == ["dist"]


def test_without_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ValueError, match=r"onnxruntime-web@1\.30\.0 with npm, which is not installed.*--onnxruntime-web"
    ):
        export_web(made.explainer(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_does_not_say_how_it_wants_photos(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="how the model wants photos"):
        export_web(made.explainer(preprocess=lambda photo: torch.zeros(3, 32, 32)), tmp_path / "out")
