"""Estimators on a real net, through the call that every method answers."""

import pytest
import torch

from tests.models import nets
from vitshap import method, truth, wrap
from vitshap.estimators.exact import exact
from vitshap.estimators.progress import progress_bar

NAME = "timm ViT, wide grid"  # 15 patches


@pytest.fixture(scope="module")
def model():
    return wrap(nets.build(NAME))


@pytest.fixture(scope="module")
def exact_values(model):
    return method("exact", model)(nets.images(NAME))


@pytest.mark.parametrize(("name", "tolerance"), [("kernelshap", 0.02), ("permutation", 0.25)])
def test_sampled_values_near_the_exact_ones(model, exact_values, name: str, tolerance: float) -> None:
    explanation = method(name, model, budget=4000)(nets.images(NAME))
    assert explanation.evaluations <= 4000
    error = (explanation.values - exact_values.values).square().mean().sqrt()
    assert error < tolerance * exact_values.values.std()
    assert explanation.efficiency_gap().abs().max() < 1e-6
    inside = (explanation.values - exact_values.values).abs() <= 3 * explanation.stderr + 1e-6
    assert inside.float().mean() > 0.97


def test_a_target_limits_the_computation(model) -> None:
    everything = method("kernelshap", model, budget=600)(nets.images(NAME))
    one = method("kernelshap", model, budget=600)(nets.images(NAME), target=2)
    torch.testing.assert_close(one.values[..., 0], everything.values[..., 2], rtol=0, atol=1e-6)
    assert one.values.shape == (2, 15, 1)


def test_the_threshold_is_reached_or_flagged(model) -> None:
    seen = []
    easy = method("kernelshap", model, budget=8000, threshold=0.2, progress=seen.append)(nets.images(NAME), target=0)
    assert easy.converged.tolist() == [True, True]
    assert easy.evaluations < 8000
    assert len(seen) >= 1
    hard = method("kernelshap", model, budget=200, threshold=1e-6)(nets.images(NAME), target=0)
    assert hard.converged.tolist() == [False, False]
    assert method("kernelshap", model, budget=200)(nets.images(NAME), target=0).converged is None


def test_the_progress_bar_watches_a_method(model, capsys) -> None:
    with progress_bar(1000, 0.01) as watch:
        method("kernelshap", model, budget=1000, threshold=0.01, progress=watch)(nets.images(NAME), target=0)
    assert "error/range" in capsys.readouterr().out


def test_unequal_numbers_of_players(model) -> None:
    labels = torch.stack([torch.arange(15).view(3, 5) % 6, torch.arange(15).view(3, 5) % 4])
    explanation = method("kernelshap", model, players=labels, budget=64)(nets.images(NAME), target=0)
    expected = exact(model.game(nets.images(NAME), players=labels)).values[..., :1].float()
    torch.testing.assert_close(explanation.values, expected, rtol=0, atol=1e-4)
    assert explanation.values[1, 4:].abs().max() == 0


def test_truth_of_images_belongs_to_the_weights(model, exact_values, tmp_path) -> None:
    stored = truth.of_images(tmp_path, model, nets.images(NAME), budget=8000, batch=1)
    assert (stored.values - exact_values.values).square().mean().sqrt() < 0.02 * exact_values.values.std()
    assert stored.reliability.min() > 0.99
    assert truth.load(tmp_path, surrogate=model.fingerprint()).specification.num_inputs == 2
    other = wrap(nets.build(NAME, seed=1))
    with pytest.raises(ValueError, match="new surrogate"):
        truth.load(tmp_path, surrogate=other.fingerprint())


def test_shapiq_takes_an_image_game(model, exact_values) -> None:
    import shapiq

    game = model.game(nets.images(NAME)[1:]).as_shapiq(3)
    result = shapiq.KernelSHAP(n=15, random_state=0).approximate(3000, game)
    values = torch.tensor([result[(i,)] for i in range(15)])
    error = (values - exact_values.values[1, :, 3]).square().mean().sqrt()
    assert error < 0.2 * exact_values.values[1, :, 3].std()
