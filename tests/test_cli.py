"""The command: help, version, measurements on small work, errors with exit code 2."""

import json
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from vitshap import __version__
from vitshap.bench import coalitions as bench
from vitshap.bench import machine
from vitshap.cli import app
from vitshap.models import wrap

run = CliRunner().invoke


def test_version_and_help() -> None:
    assert run(app, ["--version"]).stdout.strip() == __version__
    assert "coalitions" in run(app, ["bench", "--help"]).stdout


def test_bench_coalitions_reports_every_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "seconds", lambda work, device: machine.seconds(work, device, at_least=0, rounds=1))
    out = tmp_path / "numbers.json"
    result = run(app, ["bench", "coalitions", "--device", "cpu", "--seconds", "1", "--out", str(out)])
    assert result.exit_code == 0, result.output
    lines = json.loads(out.read_text())["lines"]
    assert {line["threads"] for line in lines} == {1, 2}
    assert [line["way"] for line in lines if line["threads"] == 1] == [
        "full length, explicit mask",
        "full length, fused attention with a mask",
        "packed",
    ]
    for line in lines:
        first = next(other for other in lines if other["threads"] == line["threads"])
        assert line["ratio"] == pytest.approx(line["per_second"] / first["per_second"])
    said = result.stderr.splitlines()
    assert re.fullmatch(r"\d+ coalitions of each of [1-4] images", said[0])
    assert said[1:4] == [f"{line['way']}, threads: 1" for line in lines[:3]]


def test_bench_coalitions_does_what_time_allows() -> None:
    model = wrap(bench.build_net("transformers", "tiny"))
    assert bench._affordable(model, 4, 1e-9, runs=6) == (1, 2)
    assert bench._affordable(model, 4, 1e9, runs=6) == (4, bench.MOST_ON_CPU)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", ["coalitions", "memory"])
def test_a_missing_gpu_is_a_user_error(command: str) -> None:
    result = run(app, ["bench", command, "--device", "cuda"])
    assert result.exit_code == 2
    assert "no CUDA device" in result.output


def test_work_per_evaluation_is_counted_by_hand_for_one_size() -> None:
    flops, moved = bench.work_per_evaluation("tiny", 2, itemsize=4)  # two players: always one kept, so two tokens
    assert flops == pytest.approx(12 * (2 * 2 * 12 * 192**2 + 2 * 2 * 2 * 2 * 192))
    assert moved == pytest.approx(12 * 22 * 192 * 4 * 2)


def test_threads_are_put_back() -> None:
    before = torch.get_num_threads()
    with machine.threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


@pytest.mark.long
def test_bench_convergence_on_a_small_net(tmp_path: Path) -> None:
    import timm
    from PIL import Image
    from safetensors.torch import save_file

    torch.manual_seed(0)
    save_file(timm.create_model("vit_tiny_patch16_224").state_dict(), tmp_path / "weights.safetensors")
    Image.new("RGB", (64, 48), "red").save(tmp_path / "one.png")
    out = tmp_path / "numbers.json"
    options = ["--weights", str(tmp_path / "weights.safetensors"), "--net", "vit_tiny_patch16_224", "--classes", "3,5"]
    small = ["--images", "1", "--budgets", "32", "--reference", "48", "--threshold", "1000", "--no-rivals"]
    result = run(app, ["bench", "convergence", str(tmp_path), *options, *small, "--device", "cpu", "--out", str(out)])
    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    assert [line["estimator"] for line in found["lines"]] == ["kernelshap"]
    assert -1 <= found["lines"][0]["correlation"] <= 1
    assert len(found["threshold"]["evaluations"]) == 1


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["explain", "x.png", "--method", "exact", "--method", "random"], "--method"),
        (["explain", "x.png", "--top", "1", "--top=2"], "--top"),
        (["explain", "x.png", "--heatmaps", "--no-heatmaps"], "--heatmaps"),
        (["train", "digits", "--out", "a", "--out", "b"], "--out"),
        (["demo", "--out", "a", "--out", "b"], "--out"),
        (["bench", "coalitions", "--device", "cpu", "--device", "cuda"], "--device"),
    ],
)
def test_an_option_of_one_value_is_not_given_twice(arguments: list[str], option: str) -> None:
    result = run(app, arguments)
    assert result.exit_code == 2
    assert f"{option} is given more than once" in " ".join(result.output.split())


def test_options_of_many_values_are_given_often(tmp_path: Path) -> None:
    result = run(app, ["explain", str(tmp_path / "none.png"), "--target", "a", "--target", "b"])
    assert "no such file" in result.output
    keys = run(app, ["train", "digits", "--set", "data.seed=1", "--set", "data.seed=2", "--keys"])
    assert keys.exit_code == 0
