"""The cost of an explanation: forward passes are counted, times are measured in turn."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from tests.explaining import made
from tests.models import nets
from vitshap.bench import explain
from vitshap.cli import app
from vitshap.explainers import Explainer, ExplainerConfig
from vitshap.models import wrap
from vitshap.models.base import Adapter

run = CliRunner().invoke


def _count(counts: Counter[str], **modules: nn.Module) -> None:
    for name, module in modules.items():
        module.register_forward_hook(lambda *_, name=name: counts.update([name]))


def _ends(adapter: Adapter, prefix: str) -> dict[str, nn.Module]:
    return {f"{prefix}_first": adapter.blocks[0], f"{prefix}_last": adapter.blocks[-1]}


@pytest.mark.parametrize("name", ["timm ViT", "transformers ViT", "torchvision ViT"])
@pytest.mark.parametrize("target", [None, 1, "predicted"])
def test_one_pass_of_the_surrogate_and_one_of_the_trunk(name: str, target: int | str | None) -> None:
    """v(1) is not computed twice, and v(0) not at all."""
    explainer = Explainer(wrap(nets.build(name), check=False), ExplainerConfig()).eval()
    surrogate, network = explainer.surrogate, explainer.network
    assert network.adapter is not None
    counts: Counter[str] = Counter()
    _count(counts, net=surrogate.net, head=network.head, network=network)
    _count(counts, **_ends(surrogate.adapter, "surrogate"), **_ends(network.adapter, "trunk"))
    explanation = explainer(nets.images(name), target=target)
    assert set(counts.values()) == {1}, counts
    assert set(counts) == {
        "net",
        "head",
        "network",
        *(f"{net}_{end}" for net in ("surrogate", "trunk") for end in ("first", "last")),
    }
    assert explanation.evaluations == 1
    torch.testing.assert_close(explanation.prediction, surrogate(nets.images(name)).detach())


def test_rows_by_hand() -> None:
    found = [
        {"net": 1.0, "surrogate": 1.0, "explain": 2.2},
        {"net": 10.0, "surrogate": 10.0, "explain": 24.0},
        {"net": 1.0, "surrogate": 1.0, "explain": 2.6},
    ]
    row = explain._row(found, 4, 2)
    assert [row[name] for name in explain.CALLS] == [1000, 1000, 2600]  # milliseconds
    assert row["ratio"].value == pytest.approx(1.2)  # the median of the rounds' ratios, not the ratio of medians
    assert row["own_pass"] == pytest.approx(1.4)
    assert row["throughput"] == pytest.approx(4 / 2.6)
    assert row["ratio"].interval == pytest.approx((1.1, 1.3))


def test_calls_take_turns_equally_often() -> None:
    asked: list[str] = []
    calls = {name: lambda name=name: asked.append(name) for name in ("a", "b")}
    rounds = explain._rounds(calls, torch.device("cpu"), 3, 0.0)
    assert asked == ["a", "b"] * 5  # once to warm up, once to see how long it takes, three rounds
    assert [set(one) for one in rounds] == [{"a", "b"}] * 3


def test_the_command_on_a_small_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made.bundle(tmp_path / "bundle")
    measure = explain.measure
    monkeypatch.setattr(explain, "measure", lambda *a, **o: measure(*a, **o, batches=(1, 3), at_least=0))
    out = tmp_path / "numbers.json"
    options = ["--bundle", str(folder), "--device", "cpu", "--rounds", "2", "--out", str(out)]
    result = run(app, ["bench", "explain", *options])
    assert result.exit_code == 0, result.output
    [table] = json.loads(out.read_text())["tables"]
    assert [(row["batch"], row["threads"]) for row in table["rows"]] == [(1, 1), (3, 1), (1, 2), (3, 2)]
    assert all(row["rounds"] == 2 and row["explain"] > 0 for row in table["rows"])
    assert "at most 1.35" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--bundle", "nowhere/at/all"], "nowhere/at/all"),
        (["--bundle", "a", "--arch", "tiny"], "exclude each other"),
        (["--arch", "tiny", "--half", "--device", "cpu"], "measured on a GPU"),
    ],
)
def test_user_errors(options: list[str], said: str) -> None:
    result = run(app, ["bench", "explain", *options], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert said in result.output


def test_without_a_shipped_bundle_the_error_names_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain.bundle, "shipped", list)
    with pytest.raises(ValueError, match="--bundle FOLDER, or --arch"):
        explain.load(None, torch.device("cpu"))
