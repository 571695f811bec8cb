"""The report as a stream: a card is written when its image is done, the pages are put together at the end.

Cards go to one nameless temporary file, which is gone with the process whatever happens, so memory holds a line per image
of the current page and three numbers per page. How many images there are, and on how many pages, is known at the end only:
then each page is written whole beside its place and renamed. A page holds ``per_page`` cards; more make browsers slow.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator
from html import escape
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple

from vitshap.report import page
from vitshap.report.card import card
from vitshap.report.entries import Explained, Failed, Summary
from vitshap.report.words import output_text

PER_PAGE = 200
FAILURES_LISTED = 500
_CHUNK = 1 << 20


class _Page(NamedTuple):
    """Where in the temporary file a page's cards begin and end, and where its list of contents ends, which follows."""

    start: int
    end: int
    contents_end: int


class ReportWriter:
    """Writes ``report.html`` (and ``report-2.html`` and so on) into a folder; use it in a ``with`` statement.

    Whatever ends the statement, Ctrl-C or an error, the images that were added make a complete report.
    """

    def __init__(
        self, folder: str | os.PathLike[str], summary: Summary, /, *, patches: int = 5, per_page: int = PER_PAGE
    ) -> None:
        if per_page < 1:
            raise ValueError(f"a page holds at least one image, got {per_page}")
        self.folder, self.summary = Path(folder), summary
        self.folder.mkdir(parents=True, exist_ok=True)
        self.explained, self.failed = 0, 0
        self._patches, self._per_page = patches, per_page
        self._cards: BinaryIO = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115
        self._pages: list[_Page] = []
        self._page_start = 0
        self._contents: list[str] = []
        """Of the current page, a line per image."""
        self._failures: list[Failed] = []
        self._facts = page.Facts()

    @property
    def path(self) -> Path:
        """The first page."""
        return self.folder / page.file_name(1)

    def add(self, entry: Explained | Failed, /) -> None:
        """Take in one image."""
        if isinstance(entry, Failed):
            self.failed += 1
            if len(self._failures) < FAILURES_LISTED:
                self._failures.append(entry)
            return
        if self.explained == 0:
            self._facts = page.Facts.of(entry.explanation)
        elif self.explained % self._per_page == 0:
            self._end_page()
        self.explained += 1
        text = card(entry, self.explained, self.summary, k=self._patches)
        self._cards.write(f"{text}\n".encode("utf-8", "replace"))
        index, value = entry.predicted(1)[0]
        said = f"{entry.label(index)} {output_text(value, self.summary.outputs)}"
        link = f'<a href="#image-{self.explained}">{escape(entry.name)}</a>'
        self._contents.append(f'<li value="{self.explained}">{link} <span>{escape(said)}</span></li>')

    def __enter__(self) -> ReportWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the pages together; after a failing disk nothing more is tried."""
        nothing_done = error is not None and not self.explained  # then an earlier report stays
        try:
            if not isinstance(error, OSError) and not nothing_done:
                self._finish(error)
        finally:
            self._cards.close()

    def _end_page(self) -> None:
        end = self._cards.tell()
        self._cards.write("".join(self._contents).encode("utf-8", "replace"))
        self._pages.append(_Page(self._page_start, end, self._cards.tell()))
        self._page_start = self._cards.tell()
        self._contents.clear()

    def _finish(self, error: BaseException | None) -> None:
        self._end_page()
        count, counts = len(self._pages), self._counts(error)
        for number, (start, end, contents_end) in reversed(
            list(enumerate(self._pages, 1))
        ):  # the first page links to all
            contents = b"".join(self._stored(end, contents_end)).decode()
            head = page.head(self.summary, self._facts, number, count, counts, contents)
            tail = page.tail(self._failures if number == 1 else [], self.failed, number, count)
            _write(self.folder / page.file_name(number), head, self._stored(start, end), tail)
        self._remove_old(count)

    def _counts(self, error: BaseException | None) -> str:
        one = self.explained == 1
        text = f"{self.explained:,} image{'' if one else 's'} explained"
        text += f", {self.failed:,} could not be" if self.failed else ""
        if error is None:
            return text
        ended = "was interrupted" if isinstance(error, KeyboardInterrupt) else "ended with an error"
        return f"{text}; the run {ended}, this is what was done by then"

    def _stored(self, start: int, end: int) -> Iterator[bytes]:
        self._cards.seek(start)
        while (left := end - self._cards.tell()) > 0:
            yield self._cards.read(min(left, _CHUNK))

    def _remove_old(self, count: int) -> None:
        """Pages of an earlier, longer report in this folder; files of anybody else stay."""
        number = count + 1
        while (old := self.folder / page.file_name(number)).is_file():
            if page.MARK.encode() not in old.read_bytes()[:2000]:
                return
            old.unlink()
            number += 1


def _write(path: Path, head: str, cards: Iterator[bytes], tail: str) -> None:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(head.encode("utf-8", "replace"))
            for part in cards:
                file.write(part)
            file.write(tail.encode("utf-8", "replace"))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
