"""The report: pages of cards, written as a stream.

A card is written to a nameless temporary file when its image is done; the operating system removes that file with the
process. The number of images and pages is known only at the end: then each page is written atomically. So memory holds a
line per image of the current page and three numbers per page. A page holds ``per_page`` cards; more make browsers slow.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

from vitshap.explaining.dataset import DataSet
from vitshap.explaining.entries import Explained, Failed, Summary, printable
from vitshap.explaining.html import card, dataset_html, pairs_html, template
from vitshap.explaining.text import intervals, meaning, output_text
from vitshap.files import write_atomically
from vitshap.plots import SOFTWARE, UNIT_LABELS
from vitshap.viewer.page import joined_script, page_start

MARK = '<meta name="generator" content="vitshap '
"""Start of the line that identifies a page of vitshap; the version follows."""
PAGE_NAME = re.compile(r"report(-\d+)?\.html", re.IGNORECASE)
MARK_BYTES = 2000
"""Bytes at the start of a page that hold the mark."""
HEADING = "Which parts of each image drove the prediction"
PER_PAGE = 200
FAILURES_LISTED = 500
NEIGHBOURS = 3
"""Pages before and after the current one that are linked, besides the first and the last."""
_CHUNK = 1 << 20


class Section(NamedTuple):
    """A further part of the report, below the images."""

    title: str
    body: str
    """HTML."""


class _Page(NamedTuple):
    """Where in the temporary file a page's cards start and end, and where its table of contents, which follows, ends."""

    start: int
    end: int
    contents_end: int


class ReportWriter:
    """Write ``report.html`` (and ``report-2.html`` and so on) into a folder; use it in a ``with`` statement.

    However the statement ends, by Ctrl-C or an error, the images that were added make a complete report.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        summary: Summary,
        /,
        *,
        patches: int = 5,
        per_page: int = PER_PAGE,
        heading: str = HEADING,
        sections: Sequence[Section] = (),
        earlier: Mapping[str, Any] | None = None,
    ) -> None:
        """``earlier`` is a run with another model (``dataset.read_run``): the images on which they disagree are listed."""
        self.folder, self.summary = Path(folder), summary
        self.folder.mkdir(parents=True, exist_ok=True)
        self.explained, self.failed = 0, 0
        self._patches, self._per_page, self._heading, self._sections = patches, per_page, heading, sections
        self._cards: BinaryIO = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115
        self._pages: list[_Page] = []
        self._page_start = 0
        self._contents: list[str] = []
        """Of the current page, a line per image."""
        self._failures: list[Failed] = []
        self._facts = _Facts()
        self._dataset = DataSet(self.folder, earlier)

    @property
    def path(self) -> Path:
        """The first page."""
        return self.folder / _file_name(1)

    def add(self, entry: Explained | Failed, /) -> None:
        """Add one image."""
        if isinstance(entry, Failed):
            self.failed += 1
            if len(self._failures) < FAILURES_LISTED:
                self._failures.append(entry)
            return
        if self.explained == 0:
            self._facts = _Facts.of(entry)
        elif self.explained % self._per_page == 0:
            self._end_page()
        self.explained += 1
        self._dataset.add(entry, self.explained)
        html = card(entry, self.explained, self.summary, k=self._patches)
        self._cards.write(f"{html}\n".encode("utf-8", "replace"))
        index, value = entry.predicted(1)[0]
        predicted = f"{entry.label(index)} {output_text(value, self.summary.outputs)}"
        link = f'<a href="#image-{self.explained}">{escape(entry.name)}</a>'
        self._contents.append(f'<li value="{self.explained}">{link} <span>{escape(predicted)}</span></li>')

    def __enter__(self) -> ReportWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the pages, unless the disk failed, or an error came before the first image: then an old report stays."""
        try:
            if not isinstance(error, OSError) and (error is None or self.explained):
                self._finish(error)
        finally:
            self._cards.close()
            self._dataset.close()

    def _end_page(self) -> None:
        end = self._cards.tell()
        self._cards.write("".join(self._contents).encode("utf-8", "replace"))
        self._pages.append(_Page(self._page_start, end, self._cards.tell()))
        self._page_start = self._cards.tell()
        self._contents.clear()

    def _finish(self, error: BaseException | None) -> None:
        self._end_page()
        for number in range(len(self._pages), 0, -1):  # the first page last: it links to all others
            write_atomically(self.folder / _file_name(number), partial(self._write_page, number, error))
        self._remove_old(len(self._pages))

    def _write_page(self, number: int, error: BaseException | None, path: Path) -> None:
        start, end, contents_end = self._pages[number - 1]
        contents = b"".join(self._stored(end, contents_end)).decode()
        with path.open("wb") as file:
            file.write(self._head(number, self._counts(error), contents).encode("utf-8", "replace"))
            for part in self._stored(start, end):
                file.write(part)
            file.write(self._tail(number).encode("utf-8", "replace"))

    def _counts(self, error: BaseException | None) -> str:
        text = f"{self.explained:,} image{'' if self.explained == 1 else 's'} explained"
        text += f", {self.failed:,} could not be" if self.failed else ""
        if error is None:
            return text
        ended = "was interrupted" if isinstance(error, KeyboardInterrupt) else "ended with an error"
        return f"{text}; the run {ended} before it was complete"

    def _stored(self, start: int, end: int) -> Iterator[bytes]:
        self._cards.seek(start)
        while (left := end - self._cards.tell()) > 0:
            yield self._cards.read(min(left, _CHUNK))

    def _remove_old(self, count: int) -> None:
        """Remove the pages of an earlier, longer report in this folder; other files stay."""
        number = count + 1
        while (old := self.folder / _file_name(number)).is_file() and _is_report(old):
            old.unlink()
            number += 1

    def _head(self, number: int, counts: str, contents: str) -> str:
        """Return everything above the cards of page ``number``."""
        summary, count = self.summary, len(self._pages)
        where = "" if count == 1 else f" · page {number} of {count}"
        versions = {f"version of {name}": version for name, version in summary.versions.items()}
        settings = [(name, printable(value)) for name, value in {**summary.settings, **versions}.items()]
        return template("page.html").substitute(
            start=page_start(
                f"{self._heading}{where}",
                self._heading,
                f"{counts}{where}.",
                skip=("images", "Skip to the images"),
                generator=SOFTWARE,
            ),
            warnings="".join(
                f'<p class="warning"><strong>Warning:</strong> {escape(warning)}</p>' for warning in summary.warnings
            ),
            facts=_facts_html(summary, self._facts),
            legend=_legend(self._facts),
            meaning=f'<p class="meaning">{escape(self._facts.meaning)}</p>' if self._facts.meaning else "",
            classes=_classes(summary),
            settings=pairs_html(settings),
            contents=_contents(contents, count) + self._dataset_link(),
            pages=_links(number, count),
        )

    def _tail(self, number: int) -> str:
        """Return everything below the cards of page ``number``; sections and failures are on the first page.

        The data set as a whole is at the end of the last page.
        """
        first = number == 1
        return template("tail.html").substitute(
            dataset=self._dataset_section() if number == len(self._pages) else "",
            sections="\n".join(map(_section, self._sections)) if first else "",
            failures=_failures(self._failures, self.failed) if first else "",
            pages=_links(number, len(self._pages)),
            script=joined_script(),
        )

    def _dataset_link(self) -> str:
        where = "" if len(self._pages) == 1 else _file_name(len(self._pages))
        return f'<p><a href="{where}#dataset">The data set as a whole</a></p>' if self._dataset.images >= 2 else ""

    def _dataset_section(self) -> str:
        found = self._dataset.summary()
        if found is None:
            return ""

        def link(number: int) -> str:
            page = (number - 1) // self._per_page + 1
            return f"{'' if page == len(self._pages) else _file_name(page)}#image-{number}"

        body = dataset_html(found, link)
        return f'<section class="summary" id="dataset"><h2>The data set as a whole</h2>{body}</section>'


def refuse_foreign_report(folder: Path) -> None:
    """Raise if the folder holds a ``report.html`` that vitshap did not write: it would be replaced."""
    for path in sorted(folder.glob("report*.html")):
        if PAGE_NAME.fullmatch(path.name) and not (path.is_file() and _is_report(path)):
            raise ValueError(
                f"{path} was not written by vitshap explain and is not replaced: give another folder with --out"
            )


def _is_report(path: Path) -> bool:
    with path.open("rb") as file:
        return MARK.encode() in file.read(MARK_BYTES)


def _file_name(number: int) -> str:
    """Return ``report.html``, ``report-2.html``, ..."""
    return "report.html" if number == 1 else f"report-{number}.html"


@dataclass(frozen=True)
class _Facts:
    """What all explanations have in common, read from the first one."""

    unit: str = ""
    meaning: str = ""
    players: str = ""
    model: str = ""
    intervals: str = ""

    @classmethod
    def of(cls, entry: Explained) -> _Facts:
        explanation = entry.explanation
        rows, columns = explanation.grid
        players = explanation.values.shape[1]
        cells = f"{rows} \N{MULTIPLICATION SIGN} {columns} patches"
        surrogate = explanation.prediction_by == "surrogate"
        return cls(
            unit=UNIT_LABELS[explanation.unit],
            meaning=meaning(explanation),
            players=cells if players == rows * columns else f"{players} groups of {cells}",
            model="the surrogate, which was trained with withheld patches" if surrogate else "the model itself",
            intervals=intervals(entry),
        )


def _facts_html(summary: Summary, facts: _Facts) -> str:
    lines = {
        "Explained by": summary.source,
        "Method": summary.method,
        "Values are": facts.unit,
        "Patches": facts.players,
        "Predictions are those of": facts.model,
        "95 % intervals are": facts.intervals,
    }
    return "".join(f"<div>{pairs_html([line])}</div>" for line in lines.items() if line[1])


def _legend(facts: _Facts) -> str:
    """Return what the colours mean, in everyday words."""
    if not facts.unit:
        return ""
    score = facts.unit == UNIT_LABELS["score"]
    low, high = ("lower score", "higher score") if score else ("lowers the class", "raises it")
    colours = (
        "Red patches mattered more to the prediction, blue ones less or against it"
        if score
        else "Red patches raise the model's output for the class, blue ones lower it"
    )
    return (
        f'<p class="legend"><span class="low">{low}</span><span class="high">{high}</span>'
        f"<small>{colours}; the stronger the colour, the more. Patches without colour hardly matter. All maps of an image "
        "share one scale, which is written under them; a switch gives each map its own.</small></p>"
    )


def _classes(summary: Summary) -> str:
    if summary.num_classes == 0:
        return ""
    title = f"{summary.num_classes:,} class{'' if summary.num_classes == 1 else 'es'}"
    names = summary.class_names
    listed = "They have no names." if names is None else ", ".join(printable(name) for name in names)
    return f'<details><summary>{title}</summary><p class="classes">{escape(listed)}</p></details>'


def _contents(lines: str, count: int) -> str:
    if lines.count("<li") < 2:
        return ""
    title = "Images" if count == 1 else "Images on this page"
    opened = " open" if lines.count("<li") <= 12 else ""
    return f'<details{opened}><summary>{title}</summary><ol class="contents">{lines}</ol></details>'


def _section(section: Section) -> str:
    return f'<section class="summary"><h2>{escape(section.title)}</h2>{section.body}</section>'


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
    """Return links to the pages around this one, the first and the last."""
    if count == 1:
        return ""
    near = range(number - NEIGHBOURS, number + NEIGHBOURS + 1)
    shown = [page for page in range(1, count + 1) if page in near or page in (1, count)]
    parts = []
    for before, page in zip([0, *shown], shown, strict=False):
        parts.append("<span>…</span>" if page > before + 1 else "")
        here = f'<b aria-current="page">{page}</b>'
        parts.append(here if page == number else f'<a href="{_file_name(page)}">{page}</a>')
    return f'<nav class="pages" aria-label="Pages"><span>Page</span>{"".join(parts)}</nav>'
