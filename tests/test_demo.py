"""``vitshap demo``: short here, with the recipe as it is shipped in the long test."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser
from rich.console import Console
from typer.testing import CliRunner

from tests import chromium
from tests.explaining import made as small
from vitshap import Explanation, demo
from vitshap.cli import app
from vitshap.data import load_digits
from vitshap.demo import command
from vitshap.demo.digits import Comparison, EnumeratedGame, compare, theorem_lines
from vitshap.estimators.exact import exact
from vitshap.explainers import Explainer, bundle
from vitshap.methods import list_methods
from vitshap.training.recipes import load_recipe

SHORT = [
    *(f"{stage}.loop.epochs=1" for stage in ("classifier", "surrogate", "explainer")),
    "explainer.values.views=1",
    "explainer.values.coalitions=8",
    "calibration.images=20",
    "calibration.evaluations=100",
]
QUIET = Console(quiet=True)


def _run(out: Path, console: Console = QUIET) -> Comparison:
    recipe = load_recipe("digits", settings=SHORT)
    return demo.run(out, console, recipe=recipe, images=2, budgets=(64,), estimate=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Comparison, str]:
    """A folder in which the demo ran once, what it found, and what it said."""
    out = tmp_path_factory.mktemp("demo") / "output"
    console = Console(record=True, width=120, quiet=False, file=(out.parent / "said.txt").open("w"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundle, "shipped", list)
        found = _run(out, console)
    return out, found, console.export_text()


def test_it_compares_every_method_with_exact_values(made: tuple[Path, Comparison, str]) -> None:
    out, found, said = made
    names = found.table.values("method")
    assert names[:2] == ["exact", "explainer"]
    for name in set(list_methods()) - {"expected-gradients"}:
        assert any(line.startswith(name) for line in names), name
    rows = [{key: cell.value for key, cell in row.items()} for row in found.table.rows]
    exactly, learned = rows[:2]
    assert (exactly["true_class"], exactly["lowest"], exactly["other_classes"]) == pytest.approx((1, 1, 1))
    assert all(row["lowest"] <= row["true_class"] for row in rows)
    assert exactly["evaluations"] == 2**16
    assert learned["evaluations"] == 1
    assert {row["evaluations"] for row in rows if row["method"] == "kernelshap, 64"} == {64}
    numbers = json.loads((out / "numbers.json").read_text())
    assert [row["method"] for row in numbers["tables"][0]["rows"]] == names
    assert all(name in said for name in names)


def test_exact_values_are_exact(made: tuple[Path, Comparison, str]) -> None:
    out, found, _ = made
    stored = Explanation.load(out / "digits" / "exact.safetensors")
    surrogate = bundle.load(out / "training" / "bundle").surrogate
    again = exact(surrogate.game(found.images)).values
    torch.testing.assert_close(stored.values.double(), again, rtol=0, atol=1e-5)
    assert stored.efficiency_gap().abs().max() < 1e-5


def test_the_theorem_is_printed_and_holds(made: tuple[Path, Comparison, str]) -> None:
    out, found, said = made
    assert found.theorem.holds
    assert found.theorem.mean < found.theorem.bound < found.theorem.loose_bound
    assert json.loads((out / "numbers.json").read_text())["theorem"]["holds"] is True
    assert len(re.findall(r"holds$", said, re.MULTILINE)) == 2
    one = torch.ones(1, 1)
    broken = replace(found.theorem, values=one, losses=0.01 * one, optima=0 * one)
    assert "DOES NOT HOLD" in str(theorem_lines(broken))


def test_pictures_and_report_are_where_it_says(made: tuple[Path, Comparison, str]) -> None:
    out, _, said = made
    wanted = ["methods", "digit-0", "digit-1", "training-classifier", "training-surrogate", "training-explainer"]
    for name in wanted:
        assert (out / "digits" / f"{name}.png").stat().st_size > 5_000
    page = (out / "report.html").read_text()
    assert page.count('<figure class="drawn">') == len(wanted)
    assert 'src="data:image' in page
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)
    for place in ("report.html", "digits", "numbers.json", "training/bundle"):
        assert str(out / place) in said
    assert bundle.load(out / "training" / "bundle").surrogate.num_players == 16


def test_without_a_shipped_explainer_it_says_so_and_goes_on(made: tuple[Path, Comparison, str]) -> None:
    out, _, said = made
    assert command.NONE_SHIPPED in said
    assert command.NONE_SHIPPED in (out / "report.html").read_text()
    assert not (out / "photos").exists()


def test_with_a_shipped_explainer_both_photos_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = small.bundle(tmp_path / "bundle")
    monkeypatch.setattr(bundle, "shipped", lambda: [str(folder)])
    found = command.explain_samples(tmp_path / "photos", QUIET)
    assert [entry.name for entry in found.entries] == list(command.SAMPLES)
    assert found.summary.warnings == ()
    assert len(list((tmp_path / "photos").glob("china-*.png"))) == 5
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    monkeypatch.setattr(bundle, "shipped", lambda: [str(damaged)])
    found = command.explain_samples(tmp_path / "none", QUIET)
    assert found.entries == []
    assert "cannot be used" in found.summary.warnings[0]


def test_it_can_be_repeated_and_spares_what_others_made(made: tuple[Path, Comparison, str], tmp_path: Path) -> None:
    out = Path(shutil.copytree(made[0], tmp_path / "copy"))
    (out / "digits" / "old.png").write_text("of an earlier run")
    (out / "mine.txt").write_text("not the demo's")
    command.prepare(out)
    assert not (out / "digits").exists()
    assert not (out / "report.html").exists()
    assert (out / "mine.txt").read_text() == "not the demo's"
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "precious.txt").write_text("weeks of work")
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert re.fullmatch(
        r"error: .*training exists and no demo made it: name another folder with --out\n", result.stderr
    )
    assert (tmp_path / "training" / "precious.txt").is_file()
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "file")])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)


@chromium.needs_browser
@pytest.mark.parametrize("size", [chromium.DESKTOP, chromium.PHONE], ids=["desktop", "phone"])
def test_the_report_in_a_browser(browser: Browser, made: tuple[Path, Comparison, str], size: tuple[int, int]) -> None:
    report = made[0] / "report.html"
    with chromium.tab(browser, report, size=size, dark=True) as opened:
        assert opened.page.evaluate("[...document.images].every((i) => i.complete && i.naturalWidth > 50)")
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= size[0], "nothing to scroll sideways"
        assert opened.complaints == []
        assert [url for url in opened.requests if not url.startswith("data:")] == [report.resolve().as_uri()]


def test_a_table_answers_as_the_game_does() -> None:
    model = small.model()
    pixels = torch.randn(2, 3, 32, 32)
    game, table = model.game(pixels), EnumeratedGame(model.game(pixels), QUIET)
    asked = torch.rand(2, 5, model.num_players) < 0.5
    torch.testing.assert_close(table(asked), game(asked), rtol=0, atol=1e-5)
    assert table.evaluations == 5


@pytest.mark.long
def test_the_shipped_recipe_learns_the_exact_values(tmp_path: Path) -> None:
    """What is asked of the digits: correlation with the exact values, and Theorem 1."""
    found = demo.run(tmp_path / "demo", Console())
    assert found.theorem.holds
    explainer = Explainer.from_pretrained(tmp_path / "demo" / "training" / "bundle")
    test = load_digits().test
    assert isinstance(test.images, torch.Tensor)
    many = compare(explainer, test.images[:24], test.labels[:24], QUIET, budgets=(64,))
    print(f"24 digits: {many.table.line(1)}, {theorem_lines(many.theorem)}")
    assert many.table.values("true_class")[1] >= 0.95
    assert many.table.values("other_classes")[1] >= 0.88
    assert many.theorem.holds
    assert many.theorem.mean <= many.theorem.bound * 1.00001
