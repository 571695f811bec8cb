"""Modules join into one script, data cannot leave its element, and the viewer says what Python says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser

from tests import chromium
from tests.explaining.test_one_probability import VALUES, one_probability
from tests.explaining.test_report import SUMMARY, explained
from tests.explaining.test_report_in_browser import curve
from tests.viewer.conftest import Server
from vitshap import plots, viewer
from vitshap.explaining import text
from vitshap.explaining.curves import RemovalCurve
from vitshap.explaining.html import entry_data
from vitshap.explanation import Original
from vitshap.viewer import page as pages

STATIC = Path(pages.__file__).parent / "static"


def test_every_module_is_joined_once_after_what_it_imports() -> None:
    script = viewer.joined_script()
    assert not re.search(r"^(import|export)\b", script, re.MULTILINE)
    assert script.count("class Viewer ") == script.count("function readExplanation(") == 1
    assert script.index("class Coalition ") < script.index("class Viewer ") < script.index("startReport();")
    assert "class Server" not in script, "a report asks no server"
    assert "</script" not in script


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        (
            {"a.js": 'import { b } from "./b.js";\nexport const x = 1;', "b.js": "export const x = 2;"},
            "defined twice: x",
        ),
        ({"a.js": 'import b from "./b.js";', "b.js": ""}, "imports as in"),
        (
            {"a.js": 'import { b } from "./b.js";', "b.js": 'import { a } from "./a.js";'},
            "import each other: a.js -> b.js",
        ),
    ],
    ids=["a name twice", "another form", "a circle"],
)
def test_modules_that_cannot_be_joined_are_refused(
    modules: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "static_text", modules.__getitem__)
    pages.joined_script.cache_clear()
    try:
        with pytest.raises(ValueError, match=said):
            viewer.joined_script("a.js")
    finally:
        pages.joined_script.cache_clear()


def test_names_cannot_end_the_script() -> None:
    data = {"name": "</script><script>alert(1)</script> & \u2028 <!--"}
    html = viewer.view_html(data, "<p>plain</p>")
    inside = re.fullmatch(
        r'<div class="view"><script type="application/json">(.*)</script><noscript><p>plain</p></noscript></div>', html
    )
    assert inside is not None
    assert not set("<>&\u2028") & set(inside[1])
    assert json.loads(inside[1]) == data


def test_the_page_has_no_inline_script_or_style() -> None:
    html = (STATIC / "index.html").read_text()
    assert (
        re.findall(r"<script(?! type=\"module\" src=\"static/[\w-]+\.js\"></script>)|<style|\sstyle=|\son\w+=", html)
        == []
    )
    assert set(re.findall(r'(?:src|href)="([^"]+)"', html)) == {
        "data:,",
        "static/style.css",
        "static/live.js",
        "#panes",
        *(f"static/samples/{name}.jpg" for name in ("temple", "flower", "portrait")),
    }


def _ask(browser: Browser, server: Server, module: str, call: str, argument: Any) -> Any:
    """Call a function of one of the viewer's modules."""
    with chromium.tab(browser, server.address) as opened:
        return opened.page.evaluate(
            f"async (given) => {{ const m = await import('/static/{module}'); return {call}; }}", argument
        )


@chromium.needs_browser
def test_numbers_are_written_as_in_python(browser: Browser, server: Server) -> None:
    shares = [0.0, 0.0001, 0.0005, 0.25, 0.986, 0.9994, 0.9996, 1.0]
    found = _ask(browser, server, "text.js", "given.map((v) => m.outputText(v))", shares)
    assert [one.replace("\N{NO-BREAK SPACE}", " ") for one in found] == [
        text.output_text(v, "probability") for v in shares
    ]
    numbers = [0.0, -3.21098, 12.3456, 999.7, -54321.0]
    found = _ask(browser, server, "text.js", "given.map((v) => m.outputText(v, 'output'))", numbers)
    assert found == [text.output_text(v, "output") for v in numbers]
    intervals = [(0.059, 0.071), (-0.0004, 0.001), (0.00001, 0.0007), (-0.000061, 0.00002), (0.0, 0.0), (-1e-9, 0.5)]
    for unit in ("probability", "logit"):
        found = _ask(browser, server, "text.js", f"given.map((ends) => m.intervalEnds(ends, '{unit}'))", intervals)
        assert found == [text.interval_text(one, unit) for one in intervals]
    for unit in ("probability", "logit"):
        values = [0.0, 0.0635, -0.0004, 0.048, -2.0, 12345.6, 100.0, -0.5]
        found = _ask(browser, server, "text.js", f"given.map((v) => m.valueText(v, '{unit}'))", values)
        assert found == [text.value_text(value, unit) for value in values]


@chromium.needs_browser
@pytest.mark.parametrize("with_curve", [False, True])
def test_the_first_line_is_as_in_python(browser: Browser, server: Server, with_curve: bool) -> None:
    for seed, error in ((0, None), (1, None), (2, None), (0, 0.05), (0, 0.6), (0, 2.0)):  # relative to the value
        entry = explained(seed=seed)
        stderr = None if error is None else error * entry.explanation.values.abs()
        entry = replace(entry, explanation=replace(entry.explanation, stderr=stderr))
        assert ("unreliable" in text.headline(entry, "probability")) == (error == 2.0)
        assert ("Most of this is uncertain" in text.headline(entry, "probability")) == (error == 0.6)
        count = int(text.supporting_players(entry.explanation.values[0, :, 0]))
        known = replace(curve(), counts=[0, count, 12], remove=torch.tensor([[0.3, 0.7], [0.75, 0.25], [0.9, 0.1]]))
        entry = replace(entry, curves=(known,) if with_curve else ())
        call = "m.headlineOf(m.readExplanation(given), given.curves[0])"
        found = _ask(browser, server, "explanation.js", call, entry_data(entry, SUMMARY, k=5))
        expected = re.sub(r", [+]\S+ percentage points", "", text.headline(entry, "probability"))
        assert found.replace("\N{NO-BREAK SPACE}", " ") == expected


@chromium.needs_browser
@pytest.mark.parametrize("probability", [0.368, 0.5, 0.52, 0.7])
def test_the_first_line_about_one_probability_is_as_in_python(
    browser: Browser, server: Server, probability: float
) -> None:
    many = torch.randn(12, generator=torch.Generator().manual_seed(0)) * 0.1
    for values, error in (
        (many, None),
        (many, 0.6),
        (many, 2.0),
        (VALUES, None),
        (many.abs(), None),
        (-many.abs(), None),
    ):
        entry = one_probability(probability, values)
        stderr = None if error is None else error * entry.explanation.values.abs()
        count = text.supporting_players(values)
        outputs = torch.tensor([[probability], [0.45], [0.1]])
        known = RemovalCurve("explainer", 0, [*range(12)], [0, count, 12], outputs, outputs.flip(0), torch.zeros(3, 3))
        for curves in ((), (known,)):
            entry = replace(entry, explanation=replace(entry.explanation, stderr=stderr), curves=curves)
            call = "m.headlineOf(m.readExplanation(given), given.curves[0])"
            found = _ask(browser, server, "explanation.js", call, entry_data(entry, SUMMARY, k=5))
            expected = re.sub(r", [+\N{MINUS SIGN}]\S+ percentage points", "", text.headline(entry, "probability"))
            assert found.replace("\N{NO-BREAK SPACE}", " ") == expected
            assert found.startswith("The model gives b_sick a probability of ")
            assert ("it would" in found) == (bool(curves) and probability >= 0.5 and count > 0)


@chromium.needs_browser
def test_the_first_line_about_one_number_is_as_in_python(browser: Browser, server: Server) -> None:
    entry = replace(one_probability(), outputs="output")
    data = entry_data(entry, replace(SUMMARY, outputs="output"), k=5)
    found = _ask(browser, server, "explanation.js", "m.headlineOf(m.readExplanation(given))", data)
    assert found == re.sub(r", [+]\S+ percentage points", "", text.headline(entry, "output"))


@chromium.needs_browser
@pytest.mark.parametrize("smooth", [False, True])
def test_maps_have_the_colours_of_the_plots(browser: Browser, server: Server, smooth: bool) -> None:
    entry = explained()
    explanation = replace(entry.explanation, image_box=None)
    data = entry_data(replace(entry, explanation=explanation), SUMMARY, k=5)
    call = f"""(() => {{
      const canvas = document.createElement("canvas"); [canvas.width, canvas.height] = [160, 120];
      const e = window.module.readExplanation(given);
      m.paintMap(canvas, e, null, {{ index: 1, limit: m.commonLimit([[e, 1]]), smooth: {str(smooth).lower()} }});
      return [...canvas.getContext("2d").getImageData(0, 0, 160, 120).data];
    }})()"""
    call = f"(window.module = await import('/static/explanation.js'), {call})"
    pixels = np.array(_ask(browser, server, "painting.js", call, data), dtype=float).reshape(120, 160, 4)[..., :3]
    white = Image.new("RGB", (160, 120), "white")
    look = plots.Look(smooth=smooth, base="photo")
    expected = np.asarray(
        plots.overlay_png(explanation.heatmap(1)[0].numpy(), white, max_side=160, look=look), dtype=float
    )
    difference = np.abs(pixels - expected).max(-1)
    assert np.quantile(difference, 0.98) <= (12 if smooth else 2)


@chromium.needs_browser
def test_an_explanation_shows_itself_in_a_notebook(browser: Browser, tmp_path: Path) -> None:
    entry = explained()
    shown = replace(entry.explanation, originals=(Original(entry.picture, entry.size),))
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><title>notebook</title><h1>cells</h1>{shown._repr_html_()}")
    with chromium.tab(browser, notebook) as opened:
        frame = opened.page.frame_locator("iframe")
        frame.locator("canvas.map").wait_for()
        assert frame.locator(".scale .high").inner_text() == "raises 'dog'"
        assert frame.locator(".say").inner_text().startswith("The model predicts dog (70.0")
        assert opened.page.locator("iframe").get_attribute("title") == repr(shown)
        assert opened.page.evaluate("getComputedStyle(document.querySelector('h1')).margin") != "0px", (
            "outside nothing changes"
        )
        assert {url.partition(":")[0] for url in opened.requests} <= {"file", "data", "about"}
        assert opened.complaints == []


def test_a_notebook_shows_a_batch_and_an_explanation_without_a_photo() -> None:
    one = explained().explanation
    both = replace(
        one,
        **{
            name: getattr(one, name).repeat(2, *[1] * (getattr(one, name).ndim - 1))
            for name in ("values", "classes", "prediction", "base_values", "full_values", "image_box")
        },
    )
    html = both._repr_html_()
    assert html is not None
    assert html.count("&quot;grid&quot;:[3,4]") == 2
    assert "&quot;picture&quot;:null" in html
    assert replace(one, players=torch.arange(12)[None])._repr_html_() is None, "no rows and columns"
    picture = Original(Image.new("RGB", (80, 60)), (80, 60))
    assert len(replace(both, originals=(picture, picture))[1].originals or ()) == 1
    with pytest.raises(ValueError, match="one photo per image: 2 images, 1 photos"):
        replace(both, originals=(picture,))


def test_photos_are_not_stored(tmp_path: Path) -> None:
    one = explained().explanation
    shown = replace(one, originals=(Original(Image.new("RGB", (80, 60)), (80, 60)),))
    shown.save(tmp_path / "one.safetensors")
    loaded = type(one).load(tmp_path / "one.safetensors")
    assert loaded.originals is None
    assert torch.equal(loaded.values, one.values)
