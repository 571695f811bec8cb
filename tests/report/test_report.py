"""The report is complete, safe and bounded, whatever the images and classes are called."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from PIL import Image

import vitshap
from vitshap import Explanation
from vitshap.report import Explained, Failed, ReportWriter, Summary, patches, words
from vitshap.report import writer as writing

EVIL = '<script>alert("x")</script> & \'"$name'
VOID = {"meta", "link", "img"}


def explained(
    name: str = "photo.png", *, names: tuple[str, ...] | None = ("cat", "dog"), unit: str = "probability", seed: int = 0
) -> Explained:
    """A photo of 80 x 60 pixels of which a net of 3 x 4 patches saw all but the outermost 10 left and right."""
    values = torch.randn(1, 12, 2, generator=torch.Generator().manual_seed(seed)) * 0.1
    prediction = torch.tensor([[0.3, 0.7]])
    explanation = Explanation(
        values=values,
        classes=torch.tensor([[1, 0]]),
        additive=True,
        unit=unit,  # type: ignore[arg-type]
        prediction=prediction,
        prediction_by="surrogate",
        players=torch.arange(12).view(1, 3, 4),
        method="explainer",
        base_values=prediction[:, [1, 0]] - values.sum(1),
        full_values=prediction[:, [1, 0]],
        image_box=torch.tensor([[10.0, 0.0, 70.0, 60.0]]),
        evaluations=1,
        class_names=names,
    )
    picture = Image.radial_gradient("L").resize((80, 60)).convert("RGB")
    return Explained(name, picture, (80, 60), explanation)


SUMMARY = Summary("bundle pets", "explainer", num_classes=2, class_names=("cat", "dog"), settings={"seed": "0"})


class _Nesting(HTMLParser):
    """Whether what is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _checked(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    nesting = _Nesting()
    nesting.feed(text)
    assert not nesting.open
    assert len(set(nesting.ids)) == len(nesting.ids)
    assert not re.search(r'(src|href)="(?!data:|#|report)', text), "nothing outside of the file is asked for"
    assert not re.search(r"url\((?!data:)|@import|<iframe|<object|fetch\(|XMLHttpRequest", text)
    return text


def test_it_says_what_it_should(tmp_path: Path) -> None:
    entry = replace(explained(), warnings=("none fits",), notes=("it is animated",))
    with ReportWriter(tmp_path / "new", SUMMARY, patches=3) as report:
        report.add(entry)
        report.add(Failed("bad.png", "the file is empty"))
    text = _checked(tmp_path / "new" / "report.html")
    for said in (
        "1 image explained, 1 could not be",
        "bundle pets",
        "change in probability",
        "how much seeing that patch raises",
        "cat, dog",
        "70.0%",
        "30.0%",
        "none fits",
        "it is animated",
        "the file is empty",
        "80 \N{MULTIPLICATION SIGN} 60 pixels",
        "3 \N{MULTIPLICATION SIGN} 4 patches",
        "Dashed: what the net sees",
    ):
        assert said in text, said
    assert text.count("<tr data-rank") == 3
    assert len(re.findall(r'<img src="data:image/webp;base64,[^"]+" alt="[^"]+', text)) == 3
    limit = words.plain(float(entry.explanation.values[0, :, 0].abs().max()))
    assert f"<span>+{limit}</span>" in text


def test_a_page_says_what_made_it(tmp_path: Path) -> None:
    with ReportWriter(tmp_path, SUMMARY) as report:
        report.add(explained())
    assert f'<meta name="generator" content="vitshap {vitshap.__version__}">' in _checked(report.path)


def test_names_are_text_never_markup(tmp_path: Path) -> None:
    names = (EVIL, "a\x1b[31m\u202ered\udcff")
    summary = Summary(EVIL, EVIL, num_classes=2, class_names=names, settings={EVIL: EVIL}, warnings=(EVIL,))
    with ReportWriter(tmp_path, summary) as report:
        report.add(replace(explained(EVIL, names=names), warnings=(EVIL,), notes=(EVIL,)))
        report.add(Failed(EVIL, EVIL))
    text = _checked(tmp_path / "report.html")
    assert text.count("<script>") == 1, "the page's own"
    assert "alert(&quot;x&quot;)" in text
    assert not set("\x1b\u202e\udcff") & set(text)


def test_pages_are_bounded_and_linked_and_old_ones_go(tmp_path: Path) -> None:
    def write(count: int) -> list[str]:
        with ReportWriter(tmp_path, SUMMARY, per_page=2) as report:
            for i in range(count):
                report.add(explained(f"{i}.png", seed=i))
        return sorted(path.name for path in tmp_path.iterdir())

    assert write(5) == ["report-2.html", "report-3.html", "report.html"]
    texts = [_checked(tmp_path / name) for name in ("report.html", "report-2.html", "report-3.html")]
    assert [text.count('<article class="card"') for text in texts] == [2, 2, 1]
    assert 'href="report-2.html"' in texts[0]
    assert 'href="report.html"' in texts[2]
    assert "page 3 of 3" in texts[2]
    for number, text in enumerate(texts):
        assert f"{2 * number}.png" in text
        assert f"{2 * number + 2}.png" not in text
    (tmp_path / "report-4.html").write_text("somebody's own")
    assert write(3) == ["report-2.html", "report-4.html", "report.html"]
    assert write(0) == ["report-4.html", "report.html"]
    _checked(tmp_path / "report.html")


def _write_and_raise(folder: Path, name: str, error: BaseException) -> None:
    with ReportWriter(folder, SUMMARY) as report:
        report.add(explained(name))
        raise error


@pytest.mark.parametrize(
    ("end", "said"), [(KeyboardInterrupt, "the run was interrupted"), (RuntimeError, "the run ended with an error")]
)
def test_what_was_done_is_kept_when_it_ends_early(tmp_path: Path, end: type[BaseException], said: str) -> None:
    with pytest.raises(end):
        _write_and_raise(tmp_path, "photo.png", end())
    assert said in _checked(tmp_path / "report.html")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_an_old_report_stays_when_a_new_one_cannot_be_written(tmp_path: Path) -> None:
    with ReportWriter(tmp_path, SUMMARY) as report:
        report.add(explained("old.png"))
    with pytest.raises(OSError, match="full"):
        _write_and_raise(tmp_path, "new.png", OSError("the disk is full"))
    assert "old.png" in (tmp_path / "report.html").read_text()


def test_many_failures_are_counted_and_the_first_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "FAILURES_LISTED", 3)
    with ReportWriter(tmp_path, SUMMARY) as report:
        for i in range(10):
            report.add(Failed(f"{i}.png", "why"))
    text = _checked(tmp_path / "report.html")
    assert "The first 3 of 10." in text
    assert "3.png" not in text


def test_patches_are_where_they_are() -> None:
    entry = explained()
    with torch.no_grad():
        entry.explanation.values[0, :, 0] = 0
        entry.explanation.values[0, 7, 0] = 1  # second row, last column
    best = patches(entry, 1, 1)[0]
    assert (best.player, best.row, best.column, best.place) == (7, 2, 4, "right side")
    assert best.box == pytest.approx((55, 20, 70, 40))
    assert best.cell == "row 2, column 4"
    assert best.stderr is None
    grouped = replace(
        entry.explanation,
        players=torch.tensor([[[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 2, 2]]]),
        values=entry.explanation.values[:, :3] * 0 + torch.tensor([[[1.0], [2.0], [5.0]]]),
        additive=False,
        base_values=None,
        full_values=None,
    )
    best = patches(replace(entry, explanation=grouped), 1, 1)[0]
    assert (best.row, best.column, best.place) == (3, 2.5, "lower centre")
    assert best.box == pytest.approx((10, 40, 70, 60))


OTHERS: dict[str, tuple[Callable[[Explanation], Explanation], str]] = {
    "with errors": (lambda e: replace(e, stderr=e.values.abs() * 0.1), "standard error up to"),
    "exact": (lambda e: replace(e, stderr=e.values * 0), "exact"),
    "not accurate": (lambda e: replace(e, converged=torch.tensor([False])), "NOT as accurate"),
    "accurate": (lambda e: replace(e, converged=torch.tensor([True])), "accuracy asked for was reached"),
    "not additive": (lambda e: replace(e, additive=False, base_values=None, full_values=None), "do not add up"),
    "scores": (
        lambda e: replace(e, additive=False, base_values=None, full_values=None, unit="score"),
        "scores have no unit",
    ),
    "all zero": (lambda e: replace(e, values=e.values * 0, base_values=e.full_values), "values from 0 to 0"),
    "no crop known": (lambda e: replace(e, image_box=None), "Numbers: the 5 patches listed.</figcaption>"),
    "no names": (lambda e: replace(e, class_names=None), "class 1"),
}


@pytest.mark.parametrize(("change", "said"), OTHERS.values(), ids=list(OTHERS))
def test_other_kinds_of_explanations(tmp_path: Path, change: Callable[[Explanation], Explanation], said: str) -> None:
    entry = explained()
    with ReportWriter(tmp_path, SUMMARY) as report:
        report.add(replace(entry, explanation=change(entry.explanation)))
    assert said in _checked(tmp_path / "report.html")


def test_regression_outputs_are_numbers_not_percentages(tmp_path: Path) -> None:
    with ReportWriter(tmp_path, replace(SUMMARY, outputs="output")) as report:
        report.add(explained(unit="output"))
    text = _checked(tmp_path / "report.html")
    assert "change in output" in text
    assert "70.0%" not in text
    assert ">0.7<" in text


@pytest.mark.parametrize(
    ("value", "text"), [(0.25, "25.0%"), (0.0001, "<0.1%"), (0.99999, ">99.9%"), (0.0, "0.0%"), (1.0, "100.0%")]
)
def test_probabilities_in_words(value: float, text: str) -> None:
    assert words.output_text(value, "probability") == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.048, "+0.0480"), (-2, "\N{MINUS SIGN}2.00"), (0, "0"), (12345.6, "+12,346"), (100, "+100")]
)
def test_values_in_words(value: float, text: str) -> None:
    assert words.signed(value) == text
