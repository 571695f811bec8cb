"""The table in every format, and the page in a real browser."""

from __future__ import annotations

import csv
import html
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser
from rich.console import Console
from scipy import stats

from tests import chromium
from tests.evaluation.small import digits_explainer, digits_net, some_digits
from vitshap.evaluation import Evaluation, evaluate
from vitshap.evaluation.command import write_files
from vitshap.evaluation.curves import curves
from vitshap.evaluation.formats import to_csv, to_json, to_latex, to_markdown, to_terminal
from vitshap.evaluation.page import to_html
from vitshap.metrics.intervals import mean_intervals, wilson

TITLE = "A & B: <methods> of 100 %"


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    surrogate = digits_net()
    methods = {"ours": digits_explainer(surrogate), "<rollout>": "attention-rollout", "loo_1": "leave-one-out"}
    return evaluate(surrogate, some_digits(8), methods={**methods, "random": "random"}, classes="all")


def test_all_formats_hold_the_same_numbers(evaluation: Evaluation) -> None:
    table = evaluation.table()
    lines = list(csv.DictReader(io.StringIO(to_csv(table))))
    content = json.loads(to_json(evaluation, table, TITLE))
    assert len(lines) == len(content["table"]) == 4 * 4
    for line, record in zip(lines, content["table"], strict=True):
        values = evaluation.values(record["method"], record["metric"], record["classes"])
        assert line["method"] == record["method"]
        if values is None:
            assert (line["mean"], record["mean"]) == ("", None)
        else:
            assert float(line["mean"]) == record["mean"] == pytest.approx(float(values.mean()))
            assert record["low"] <= record["mean"] <= record["high"]
    assert [len(one["target"]) for one in content["values"]] == [8] * 8
    mean = f"{float(evaluation.values('loo_1', 'insertion').mean()):.3f}"
    console = Console(width=300, file=io.StringIO(), force_terminal=True)
    console.print(to_terminal(table, TITLE))
    for text in (
        to_markdown(table, TITLE),
        to_latex(table, TITLE),
        console.file.getvalue(),
        to_html(evaluation, table, TITLE),
    ):
        assert mean in text


def test_columns_that_do_not_fit_continue_below(evaluation: Evaluation) -> None:
    table = evaluation.table()
    console = Console(width=60, file=io.StringIO())
    console.print(to_terminal(table, TITLE, 60))
    lines = console.file.getvalue().splitlines()
    assert sum(line.startswith("│ loo_1") for line in lines) >= 2
    assert sum("insertion" in line for line in lines) >= 1
    assert not any("…" in line for line in lines)


def test_coverage_of_intervals_by_resampling(evaluation: Evaluation) -> None:
    table = evaluation.coverage(images=50, repetitions=200)
    shares = [*table.values("lowest"), *table.values("highest")]
    assert {row["metric"].value for row in table.rows} == {one.name for one in evaluation.metrics}
    assert all(0.8 < share <= 1 for share in shares)


def test_names_are_escaped(evaluation: Evaluation) -> None:
    table = evaluation.table()
    page = to_html(evaluation, table, TITLE)
    assert "<rollout>" not in page
    assert "&lt;rollout&gt;" in page
    assert r"A \& B: <methods> of 100 \%" in to_latex(table, TITLE)
    assert r"loo\_1" in to_latex(table, TITLE)
    assert to_latex(table, TITLE).count(r"\begin{tabular}{lrrrr}") == 2


@pytest.mark.parametrize(
    ("names", "unit", "words"),
    [
        (["abnormal"], "probability", "the probability of abnormal"),
        (None, "probability", "the model's one probability"),
        (None, "output", "the model's one output"),
    ],
)
def test_a_model_with_one_output_has_no_predicted_class(
    evaluation: Evaluation, names: list[str] | None, unit: str, words: str
) -> None:
    """Its one output is explained for images that are predicted to be normal, too."""
    assert "explained: each image&#x27;s predicted class." in to_html(evaluation, evaluation.table(), TITLE)
    about = {**evaluation.about, "num_classes": 1, "class_names": names, "unit": unit, "where": "predicted=0"}
    page = to_html(replace(evaluation, about=about), evaluation.table(), TITLE)
    assert f"8 images with predicted=0; explained: {html.escape(words)}." in page


def test_marks_are_shown(evaluation: Evaluation) -> None:
    """Values that are far apart: one row is the best, one is worse than random."""
    scores = {key: dict(named) for key, named in evaluation.scores.items()}
    spread = torch.linspace(-0.01, 0.01, 8, dtype=torch.float64)
    for row, mean in {"ours": 0.9, "<rollout>": 0.2, "loo_1": 0.6, "random": 0.5}.items():
        scores[row, "insertion"]["target"] = mean + spread
    made = replace(evaluation, scores=scores)
    table = made.table()
    lines = to_markdown(table, "x").splitlines()
    assert [("**0.9" in line, "\N{DAGGER}" in line.split("|")[2]) for line in lines[4:8]] == [
        (True, False), (False, True), (False, False), (False, False)
    ]  # fmt: skip
    latex = to_latex(table, "x")
    assert r"\textbf{0.900" in latex
    assert r"\textcolor{gray}{0.200" in latex
    page = to_html(made, table, "x")
    assert page.count('class="bold n"') + page.count('class="bold grey n"') >= 1


def test_skewed_values_have_the_ends_of_their_interval(evaluation: Evaluation) -> None:
    scores = {key: dict(named) for key, named in evaluation.scores.items()}
    values = torch.tensor([0.99, 0.98, 0.985, 0.99, 0.98, 0.985, 0.99, 0.204], dtype=torch.float64)
    scores["loo_1", "insertion"]["target"] = values
    made = replace(evaluation, scores=scores)
    low, high = made.result("loo_1", "insertion").interval()
    ends = f"0.888 [{low:.3f}, {high:.3f}]".replace("-", "\N{MINUS SIGN}")
    table = made.table()
    console = Console(width=300, file=io.StringIO())
    console.print(to_terminal(table, TITLE))
    assert ends in to_markdown(table, TITLE)
    assert ends in console.file.getvalue()
    assert f"0.888 [{low:.3f}".replace("-", "$-$") in to_latex(table, TITLE)


def test_one_image_has_means_without_intervals(tmp_path: Path) -> None:
    alone = evaluate(digits_net(), some_digits(1), methods={"loo": "leave-one-out", "random": "random"})
    table = alone.table()
    cell = table.rows[0][1][0]
    assert (cell.mark, cell.difference) == ((False, False), None)
    mean = f"{cell.measured.mean:.3f}"
    assert f"| {mean} |" in to_markdown(table, TITLE)
    assert f" {mean} " in to_latex(table, TITLE)
    lines = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert (lines[0]["low"], lines[0]["high"]) == ("", "")
    assert json.loads(to_json(alone, table, TITLE))["table"][0]["low"] is None
    console = Console(width=300, file=io.StringIO())
    console.print(to_terminal(table, TITLE))
    page = to_html(alone, table, TITLE)
    assert f'<span class="mean">{mean}</span> <span class="half"></span>' in page
    for text in (console.file.getvalue(), to_markdown(table, TITLE), page):
        assert "\N{PLUS-MINUS SIGN} 0.000" not in text
        assert "nan]" not in text
    assert curves(alone)[0].panel.bands["loo"].half.tolist() == [0] * 17
    write_files(tmp_path, alone, TITLE)  # draws the curves


def test_differences_have_the_interval_of_few_images(evaluation: Evaluation) -> None:
    scores = {key: dict(named) for key, named in evaluation.scores.items()}
    mine = torch.tensor([0.0, 1, 1, 2, 1, 0, 1, 1], dtype=torch.float64)
    theirs = torch.tensor([0.0, 1, 0, 1, 1, 0, 0, 1], dtype=torch.float64)
    scores["ours", "insertion"]["target"], scores["loo_1", "insertion"]["target"] = mine, theirs
    found = replace(evaluation, scores=scores).difference("ours", "loo_1", "insertion")
    low, high = mean_intervals((mine - theirs)[None])  # not a proportion, although all of them are 0 or 1
    assert found == pytest.approx((3 / 8, float(low), float(high)))
    assert float(high - low) > 2 * 1.96 * float((mine - theirs).std()) / 8**0.5


def test_curves_are_means_with_bands(evaluation: Evaluation) -> None:
    found = {one.name: one.panel for one in curves(evaluation)}
    assert list(found) == ["insertion", "deletion"]
    band = found["insertion"].bands["ours"]
    points = evaluation.scores["ours", "insertion"]["image.points"]
    assert np.allclose(band.x, np.arange(17) / 16)
    assert np.allclose(band.mean, points.mean(0))
    assert np.allclose(band.half, stats.t.ppf(0.975, 7) * points.std(0) / 8**0.5)
    assert band.mean.mean() == pytest.approx(float(evaluation.values("ours", "insertion").mean()))
    assert found["insertion"].baselines == ("random",)


def test_curves_by_size_count_and_evaluations_are_recognised(evaluation: Evaluation) -> None:
    more = {key: dict(named) for key, named in evaluation.scores.items()}
    by_size, correct = torch.rand(8, 3, dtype=torch.float64), torch.ones(8, 2, dtype=torch.float64)
    base = more["ours", "insertion"]
    kept = {name: base[name] for name in ("target", "image.constant", "shared.evaluations")}
    more["ours", "sensitivity-n"] = {**kept, "image.by_size": by_size, "shared.sizes": torch.tensor([2.0, 4, 6])}
    more["ours", "roar"] = {
        **kept,
        "image.inserted": correct,
        "image.deleted": 0 * correct,
        "shared.counts": torch.tensor([1.0, 3]),
    }
    more["ours", "error"] = kept
    infos = tuple(evaluation.metrics[0]._replace(name=name) for name in ("sensitivity-n", "roar", "error"))
    made = replace(evaluation, scores=more, metrics=infos)
    found = {one.name: one.panel for one in curves(made)}
    assert found["sensitivity-n"].bands["ours"].mean == pytest.approx(by_size.mean(0).numpy())
    assert found["roar, inserted"].bands["ours"].x.tolist() == [1, 3]
    assert found["roar, deleted"].bands["ours"].mean.tolist() == [0, 0]
    low, high = wilson(torch.ones(1), 8)
    assert found["roar, inserted"].bands["ours"].half == pytest.approx([float(high - low) / 2] * 2)
    assert found["roar, inserted"].y_label == "accuracy for the explained class"  # which was predicted
    labelled = curves(replace(made, about={**made.about, "target": "label"}))
    assert {one.panel.y_label for one in labelled if one.name.startswith("roar")} == {"accuracy"}
    assert found["error"].log == (True, True)
    assert list(found["error"].bands) == ["ours"]


def test_files_are_written(evaluation: Evaluation, tmp_path: Path) -> None:
    write_files(tmp_path, evaluation, TITLE)
    expected = {"report.html", "table.csv", "table.json", "table.md", "table.tex", "insertion.png", "deletion.png"}
    assert expected <= {path.name for path in tmp_path.iterdir()}
    assert repr(Evaluation.load(tmp_path).table()) == repr(evaluation.table())


@chromium.needs_browser
def test_the_page_works_in_a_browser(evaluation: Evaluation, tmp_path: Path, browser: Browser) -> None:
    write_files(tmp_path, evaluation, TITLE)
    report = tmp_path / "report.html"
    for size in (chromium.DESKTOP, chromium.PHONE):
        for dark in (False, True):
            with chromium.tab(browser, report, size=size, dark=dark) as opened:
                assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
                background = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
                assert (background == "rgb(15, 18, 22)") == dark
    with chromium.tab(browser, report) as opened:
        page = opened.page
        assert page.evaluate("document.querySelector('h1').textContent") == TITLE
        first = "document.querySelector('.scores tbody th').textContent"
        page.evaluate("document.querySelector('.scores thead button').click()")
        means = page.evaluate(
            "Array.from(document.querySelectorAll('.scores tbody tr'), r => Number(r.cells[1].dataset.value))"
        )
        assert means == sorted(means, reverse=True)
        page.evaluate("document.querySelector('.scores thead button').click()")
        assert page.evaluate(first) == min(
            (row.name for row in evaluation.rows), key=lambda name: float(evaluation.values(name, "insertion").mean())
        )
        shown = "document.querySelectorAll('.charts .line:not(.off)').length"
        before = page.evaluate(shown)
        page.evaluate("document.querySelector('.names button').click()")
        assert (before, page.evaluate(shown)) == (8, 6)
        assert opened.complaints == []
        assert all(address.startswith(("file:", "data:")) for address in opened.requests)
