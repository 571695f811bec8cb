"""The comparison with shapiq and captum: its counts, and that ours needs no more evaluations than the best of theirs."""

import pytest

from vitshap.analytic import random_unanimity
from vitshap.bench.estimators import (
    COLUMNS,
    OURS,
    compare,
    evaluations_to_error,
    ours_over_theirs,
    summary,
    synthetic_games,
    theirs,
)
from vitshap.experiments.tables import Table


def test_every_estimator_stays_within_its_budget() -> None:
    game = random_unanimity(8, seed=1)
    runs = compare({"a": game}, budgets=(60, 200), seeds=range(2), title="one game")
    rows = [{key: cell.value for key, cell in row.items()} for row in runs.rows]
    assert {row["estimator"] for row in rows} == {*OURS, *theirs()}
    for row in rows:
        assert row["evaluations"] <= row["budget"] + 1  # shapiq's game asks the empty coalition once to normalise
    for name in OURS:
        assert min(row["error"] for row in rows if row["estimator"] == name and row["budget"] == 200) < 0.5
    short = summary(runs, errors=(0.2, 0.1))
    assert short.title.startswith("one game: evaluations to a relative error")
    assert short.values("estimator") == list(dict.fromkeys(runs.values("estimator")))
    assert short.values("error 0.1") > short.values("error 0.2")
    assert "at error 0.1" in short.notes[0]


def test_evaluations_to_an_error_by_hand() -> None:
    rows = Table("by hand", COLUMNS)
    for n, error in [(100, 1.0), (400, 0.5), (1600, 0.25)]:
        rows.add(game="g", estimator="e", budget=n, seed=0, evaluations=n, error=error)
    assert evaluations_to_error(rows, 0.5)["g", "e"] == pytest.approx(400)
    assert evaluations_to_error(rows, 0.5**0.5)["g", "e"] == pytest.approx(200)
    assert evaluations_to_error(rows, 0.125)["g", "e"] == pytest.approx(6400)
    assert evaluations_to_error(rows, 2.0)["g", "e"] == 100


@pytest.mark.parametrize(
    ("games", "seeds"), [(4, 2), pytest.param(20, 5, marks=pytest.mark.long)], ids=["short", "twenty games"]
)
def test_ours_needs_no_more_than_the_best_of_theirs(games: int, seeds: int) -> None:
    chosen = dict(list(synthetic_games().items())[:games])
    others = {name: rival for name, rival in theirs().items() if "KernelSHAP" in name or "kADDSHAP" in name}
    rows = compare(chosen, budgets=(100, 200, 400, 800), seeds=range(seeds), contenders={**OURS, **others})
    ratio, _ = ours_over_theirs(rows, 0.1)
    assert ratio <= 1.05
