"""The command: help, version, repeated options, errors with exit code 2."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from vitshap import __version__
from vitshap.cli import app

run = CliRunner().invoke


def test_version_and_help() -> None:
    assert run(app, ["--version"]).stdout.strip() == __version__
    assert "coalitions" in run(app, ["bench", "--help"]).stdout
    shown = " ".join(run(app, ["explain", "--help"]).stdout.replace("\N{BOX DRAWINGS LIGHT VERTICAL}", " ").split())
    assert "over a Ray cluster (needs ray)" in shown, "brackets would be taken as markup"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", ["coalitions", "memory"])
def test_a_missing_gpu_is_a_user_error(command: str) -> None:
    result = run(app, ["bench", command, "--device", "cuda"])
    assert result.exit_code == 2
    assert "there is no such CUDA device" in result.output


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
def test_an_option_of_one_value_may_not_be_repeated(arguments: list[str], option: str) -> None:
    result = run(app, arguments)
    assert result.exit_code == 2
    assert f"{option} is given more than once" in " ".join(result.output.split())


def test_options_of_many_values_may_be_repeated(tmp_path: Path) -> None:
    result = run(app, ["explain", str(tmp_path / "none.png"), "--target", "a", "--target", "b"])
    assert "no such file" in result.output
    keys = run(app, ["train", "digits", "--set", "data.seed=1", "--set", "data.seed=2", "--keys"])
    assert keys.exit_code == 0
