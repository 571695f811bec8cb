"""Evaluations per second, and how time is measured."""

import itertools
import json
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from vitshap.bench import speed
from vitshap.bench.speed import describe, seconds
from vitshap.cli import app
from vitshap.models import linear, wrap

run = CliRunner().invoke


def test_seconds_are_those_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    lasting = itertools.chain([9.0], itertools.cycle([0.5]))  # the first call is slow, and not counted
    now, calls = [0.0], []

    def work() -> None:
        calls.append(1)
        now[0] += next(lasting)

    monkeypatch.setattr(speed.time, "perf_counter", lambda: now[0])
    assert seconds(work, torch.device("cpu"), at_least=1.0, rounds=3) == 0.5
    assert len(calls) == 1 + 3 * 2


@pytest.mark.parametrize("word", ["torch", "vitshap", "Python"])
def test_the_machine_is_described(word: str) -> None:
    assert word in describe(torch.device("cpu"))


@pytest.mark.long
@pytest.mark.parametrize("onednn", [False, True])
def test_bench_coalitions_reports_every_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, onednn: bool) -> None:
    monkeypatch.setattr(linear, "onednn_is_faster", lambda: onednn)
    seconds = speed.seconds
    monkeypatch.setattr(speed, "seconds", lambda work, device, **options: seconds(work, device, at_least=0, rounds=1))
    out = tmp_path / "numbers.json"
    result = run(app, ["bench", "coalitions", "--device", "cpu", "--seconds", "1", "--out", str(out)])
    assert result.exit_code == 0, result.output
    rows = json.loads(out.read_text())["tables"][0]["rows"]
    assert all(row["per_second"] > 0 for row in rows)
    lines = [row for row in rows if row["ratio"] is not None]
    assert {line["threads"] for line in lines} == {1, 2}
    assert [line["way"] for line in lines if line["threads"] == 1] == [
        "full length, explicit mask",
        "full length, fused attention with a mask",
        *(["packed, MKL"] if onednn else []),
        "packed",
    ]
    ways = len(lines) // 2
    assert [row["way"].partition(",")[0] for row in rows[ways : ways + 2]] == ["limit by operations", "limit by bytes"]
    for line in lines:
        first = next(other for other in lines if other["threads"] == line["threads"])
        assert line["ratio"] == pytest.approx(line["per_second"] / first["per_second"])
    said = result.stderr.splitlines()
    assert re.fullmatch(r"\d+ coalitions of each of [1-4] images", said[0])
    assert said[1 : 1 + ways] == [f"{line['way']}, threads: 1" for line in lines[:ways]]


def test_bench_coalitions_fits_into_the_time() -> None:
    model = wrap(speed.build_net("transformers", "tiny"))
    assert speed._affordable(model, 4, 1e-9, runs=6) == (1, 2)
    assert speed._affordable(model, 4, 1e9, runs=6) == (4, speed.MOST_ON_CPU)


def test_work_per_evaluation_is_counted_by_hand_for_one_size() -> None:
    flops, moved = speed.work_per_evaluation("tiny", 2, itemsize=4)  # two players: always one kept, so two tokens
    assert flops == pytest.approx(12 * (2 * 2 * 12 * 192**2 + 2 * 2 * 2 * 2 * 192))
    assert moved == pytest.approx(12 * 22 * 192 * 4 * 2)


def test_the_number_of_threads_is_restored() -> None:
    before = torch.get_num_threads()
    with speed.threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
