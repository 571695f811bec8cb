"""``vitshap bench shards`` with a small explainer: its table is complete; no time is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.explaining import made
from vitshap.cli import app


@pytest.mark.long
def test_bench_shards(tmp_path: Path) -> None:
    bundle, out = made.bundle(tmp_path / "bundle"), tmp_path / "out.json"
    options = ["--seconds", "4", "--rounds", "2", "--out", str(out), "--bundle", str(bundle)]
    result = CliRunner().invoke(app, ["bench", "shards", *options])
    assert result.exit_code == 0, result.output
    rows = json.loads(out.read_text())["tables"][0]["rows"]
    assert [row["engine"] for row in rows] == ["stream", "process", "ray"]
    assert all(row["images"] > 0 and row["seconds"] >= 4 for row in rows)
