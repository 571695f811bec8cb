"""``vitshap explain`` from end to end: what it says, what it writes, how it ends."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from click.testing import Result
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from tests.explaining import made
from tests.models import nets
from vitshap.cli import app
from vitshap.explaining import sinks


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["explain", *map(str, arguments)])


def _refused(*arguments: object, match: str) -> None:
    """Exit code 2, one line, no traceback."""
    result = _run(*arguments)
    assert result.exit_code == 2, result.output
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert match in lines[0]
    assert "Traceback" not in result.output


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made.photos(tmp_path / "photos", 3)
    return tmp_path


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "w.safetensors"
    save_file(timm.create_model("vit_tiny_patch16_224").state_dict(), path)
    return path


def test_photos_to_words_heatmaps_and_report(home: Path, bundle: Path) -> None:
    result = _run("photos", "--bundle", bundle)
    assert result.exit_code == 0, result.output
    assert "5 classes: ant, bee, crane, dog, English springer" in result.stdout
    assert result.stdout.count("patches that support") == 3
    assert result.stdout.count("    5. ") == 3
    assert "row " in result.stdout
    assert result.stdout.count("rows and columns counted from 1") == 3
    written = sorted(path.name for path in (home / "vitshap-output").iterdir())
    assert len(written) == 1 + 3 * 5
    assert {"report.html", "0-English_springer.png", "2-crane.png"} <= set(written)
    with Image.open(home / "vitshap-output" / "0-crane.png") as heatmap:
        assert min(heatmap.size) > 100
    again = _run(".", "--bundle", bundle)
    assert again.exit_code == 0
    assert again.stdout.count("predicted:") == 3, "heatmaps of the last run are no photos"


def test_of_a_panorama_the_part_that_is_seen_is_drawn(home: Path, bundle: Path) -> None:
    Image.radial_gradient("L").resize((4000, 200)).save(home / "wide.png")
    result = _run("wide.png", "--bundle", bundle, "--top", 1, "--json", "wide.json")
    assert result.exit_code == 0, result.output
    assert "note: the model sees only 4 % of this photo" in result.stdout
    assert "the model sees only 4 % of this photo" in json.loads((home / "wide.json").read_text())["notes"][0]
    (path,) = (home / "vitshap-output").glob("wide-*.png")
    with Image.open(path) as heatmap:
        assert heatmap.height > 0.6 * heatmap.width, "a square map and its bar, not a strip"


def test_by_default_the_first_shipped_explainer(home: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("insects", "zebras"):
        shutil.copytree(bundle, home / "package" / "bundles" / name)
    monkeypatch.setattr("vitshap.models.stored.files", lambda package: home / "package")
    result = _run("photos/0.png", "--no-heatmaps")
    assert result.exit_code == 0, result.output
    assert "bundle insects: ViTForImageClassification of transformers" in result.stdout


def test_heatmaps_as_files_for_a_hundred_images_or_on_demand(
    home: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitshap.explaining.command.HEATMAPS_UP_TO", 2)
    assert "no heatmaps as files: --heatmaps" in _run("photos", "--bundle", bundle).stdout
    assert not list((home / "vitshap-output").glob("*.png"))
    _run("photos", "--bundle", bundle, "--heatmaps", "--top", 1)
    assert len(list((home / "vitshap-output").glob("*.png"))) == 3


def test_json_comes_line_by_line_and_has_the_explainers_numbers(home: Path, bundle: Path) -> None:
    (home / "photos" / "broken.jpg").write_bytes(b"no")
    result = _run("photos", "--bundle", bundle, "--json", "-", "--no-heatmaps", "--top", 2, "--patches", 3)
    assert result.exit_code == 1
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert [Path(record["file"]).name for record in records] == ["0.png", "1.png", "2.png", "broken.jpg"]
    assert records[3] == {
        "file": "photos/broken.jpg",
        "error": "it is not an image, or of a kind that Pillow cannot read",
    }
    explanation = made.explainer()(home / "photos" / "1.png")
    record = records[1]
    best = record["explained"][0]
    values = explanation.values[0, :, best["class"]]
    assert best["values"] == pytest.approx(values.tolist(), abs=1e-6)
    assert best["full"] - best["base"] == pytest.approx(sum(best["values"]), abs=1e-5)
    assert record["predicted"][0]["output"] == pytest.approx(float(explanation.prediction.max()), abs=1e-6)
    assert (len(record["explained"]), len(best["patches"]), record["size"]) == (2, 3, [60, 40])
    first = best["patches"][0]
    assert first["value"] == pytest.approx(float(values.max()), abs=1e-6)
    # 36 pixels cover the photo's height of 40; the net's 32 are cut out of the middle, in cells of 8.
    row, column = divmod(first["player"], 4)
    scale = 40 / 36
    top, left = 2 * scale + row * 8 * scale, (60 - 32 * scale) / 2 + column * 8 * scale
    assert first["box"] == pytest.approx([left, top, left + 8 * scale, top + 8 * scale], abs=0.6)
    assert (first["row"], first["column"]) == (row, column)
    assert isinstance(first["row"], int)
    assert "rows, columns, classes and players count from 0" in record["counting"]


def test_some_fail_the_others_are_explained(home: Path, bundle: Path) -> None:
    for name, (content, _) in made.UNSOUND.items():
        (home / "photos" / name).write_bytes(content)
    result = _run("photos", "nowhere.jpg", "--bundle", bundle, "--no-heatmaps")
    assert result.exit_code == 1
    assert result.stdout.count("predicted:") == 3
    assert "6 of 9 could not be explained" in result.stderr
    assert "nowhere.jpg: there is no such file" in result.stderr
    report = (home / "vitshap-output" / "report.html").read_text()
    for name in made.UNSOUND:
        assert name in report
        assert name in result.stderr


def test_when_no_class_fits_it_says_so_and_offers_another_way(home: Path, tmp_path: Path) -> None:
    doubtful = made.bundle(tmp_path / "doubtful", quality={"unknown_threshold": 1.0})
    result = _run("photos/0.png", "--bundle", doubtful, "--no-heatmaps")
    assert result.exit_code == 0
    assert re.search(r"warning: low confidence: best of 5 classes \d\d\.\d % \(threshold 100 %\)\n", result.stdout)
    assert "--model NAME" in result.stdout
    assert "low confidence: best of 5 classes" in (home / "vitshap-output" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["photos", "--bundle", "nowhere"], "'nowhere' is neither a folder here"),
        (["photos"], "no explainer is shipped with this installation: name one with --bundle FOLDER"),
        (["nowhere.jpg", "--bundle", "B"], "nowhere.jpg: there is no such file or folder"),
        (["*.gif", "--bundle", "B"], "no file matches this pattern"),
        (["empty", "--bundle", "B"], "the folder holds no image"),
        (["photos", "--bundle", "B", "--out", "photos"], "cannot go to the folder that is searched"),
        (["photos", "--bundle", "B", "--out", "words.txt"], "words.txt is a file"),
        (["photos", "--bundle", "B", "--target", "cranes"], 'did you mean "crane"'),
        (["photos", "--bundle", "B", "--target", "17"], "classes are 0 to 4, got 17"),
        (["photos", "--bundle", "B", "--method", "kernelshop"], 'did you mean "kernelshap"?'),
        (["photos", "--bundle", "B", "--method", "exact", "--budget", "9"], 'exact has no option "budget"'),
        (["photos", "--bundle", "B", "--budget", "9"], "--budget belongs to other methods"),
        (["photos", "--bundle", "B", "--weights", "w"], "name it with --model"),
        (["photos", "--bundle", "B", "--device", "toaster"], "--device is auto, cpu or cuda"),
        (["photos", "--model", "vit_tinny_patch16_224"], "timm has no model"),
        (["photos", "--model", "vit"], '"vit" names a family'),
        (["photos", "--model", "vit_tiny_patch16_224", "--method", "explainer"], "needs a stored explainer"),
        (["photos", "--model", "vit_tiny_patch16_224", "--method", "kernal"], "did you mean"),
        (["photos", "--model", "vit_tiny_patch16_224", "--weights", "words.txt"], "cannot be read as safetensors"),
        (["words.txt", "--bundle", "B"], "none of the 1 could be explained"),
    ],
)
def test_errors_of_the_user(home: Path, bundle: Path, arguments: list[str], match: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("vitshap.models.stored.shipped", list)
    monkeypatch.setattr("vitshap.explainers.bundle.shipped", list)
    (home / "empty").mkdir()
    (home / "words.txt").write_text("words")
    _refused(*[str(bundle) if one == "B" else one for one in arguments], match=match)


def test_weights_that_cannot_be_fetched_are_asked_for_by_this_commands_option(home: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home / "cache"))
    result = _run("photos", "--model", "vit_tiny_patch16_224")
    assert result.exit_code == 2
    assert "give a file with --weights" in result.stderr
    assert "--set" not in result.stderr


def test_bundles_that_cannot_be_used(home: Path, bundle: Path) -> None:
    copy = Path(shutil.copytree(bundle, home / "copy"))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "version": 99}))
    _refused("photos", "--bundle", copy, match="format version 99")
    (copy / "config.json").write_text(json.dumps({**config, "quality": {"unknown_threshold": "high"}}))
    _refused("photos", "--bundle", copy, match="unknown_threshold must be a probability")
    (copy / "config.json").write_text(json.dumps(config))
    data = bytearray((copy / "surrogate.safetensors").read_bytes())
    data[-9] ^= 1
    (copy / "surrogate.safetensors").write_bytes(data)
    _refused("photos", "--bundle", copy, match="is damaged")
    nets.build("transformers ViT").save_pretrained(home / "foreign")
    _refused("photos", "--bundle", home / "foreign", match="is not a vitshap bundle")


@pytest.mark.filterwarnings("ignore:.*does not say how it wants its images")
def test_a_bundle_with_a_model_must_be_made_for_it(home: Path, bundle: Path) -> None:
    made.model(seed=0).net.save_pretrained(home / "right")
    made.model(seed=9).net.save_pretrained(home / "wrong")
    _refused("photos", "--bundle", bundle, "--model", home / "wrong", match="was made for another model")
    assert _run("photos", "--bundle", bundle, "--model", home / "right", "--no-heatmaps").exit_code == 0


def test_the_surrogate_of_a_bundle_with_another_method(home: Path, bundle: Path) -> None:
    out = _run("photos/0.png", "--bundle", bundle, "--method", "exact", "--json", "-", "--target", "crane")
    assert out.exit_code == 0, out.output
    record = json.loads(out.stdout)
    assert (record["method"], record["evaluations"]) == ("exact", 2**16)
    assert "not fine-tuned" not in out.stderr


def test_what_was_measured_is_said_in_words_and_of_the_explainer_alone(home: Path, tmp_path: Path) -> None:
    quality = {"target": 0.927312, "classifier": {"accuracy": 0.98765}}
    measured = made.bundle(tmp_path / "measured", quality=quality)
    for options, said in (([], True), (["--method", "random"], False)):
        assert _run("photos/0.png", "--bundle", measured, "--no-heatmaps", *options).exit_code == 0
        report = (home / "vitshap-output" / "report.html").read_text()
        assert ("correlation with converged Shapley values" in report) == said
        assert ("0.9273" in report) == said
        assert ("classifier, accuracy" in report) == said
        assert "{'accuracy'" not in html.unescape(report)


def test_a_reader_who_has_enough_is_no_error(home: Path, bundle: Path) -> None:
    made.photos(home / "many", 60)
    command = (
        f"{sys.executable} -m vitshap explain many --bundle '{bundle}' --batch 1 --json - --no-heatmaps | head -n 1"
    )
    done = subprocess.run(
        ["bash", "-c", f"{command}; echo ${{PIPESTATUS[0]}}"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    line, code = done.stdout.splitlines()
    assert json.loads(line)["explained"]
    assert code == "141"
    assert "rror" not in done.stderr


def test_where_nothing_was_explained_no_report_is_named(home: Path, bundle: Path) -> None:
    (home / "broken.png").write_bytes(b"")
    result = _run("broken.png", "--bundle", bundle)
    assert result.exit_code == 2
    assert "Report" not in result.output


def test_any_net_at_once_with_error_bars(home: Path, weights: Path) -> None:
    options = ["--model", "vit_tiny_patch16_224", "--weights", weights, "--budget", 450, "--json", "a.jsonl"]
    result = _run("photos/0.png", *options, "--target", "tench")
    assert result.exit_code == 0, result.output
    assert "1,000 classes: tench, goldfish" in result.stdout
    assert "not fine-tuned with withheld patches" in result.stdout
    assert "450 evaluations per image, as requested: about " in result.stdout
    assert " points (95 % interval " in result.stdout
    assert "standard error up to" in result.stdout
    record = json.loads((home / "a.jsonl").read_text())
    found = record["explained"][0]
    assert len(found["stderr"]) == 196
    best = found["patches"][0]
    low, high = best["interval"]
    half = 1.959964 * best["stderr"]
    assert (low, high) == pytest.approx((best["value"] - half, best["value"] + half), rel=1e-5)
    assert [ends[best["player"]] for ends in found["interval"]] == pytest.approx([low, high], abs=1e-5)
    report = (home / "vitshap-output" / "report.html").read_text()
    assert "standard error up to" in report
    assert "not fine-tuned with withheld patches" in report


def test_a_folder_of_transformers_with_any_method(home: Path) -> None:
    made.model().net.save_pretrained(home / "net")
    result = _run("photos", "--model", home / "net", "--method", "leave-one-out", "--no-heatmaps")
    assert result.exit_code == 0, result.output
    assert "warning: " in result.stdout
    assert "does not say how it wants its images" in result.stdout
    assert "do not add up to the prediction" in (home / "vitshap-output" / "report.html").read_text()


def test_a_method_that_does_not_suit_the_net_is_an_error_of_the_user(home: Path, weights: Path) -> None:
    _refused(
        "photos", "--model", "vit_tiny_patch16_224", "--weights", weights, "--method", "exact", match="method exact: "
    )


def test_names_of_heatmaps_never_collide(home: Path, bundle: Path) -> None:
    for folder in ("a", "b"):
        made.photos(home / folder, 1)
    shutil.copy(home / "a" / "0.png", home / "0-CRANE.png")
    before = (home / "0-CRANE.png").read_bytes()
    result = _run("a", "b", "0-CRANE.png", "--bundle", bundle, "--target", "crane", "--out", ".")
    assert result.exit_code == 0, result.output
    assert (home / "0-CRANE.png").read_bytes() == before, "a photo must not be written over"
    assert {path.name for path in home.glob("*.png")} == {
        "0-CRANE.png",
        "0-2-crane.png",
        "0-3-crane.png",
        "0-CRANE-crane.png",
    }


def test_parquet_without_pyarrow(home: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    _refused("photos", "--bundle", bundle, "--parquet", "a.parquet", match='pip install "vitshap[shards]"')


def test_parquet(home: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    (home / "photos" / "broken.jpg").write_bytes(b"no")
    result = _run("photos", "--bundle", bundle, "--parquet", "out/a.parquet", "--no-heatmaps", "--top", 2)
    assert result.exit_code == 1, result.output
    rows = parquet.read_table(home / "out" / "a.parquet").to_pylist()
    assert len(rows) == 3 * 2 + 1
    alone = made.explainer()(home / "photos" / "0.png").values[0, :, rows[0]["class"]]
    assert rows[0]["values"] == pytest.approx(alone.tolist(), abs=1e-6)
    assert "not an image" in rows[-1]["error"]
    with sinks.ParquetRows(str(home / "b.parquet"), images=1) as writer:
        for number in range(3):
            writer.add(sinks.Failed(f"{number}", "why"))
    assert parquet.ParquetFile(home / "b.parquet").num_row_groups == 3


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_a_whole_report(home: Path, bundle: Path, number: int, code: int) -> None:
    made.photos(home / "many", 400)
    command = [
        sys.executable,
        "-m",
        "vitshap",
        "explain",
        "many",
        "--bundle",
        str(bundle),
        "--json",
        "-",
        "--batch",
        "2",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    errors = home / "errors.txt"  # a file: a pipe that nobody reads fills up and stops the process
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            [*command, "--no-heatmaps"],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=environment,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
        ) as process,
    ):
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(5)]
        process.send_signal(number)
        lines += process.stdout.readlines()
    said = errors.read_text()
    assert process.returncode == code, said
    assert said.count("interrupted: ") == 1
    assert "Traceback" not in said
    report = (home / "vitshap-output" / "report.html").read_text()
    assert len(lines) - 1 <= report.count('<article class="card"') <= len(lines)
    assert report.endswith("</html>")
    assert "the run was interrupted" in report
    assert [path.name for path in (home / "vitshap-output").iterdir()] == ["report.html"], "nothing temporary is left"


def test_several_methods_are_shown_side_by_side(home: Path, bundle: Path) -> None:
    result = _run("photos", "--bundle", bundle, "--method", "explainer,leave-one-out,lrp,kernelshap", "--budget", "64")
    assert result.exit_code == 0, result.output
    assert "method explainer" in result.stdout
    files = list((home / "vitshap-output").glob("*-methods.png"))
    photos = [path for path in (home / "photos").iterdir() if path.suffix in (".png", ".jpg")]
    assert 0 < len(files) <= len(photos)
    report = (home / "vitshap-output" / "report.html").read_text()
    views = [json.loads(data) for data in re.findall(r'<script type="application/json">(.*?)</script>', report)]
    assert [[one["method"] for one in view["others"]] for view in views] == len(files) * [
        ["leave-one-out", "lrp", "kernelshap"]
    ]
    _refused("photos", "--bundle", bundle, "--method", "explainer,lrpp", match='no method is named "lrpp"')
