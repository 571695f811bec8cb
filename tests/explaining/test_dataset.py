"""The data set as a whole: mean maps, border and corners, unlike images, and disagreements, against direct computation."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.explaining import made
from tests.explaining.test_report import SUMMARY, explained
from vitshap.cli import app
from vitshap.explaining import DataSet, Explained, ReportWriter, disagreements, html, sinks
from vitshap.explaining.dataset import border_mask, corner_mask, map_correlation


def entry(name: str, values: list[float] | torch.Tensor, predicted: int = 1) -> Explained:
    """An image of 3 x 4 patches with these values for the class that is predicted."""
    base = explained(name)
    prediction = torch.tensor([[0.3, 0.7]] if predicted == 1 else [[0.8, 0.2]])
    shown = replace(
        base.explanation,
        values=torch.stack([torch.as_tensor(values, dtype=torch.float32), torch.zeros(12)], 1)[None],
        classes=torch.tensor([[predicted, 1 - predicted]]),
        prediction=prediction,
        additive=False,
        base_values=None,
        full_values=None,
    )
    return replace(base, explanation=shown)


@pytest.fixture
def entries() -> list[Explained]:
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(12, generator=generator)
    alike = [entry(f"{i}.png", common + 0.1 * torch.randn(12, generator=generator)) for i in range(5)]
    return [*alike, entry("odd.png", -common), entry("cat.png", torch.arange(12.0) - 3, predicted=0)]


def test_means_shares_and_the_odd_one(entries: list[Explained]) -> None:
    dataset = DataSet()
    for number, one in enumerate(entries, 1):
        dataset.add(one, number)
    found = dataset.summary()
    dataset.close()
    assert found is not None
    assert [(one.label, one.images) for one in found.classes] == [("dog", 6), ("cat", 1)]
    maps = np.stack([one.explanation.values[0, :, 0].numpy().reshape(3, 4) for one in entries])
    np.testing.assert_allclose(found.classes[0].mean, maps[:6].mean(0), rtol=1e-5)
    positive = maps[6].clip(min=0)
    inside = positive[1, 1:3].sum()
    assert found.classes[1].border == pytest.approx(1 - inside / positive.sum())
    assert found.classes[1].corners == pytest.approx(positive[[0, 0, 2, 2], [0, 3, 0, 3]].sum() / positive.sum())
    assert (found.border_area, found.corner_area) == pytest.approx((10 / 12, 4 / 12))
    assert (found.unlike[0].name, found.unlike[0].number) == ("odd.png", 6)
    others = maps[:5].mean(0)
    assert found.unlike[0].correlation == pytest.approx(np.corrcoef(maps[5].ravel(), others.ravel())[0, 1], abs=1e-5)
    assert "cat.png" not in {one.name for one in found.unlike}, "one image of a class is not unlike others"
    assert found.disagreements is None


@pytest.mark.parametrize(
    ("outputs", "said", "heading"),
    [
        (1, "7 images. ", "<h3>Mean map</h3>"),
        (2, "7 images; the largest output is most often: dog (6). ", "<h3>Mean map by largest output</h3>"),
    ],
)
def test_a_regression_predicts_no_class(entries: list[Explained], outputs: int, said: str, heading: str) -> None:
    dataset = DataSet()
    for number, one in enumerate(entries, 1):
        shown = one.explanation
        if outputs == 1:
            shown = replace(
                shown, values=shown.values[..., :1], classes=torch.tensor([[0]]), prediction=shown.prediction[:, :1],
                class_names=("age",),
            )  # fmt: skip
        dataset.add(replace(one, explanation=replace(shown, unit="output"), outputs="output"), number)
    found = dataset.summary()
    dataset.close()
    assert found is not None
    page = html.dataset_html(found, str)
    assert f'<p class="say">{said}' in page
    assert heading in page
    assert "differ most from the mean map</h3>" in page
    assert "predicted" not in page
    assert "class</th>" not in page


def test_the_masks_of_a_large_grid() -> None:
    assert border_mask((14, 14)).sum() == 52
    assert corner_mask((14, 14)).sum() == 36
    assert map_correlation(np.ones(4), np.arange(4)) == 0


def test_one_image_is_no_data_set(entries: list[Explained]) -> None:
    dataset = DataSet()
    dataset.add(entries[0], 1)
    assert dataset.summary() is None
    dataset.close()


def _run_file(path: Path, entries: list[Explained]) -> Path:
    with sinks.JsonLines(str(path)) as lines:
        for one in entries:
            lines.add(one)
    return path


def test_two_runs_disagree_first_by_class_then_by_map(entries: list[Explained], tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    changed = [entry(str(one.path), one.explanation.values[0, :, 0]) for one in entries[:5]]
    changed[2] = entry("2.png", torch.randn(12, generator=generator))  # another map
    changed[3] = entry("3.png", entries[3].explanation.values[0, :, 0], predicted=0)  # another class
    first, second = _run_file(tmp_path / "a.jsonl", entries), _run_file(tmp_path / "b.jsonl", changed)
    found = disagreements(first, second, k=3)
    assert [one.name for one in found[:2]] == ["3.png", "2.png"]
    assert found[0].labels == ("dog", "cat")
    a, b = (one.explanation.values[0, :, 0].numpy() for one in (entries[2], changed[2]))
    assert found[1].correlation == pytest.approx(np.corrcoef(a, b)[0, 1], abs=1e-4)
    assert found[2].correlation == pytest.approx(1, abs=1e-4)
    with pytest.raises(ValueError, match="no file in common"):
        disagreements(first, _run_file(tmp_path / "c.jsonl", [entry("elsewhere.png", torch.zeros(12))]))
    (tmp_path / "d.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match=r"d\.jsonl, line 1: not written by vitshap explain --json"):
        disagreements(first, tmp_path / "d.jsonl")


def test_the_last_page_of_the_report_ends_with_it(entries: list[Explained], tmp_path: Path) -> None:
    with ReportWriter(tmp_path, SUMMARY, per_page=4) as report:
        for one in entries:
            report.add(one)
    first, last = ((tmp_path / name).read_text() for name in ("report.html", "report-2.html"))
    assert 'href="report-2.html#dataset"' in first
    assert 'id="dataset"' not in first
    assert "7 images; most often predicted: dog (6)." in last
    assert last.count('alt="Mean map of ') == 2
    links = dict(re.findall(r'<td><a href="([^"]*)">([^<]*)</a>', last))
    assert links["#image-6"] == "odd.png"
    assert links["report.html#image-1"] == "0.png"


def test_the_command_compares_with_an_earlier_run(bundle: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    made.photos(photos, 3)
    shared = ["explain", str(photos), "--bundle", str(bundle), "--out", str(tmp_path / "out"), "--no-heatmaps"]
    earlier = str(tmp_path / "earlier.jsonl")
    assert CliRunner().invoke(app, [*shared, "--method", "leave-one-out", "--json", earlier]).exit_code == 0
    assert len([json.loads(line) for line in Path(earlier).read_text().splitlines()]) == 3
    result = CliRunner().invoke(app, [*shared, "--against", earlier])
    assert result.exit_code == 0, result.output
    assert "disagree most (3 were compared)" in (tmp_path / "out" / "report.html").read_text()
    missing = CliRunner().invoke(app, [*shared, "--against", str(tmp_path / "nothing.jsonl")])
    assert missing.exit_code == 2
