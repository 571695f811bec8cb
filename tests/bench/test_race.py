"""Our estimators against shapiq's, which run in another process and ask for values."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tests.small_nets import random_images, small_net
from vitshap.bench.race import RUNS, Racing, race, verdict
from vitshap.cli import app
from vitshap.estimators.exact import exact
from vitshap.experiments.tables import Table


@pytest.fixture(scope="module")
def racing() -> Racing:
    model = small_net((3, 4))
    return Racing(model, random_images(model, 2), batch=1)


def test_games_are_of_the_predicted_class(racing: Racing) -> None:
    members = torch.rand(5, racing.model.num_players) < 0.5
    every = racing.model(racing.pixels[1:], members[None])[0]
    predicted = racing.model(racing.pixels[1:]).argmax(1)
    torch.testing.assert_close(racing.values(1, members), every[:, predicted[0]].detach(), check_dtype=False)


def test_estimators_of_shapiq_run_beside_ours_on_the_same_games(racing: Racing) -> None:
    known = racing.known(2**12)
    for i, part in enumerate(racing.parts):
        truth = exact(racing.game(part)).values[0, :, 0]
        torch.testing.assert_close(known.values[i], truth, atol=5e-3, rtol=0)
    budgets = (40, 80)
    table = race(racing, known, budgets=budgets, seeds=(0,), estimators=("KernelSHAP", "ShaplEIG"), workers=2)
    rows = {(row["estimator"].value, row["budget"].value): row for row in table.rows}
    assert set(rows) == {(name, n) for name in ("kernelshap", "refine, tokens", "shapiq KernelSHAP") for n in budgets}
    assert [rows["shapiq KernelSHAP", n]["evaluations"].value for n in budgets] == [57, 114]  # n / 0.7
    assert all(row["runs"].value == 2 for row in table.rows)
    assert all(row["correlation"].value > 0.3 for row in table.rows)
    assert any(note.startswith("ShaplEIG, 57 evaluations: ") for note in table.notes)
    found = verdict(table)
    assert found.values("best") == ["shapiq KernelSHAP"] * 2
    ratio = rows["kernelshap", 40]["error"].value / rows["shapiq KernelSHAP", 40]["error"].value
    assert found.values("kernelshap_ratio")[0] == pytest.approx(ratio)
    assert json.dumps(found.to_json())


def test_an_interrupted_race_continues(racing: Racing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(estimators: tuple[str, ...] = ("KernelSHAP",)) -> Table:
        known = racing.known(2**8, tmp_path)
        return race(racing, known, budgets=(40,), seeds=(0, 1), estimators=estimators, folder=tmp_path)

    whole, path = run(), tmp_path / RUNS
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) == 2 * 2 + 2 * 2  # two of ours for all images, two seeds and images of theirs
    path.write_text("".join(lines[:-2]) + lines[-2][:30])  # killed while the last but one was written
    assert [row["error"] for row in run().rows] == [row["error"] for row in whole.rows]
    assert path.read_text().splitlines(keepends=True)[:-2] == lines[:-2]
    kept = path.read_text()
    with_failure = run(("KernelSHAP", "ShaplEIG"))  # which refuses so few evaluations
    assert len(with_failure.notes) == 1
    assert path.read_text() == kept  # failures may be for want of a package, and are tried again
    monkeypatch.setattr(Racing, "game", None)
    assert [row["error"] for row in run().rows] == [row["error"] for row in whole.rows]  # nothing is computed again
    with pytest.raises(ValueError, match="was made for another number of evaluations"):
        racing.known(2**9, tmp_path)


def test_the_command_names_what_is_missing() -> None:
    for words, expected in (
        (["imagenette-deit-tiny"], "give the data of this model too"),
        (["digits", "--estimators", "KernelSHAP;OtherSHAP"], "got OtherSHAP"),
    ):
        result = CliRunner().invoke(app, ["bench", "race", *words])
        assert result.exit_code == 2
        assert expected in result.output.replace("\n", " ")
