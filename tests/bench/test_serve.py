"""``vitshap bench serve`` with a small explainer: its tables are complete; no time is asserted."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from tests.explaining import made
from vitshap.bench import serve
from vitshap.cli import app


def test_photos_are_different_and_of_the_size_of_photos() -> None:
    files = serve.photos(5)
    assert len(set(files)) == 5
    assert all(20_000 < len(file) < 200_000 for file in files)
    assert Image.open(io.BytesIO(files[0])).size == (500, 375)


@pytest.mark.long
def test_bench_serve(tmp_path: Path) -> None:
    bundle, out = made.bundle(tmp_path / "bundle"), tmp_path / "out.json"
    options = ["--clients", "80", "--seconds", "4", "--rounds", "2", "--out", str(out)]
    result = CliRunner().invoke(app, ["bench", "serve", "--bundle", str(bundle), *options])
    assert result.exit_code == 0, result.output
    latency, load = json.loads(out.read_text())["tables"]
    assert [row["request"] for row in latency["rows"]] == ["photo to map", "brush to prediction"]
    (row,) = load["rows"]
    statuses = dict(part.split(": ") for part in row["statuses"].split("; closed")[0].split(", "))
    assert set(statuses) <= {"200", "429"}
    assert row["online"] > 0
    assert row["offline"] > 0


def test_a_bundle_that_cannot_be_loaded_is_an_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["bench", "serve", "--bundle", str(tmp_path)])
    assert result.exit_code == 2
    assert str(tmp_path) in result.output
