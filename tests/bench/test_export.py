"""``vitshap bench export`` on a small explainer, with the page in Chromium where there is one."""

from pathlib import Path

import pytest

from tests.explaining import made
from vitshap.bench.command import ProgressLines
from vitshap.bench.export import measure


@pytest.mark.long
def test_every_runtime_is_compared_with_torch(tmp_path: Path) -> None:
    made.photos(tmp_path / "photos", 4)
    tables = measure(
        made.explainer(), "insects", [str(tmp_path / "photos")], images=3, runtime=None, progress=ProgressLines()
    )
    rows = {str(row["runtime"].value): row for row in tables[0].rows}
    assert {"torch", "onnxruntime float32", "onnxruntime float16", "onnxruntime int8"} <= rows.keys()
    for name, row in rows.items():
        if name != "torch":
            assert float(row["values"].value) < (0.1 if "int8" in name else 1e-3)
            assert float(row["correlation"].value) > 0.9
    assert len(tables) == (2 if len(rows) == 5 else 1)


def test_no_photos_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no photos"):
        measure(made.explainer(), "insects", [str(tmp_path)], images=3, runtime=None, progress=ProgressLines())
