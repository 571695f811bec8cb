"""The report in a real browser: it asks for nothing, complains of nothing, fits every screen, and obeys the keyboard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser

from tests import chromium
from tests.chromium import DESKTOP, NARROW, PHONE, Tab
from tests.explaining.test_report import SUMMARY, explained
from vitshap.explaining import Failed, ReportWriter
from vitshap.explaining.curves import RemovalCurve

pytestmark = chromium.needs_browser


def curve(index: int = 1, method: str = "explainer") -> RemovalCurve:
    """As if dog fell from 0.7 to 0.1 while patches are removed, in the order of the values for a class."""
    counts = [0, 1, 3, 6, 9, 11, 12]
    falling = torch.linspace(0.7, 0.1, len(counts))
    outputs = torch.stack([1 - falling, falling], 1)
    order = [one.player for one in explained().explanation.top(12, index)[0]]
    random = torch.stack([falling.flip(0), falling.flip(0) + 0.1])
    return RemovalCurve(method, index, order, counts, outputs, outputs.flip(0), random)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    long = "a_very_long_name_without_any_blank_" * 4 + ".jpg"
    summary = replace(SUMMARY, warnings=("this net was not fine-tuned",), source="bundle " + "x" * 90)
    with ReportWriter(folder, summary, per_page=3) as writer:
        for i in range(4):
            entry = replace(explained(f"{i}-{long}", seed=i), warnings=("none of the classes fits",), notes=("moves",))
            other = replace(entry.explanation, method="kernelshap", stderr=entry.explanation.values.abs() * 0.6)
            scores = replace(
                entry.explanation, method="lrp", unit="score", additive=False, base_values=None, full_values=None
            )
            curves = (curve(), curve(0), curve(1, "kernelshap"))
            writer.add(replace(entry, curves=curves, others=(other, scores)) if i == 0 else entry)
        writer.add(Failed(long, "the file is empty"))
    return folder / "report.html"


@pytest.fixture
def opened(browser: Browser, report: Path) -> Iterator[Tab]:
    with chromium.tab(browser, report) as found:
        _wait(found)
        yield found
        assert found.complaints == []


def _wait(opened: Tab) -> None:
    opened.page.locator(".view").first.scroll_into_view_if_needed()
    opened.until("document.querySelector('.view')?.viewer !== undefined")


def _viewer(opened: Tab, expression: str) -> Any:
    return opened.page.evaluate(f"document.querySelector('.view').viewer.{expression}")


def _hidden(opened: Tab) -> list[int]:
    return [player for player, gone in enumerate(_viewer(opened, "coalition.hidden")) if gone]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE, NARROW], ids=["desktop", "phone", "narrow"])
def test_it_loads_whole_and_silent(
    browser: Browser, report: Path, size: tuple[int, int], dark: bool, tmp_path: Path
) -> None:
    with chromium.tab(browser, report, size=size, dark=dark) as opened:
        page = opened.page
        _wait(opened)
        for view in page.query_selector_all(".view"):
            view.scroll_into_view_if_needed()
        opened.until("[...document.querySelectorAll('.view')].every((view) => view.viewer)")
        assert page.locator(".card canvas.map").count() == 3
        # not innerWidth: a phone shows a page that is too wide in a wider window
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0], "nothing to scroll sideways"
        assert page.evaluate(chromium.CUT_OFF, size[0]) == []
        assert page.evaluate(chromium.FAINT) == []
        assert page.evaluate(chromium.UNNAMED) == []
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, background[4:-1].split(","))) < 200) is dark
        page.screenshot(path=tmp_path / "shot.png", full_page=True)
        assert {url.partition(":")[0] for url in opened.requests} <= {"file", "data"}
        assert [url for url in opened.requests if url.startswith("file:")] == [report.resolve().as_uri()]
        assert opened.complaints == []


def test_without_scripts_there_are_map_predictions_and_patches(browser: Browser, report: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.resolve().as_uri())
    card = page.locator(".card").first
    assert card.locator("img").evaluate("(image) => image.naturalWidth") == 320
    assert card.locator("table").count() == 2
    assert "70.0 %" in card.inner_text()
    context.close()


def test_the_theme_by_keyboard_and_kept(opened: Tab) -> None:
    page = opened.page
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    for _ in range(2):  # past the link that skips to the images
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "theme"
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert page.locator("#theme").inner_text() == "Theme: dark"
    assert page.evaluate(background) != light
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.locator("#theme").press("Enter")
    assert page.locator("#theme").inner_text() == "Theme: system"


def test_a_row_lights_its_patch_and_pages_are_reached(opened: Tab) -> None:
    page = opened.page
    best = explained().explanation.top(2, "dog")[0]
    page.locator('.card tr[data-rank="2"]').first.focus()
    assert _viewer(opened, "lit") == best[1].player
    page.evaluate("document.activeElement.blur()")
    assert _viewer(opened, "lit") is None
    assert (page.locator(".pages a").first.get_attribute("href") or "").endswith("report-2.html")


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_first_map_is_large_and_above_everything_else(
    browser: Browser, report: Path, size: tuple[int, int]
) -> None:
    with chromium.tab(browser, report, size=size) as opened:
        _wait(opened)
        names = ("canvas.map", ".said", ".best", ".curve", ".methods canvas", ".others canvas")
        boxes = [opened.page.locator(f".card {name}").first.bounding_box() for name in names]
        tops = [box["y"] for box in boxes if box is not None]
        assert len(tops) == len(names)
        width = boxes[0]["width"] if boxes[0] else 0
        assert width > (0.8 if size == PHONE else 0.4) * size[0]
        assert tops[2:] == sorted(tops[2:])
        assert tops[0] < tops[2]
        if size == PHONE:
            assert tops == sorted(tops)


def test_a_class_at_a_click_and_one_scale_until_switched(opened: Tab) -> None:
    page = opened.page
    values = explained().explanation.values.abs()
    limits = [100 * float(values.max()), 100 * float(values[..., 1].max())]
    line = page.locator(".others .line").first
    assert f"+{limits[0]:.1f} points" in line.inner_text()
    page.locator(".others .check").first.click()
    assert f"+{limits[1]:.1f} points" in line.inner_text()
    page.locator(".bars button", has_text="cat").first.click()
    assert page.locator(".card .scale .high").first.inner_text() == "raises 'cat'"
    page.locator("canvas.map").first.focus()
    page.keyboard.press("1")
    assert page.locator(".card .scale .high").first.inner_text() == "raises 'dog'"


def test_the_slider_removes_patches_to_the_evaluated_points(opened: Tab) -> None:
    page = opened.page
    slider = page.locator(".slide input").first
    slider.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert slider.input_value() == "3"
    assert _hidden(opened) == sorted(curve().order[:3])
    assert page.locator(".slide-row output").first.inner_text() == "3 of 12 patches removed: 50.0\N{NO-BREAK SPACE}%"
    assert "interaction" in page.locator(".game").first.inner_text()
    page.locator("canvas.map").first.focus()
    page.keyboard.press("[")
    assert slider.input_value() == "1"
    page.keyboard.press("z")
    assert slider.input_value() == "3"
    page.locator(".curve .choice label", has_text="add").first.click()
    assert page.locator(".slide-row output").first.inner_text().startswith("3 of 12 patches added: ")


def test_a_curve_has_the_order_of_the_chosen_class_or_says_whose(opened: Tab) -> None:
    page = opened.page
    title, note = (page.locator(f".curve {name}").first for name in ("h3", ".small"))
    assert "Grey: 3 random orders." in note.inner_text()
    page.locator(".bars button", has_text="cat").first.click()
    assert title.inner_text() == "Probability of cat while patches are removed, most important first"
    page.locator(".slide input").first.focus()
    page.keyboard.press("ArrowRight")
    assert _hidden(opened) == [explained().explanation.top(1, "cat")[0][0].player]
    page.locator(".methods .pick").nth(1).click()  # kernelshap has a curve for dog alone
    assert title.inner_text() == "Probability of cat while patches are removed, most important for dog first"
    assert note.inner_text() == "Line: patches in the order of their values for dog."
    page.locator(".methods .pick").nth(2).click()  # lrp has none
    assert title.inner_text() == "Probability of cat while patches are removed, most important first, by explainer"
    assert "in the order of their values, by explainer." in note.inner_text()


def test_scores_have_no_unit_and_no_common_scale(opened: Tab) -> None:
    page = opened.page
    heading, scale = page.locator(".best th").nth(1), page.locator(".methods .small").first
    assert heading.inner_text() == "percentage points"
    assert scale.inner_text().startswith("One scale for values of one unit: ")
    page.locator(".methods .pick").nth(2).click()  # lrp
    assert heading.inner_text() == "score"
    assert scale.inner_text() == "Scores have no unit: such a map has its own scale."
    figures = page.locator(".card").first.locator(".methods figure").all()
    assert all("own scale" in figure.inner_text() for figure in figures)


def test_patches_hidden_by_hand_have_the_sum_of_values_alone(opened: Tab) -> None:
    page = opened.page
    page.locator(".brushes label", has_text="hide").first.click()
    box = page.locator("canvas.map").first.bounding_box()
    assert box is not None
    # the photo has 80 x 60 pixels, the crop of 3 x 4 patches begins at x = 10: row 2, column 3 is patch 6
    page.mouse.click(box["x"] + box["width"] * (10 + 2.5 * 15) / 80, box["y"] + box["height"] * 0.5)
    assert _hidden(opened) == [6]
    said = page.locator(".game").first.inner_text()
    expected = 0.7 - float(explained().explanation.values[0, 6, 0])
    assert f"{100 * expected:.1f}\N{NO-BREAK SPACE}%" in said
    assert "The model is not in this file" in said


def test_uncertain_patches_can_be_left_out(opened: Tab) -> None:
    page = opened.page
    page.locator(".methods .pick").nth(1).click()
    assert _viewer(opened, "explanation.method") == "kernelshap"
    assert "Standard error up to" in page.locator(".stage .small").first.inner_text()
    coloured = """() => { const c = document.querySelector("canvas.map"); const copy = document.createElement("canvas");
      [copy.width, copy.height] = [c.width, c.height]; copy.getContext("2d").drawImage(c, 0, 0);
      const d = copy.getContext("2d").getImageData(0, 0, c.width, c.height).data;
      let n = 0; for (let i = 0; i < d.length; i += 4) { n += Math.abs(d[i] - d[i + 2]) > 4; } return n; }"""
    assert page.evaluate(coloured) > 1000
    page.locator(".card .check", has_text="only what is certain").first.click()
    assert page.evaluate(coloured) == 0, "every interval includes zero: 0.6 standard errors of 1.96"


def test_arrow_keys_say_value_and_interval(opened: Tab) -> None:
    page = opened.page
    page.locator(".methods .pick").nth(1).click()
    page.locator("canvas.map").first.focus()
    for key in ("ArrowUp", "ArrowUp", "ArrowLeft"):
        page.keyboard.press(key)
    value = float(explained().explanation.values[0, 1, 0])
    low, high = (100 * (value + side * 1.96 * 0.6 * abs(value)) for side in (-1, 1))
    said = page.locator(".readout").first.inner_text().replace("\N{MINUS SIGN}", "-").replace("\N{NO-BREAK SPACE}", " ")
    assert said == f"row 1, column 2: {100 * value:+.1f} points (95 % interval {low:.1f} to {high:.1f})"
    assert "with 95\N{NO-BREAK SPACE}% intervals" in page.locator(".best summary").first.text_content()
    best = explained().explanation.top(1, "dog")[0][0].value
    low, high = (100 * (best + side * 1.96 * 0.6 * abs(best)) for side in (-1, 1))
    cell = page.locator(".best tbody td.n").first.text_content().replace("\N{MINUS SIGN}", "-")
    shown = re.fullmatch(r"(\+\d+\.\d) \((-?\d+\.\d) to (-?\d+\.\d)\)", cell)
    assert shown is not None, cell
    assert [float(number) for number in shown.groups()] == pytest.approx([100 * best, low, high], abs=0.11)


@pytest.mark.parametrize(
    ("supporting", "title"),
    [
        ([], "No patch supports dog"),
        ([7], "The patch that supports dog most"),
        ([7, 3], "The 2 patches that support dog most"),
    ],
)
def test_the_table_holds_only_patches_that_support_the_class(
    supporting: list[int], title: str, tmp_path: Path, browser: Browser
) -> None:
    entry = explained()
    values = torch.full_like(entry.explanation.values, -0.1)
    values[0, supporting, 0] = 0.2
    loose = replace(entry.explanation, values=values, additive=False, base_values=None, full_values=None)
    entry = replace(entry, explanation=loose)
    with ReportWriter(tmp_path, SUMMARY) as report:
        report.add(entry)
    with chromium.tab(browser, report.path) as opened:
        opened.page.locator(".view").first.scroll_into_view_if_needed()
        opened.until("document.querySelector('.view')?.viewer !== undefined")
        assert opened.page.locator(".best summary").inner_text() == title
        assert opened.page.locator(".best tbody tr").count() == len(supporting)
        assert opened.complaints == []
