"""The comparison with shapiq and captum: what it counts, and that ours needs no more than the best of theirs."""

import pytest
import torch

from vitshap.analytic import random_unanimity
from vitshap.bench.estimators import (
    OURS,
    Row,
    compare,
    evaluations_to_error,
    from_table,
    ours_over_theirs,
    synthetic_games,
    theirs,
)


def test_every_estimator_stays_within_its_budget_and_gets_somewhere() -> None:
    game = random_unanimity(8, seed=1)
    rows = compare({"a": game}, budgets=(60, 200), seeds=range(2))
    assert {row.estimator for row in rows} == {*OURS, *theirs()}
    for row in rows:
        assert row.evaluations <= row.budget + 1  # shapiq's game asks the empty coalition once to normalise
    for name in OURS:
        assert min(row.error for row in rows if row.estimator == name and row.budget == 200) < 0.5


def test_evaluations_to_an_error_by_hand() -> None:
    rows = [Row("g", "e", n, 0, n, error) for n, error in [(100, 1.0), (400, 0.5), (1600, 0.25)]]
    assert evaluations_to_error(rows, 0.5)["g", "e"] == pytest.approx(400)
    assert evaluations_to_error(rows, 0.5**0.5)["g", "e"] == pytest.approx(200)
    assert evaluations_to_error(rows, 0.125)["g", "e"] == pytest.approx(6400)
    assert evaluations_to_error(rows, 2.0)["g", "e"] == 100


@pytest.mark.parametrize(
    ("games", "seeds"), [(4, 5), pytest.param(20, 20, marks=pytest.mark.long)], ids=["short", "twenty games"]
)
def test_ours_needs_no_more_than_the_best_of_theirs(games: int, seeds: int) -> None:
    chosen = dict(list(synthetic_games().items())[:games])
    rivals = {name: rival for name, rival in theirs().items() if "KernelSHAP" in name or "kADDSHAP" in name}
    rows = compare(chosen, budgets=(100, 200, 400, 800), seeds=range(seeds), contenders={**OURS, **rivals})
    ratio, _ = ours_over_theirs(rows, 0.1)
    assert ratio <= 1.05


def test_bad_tables_and_games() -> None:
    with pytest.raises(ValueError, match=r"2\^d"):
        from_table(torch.zeros(10, 1))
    with pytest.raises(ValueError, match="one of each"):
        compare({"two": random_unanimity(5, num_outputs=2)})
