"""Quantus' metrics run on vitshap's methods and distinguish exact values from random ones."""

import copy

import numpy as np
import pytest
import quantus
import torch

import vitshap
from tests.explanation.small_vit import SIZE, SUPERPIXELS, random_images, small_vit
from vitshap.explainers.explainer import Explainer
from vitshap.explanation.export import pixel_owners

pytestmark = pytest.mark.filterwarnings("ignore")  # Quantus warns about every parameter it is given

QUIET = {"disable_warnings": True, "display_progressbar": False}


@pytest.fixture(scope="module")
def model():
    return small_vit(removal="pixels")  # patches fall away by blanking, as Quantus perturbs


@pytest.fixture(scope="module")
def batch():
    images = random_images(4).numpy()
    return images, np.array([2, 0, 1, 2])


def run(metric, model, batch, explain, **kwargs):
    images, targets = batch
    return metric(model=model, x_batch=images, y_batch=targets, explain_func=explain, **kwargs)


def test_the_function_gives_shares_of_pixels(model, batch):
    images, targets = batch
    explain = vitshap.method("exact", model)
    shares = vitshap.quantus_explain_func(explain)(model, images, targets)
    assert shares.shape == (4, 1, *SIZE)
    assert shares.dtype == np.float32
    expected = explain(torch.from_numpy(images), target=torch.from_numpy(targets)).values[..., 0].numpy()
    sums = shares.astype(np.float64).reshape(4, 3, 8, 2, 8).sum((2, 4)).reshape(4, 6)
    np.testing.assert_allclose(sums, expected, rtol=1e-6, atol=1e-6)


def test_superpixels_and_doubles(model, batch):
    images, targets = batch
    explain = vitshap.method("exact", model, players=SUPERPIXELS)
    shares = vitshap.quantus_explain_func(explain)(model, images.astype(np.float64), targets.astype(np.int32))[:, 0]
    values = explain(torch.from_numpy(images), target=torch.from_numpy(targets)).values[..., 0].numpy()
    owner = pixel_owners(SUPERPIXELS[None], SIZE)[0].numpy()
    for player in range(3):
        np.testing.assert_allclose(shares[:, owner == player].sum(1), values[:, player], rtol=1e-4, atol=1e-6)
    assert not shares[:, owner == -1].any()


def test_flipping_pixels_tells_exact_values_from_random_ones(model, batch):
    """Patches are blanked one at a time, the highest value first."""
    metric = quantus.PixelFlipping(features_in_step=64, perturb_baseline=0.0, abs=False, normalise=False, **QUIET)
    # Curves, [4 images, 6 patches]; Quantus' own area needs a numpy function that numpy no longer has.
    exact, chance = (
        np.mean(run(metric, model, batch, vitshap.quantus_explain_func(vitshap.method(name, model))), axis=1)
        for name in ("exact", "random")
    )
    assert np.isfinite([exact, chance]).all()
    assert (exact < chance).all()


def test_faithfulness_correlation(model, batch):
    scores = {}
    for name in ("exact", "random", "leave-one-out"):
        np.random.seed(0)  # noqa: NPY002 (what Quantus draws from)
        metric = quantus.FaithfulnessCorrelation(
            nr_runs=20, subset_size=100, perturb_baseline=0.0, abs=False, return_aggregate=False, **QUIET
        )
        scores[name] = run(metric, model, batch, vitshap.quantus_explain_func(vitshap.method(name, model)))
        assert len(scores[name]) == 4
        assert np.isfinite(scores[name]).all()
    assert not np.allclose(scores["exact"], scores["random"], atol=0.01)


def test_sparseness_is_that_of_the_values(model, batch):
    metric = quantus.Sparseness(abs=True, normalise=False, **QUIET)
    exact = run(metric, model, batch, vitshap.quantus_explain_func(vitshap.method("exact", model)))
    chance = run(metric, model, batch, vitshap.quantus_explain_func(vitshap.method("random", model)))
    assert np.isfinite(exact).all()
    assert not np.allclose(exact, chance)


@pytest.mark.parametrize("kind", ["explainer", "leave-one-out"])
def test_max_sensitivity(model, batch, kind):
    torch.manual_seed(1)
    explain = Explainer(small_vit()) if kind == "explainer" else vitshap.method(kind, model)
    scores = []
    for radius in (0.001, 0.5):
        np.random.seed(0)  # noqa: NPY002
        metric = quantus.MaxSensitivity(nr_samples=3, lower_bound=radius, normalise=False, **QUIET)
        scores.append(run(metric, explain.forward_func, batch, vitshap.quantus_explain_func(explain)))
        assert np.isfinite(scores[-1]).all()
    assert np.mean(scores[0]) < np.mean(scores[1])


def test_randomised_models_are_explained_instead_of_the_first_one(model, batch):
    """MPRT replaces the weights layer by layer: explanations must follow, or its score is 1 whatever the method."""
    metric = quantus.MPRT(
        similarity_func=quantus.correlation_spearman, return_last_correlation=True, normalise=False, **QUIET
    )
    explain = vitshap.quantus_explain_func(vitshap.method("exact", model))
    scores = run(metric, model, batch, explain)
    assert np.isfinite(scores).all()
    assert np.mean(scores) < 0.9
    frozen = run(metric, model, batch, lambda model, inputs, targets, **kwargs: explain(None, inputs, targets))
    np.testing.assert_allclose(frozen, 1.0)


def test_a_model_that_the_method_was_not_made_for(model, batch):
    images, targets = batch
    images, targets = images[:2], targets[:2]
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.net.parameters():
            parameter.mul_(1.5)
    own = vitshap.quantus_explain_func(vitshap.method("exact", model, players=SUPERPIXELS))
    theirs = vitshap.quantus_explain_func(vitshap.method("exact", other, players=SUPERPIXELS))
    assert np.array_equal(own(other, images, targets), theirs(other, images, targets))
    assert not np.array_equal(own(other, images, targets), own(model, images, targets))
    assert np.array_equal(own(model.net, images, targets), own(model, images, targets))
    with pytest.raises(ValueError, match="Exact was not made for"):
        own(other.net, images, targets)


def test_an_explainer_explains_its_surrogate_only(model, batch):
    images, targets = batch
    explainer = Explainer(small_vit())
    with pytest.raises(ValueError, match="a trained explainer explains its surrogate only"):
        vitshap.quantus_explain_func(explainer)(model, images, targets)
    loose = vitshap.quantus_explain_func(explainer, strict=False)
    assert np.array_equal(loose(model, images, targets), loose(explainer.surrogate, images, targets))


def test_arguments_that_quantus_adds_are_accepted_and_errors_are_raised(model, batch):
    images, targets = batch
    explain = vitshap.quantus_explain_func(vitshap.method("random", model))
    assert explain(model, images, targets, device="cpu", method="random").shape == (4, 1, *SIZE)
    with pytest.raises(TypeError, match="unexpected keyword argument 'budgt'"):
        explain(model, images, targets, budgt=3)
    with pytest.raises(ValueError, match=r"holds integers.*float64"):
        explain(model, images, targets.astype(np.float64))


def test_evaluate_runs_several_metrics_at_once(model, batch):
    images, targets = batch
    results = quantus.evaluate(
        metrics={"sparseness": quantus.Sparseness(**QUIET), "complexity": quantus.Complexity(**QUIET)},
        xai_methods={
            name: vitshap.quantus_explain_func(vitshap.method(name, model)) for name in ("exact", "leave-one-out")
        },
        model=model,
        x_batch=images,
        y_batch=targets,
        agg_func=np.mean,
        explain_func_kwargs={},
    )
    assert set(results) == {"exact", "leave-one-out"}
    assert np.isfinite([score for row in results.values() for score in row.values()]).all()
