"""A real browser for the tests: Debian's chromium, driven by Playwright."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
EXECUTABLE = next((path for name in NAMES if (path := shutil.which(name))), None)
DESKTOP, PHONE, NARROW = (1280, 900), (390, 844), (320, 600)
needs_browser = pytest.mark.browser
"""For tests that use a browser: skipped without one; ``tests/conftest.py`` makes any other skip a failure."""

FAINT = """() => {
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
  for (const e of document.querySelectorAll("body *:not(svg *):not(script):not(option)")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || e.closest(":disabled")) { continue; }
    const [a, b] = [light(getComputedStyle(e).color), light(paper(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) { bad.push(e.tagName + "." + e.className + ": " + e.textContent.slice(0, 30)); }
  }
  return bad;
}"""
"""Texts whose contrast is below what WCAG AA asks for."""
UNNAMED = """() => [...document.querySelectorAll("button, input, select, canvas[tabindex], [role=region]")].filter((e) =>
  e.checkVisibility() && !e.textContent.trim() && !e.getAttribute("aria-label") && !(e.labels && e.labels.length))
  .map((e) => e.outerHTML.slice(0, 80))"""
"""Controls without a name for screen readers."""
CUT_OFF = """(width) => [...document.querySelectorAll("main *:not(svg *)")].filter((e) =>
  e.getBoundingClientRect().right > width + 1 && !e.closest(".wide")).map((e) => e.outerHTML.slice(0, 80))"""


class Tab:
    """A page, what it asked the network for, and what it complained of."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def until(self, condition: str, seconds: float = 30) -> Any:
        """Wait until a line of JavaScript gives something true; return it."""
        deadline = time.monotonic() + seconds
        while not (found := self.page.evaluate(condition)):
            assert time.monotonic() < deadline, f"never true: {condition}; {self.complaints}"
            self.page.wait_for_timeout(20)
        return found


@contextmanager
def tab(browser: Browser, address: str | Path, *, size: tuple[int, int] = DESKTOP, dark: bool = False) -> Iterator[Tab]:
    """Open an address in a new window of this size; a small one is a phone's."""
    phone = size[0] < 600
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if dark else "light",
        is_mobile=phone,
        has_touch=phone,
        accept_downloads=True,
    )
    try:
        opened = Tab(context.new_page())
        opened.page.goto(address.resolve().as_uri() if isinstance(address, Path) else address)
        yield opened
    finally:
        context.close()


@contextmanager
def launched() -> Iterator[Browser]:
    """Start the browser without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=EXECUTABLE, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()
