"""The report in a real browser: it asks for nothing, complains of nothing, fits every screen, and obeys the keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.explaining import chromium
from tests.explaining.test_report import SUMMARY, explained
from vitshap.explaining import Failed, ReportWriter

pytestmark = pytest.mark.skipif(chromium.FOUND is None, reason="there is no Chromium here")

COLOURS = """(() => {
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map((v) => v / 255)
      .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = (e) => {
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if (c !== "rgba(0, 0, 0, 0)") { return c; }
    }
    return "rgb(255, 255, 255)";
  };
  const bad = [];
  for (const e of document.querySelectorAll("body *:not(svg *):not(script)")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) { continue; }
    const [a, b] = [light(getComputedStyle(e).color), light(paper(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) { bad.push(e.tagName + "." + e.className + ": " + e.textContent.slice(0, 30)); }
  }
  return bad;
})()"""
"""Texts whose contrast is below what WCAG AA asks for."""
CUT_OFF = """[...document.querySelectorAll("main *:not(svg *)")].filter((e) =>
  e.getBoundingClientRect().right > WIDTH + 1 && !e.closest(".wide")).map((e) => e.outerHTML.slice(0, 80))"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    long = "a_very_long_name_without_any_blank_" * 4 + ".jpg"
    summary = replace(SUMMARY, warnings=("this net was not fine-tuned",), source="bundle " + "x" * 90)
    with ReportWriter(folder, summary, per_page=3) as writer:
        for i in range(4):
            writer.add(
                replace(explained(f"{i}-{long}", seed=i), warnings=("none of the classes fits",), notes=("moves",))
            )
        writer.add(Failed(long, "the file is empty"))
    return folder / "report.html"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Page]:
    with chromium.browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [chromium.DESKTOP, chromium.PHONE, (320, 600)], ids=["desktop", "phone", "narrow"])
def test_it_loads_whole_and_silent(
    page: chromium.Page, report: Path, size: tuple[int, int], dark: bool, tmp_path: Path
) -> None:
    page.requests.clear()
    page.complaints.clear()
    page.open(report, size=size, dark=dark)
    assert page.evaluate("document.querySelectorAll('.card').length") == 3
    assert page.evaluate("[...document.images].every((i) => i.complete && i.naturalWidth > 50)")
    assert page.evaluate("[...document.images].every((i) => i.alt.length > 5)")
    # not innerWidth: a phone shows a page that is too wide in a wider window
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0], "nothing to scroll sideways"
    assert page.evaluate(CUT_OFF.replace("WIDTH", str(size[0]))) == []
    assert page.evaluate(COLOURS) == []
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 200) is dark
    page.screenshot(tmp_path / "shot.png")
    assert {url.partition(":")[0] for url in page.requests} <= {"file", "data"}
    assert [url for url in page.requests if url.startswith("file:")] == [report.resolve().as_uri()]
    assert page.complaints == []


def test_the_theme_by_keyboard_and_kept(page: chromium.Page, report: Path) -> None:
    page.open(report)
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    for _ in range(2):  # past the link that skips to the images
        page.key("Tab")
    assert page.evaluate("document.activeElement.id") == "theme"
    page.key("Enter")
    page.key("Enter")
    assert page.evaluate("document.activeElement.textContent") == "Theme: dark"
    assert page.evaluate(background) != light
    page.open(report)
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.key("Tab")
    page.key("Tab")
    page.key("Enter")
    assert page.evaluate("document.activeElement.textContent") == "Theme: system"


def test_a_row_lights_its_patch_and_pages_are_reached(page: chromium.Page, report: Path) -> None:
    page.open(report)
    lit = "[...document.querySelectorAll('.lit')].map((e) => e.dataset.rank)"
    page.evaluate("document.querySelector('tr[data-rank=\"2\"]').focus()")
    assert page.evaluate(lit) == ["2", "2"]  # in the map and in the photo
    page.evaluate("document.activeElement.blur()")
    assert page.evaluate(lit) == []
    assert page.evaluate("document.querySelector('.pages a').href").endswith("report-2.html")
    assert page.complaints == []


@pytest.mark.parametrize("size", [chromium.DESKTOP, chromium.PHONE], ids=["desktop", "phone"])
def test_the_first_map_is_large_and_above_everything_else(
    page: chromium.Page, report: Path, size: tuple[int, int]
) -> None:
    page.open(report, size=size)
    places = page.evaluate(
        """[".main .map", ".said", ".photo", ".best", ".maps .map"].map((name) => {
          const box = document.querySelector(".card " + name).getBoundingClientRect();
          return [box.width, box.top];
        })"""
    )
    width, top = places[0]
    assert width > (0.8 if size == chromium.PHONE else 0.4) * size[0]
    assert all(other_top >= top - 1 and other <= width for other, other_top in (places[2], places[4]))
    if size == chromium.PHONE:
        assert [top for _, top in places] == sorted(top for _, top in places)


def test_the_scale_is_common_until_switched(page: chromium.Page, report: Path) -> None:
    page.open(report)
    shown = """[...new Set([...document.querySelectorAll(".maps img, .maps .scale span[class]")]
      .filter((e) => getComputedStyle(e).display !== "none").map((e) => e.className))]
      .filter((name) => ["common", "own"].includes(name))"""
    assert page.evaluate(shown) == ["common"]
    page.evaluate("document.querySelector('.switch').focus()")
    page.key("Enter")
    assert page.evaluate(shown) == ["own"]
    assert page.evaluate("[...new Set([...document.querySelectorAll('.switch')].map((e) => e.textContent))]") == [
        "All maps on one scale"
    ]
    page.key("Enter")
    assert page.evaluate(shown) == ["common"]
    assert page.complaints == []
