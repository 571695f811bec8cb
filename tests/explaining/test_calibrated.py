"""An explainer with standard errors: every output of ``vitshap explain`` has them, and says where they come from."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from PIL import Image
from typer.testing import CliRunner

from tests.explaining import made
from tests.explaining.shard_files import tar_shards
from vitshap import Explainer
from vitshap.cli import app
from vitshap.explaining import text

FROM = "calibrated on 120 held-out images"


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.bundle(tmp_path_factory.mktemp("stored") / "calibrated", calibrated=True)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made.photos(tmp_path / "photos", 2)
    return tmp_path


def _explain(*arguments: object) -> Result:
    result = CliRunner().invoke(app, ["explain", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result


def test_every_output_has_intervals(home: Path, calibrated: Path) -> None:
    result = _explain("photos", "--bundle", calibrated, "--json", "out.jsonl", "--parquet", "out.parquet")
    assert result.stdout.count("95 % intervals are " + FROM) == 1
    explainer = Explainer.from_pretrained(calibrated)
    lines = [json.loads(line) for line in (home / "out.jsonl").read_text().splitlines()]
    rows = iter(pq.read_table(home / "out.parquet").to_pylist())
    for line in lines:
        expected = explainer(Image.open(line["file"]))
        low, high = (end[0].T.numpy() for end in expected.interval())
        assert (line["interval_level"], line["stderr_from"]) == (0.95, FROM)
        for one in line["explained"]:
            index, row = one["class"], next(rows)
            ends = np.stack([low[index], high[index]])
            assert expected.stderr is not None
            for found in (one, row):
                np.testing.assert_allclose(found["stderr"], expected.stderr[0, :, index], rtol=1e-4)
                np.testing.assert_allclose(found["interval"], ends, rtol=1e-4, atol=1e-6)
            best = one["patches"][0]
            np.testing.assert_allclose(best["interval"], ends[:, best["player"]], rtol=1e-4)
        first = line["explained"][0]["patches"][0]
        said = f"1. {text.value_text(first['value'], 'probability')} points (95 % interval "
        said += f"{text.interval_text(first['interval'], 'probability')})"
        assert said in result.stdout
    report = html.unescape((home / "vitshap-output" / "report.html").read_text())
    assert f"<dt>95 % intervals are</dt><dd>{FROM}; for images unlike these they may be too narrow</dd>" in report
    views = [json.loads(data) for data in re.findall(r'<script type="application/json">(.*?)</script>', report)]
    assert [view["stderr_from"] for view in views] == [FROM] * 2


def test_without_a_calibration_nothing_is_said_of_it(home: Path, bundle: Path) -> None:
    result = _explain("photos", "--bundle", bundle, "--json", "out.jsonl", "--no-heatmaps")
    report = (home / "vitshap-output" / "report.html").read_text()
    shown = re.sub(r"<script.*?</script>|<style.*?</style>", "", report, flags=re.S)
    for said in (result.stdout, shown):
        assert not re.search(r"interval|reliab|standard error", said)
    line = json.loads((home / "out.jsonl").read_text().splitlines()[0])
    assert not {"interval_level", "stderr_from"} & set(line)
    assert not {"stderr", "interval", "reliability"} & set(line["explained"][0])


def test_where_sampled_errors_come_from(home: Path, bundle: Path) -> None:
    for method, said in (("kernelshap", "from sampling"), ("refine", "from the prior and the evaluations")):
        given = ("--bundle", bundle, "--method", method, "--budget", 200, "--no-heatmaps", "--no-curves")
        _explain("photos/0.png", *given, "--json", "out.jsonl")
        line = json.loads((home / "out.jsonl").read_text())
        assert (line["stderr_from"], line["interval_level"]) == (said, 0.95)
        report = (home / "vitshap-output" / "report.html").read_text()
        assert f"<dt>95 % intervals are</dt><dd>{said}</dd>" in report


def test_shards_have_standard_errors(home: Path, calibrated: Path) -> None:
    tar_shards(home / "in", 1, 2)
    _explain("in/*.tar", "--bundle", calibrated, "--top", 2, "--out", "out")
    _explain(
        "photos", "--bundle", calibrated, "--top", 2, "--parquet", "photos.parquet", "--no-heatmaps", "--no-curves"
    )
    one, other = pq.read_table(home / "photos.parquet"), pq.read_table(home / "out" / "train-0000.parquet")
    np.testing.assert_allclose(one["stderr"].to_pylist(), other["stderr"].to_pylist(), rtol=1e-4)
    assert other["interval"].null_count == len(other), "left out: they follow from the standard errors"
