"""Curves of the output while patches are removed, against one coalition at a time."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import vitshap
from tests.explaining import made
from vitshap.cli import app
from vitshap.explaining import Explained, explain_photos, open_bundle, text
from vitshap.explaining.curves import CLASSES, point_counts, removal_curves, supporting_players


@pytest.mark.parametrize("players", [1, 2, 3, 16, 196])
def test_counts_are_the_same_from_both_ends(players: int) -> None:
    for also in range(0, players + 1, max(players // 4, 1)):
        counts = point_counts(players, also)
        assert counts[0] == 0
        assert counts[-1] == players
        assert also in counts
        assert [players - count for count in reversed(counts)] == counts


def test_players_that_make_up_half_of_the_support() -> None:
    assert supporting_players(torch.tensor([0.1, 0.5, -2.0, 0.3])) == 1
    assert supporting_players(torch.tensor([0.3, 0.3, 0.3, -1.0])) == 2
    assert supporting_players(torch.tensor([-0.1, 0.0])) == 0


def test_every_point_is_the_model_itself(bundle: Path, tmp_path: Path) -> None:
    source, photos = open_bundle(bundle), made.photos(tmp_path, 2)
    for photo, entry in zip(photos, explain_photos(photos, source, target="all", curves=3), strict=True):
        assert isinstance(entry, Explained)
        assert [curve.index for curve in entry.curves] == [index for index, _ in entry.predicted(3)]
        game = source.model.game(source.model.prepare(photo).pixels)
        for curve in entry.curves:
            assert curve.order == [one.player for one in entry.explanation.top(16, curve.index)[0]]
            for row, count in enumerate(curve.counts):
                for outputs, gone in ((curve.remove, curve.order[:count]), (curve.add, curve.order[count:])):
                    shown = torch.ones(1, 16, dtype=torch.bool)
                    shown[0, gone] = False
                    torch.testing.assert_close(outputs[row], game(shown)[0, 0].float(), rtol=1e-4, atol=1e-5)
            assert curve.random.shape == (3, len(curve.counts))
            torch.testing.assert_close(curve.random[:, -1], game.grand[:, curve.index].float().expand(3))
        count = supporting_players(entry.explanation.values[0, :, entry.classes.index(entry.main)])
        without = entry.curves[0].without(count)
        assert without is not None
        said = text.headline(entry, "probability")
        assert f"{count} of 16 patches its probability would " in said
        assert f"be {text.output_text(without, 'probability')}." in said
        assert "make up half" in text.headline(replace(entry, curves=()), "probability")


def test_one_player() -> None:
    model, pixels = made.model(), torch.zeros(1, 3, 32, 32)
    explanation = vitshap.method("exact", model, players=torch.zeros(4, 4, dtype=torch.int64))(pixels)
    for curve in removal_curves(model, pixels, explanation, int(explanation.classes[0, 0])):
        assert curve.counts == [0, 1]
        assert curve.remove.shape == curve.add.shape == (2, 5)


@pytest.mark.parametrize(
    ("options", "curves"),
    [
        ((), ["explainer"] * CLASSES),
        (("--method", "explainer,kernelshap", "--budget", "64"), ["explainer"] * CLASSES + ["kernelshap"]),
        (("--no-curves",), []),
    ],
)
def test_the_command_evaluates_them_unless_told_not_to(
    bundle: Path, tmp_path: Path, options: tuple[str, ...], curves: list[str]
) -> None:
    (photo,) = made.photos(tmp_path / "photos", 1)
    arguments = ["explain", str(photo), "--bundle", str(bundle), "--out", str(tmp_path / "out"), *options]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    report = (tmp_path / "out" / "report.html").read_text()
    (found,) = re.findall(r'"curves":(\[.*?\]),"others"', report)
    assert [curve["method"] for curve in json.loads(found)] == curves
    assert ("its probability would " in report) is bool(curves)
