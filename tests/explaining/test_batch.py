"""The callable for data frameworks: its values, and each framework with it."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.explaining import made
from tests.explaining.shard_files import encoded
from vitshap.explainers import Explainer
from vitshap.explaining import BatchExplainer
from vitshap.explaining.stream import CannotExplain

COLUMNS = ["file", "error", "class", "name", "output", "base", "full", "values", "grid", "box", "unit", "method"]


@pytest.fixture(scope="module")
def explain(bundle: Path) -> BatchExplainer:
    return BatchExplainer(str(bundle), target="top-2", batch=3)


def _batch(count: int) -> dict[str, Any]:
    return {"id": np.arange(count).astype(str), "image": [encoded(seed) for seed in range(count)]}


def _expected(explain: BatchExplainer, count: int) -> dict[str, Any]:
    """By the explainer itself, one photo after another."""
    explainer = explain.source.method
    assert isinstance(explainer, Explainer)
    rows: dict[str, list[Any]] = {"file": [], "class": [], "output": [], "values": []}
    for seed in range(count):
        one = explainer(made.picture(seed))
        for index in one.prediction[0].argsort(descending=True)[:2].tolist():
            rows["file"].append(str(seed))
            rows["class"].append(index)
            rows["output"].append(float(one.prediction[0, index]))
            rows["values"].append(one.values[0, :, index].numpy())
    return rows


def _agrees(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found["file"]) == expected["file"]
    assert list(found["class"]) == expected["class"]
    np.testing.assert_allclose(np.array(list(found["output"])), expected["output"], atol=1e-6)
    values = np.array([np.asarray(one) for one in found["values"]])
    np.testing.assert_allclose(values, np.stack(expected["values"]), atol=1e-6)
    assert values.std() > 1e-3, "values that are all alike prove nothing"


def test_values_are_the_explainers_own(explain: BatchExplainer) -> None:
    found = explain(_batch(7))
    _agrees(found, _expected(explain, 7))
    assert [*found] == [*COLUMNS, "warnings"]
    assert found["values"].shape == (14, 16)
    assert found["values"].dtype == np.float32
    assert found["grid"].tolist() == [[4, 4]] * 14
    assert found["name"].tolist() == [made.NAMES[index] for index in found["class"]]
    np.testing.assert_allclose(found["values"].sum(1), found["full"] - found["base"], atol=1e-5)
    assert (found["error"] == None).all()  # noqa: E711 (of each element)
    boxes = np.stack([explain.source.method(made.picture(0)).image_box[0]] * 14)  # type: ignore[attr-defined]
    np.testing.assert_allclose(found["box"], boxes)


def test_no_images_are_no_rows(explain: BatchExplainer) -> None:
    found = explain({"id": [], "image": []})
    assert [*found] == [*COLUMNS, "warnings"]
    assert all(len(column) == 0 for column in found.values())
    assert found["values"].shape == (0, 16)


def test_every_kind_of_image(explain: BatchExplainer, tmp_path: Path) -> None:
    content, picture = encoded(0), made.picture(0)
    (tmp_path / "photo.png").write_bytes(content)
    kinds = [content, picture, np.asarray(picture), {"bytes": content, "path": None}, str(tmp_path / "photo.png")]
    kinds += [tmp_path / "photo.png", {"bytes": None, "path": str(tmp_path / "photo.png")}]
    found = explain({"id": range(len(kinds)), "image": kinds})
    assert found["file"].tolist() == [str(i) for i in range(len(kinds)) for _ in range(2)]
    for row in range(0, len(found["file"]), 2):
        np.testing.assert_allclose(found["values"][row : row + 2], found["values"][:2], atol=1e-6)
    unnamed = BatchExplainer(explain.bundle, target="predicted", id=None)
    assert unnamed({"image": [kinds[-1], kinds[0]]})["file"].tolist() == [str(tmp_path / "photo.png"), ""]


def test_failures_stand_in_their_place(explain: BatchExplainer, tmp_path: Path) -> None:
    bad: list[Any] = [None, 3, str(tmp_path / "absent.png"), *(content for content, _ in made.UNSOUND.values())]
    (tmp_path / "cut.png").write_bytes(encoded(0)[:-400])
    bad += [Image.open(tmp_path / "cut.png"), np.zeros((8, 8, 3)), np.zeros((3, 8, 8), np.uint8)]
    images = [encoded(0), *bad, encoded(1)]
    found = explain({"id": range(len(images)), "image": images})
    failed = found["class"] == -1
    assert found["file"][failed].tolist() == [str(1 + i) for i in range(len(bad))]
    assert all(found["error"][failed])
    assert "no image" in found["error"][2]
    assert found["error"][failed][-3:].tolist() == [
        "the file is truncated: its end is missing",
        "an array is a photo, uint8 [H, W, 3]; this one is float64 [8, 8, 3]",
        "an array is a photo, uint8 [H, W, 3]; this one is uint8 [3, 8, 8]",
    ]
    assert np.isnan(found["values"][failed]).all()
    assert np.isfinite(found["values"][~failed]).all()
    assert found["file"][~failed].tolist() == ["0", "0", str(len(images) - 1), str(len(images) - 1)]


def test_several_targets_give_each_class_once(bundle: Path) -> None:
    explain = BatchExplainer(str(bundle), target=["bee", "predicted"])
    found = explain(_batch(6))
    for name in map(str, range(6)):
        classes = found["class"][found["file"] == name].tolist()
        assert classes[0] == made.NAMES.index("bee")
        assert len(set(classes)) == len(classes) <= 2
    assert hash(explain) == hash(BatchExplainer(str(bundle), target=["bee", "predicted"])), "lists are settings too"


def test_it_is_pickled_in_a_few_bytes_and_loads_once(explain: BatchExplainer) -> None:
    explain(_batch(1))
    stored = pickle.dumps(explain)
    assert len(stored) < 1000
    assert pickle.loads(stored).source is explain.source
    assert BatchExplainer(explain.bundle, target="all").source is explain.source, "the target is not part of the net"


def test_sampling_needs_a_budget_and_has_errors(bundle: Path) -> None:
    with pytest.raises(ValueError, match="kernelshap needs a budget here"):
        BatchExplainer(str(bundle), method="kernelshap")(_batch(1))
    explain = BatchExplainer(str(bundle), method="kernelshap", budget=128, target="predicted")
    found = explain({"id": "abc", "image": [encoded(0), None, encoded(1)]})
    assert found["stderr"].shape == found["values"].shape == (3, 16)
    assert np.isnan(found["stderr"][1]).all()
    assert (found["stderr"][[0, 2]] > 0).all()


def test_wrong_columns_and_wrong_settings(explain: BatchExplainer, bundle: Path) -> None:
    with pytest.raises(ValueError, match="no column 'image', only id, jpg: name it with image="):
        explain({"id": ["a"], "jpg": [b""]})
    with pytest.raises(ValueError, match="no column 'id'"):
        explain({"image": [b""]})
    with pytest.raises(CannotExplain):  # not the image's fault: nothing was explained before
        BatchExplainer(str(bundle), method="leave-one-out", target=99)(_batch(1))


def test_datasets_map(explain: BatchExplainer) -> None:
    import datasets

    given = [{"bytes": image, "path": None} for image in _batch(7)["image"]]
    features = datasets.Features({"id": datasets.Value("string"), "image": datasets.Image()})
    data = datasets.Dataset.from_dict({"id": [*map(str, range(7))], "image": given}, features=features)
    assert isinstance(data[0]["image"], Image.Image), "decoded by the library"
    found = data.map(explain, batched=True, batch_size=4, remove_columns=data.column_names)
    _agrees(found.to_dict(), _expected(explain, 7))


def test_dask_partitions(explain: BatchExplainer) -> None:
    import dask
    import pandas
    from dask import dataframe as frame

    def rows(part: Any) -> Any:
        return pandas.DataFrame({name: list(column) for name, column in explain(part).items()})

    with dask.config.set({"dataframe.convert-string": False}):  # it takes bytes for text otherwise
        data = frame.from_pandas(pandas.DataFrame(_batch(7)), npartitions=3)
        meta = rows(data.partitions[0].compute()).iloc[:0]
        found = data.map_partitions(rows, meta=meta).compute(scheduler="threads")
    _agrees(found.to_dict("list"), _expected(explain, 7))


def test_images_keep_their_orientation(explain: BatchExplainer) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    made.picture(0).save(buffer, "png", exif=exif)
    turned = explain({"id": ["a", "b"], "image": [buffer.getvalue(), Image.open(io.BytesIO(buffer.getvalue()))]})
    np.testing.assert_allclose(turned["values"][:2], turned["values"][2:], atol=1e-6)
    assert np.abs(turned["values"][:2] - explain(_batch(1))["values"]).max() > 1e-4
