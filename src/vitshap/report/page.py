"""What stands around the cards: the summary above, failures below, links between pages; style and script inside."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from html import escape
from importlib.resources import files
from string import Template

from vitshap.explanation import Explanation
from vitshap.plots import SOFTWARE, UNIT_LABELS
from vitshap.report.entries import Failed, Summary, printable
from vitshap.report.inline import scale_uri
from vitshap.report.words import meaning

MARK = '<meta name="generator" content="vitshap '
"""How the line begins by which a page is known as one of ours; the version follows."""
HEADING = "Which parts of each image drove the prediction"
NEIGHBOURS = 3
"""Pages before and after the current one that are linked, besides the first and the last."""


@dataclass(frozen=True)
class Facts:
    """What the first explanation says of all of them."""

    unit: str = ""
    meaning: str = ""
    players: str = ""
    net: str = ""

    @classmethod
    def of(cls, explanation: Explanation) -> Facts:
        """Read them off."""
        rows, columns = explanation.grid
        players = explanation.values.shape[1]
        cells = f"{rows} \N{MULTIPLICATION SIGN} {columns} patches"
        return cls(
            unit=UNIT_LABELS[explanation.unit],
            meaning=meaning(explanation),
            players=cells if players == rows * columns else f"{players} groups of {cells}",
            net="the surrogate, which was taught to cope with missing patches"
            if explanation.prediction_by == "surrogate"
            else "the net itself",
        )


def file_name(number: int) -> str:
    """``report.html``, ``report-2.html``, ..."""
    return "report.html" if number == 1 else f"report-{number}.html"


def head(summary: Summary, facts: Facts, number: int, count: int, counts: str, contents: str) -> str:
    """Everything above the cards of page ``number``."""
    known = summary.class_names
    classes = f"{summary.num_classes:,} class{'' if summary.num_classes == 1 else 'es'} known"
    listed = "They have no names." if known is None else ", ".join(printable(name) for name in known)
    where = "" if count == 1 else f" · page {number} of {count}"
    settings = {**summary.settings, **{f"version of {name}": text for name, text in summary.versions.items()}}
    return _template("page.html").substitute(
        generator=escape(SOFTWARE),
        title=escape(f"{HEADING}{where}"),
        heading=escape(HEADING),
        css=_text("page.css"),
        scale=scale_uri(),
        counts=escape(f"{counts}{where}."),
        warnings="".join(
            f'<p class="warning"><strong>Careful:</strong> {escape(text)}</p>' for text in summary.warnings
        ),
        facts=_facts(summary, facts),
        legend=_legend(facts),
        meaning=f'<p class="meaning">{escape(facts.meaning)}</p>' if facts.meaning else "",
        classes_title=escape(classes),
        classes=escape(listed),
        settings=_pairs(settings),
        contents=_contents(contents, count),
        pages=_links(number, count),
    )


def tail(failures: list[Failed], failed: int, number: int, count: int) -> str:
    """Everything below the cards; ``failures`` may be the first few of ``failed``."""
    return _template("tail.html").substitute(
        failures=_failures(failures, failed), pages=_links(number, count), script=_text("page.js")
    )


def _facts(summary: Summary, facts: Facts) -> str:
    lines = {
        "Explained by": summary.source,
        "Method": summary.method,
        "Values are": facts.unit,
        "Patches": facts.players,
        "Predictions are those of": facts.net,
    }
    filled = {name: text for name, text in lines.items() if text}
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in filled.items())


def _legend(facts: Facts) -> str:
    """What the colours mean, in words for everybody."""
    if not facts.unit:
        return ""
    score = facts.unit == UNIT_LABELS["score"]
    low, high = ("lower score", "higher score") if score else ("lowers the class", "raises it")
    said = (
        "Red patches mattered more to the prediction, blue ones less or against it"
        if score
        else "Red patches raise what the model says of the class, blue ones lower it"
    )
    return (
        f'<p class="legend"><span>{low}</span><span class="strip" aria-hidden="true"></span><span>{high}</span>'
        f"<small>{said}; the stronger the colour, the more. Patches without colour hardly matter. All maps of an image "
        "have one scale, which is written under them; a button gives each its own.</small></p>"
    )


def _pairs(settings: dict[str, str]) -> str:
    return "".join(f"<dt>{escape(name)}</dt><dd>{escape(printable(text))}</dd>" for name, text in settings.items())


def _contents(lines: str, count: int) -> str:
    if lines.count("<li") < 2:
        return ""
    title = "Images" if count == 1 else "Images on this page"
    opened = " open" if lines.count("<li") <= 12 else ""
    return f'<details{opened}><summary>{title}</summary><ol class="contents">{lines}</ol></details>'


def _failures(failures: list[Failed], failed: int) -> str:
    if not failures:
        return ""
    rows = "".join(f"<tr><td>{escape(one.name)}</td><td>{escape(one.reason)}</td></tr>" for one in failures)
    more = f"<p>The first {len(failures):,} of {failed:,}.</p>" if failed > len(failures) else ""
    return (
        '<section class="failed" id="failed"><h2>Images that could not be explained</h2><table><thead><tr>'
        f'<th scope="col">file</th><th scope="col">why</th></tr></thead><tbody>{rows}</tbody></table>{more}</section>'
    )


def _links(number: int, count: int) -> str:
    """Links to the pages around this one, the first and the last."""
    if count == 1:
        return ""
    near = range(number - NEIGHBOURS, number + NEIGHBOURS + 1)
    shown = [page for page in range(1, count + 1) if page in near or page in (1, count)]
    parts = []
    for before, page in zip([0, *shown], shown, strict=False):
        parts.append("<span>…</span>" if page > before + 1 else "")
        here = f'<b aria-current="page">{page}</b>'
        parts.append(here if page == number else f'<a href="{file_name(page)}">{page}</a>')
    return f'<nav class="pages" aria-label="Pages"><span>Page</span>{"".join(parts)}</nav>'


@lru_cache
def _text(name: str) -> str:
    return (files("vitshap.report") / name).read_text(encoding="utf-8").strip()


@lru_cache
def _template(name: str) -> Template:
    return Template(_text(name))
