"""The output folder: one run at a time, nobody else's files touched, nothing of an earlier run left among the new."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import Result
from PIL import Image
from typer.testing import CliRunner

from tests.explaining import made
from vitshap.cli import app
from vitshap.explaining import sinks
from vitshap.files import locked_folder


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["explain", *map(str, arguments)])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made.photos(tmp_path / "photos", 2)
    return tmp_path


@pytest.mark.parametrize("name", ["report.html", "report-2.html"])
def test_a_report_of_somebody_else_is_not_replaced(home: Path, bundle: Path, name: str) -> None:
    (home / "out").mkdir()
    (home / "out" / name).write_text("<html>the quarter's figures</html>")
    result = _run("photos", "--bundle", bundle, "--out", "out", "--json", "a.jsonl")
    assert result.exit_code == 2
    assert f"{name} was not written by vitshap explain" in result.stderr
    assert (home / "out" / name).read_text() == "<html>the quarter's figures</html>"
    assert [path.name for path in (home / "out").iterdir()] == [name]
    assert not (home / "a.jsonl").exists()
    (home / "out" / name).unlink()
    (home / "out" / name).mkdir()
    assert _run("photos", "--bundle", bundle, "--out", "out").exit_code == 2
    (home / "out" / name).rmdir()
    assert _run("photos", "--bundle", bundle, "--out", "out").exit_code == 0
    assert _run("photos", "--bundle", bundle, "--out", "out").exit_code == 0, "a report of our own is replaced"


def test_a_picture_of_somebody_else_stays(home: Path, bundle: Path) -> None:
    (home / "out").mkdir()
    made.picture(9).save(home / "out" / "0-crane.png")
    before = (home / "out" / "0-crane.png").read_bytes()
    for _ in range(2):
        result = _run("photos/0.png", "--bundle", bundle, "--target", "crane", "--out", "out")
        assert result.exit_code == 0, result.output
        assert (home / "out" / "0-crane.png").read_bytes() == before
        assert {path.name for path in (home / "out").glob("*.png")} == {"0-crane.png", "0-2-crane.png"}
    with Image.open(home / "out" / "0-2-crane.png") as heatmap:
        heatmap.load()
        assert heatmap.info["vitshap"] == "heatmap"


@pytest.mark.parametrize("options", [[], ["--no-heatmaps"]])
def test_heatmaps_of_an_earlier_run_do_not_stay(home: Path, bundle: Path, options: list[str]) -> None:
    assert _run("photos", "--bundle", bundle, "--target", "crane").exit_code == 0
    folder = home / "vitshap-output"
    assert {path.name for path in folder.glob("*.png")} == {"0-crane.png", "1-crane.png"}
    refused = _run("photos/1.png", "--bundle", bundle, "--method", "kernelshap", "--budget", 4)
    assert refused.exit_code == 2
    assert len(list(folder.glob("*.png"))) == 2, "a run that explains nothing leaves the last one's results"
    assert _run("photos/1.png", "--bundle", bundle, "--target", "bee", *options).exit_code == 0
    assert {path.name for path in folder.glob("*.png")} == (set() if options else {"1-bee.png"})


def test_two_runs_do_not_write_into_one_folder(home: Path, bundle: Path) -> None:
    assert _run("photos", "--bundle", bundle).exit_code == 0
    before = sorted(path.name for path in (home / "vitshap-output").iterdir())
    with locked_folder(home / "vitshap-output"):
        result = _run("photos", "--bundle", bundle, "--no-heatmaps")
        assert result.exit_code == 2
        assert result.stderr.count("error: another run of vitshap writes into vitshap-output") == 1
    assert sorted(path.name for path in (home / "vitshap-output").iterdir()) == before
    assert _run("photos", "--bundle", bundle).exit_code == 0


def test_of_many_classes_the_most_probable_are_drawn_and_all_are_stored(
    home: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "MAPS", 2)
    result = _run("photos/0.png", "--bundle", bundle, "--target", "all", "--json", "a.jsonl")
    assert result.exit_code == 0, result.output
    record = json.loads((home / "a.jsonl").read_text())
    best = [one["name"] for one in record["predicted"]]
    assert f"patches that support {best[0]} most" in result.stdout
    assert [one["name"] for one in record["explained"]] == best
    names = {path.name for path in (home / "vitshap-output").glob("*.png")}
    assert names == {f"0-{name.replace(' ', '_')}.png" for name in best[:2]}
    report = (home / "vitshap-output" / "report.html").read_text()
    assert "maps are drawn for the 2 most probable of 5 explained classes" in report
    shutil.rmtree(home / "vitshap-output")
    named = [option for name in best[:3] for option in ("--target", name)]
    assert _run("photos/0.png", "--bundle", bundle, *named).exit_code == 0
    assert len(list((home / "vitshap-output").glob("*.png"))) == 3, "classes that were named are all drawn"
