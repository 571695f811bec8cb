"""Evaluations until an accuracy is reached, image by image, and one budget for many images."""

from typing import Any, cast

import pytest
import torch

from tests.estimators.games import noisy_prior, relative_error
from tests.small_nets import random_images, small_net
from vitshap.bench.estimators import from_table, softmax_table
from vitshap.estimators.anytime import Run, Stop, run_together
from vitshap.estimators.estimate import Estimate, correlation
from vitshap.estimators.exact import exact
from vitshap.estimators.kernel import kernelshap
from vitshap.estimators.permutation import permutation
from vitshap.estimators.refine import RefineState, equal_shares, refine
from vitshap.methods import method


@pytest.mark.parametrize("estimator", [kernelshap, refine, permutation])
def test_the_asked_correlation_is_reached_about(estimator: Any) -> None:
    game = from_table(softmax_table(12)[:, :1])
    truth = exact(game).values
    reached, used = [], []
    for seed in range(8):
        estimate = estimator(game, budget=60_000, accuracy=0.97, seed=seed)
        assert bool(estimate.converged.all())
        reached.append(float(correlation(estimate.values, truth).min()))
        used.append(estimate.evaluations)
    assert sum(reached) / len(reached) > 0.96
    assert max(used) < 20_000


def test_more_accuracy_costs_more_and_out_of_reach_is_said() -> None:
    game = from_table(softmax_table(12)[:, :1])
    used = [refine(game, budget=20_000, accuracy=accuracy).evaluations for accuracy in (0.8, 0.97, 0.999)]
    assert used[0] <= used[1] < used[2]
    estimate = kernelshap(game, budget=130, accuracy=0.9999)
    assert not bool(estimate.converged.any())
    assert estimate.evaluations <= 130


@pytest.fixture(scope="module")
def model() -> Any:
    return small_net((4, 4))


def test_images_stop_one_by_one(model: Any) -> None:
    pixels = random_images(model, 4)
    explanation = method("kernelshap", model, accuracy=0.98, budget=3000)(pixels, target="predicted")
    spent = explanation.evaluations_each
    assert spent is not None
    assert len(set(spent.tolist())) > 1
    assert int(spent.max()) <= 3000
    assert explanation.evaluations == -(-int(spent.sum()) // 4)
    assert [explanation[i].evaluations for i in range(4)] == spent.tolist()
    assert explanation.converged is not None
    alone = method("kernelshap", model, accuracy=0.98, budget=3000)(pixels[1:2], target="predicted")
    torch.testing.assert_close(alone.values, explanation[1].values, atol=1e-6, rtol=0)
    assert bool(explanation.converged.any())


def test_a_total_budget_goes_where_it_helps_most(model: Any) -> None:
    pixels = random_images(model, 3)
    pixels[1] = pixels[1] * 0.05  # hardly anything to see: nearly equal values, large relative errors
    made = method("refine", model, total_budget=1500)
    explanation = made(pixels, target="predicted")
    spent = explanation.evaluations_each
    assert spent is not None
    assert int(spent.sum()) <= 1500
    assert int(spent.sum()) > 1300
    assert explanation.stderr is not None
    assert explanation.converged is None
    with_rule = method("refine", model, total_budget=9000, accuracy=0.9)(pixels, target="predicted")
    assert with_rule.evaluations_each is not None
    assert int(with_rule.evaluations_each.sum()) < 9000
    assert with_rule.converged is not None
    assert bool(with_rule.converged.all())


def test_a_total_budget_corrects_bad_priors_and_leaves_good_ones() -> None:
    game = from_table(softmax_table(12)[:, :1])
    truth = exact(game).values
    sizes = 8 * (0.05,) + 2 * (0.5,)  # of the priors' errors, relative to the values
    priors = [noisy_prior(truth, size * float(truth.std()), seed) for seed, size in enumerate(sizes)]
    each, total = 120, 120 * len(sizes)
    states = [RefineState(game, prior, 4096, seed) for seed, prior in enumerate(priors)]
    runs = [Run(state, game, budget=total, stop=Stop(), stepwise=True) for state in states]
    run_together(runs, total)
    made = [cast(Estimate, one.estimate) for one in runs]
    spent = [one.evaluations for one in made]
    assert spent[:8] == 8 * [2]
    assert total - 300 < sum(spent) <= total
    alike = [refine(game, prior, budget=each, seed=seed) for seed, prior in enumerate(priors)]
    errors = [sum(relative_error(one.values, truth) ** 2 for one in estimates) for estimates in (made, alike)]
    assert errors[0] < 0.3 * errors[1]


@pytest.mark.parametrize("name", ["kernelshap", "kernelshap-original", "permutation", "refine"])
@pytest.mark.parametrize("total", [20, 60, 150, 400, 1000])
def test_a_small_total_budget_is_shared_or_refused(model: Any, name: str, total: int) -> None:
    pixels = random_images(model, 5)
    made = method(name, model, total_budget=total)
    state = made.state(model.game(pixels[:1]), equal_shares(model.game(pixels[:1])))
    if total < 5 * max(state.smallest, 2):
        with pytest.raises(ValueError, match=r"evaluations in total are too few for 5 inputs|is too small"):
            made(pixels, target="predicted")
        return
    explanation = made(pixels, target="predicted")
    spent = explanation.evaluations_each
    assert spent is not None
    assert int(spent.sum()) <= total
    assert int(spent.min()) >= 2
    if name != "refine":  # whose corrections need more than a small share
        assert int(spent.max()) <= 3 * int(spent.min())


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"accuracy": 1.0}, "between 0 and 1"),
        ({"accuracy": 0.9, "threshold": 0.1}, "not both"),
        ({"total_budget": 1}, "total_budget"),
        ({"threshold": -1.0}, "positive"),
    ],
)
def test_bad_options(model: Any, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        method("kernelshap", model, **options)
