"""The report is complete, safe and bounded, whatever the images and classes are called."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import vitshap
from vitshap import Explanation
from vitshap.explaining import Explained, Failed, ReportWriter, Summary, patches
from vitshap.explaining import report as writing
from vitshap.explaining import text as texts

EVIL = '<script>alert("x")</script> & \'"$name'
PLACES = {f"{down} {across}" for down in ("upper", "lower") for across in ("left", "centre", "right")} | {
    "centre",
    "left side",
    "right side",
}
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
    assert not re.search(r"url\((?!data:)|@import|<iframe|<object|XMLHttpRequest", text)
    assert "default-src 'none'" in text, "the browser would refuse any request"
    return re.sub(r"<script>.*?</script>", "<script></script>", text, flags=re.DOTALL)  # what it says, not what it does


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
        "70.0&nbsp;%",
        "30.0 %",
        "none fits",
        "it is animated",
        "the file is empty",
        "80 \N{MULTIPLICATION SIGN} 60 pixels",
        "3 \N{MULTIPLICATION SIGN} 4 patches",
        "Patches that support dog most",
        "Red patches raise the model's output for the class, blue ones lower it",
        "Rows and columns are counted from 1",
    ):
        assert said in text, said
    assert not re.search(r"\b[Oo]range (speaks|patch)", text), "red and blue, as in every other picture"
    assert text.index("The model predicts dog (70.0&nbsp;%)") < text.index("Technical details")
    (view,) = _views(text)
    assert view["listed"] == 3
    assert view["picture"].startswith("data:image/webp")


def _views(text: str) -> list[dict[str, Any]]:
    """What the viewer gets, image by image."""
    return [json.loads(data) for data in re.findall(r'<script type="application/json">(.*?)</script>', text)]


def test_the_viewer_gets_every_number(tmp_path: Path) -> None:
    entry = explained()
    stderr = entry.explanation.values.abs() * 0.1
    shown = replace(entry.explanation, stderr=stderr)
    other = replace(entry.explanation, method="lrp", unit="score", additive=False, base_values=None, full_values=None)
    with ReportWriter(tmp_path, SUMMARY) as report:
        report.add(replace(entry, explanation=shown, others=(other,)))
    (view,) = _views(_checked(report.path))
    best = shown.top(1, entry.main)[0][0].value  # of the table for browsers without scripts
    interval = f"{100 * best:+.1f} ({80.4 * best:.1f} to {119.6 * best:.1f})"
    assert f'<td class="n">{interval}</td>' in report.path.read_text()
    assert (view["grid"], view["players"], view["box"]) == ([3, 4], list(range(12)), [10, 0, 70, 60])
    assert (view["image_size"], view["unit"], view["additive"]) == ([80, 60], "probability", True)
    assert [(one["name"], one["probability"]) for one in view["predictions"]] == [("dog", 0.7), ("cat", 0.3)]
    for column, one in enumerate(view["classes"]):
        assert one["index"] == entry.classes[column]
        assert one["values"] == pytest.approx(shown.values[0, :, column].tolist(), rel=1e-4)
        assert one["stderr"] == pytest.approx(stderr[0, :, column].tolist(), rel=1e-4)
        assert one["base"] == pytest.approx(float(shown.base_values[0, column]), rel=1e-4)  # type: ignore[index]
        assert one["reliability"] == pytest.approx(texts.reliability(replace(entry, explanation=shown), one["index"]))
    assert [(one["method"], one["unit"], one["classes"][0]["base"]) for one in view["others"]] == [
        ("lrp", "score", None)
    ]
    assert view["curves"] == []


def test_a_photo_in_words_for_everybody() -> None:
    entry = explained()
    loose = replace(entry.explanation, additive=False, base_values=None, full_values=None)  # values may be changed
    entry = replace(entry, explanation=loose)
    values = entry.explanation.values
    values[:] = 0
    values[0, [1, 2], 0] = torch.tensor([0.4, 0.2])  # upper centre
    values[0, 11, 0] = 0.1
    assert texts.headline(entry, "probability") == (
        "The model predicts dog (70.0 %). It mostly looks at the upper centre: 1 of 12 patches makes up half of the "
        "support for dog, +40.0 percentage points."
    )
    values[0, :, 0] = torch.tensor([0.1, -0.3, 0, 0.1, 0, 0, 0, 0, 0.1, 0, 0, 0.1])
    assert "at the upper left and the upper right: 2 of 12 patches make up half" in texts.headline(entry, "probability")
    values[0, :, 0] = 0.1
    assert "It looks at many places: 6 of 12 patches" in texts.headline(entry, "probability")
    values[0, :, 0] = torch.tensor([0.1, -0.1] * 6)
    for error, said in (
        (0.2, "unreliable: its estimated reliability is 0.00"),
        (0.06, "95 % interval of 3 of these 3"),
    ):
        sampled = replace(entry, explanation=replace(entry.explanation, stderr=torch.full_like(values, error)))
        assert said in texts.headline(sampled, "probability")
    certain = replace(entry, explanation=replace(entry.explanation, stderr=torch.full_like(values, 0.01)))
    assert texts.headline(certain, "probability") == texts.headline(entry, "probability")
    values[0, :, 0] = -0.1
    assert "No patch of the photo supports dog." in texts.headline(entry, "probability")
    only_cat = replace(entry.explanation, values=values[..., 1:], classes=torch.tensor([[0]]))
    said = texts.headline(replace(entry, explanation=only_cat), "probability")
    assert "The map is for cat (30.0 %), as requested." in said
    labels = replace(entry.explanation, prediction=torch.tensor([[0.09, 0.03]]))  # of several labels, none is predicted
    said = texts.headline(replace(entry, explanation=labels), "probability")
    assert said.startswith("The model finds cat most probable (9.0 %). ")


def test_only_patches_of_positive_value_support_a_class() -> None:
    entry = explained()
    values = torch.full_like(entry.explanation.values, -0.1)
    values[0, [7, 3], 0] = torch.tensor([0.2, 0.1])
    loose = replace(entry.explanation, values=values, additive=False, base_values=None, full_values=None)
    entry = replace(entry, explanation=loose)
    ((heading, found),) = texts.important_patches(entry, 5, 1)
    assert (heading, [patch.player for patch in found]) == ("patches that support dog most", [7, 3])
    assert texts.important_patches(entry, 5, 0) == [("no patch supports cat", [])]
    score = replace(entry, explanation=replace(entry.explanation, unit="score"))
    ((_, ranked),) = texts.important_patches(score, 5, 0)
    assert len(ranked) == 5, "scores only rank patches"


def test_hints_for_tiny_photos_and_panoramas(tmp_path: Path) -> None:
    entry = explained()
    assert texts.hints(entry) == []
    tiny = replace(
        entry,
        picture=entry.picture.resize((4, 3)),
        size=(4, 3),
        explanation=replace(entry.explanation, image_box=torch.tensor([[0.5, 0, 3.5, 3]])),
    )
    (hint,) = texts.hints(tiny)
    assert "very small, 4 \N{MULTIPLICATION SIGN} 3 pixels" in hint
    panorama = replace(
        entry,
        picture=Image.new("RGB", (400, 50)),
        size=(800, 100),
        explanation=replace(entry.explanation, image_box=torch.tensor([[350.0, 0, 450, 100]])),
    )
    (hint,) = texts.hints(panorama)
    assert "the model sees only 12 % of this photo (x 350 to 450, y 0 to 100)" in hint
    assert patches(panorama, 12, 1)[0].place in PLACES
    assert len({patch.place for patch in patches(panorama, 12, 1)}) > 4, "places are those in what the model sees"
    with ReportWriter(tmp_path, SUMMARY) as report:
        report.add(tiny)
        report.add(panorama)
    text = _checked(report.path)
    assert "very small" in text
    assert "only 12 % of this photo" in text
    assert _views(text)[1]["box"] == [350, 0, 450, 100]


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
    assert (best.player, best.row, best.column, best.place) == (7, 1, 3, "right side")  # from 0
    assert best.box == pytest.approx((55, 20, 70, 40))
    assert best._replace(box=(54.5, 20.5, 70.2, 40.0)).pixels == "x 55 to 70, y 21 to 40"  # a half upwards
    assert best.cell == "row 2, column 4"  # in words from 1
    assert isinstance(best.row, int)
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
    assert (best.row, best.column, best.place) == (2, 1, "lower centre")
    assert type(best.column) is int
    assert best.box == pytest.approx((10, 40, 70, 60))


OTHERS: dict[str, tuple[Callable[[Explanation], Explanation], str]] = {
    "with errors": (lambda e: replace(e, stderr=e.values.abs() * 0.1), "standard error up to"),
    "exact": (lambda e: replace(e, stderr=e.values * 0), "exact"),
    "not accurate": (lambda e: replace(e, converged=torch.tensor([False])), "NOT as accurate"),
    "accurate": (lambda e: replace(e, converged=torch.tensor([True])), "requested accuracy was reached"),
    "not additive": (lambda e: replace(e, additive=False, base_values=None, full_values=None), "values do not add up"),
    "scores": (
        lambda e: replace(e, additive=False, base_values=None, full_values=None, unit="score"),
        "Scores have no unit",
    ),
    "all zero": (lambda e: replace(e, values=e.values * 0, base_values=e.full_values), "values from 0 to 0"),
    "no crop known": (lambda e: replace(e, image_box=None), '"box":[0.0,0.0,80.0,60.0]'),
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
    assert "70.0 %" not in text
    assert ">0.700<" in text, "as in the viewer"
    assert _views(text)[0]["outputs"] == "output"


@pytest.mark.parametrize(
    ("value", "text"), [(0.25, "25.0 %"), (0.0001, "<0.1 %"), (0.99999, ">99.9 %"), (0.0, "0.0 %"), (1.0, "100.0 %")]
)
def test_probabilities_in_words(value: float, text: str) -> None:
    assert texts.output_text(value, "probability") == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.048, "+0.0480"), (-2, "\N{MINUS SIGN}2.00"), (0, "0"), (12345.6, "+12,346"), (100, "+100")]
)
def test_values_in_words(value: float, text: str) -> None:
    assert texts.value_text(value, "output") == text


def test_probabilities_change_by_percentage_points() -> None:
    assert [texts.value_text(value, "probability") for value in (0.0635, -0.0004, 0)] == [
        "+6.3",
        "\N{MINUS SIGN}0.04",
        "0",
    ]
