"""Mistakes that people make with ``vitshap explain``, and nets and files as they come: told in a line, nothing lost."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from PIL import Image
from transformers import Dinov2Config, Dinov2ForImageClassification, ViTConfig, ViTForImageClassification
from typer.testing import CliRunner

from tests.explaining import made
from vitshap.cli import app
from vitshap.explaining import budget
from vitshap.explaining.entries import Failed
from vitshap.explaining.sinks import ParquetRows
from vitshap.explaining.source import open_model
from vitshap.models import Preprocess
from vitshap.models.load import ModelSpec, load_with_warnings

SIZE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["explain", *map(str, arguments)])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made.photos(tmp_path / "photos", 3)
    return tmp_path


def _net(folder: Path, *, says: dict[str, Any] | None = None, **options: Any) -> Path:
    """A transformers net as a folder."""
    torch.manual_seed(0)
    config = ViTConfig(**SIZE, **{"image_size": 32, "patch_size": 8, "num_labels": 5, **options})
    ViTForImageClassification(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(says or {"size": {"height": 32, "width": 32}}))
    return folder


@pytest.mark.parametrize("option", ["--json", "--parquet"])
def test_a_photo_is_never_written_over(home: Path, bundle: Path, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (home / "photos/0.png").read_bytes()
    result = _run(option, "photos/0.png", "photos/1.png", "--bundle", bundle)
    assert result.exit_code == 2
    assert f"{option} takes the name of a file to write" in result.stderr
    (home / "odd").write_bytes(before)  # a photo without an extension
    monkeypatch.setenv("HOME", str(home))
    for name in ("odd", "~/odd"):
        assert _run("odd", option, name, "--bundle", bundle).exit_code == 2
    assert (home / "photos/0.png").read_bytes() == (home / "odd").read_bytes() == before


def test_results_are_never_written_over_each_other(home: Path, bundle: Path) -> None:
    both = ["--json", "a.jsonl", "--parquet", "./a.jsonl"]
    for options, said in (
        (["--json", "m3/report.html", "--out", "m3"], "--json m3/report.html is where the report goes"),
        (["--parquet", "m3/report-2.html", "--out", "./m3/"], "--parquet m3/report-2.html is where the report goes"),
        (both, "--parquet and --json both name ./a.jsonl"),
    ):
        result = _run("photos", "--bundle", bundle, *options)
        assert result.exit_code == 2
        assert said in result.stderr
    assert sorted(path.name for path in home.iterdir()) == ["photos"]
    (home / "photos/loop.png").symlink_to("loop.png")
    result = _run("photos", "--bundle", bundle, "--json", "m3/numbers.jsonl", "--out", "m3")
    assert result.exit_code == 1, "all but the link"
    assert len((home / "m3/numbers.jsonl").read_text().splitlines()) == 4


def test_nothing_is_written_into_a_bundle(home: Path) -> None:
    folder = made.bundle(home / "first")
    before = sorted(path.name for path in folder.iterdir())
    for options in (["photos"], ["shard.tar"]):
        result = _run(*options, "--bundle", "first", "--out", "first")
        assert result.exit_code == 2
        assert "--out first is the folder of a bundle" in result.stderr
    for option, file in (("--json", "first/config.json"), ("--parquet", "first/table.parquet")):
        result = _run("photos", "--bundle", "first", option, file)
        assert result.exit_code == 2
        assert f"{option} {file} is in the folder of a bundle" in result.stderr
    assert sorted(path.name for path in folder.iterdir()) == before
    (home / "other").mkdir()
    (home / "other/config.json").write_text("{}")
    assert _run("photos", "--bundle", "first", "--out", "other").exit_code == 0


def test_a_bundles_surrogate_was_fine_tuned(bundle: Path, tmp_path: Path) -> None:
    assert open_model(str(bundle), method_name="leave-one-out").warnings == ()
    assert "was not fine-tuned" in open_model(str(_net(tmp_path / "net")), method_name="leave-one-out").warnings[0]


def test_a_method_that_needs_more_than_the_command_can_give(home: Path, bundle: Path) -> None:
    for source in (["--bundle", bundle], ["--model", _net(home / "net")]):
        for name in ("expected-gradients", "lrp,expected-gradients"):
            result = _run("photos", *source, "--method", name)
            assert result.exit_code == 2
            assert "expected-gradients compares with reference images, which cannot be given here" in result.stderr
            assert "photos/0.png" not in result.output


def test_a_run_that_does_nothing_leaves_the_last_ones_results(home: Path, bundle: Path) -> None:
    assert _run("photos", "--bundle", bundle, "--json", "all.jsonl", "--no-heatmaps").exit_code == 0
    report, lines = home / "vitshap-output/report.html", home / "all.jsonl"
    before = report.read_bytes(), lines.read_bytes()
    too_few = ["--bundle", bundle, "--method", "kernelshap", "--budget", "4"]
    failed = _run("gone.png", "photos", *too_few, "--json", "all.jsonl")
    assert failed.exit_code == 2, failed.output
    assert (report.read_bytes(), lines.read_bytes()) == before
    assert _run("photos", *too_few, "--json", "b").exit_code == 2
    assert not (home / "b").exists()


def test_a_table_without_an_explained_image_replaces_nothing(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    table = tmp_path / "table.parquet"
    table.write_bytes(b"of the last run")
    with suppress(RuntimeError), ParquetRows(str(table)) as rows:
        rows.add(Failed("x.png", "gone"))
        raise RuntimeError
    assert table.read_bytes() == b"of the last run"
    assert [path.name for path in tmp_path.iterdir()] == ["table.parquet"]


LINES = ((60_000, 1), (1, 60_000), (20_000, 2))
MEASURED = """
import resource, sys
from PIL import Image
from vitshap.models import Preprocess
preprocess = Preprocess((224, 224), (256, 256), (0.5,) * 3, (0.5,) * 3)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for size in %s:
    preprocess(Image.new("RGB", size))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_line_of_pixels_takes_no_gigabytes() -> None:
    """In a process of its own: what Pillow takes is seen by the system alone, as the most that was ever taken."""
    done = subprocess.run([sys.executable, "-c", MEASURED % repr(LINES)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 300_000, "kilobytes"


@pytest.mark.parametrize("size", LINES)
def test_of_a_line_of_pixels_its_middle_is_seen(size: tuple[int, int]) -> None:
    preprocess = Preprocess((224, 224), (256, 256), (0.5,) * 3, (0.5,) * 3)
    ramp = np.linspace(0, 255, max(size), dtype=np.uint8)
    line = Image.fromarray(ramp[None] if size[0] > size[1] else ramp[:, None]).resize(size)
    pixels = preprocess(line)
    assert pixels.shape == (3, 224, 224)
    left, top, right, bottom = preprocess.box(line)
    middle = ((left + right) / 2 if size[0] > size[1] else (top + bottom) / 2) / max(size) * 2 - 1
    assert float(pixels.mean()) == pytest.approx(middle, abs=0.02)


def test_seen_in_part_or_cut_from_the_whole_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    preprocess = Preprocess((64, 64), (72, 72), (0.5,) * 3, (0.5,) * 3)
    photo = made.picture(1, 300, 90)
    whole = preprocess(photo)
    monkeypatch.setattr("vitshap.models.preprocess._MOST_PIXELS", 0)
    assert (preprocess(photo) - whole).abs().max() < 0.05


def test_names_that_begin_with_a_tilde_and_long_ones(home: Path, bundle: Path) -> None:
    made.picture(1).save(home / "~photo.png")
    made.picture(2).save(home / f"{'写' * 70}.png")
    result = _run("~photo.png", f"{'写' * 70}.png", "~nobody/x.png", "--bundle", bundle, "--top", "1")
    assert result.exit_code == 1, result.output
    assert result.stdout.count("predicted:") == 2
    assert "~nobody/x.png: there is no such file" in result.stderr
    assert len(list((home / "vitshap-output").glob("*.png"))) == 2


def test_a_pattern_that_matches_folders_searches_them(home: Path, bundle: Path) -> None:
    made.photos(home / "more", 2)
    result = _run("*o*", "--bundle", bundle, "--no-heatmaps", "--out", "results")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("predicted:") == 5


def test_a_net_without_a_trained_head_is_not_asked(home: Path) -> None:
    net = _net(home / "net")
    ViTForImageClassification.from_pretrained(net).vit.save_pretrained(home / "trunk")
    (home / "trunk" / "config.json").write_text((net / "config.json").read_text())
    result = _run("photos", "--model", "./trunk")
    assert result.exit_code == 2
    assert "it has no weights for classifier.bias" in result.stderr
    config = json.loads((net / "config.json").read_text())
    (net / "config.json").write_text(json.dumps({**config, "intermediate_size": 24}))
    result = _run("photos", "--model", net)
    assert result.exit_code == 2
    assert "do not fit its configuration" in result.stderr


def test_dinov2_is_asked_at_the_size_that_it_is_used_at(home: Path) -> None:
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    Dinov2ForImageClassification(Dinov2Config(image_size=112, patch_size=14, num_labels=5, **size)).save_pretrained(
        home / "dino"
    )
    says = {"size": {"shortest_edge": 64}, "crop_size": {"height": 56, "width": 56}, "do_center_crop": True}
    (home / "dino" / "preprocessor_config.json").write_text(json.dumps(says))
    model, _ = load_with_warnings(ModelSpec(str(home / "dino")))
    assert model.num_players == 16
    assert (model.preprocess.size, model.preprocess.resize) == ((56, 56), (64, 64))
    result = _run("photos/0.png", "--model", home / "dino", "--budget", "200", "--no-heatmaps")
    assert result.exit_code == 0, result.output


def test_pixels_are_scaled_as_the_file_says(home: Path) -> None:
    unscaled = {"do_rescale": False, "image_mean": [127.5] * 3, "image_std": [127.5] * 3}
    net = _net(home / "net", says={"size": {"height": 32, "width": 32}, **unscaled})
    model, _ = load_with_warnings(ModelSpec(str(net)))
    assert model.preprocess.mean == pytest.approx((0.5,) * 3)
    assert model.preprocess.std == pytest.approx((0.5,) * 3)


def test_a_net_of_grey_images(home: Path) -> None:
    net = _net(home / "grey", num_channels=1)
    result = _run("photos/0.png", "--model", net, "--budget", "200", "--no-heatmaps")
    assert result.exit_code == 0, result.output


def test_many_players_are_warned_of(home: Path) -> None:
    net = _net(home / "net", image_size=84, patch_size=4, says={"size": {"height": 84, "width": 84}})
    _, said = load_with_warnings(ModelSpec(str(net)))
    assert any("441 players" in text for text in said)


def test_a_folder_that_is_not_there(home: Path) -> None:
    result = _run("photos", "--model", home / "nowhere")
    assert result.exit_code == 2
    assert f"there is no folder {home / 'nowhere'}" in result.stderr.replace("\n", "")


def test_the_estimate_counts_the_methods_own_work_class_by_class(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is most of it where the net is small; timings themselves are not asserted, but what is counted."""
    source = open_model(str(_net(home / "net")), method_name="kernelshap", budget=200)
    monkeypatch.setattr(budget, "LONG", 1e9)  # a slow machine would skip the larger budget
    asked: list[tuple[int, int]] = []

    class Counting(type(source.method)):  # type: ignore[misc]
        def compute(self, game: Any, pixels: Any, targets: Any, /) -> Any:
            asked.append((game.num_players, targets.shape[1]))
            return super().compute(game, pixels, targets)

    counting = Counting(source.model, budget=200)
    assert budget.own_work(counting, torch.zeros(1, 3, 32, 32), 16, 300).seconds(1024) > 0
    assert asked == 3 * [(16, 300)]  # to warm up, and with two budgets


def test_class_numbers_of_other_libraries(home: Path) -> None:
    explanation = made.explainer()(torch.rand(1, 3, 32, 32))
    for one in (1, np.int64(1), torch.tensor(1)):
        explanation.plot(torch.rand(3, 32, 32), target=one)
        assert torch.equal(explanation.heatmap(one), explanation.heatmap(1))


def test_an_error_about_one_image_ends_no_run(home: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made.picture(5).save(home / "photos" / "exif.png", exif=b"Exif\0\0" + b"\0" * 100)
    os.mkfifo(home / "photos" / "pipe.png")
    os.mkfifo(home / "pipe")
    result = _run("photos", "pipe", "--bundle", bundle, "--no-heatmaps")
    assert result.exit_code == 1, result.output
    assert result.stdout.count("predicted:") == 4
    assert "pipe: it is a pipe, socket or device, not a file" in result.stderr
    whole = Preprocess.__call__

    def fails_once(preprocess: Preprocess, image: Image.Image) -> torch.Tensor:
        if image.size == (7, 7):
            raise ZeroDivisionError("as a library might")
        return whole(preprocess, image)

    monkeypatch.setattr(Preprocess, "__call__", fails_once)
    made.picture(6, 7, 7).save(home / "photos" / "odd.png")
    result = _run("photos", "--bundle", bundle, "--no-heatmaps")
    assert result.exit_code == 1, result.output
    assert "odd.png: it cannot be prepared for the model: as a library might" in result.stderr


def test_a_photo_through_the_standard_input(home: Path, bundle: Path) -> None:
    arguments = ["explain", "-", "--bundle", str(bundle), "--target", "crane", "--json", "a.jsonl"]
    result = CliRunner().invoke(app, arguments, input=(home / "photos" / "0.png").read_bytes())
    assert result.exit_code == 0, result.output
    assert (
        _run("photos/0.png", "--bundle", bundle, "--target", "crane", "--json", "b.jsonl", "--out", "b").exit_code == 0
    )
    piped, named = (json.loads((home / name).read_text()) for name in ("a.jsonl", "b.jsonl"))
    assert piped["explained"] == named["explained"]
    assert (piped["file"], named["file"]) == ("standard-input", "photos/0.png")
    assert (home / "vitshap-output" / "standard-input-crane.png").exists()
    for content, said in ((b"", "the file is empty"), (b"words", "not an image")):
        refused = CliRunner().invoke(app, arguments, input=content)
        assert refused.exit_code == 2
        assert f"standard-input: {said}" in refused.stderr or f"standard-input: it is {said}" in refused.stderr


def test_random_values_are_not_presented_as_an_explanation(home: Path, bundle: Path) -> None:
    result = _run("photos/0.png", "--bundle", bundle, "--method", "random", "--no-heatmaps")
    assert result.exit_code == 0
    assert "warning: the method random explains nothing: its values are random numbers" in result.stdout
    assert "patches with the highest random values" in result.stdout
    assert "patches that support" not in result.stdout
    assert "the method random explains nothing" in (home / "vitshap-output" / "report.html").read_text()


def test_names_that_resemble_nothing_are_not_guessed(home: Path, bundle: Path) -> None:
    for source in (["--bundle", bundle], ["--model", "vit_tiny_patch16_224"]):
        result = _run("photos", *source, "--method", "deeplift")
        assert result.exit_code == 2
        assert "did you mean" not in result.stderr
        assert 'no method is named "deeplift"; known: ' in result.stderr


def test_a_hub_that_cannot_be_reached_is_given_up_at_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One connection is tried; the hub's own client tries again and again for a minute."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = server.getsockname()[1]
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{closed}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home / "cache"))
    for source in (
        ["--model", "vit_tiny_patch16_224"],
        ["--model", "somebody/net"],
        ["--bundle", "somebody/explainer"],
    ):
        result = _run("photos", *source)
        assert result.exit_code == 2
        assert "the Hugging Face hub cannot be reached from here" in result.stderr
        assert "HF_HUB_OFFLINE" not in result.stderr
    from huggingface_hub import constants

    assert constants.HF_HUB_OFFLINE is False, "as it was before"


def test_lines_say_that_the_work_goes_on(home: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitshap.explaining.terminal.FIRST_WAIT", 0.001)
    monkeypatch.setattr("vitshap.explaining.terminal.LONGEST_WAIT", 0.001)
    result = _run("photos", "--bundle", bundle, "--method", "permutation", "--budget", "200", "--json", "-")
    assert result.exit_code == 0
    assert len([json.loads(line) for line in result.stdout.splitlines()]) == 3
    for line in ("... loading", "... timing a few evaluations", "of 3 images explained"):
        assert line in result.stderr
