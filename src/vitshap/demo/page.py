"""The demo's ``report.html``: numbers, pictures and photos in one file that loads nothing, in the reports' own style."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from PIL import Image

from vitshap.demo.compare import HEADINGS, NOTE, Comparison, cells, theorem_lines
from vitshap.demo.photos import PATCHES, Photos
from vitshap.demo.pictures import Drawn
from vitshap.plots import SOFTWARE
from vitshap.report.card import card
from vitshap.report.inline import data_uri, scale_uri

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="$generator">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>vitshap demo</title>
<link rel="icon" href="data:,">
<style>
$css
.strip { background-image: url($scale); }
.drawn { margin: 1rem 0 0; }
.drawn img { display: block; max-width: max(100%, 34rem); height: auto; border-radius: .35rem; background: #fff; }
.part { margin: 2rem 0 0; }
</style>
</head>
<body>
<header class="top"><div><h1>Shapley values in one forward pass</h1>
<p class="lead">What vitshap demo found on this machine: digits whose exact values are known, and photos.</p></div>
<button type="button" id="theme" hidden>Theme: system</button></header>
<main>
$parts
</main>
<footer><p>Made by vitshap demo. This file is complete in itself: it loads nothing and sends nothing.</p></footer>
<script>
$script
</script>
</body>
</html>
""")  # noqa: E501


def write_page(
    path: Path,
    comparison: Comparison,
    trained: Sequence[str],
    digits: Sequence[Drawn],
    training: Sequence[Drawn],
    photos: Photos,
) -> None:
    """Write it whole or not at all; ``trained``: what the trainings gave, in words."""
    parts = [
        _section(
            f"{len(comparison.images)} unseen digits: correlation with the exact Shapley values", _table(comparison)
        ),
        _section("Theorem 1 on these digits", _theorem(comparison)),
        _section("What the values look like", _figure(digits[0]) + _folded("Other classes of each digit", digits[1:])),
        *_photos(photos),
        _section("Training on digits", "".join(f"<p>{escape(line)}</p>" for line in trained) + _figures(training)),
    ]
    page = _PAGE.substitute(
        generator=escape(SOFTWARE),
        css=_own("page.css"),
        script=_own("page.js"),
        scale=scale_uri(),
        parts="\n".join(parts),
    )
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(page, encoding="utf-8")
    os.replace(temporary, path)


def _section(title: str, body: str) -> str:
    return f'<section class="summary"><h2>{escape(title)}</h2>{body}</section>'


def _folded(title: str, pictures: Sequence[Drawn]) -> str:
    return f"<details><summary>{escape(title)}</summary>{_figures(pictures)}</details>" if pictures else ""


def _figures(pictures: Sequence[Drawn]) -> str:
    return "".join(map(_figure, pictures))


def _figure(drawn: Drawn) -> str:
    with Image.open(drawn.path) as image:
        width, height = image.size
        address = data_uri(image.convert("RGB"))
    caption = escape(drawn.caption)
    return (
        f'<figure class="drawn"><div class="wide" tabindex="0" role="region" aria-label="{caption}">'
        f'<img src="{address}" width="{width}" height="{height}" alt="{caption}"></div>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _table(comparison: Comparison) -> str:
    head = "".join(f'<th scope="col"{_right(i)}>{escape(text)}</th>' for i, text in enumerate(HEADINGS))
    rows = "".join(
        "<tr>" + "".join(f"<td{_right(i)}>{escape(text)}</td>" for i, text in enumerate(cells(line))) + "</tr>"
        for line in comparison.lines
    )
    return (
        "<p>All methods estimate the values of the same game, the surrogate's; a number after a name is how many "
        f"evaluations it was given. {NOTE}</p>"
        '<div class="wide" tabindex="0" role="region" aria-label="Methods beside the exact values"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _theorem(comparison: Comparison) -> str:
    facts = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in theorem_lines(comparison.theorem)
    )
    return (
        "<p>The explainer's loss bounds its distance from the exact Shapley values, without knowing them. Here they are "
        "known: losses and errors are sums over all coalitions, means over these digits and all classes.</p>"
        f'<dl class="facts">{facts}</dl>'
    )


def _photos(photos: Photos) -> list[str]:
    title = '<h2 class="part">Photos, by the explainer that comes with the package</h2>'
    if photos.summary is None:
        return [title, f'<p class="warning">{escape(photos.said)}</p>']
    cards = [card(entry, i, photos.summary, k=PATCHES) for i, entry in enumerate(photos.entries, 1)]
    return [title, f"<p>{escape(photos.summary.source)}.</p>", *cards]


def _right(column: int) -> str:
    return ' class="n"' if column else ""


def _own(name: str) -> str:
    return (files("vitshap.report") / name).read_text(encoding="utf-8").strip()
