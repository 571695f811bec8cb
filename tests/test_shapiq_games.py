"""Games to and from the real shapiq, and our values against shapiq's and captum's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import shapiq
import torch

from tests.estimators.games import digit_like
from tests.small_nets import random_images, small_net
from vitshap.analytic import random_unanimity
from vitshap.bench.estimators import from_table, softmax_table, theirs
from vitshap.estimators.exact import exact
from vitshap.estimators.kernel import kernelshap
from vitshap.game import Game
from vitshap.shapiq_games import as_shapiq, from_shapiq


def test_shapiq_computes_our_exact_values() -> None:
    game = random_unanimity(7, batch_size=2, num_outputs=3)
    wrapped = as_shapiq(game, 2, index=1)
    assert isinstance(wrapped, shapiq.Game)
    result = shapiq.ExactComputer(wrapped, n_players=7)("SV")
    theirs = [result[(i,)] for i in range(7)]
    assert theirs == pytest.approx(game.shapley_values[1, :, 2].tolist(), abs=1e-10)


def test_our_estimators_accept_shapiq_games() -> None:
    class Sums(shapiq.Game):  # type: ignore[misc]
        def value_function(self, coalitions: Any) -> Any:
            return coalitions @ np.arange(6.0) + coalitions[:, 0] * coalitions[:, 5]

    game = from_shapiq(Sums(6, normalize=False))
    expected = [0.5, 1.0, 2.0, 3.0, 4.0, 5.5]
    assert exact(game).values[0, :, 0].tolist() == pytest.approx(expected, abs=1e-12)
    assert kernelshap(game, budget=40).values[0, :, 0].tolist() == pytest.approx(expected, abs=1e-3)


def test_there_and_back() -> None:
    game = digit_like(8, 3)
    back = from_shapiq(as_shapiq(game, 1))
    assert torch.allclose(exact(back).values[0, :, 0], exact(game).values[0, :, 1], atol=1e-12)


def test_a_class_is_chosen_by_number_or_name() -> None:
    model = small_net(class_names=["cat", "dog", "crane", "heron"])
    game = model.game(random_images(model, 1))
    everyone = np.ones((1, 9), dtype=bool)
    by_name, by_number = game.as_shapiq("crane"), game.as_shapiq(2)
    assert by_name(everyone) == by_number(everyone) != game.as_shapiq("dog")(everyone)
    with pytest.raises(ValueError, match='did you mean "crane"'):
        game.as_shapiq("cran")
    with pytest.raises(ValueError, match="give the class by number"):
        as_shapiq(digit_like(6, 3), "crane")


@pytest.mark.parametrize(
    ("output", "index", "error", "says"),
    [
        (3, 0, ValueError, "classes are 0 to 2"),
        (1.0, 0, TypeError, "an int or a name, got float"),
        (0, 1, ValueError, "index is 0 to 0"),
    ],
)
def test_bad_choice(output: Any, index: int, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        as_shapiq(digit_like(6, 3), output, index=index)


@pytest.mark.parametrize("name", ["shapiq UnbiasedKernelSHAP", "shapiq Permutation", "captum ShapleyValueSampling"])
def test_same_mean_as_unbiased_estimators_over_fifty_seeds(name: str) -> None:
    game = from_table(softmax_table(9, 3)[:, :1])
    rival: Callable[[Game, int, int], torch.Tensor] = theirs()[name]
    ours = torch.stack([kernelshap(game, budget=200, seed=seed).values[0, :, 0] for seed in range(50)])
    other = torch.stack([rival(game, 200, seed).to(torch.float64) for seed in range(50)])
    difference = ours - other
    standard_error = difference.std(0) / 50**0.5
    assert (difference.mean(0).abs() < 3 * standard_error).all()
