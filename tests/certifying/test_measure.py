"""What is measured, against exact values of all coalitions."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy import stats

from tests.certifying.small import surrogate, trained, untrained
from vitshap.certifying import Settings, certify
from vitshap.certifying.certificate import low_confidence_threshold, roc_auc
from vitshap.certifying.corruptions import CORRUPTIONS, corruption
from vitshap.certifying.measure import ImageSet, measure
from vitshap.data import load_digits
from vitshap.explainers import Explainer
from vitshap.explainers.calibration import calibrate
from vitshap.metrics import error_bound, metric
from vitshap.metrics.bound import kernel_moments
from vitshap.models import wrap
from vitshap.training.batches import Images
from vitshap.training.values.store import Evaluator
from vitshap.training.values.validation import ValidationSet


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    """All test digits with the exact values of their four players; the explainer is calibrated on validation digits."""
    explainer, val = trained(), torch.as_tensor(load_digits().val.images)
    known = kernel_moments(surrogate().game(val)).shapley_values()
    explainer.calibration = calibrate(explainer, val, known)
    folder = tmp_path_factory.mktemp("truth")
    try:
        return measure(
            explainer,
            load_digits().test,
            name="test",
            images=360,
            coalitions=256,
            truth_images=360,
            budget=100,
            folder=folder,
        )
    finally:
        explainer.calibration = None  # other tests use the same explainer


def test_error_loss_and_bound_are_those_of_all_coalitions(found: ImageSet) -> None:
    pixels = torch.as_tensor(load_digits().test.images)
    explainer, compared = trained(), found.compared
    game = surrogate().game(pixels)
    exact = error_bound(game, explainer(pixels).values)
    assert compared is not None
    assert compared.distance().mean == pytest.approx(exact.mean, rel=1e-4)
    assert float(compared.excess.mean()) == pytest.approx(float((exact.losses - exact.optima).mean()), rel=1e-4)
    torch.testing.assert_close(compared.excess, (exact.losses - exact.optima).mean(1), rtol=1e-3, atol=1e-7)
    assert float(found.losses.mean()) == pytest.approx(float(exact.losses.mean()), rel=0.03)  # sampled coalitions
    assert compared.optimum == pytest.approx(float(exact.optima.mean()), rel=0.05)
    estimated = found.estimated_bound
    assert estimated is not None
    assert estimated.bound == pytest.approx(exact.bound, rel=1e-3)
    assert exact.mean <= estimated.bound <= estimated.chebyshev <= found.bound.chebyshev
    assert found.bound.bound == pytest.approx(exact.loose_bound, rel=0.02)
    assert found.bound.hoeffding is not None
    assert found.bound.hoeffding > found.bound.bound
    assert found.largest is not None
    assert bool((found.largest >= found.losses).all())
    uniform = (game.grand - game.null).double()[:, None].expand(-1, 4, -1) / 4
    saved = (
        exact.losses.new_tensor(1.0)
        - (exact.losses - exact.optima).mean() / (kernel_moments(game).loss(uniform) - exact.optima).mean()
    )
    assert compared.improvement.mean == pytest.approx(float(saved), rel=1e-3)
    assert found.loss.mean < found.uniform_loss.mean


def test_correlation_and_coverage_by_hand(found: ImageSet) -> None:
    compared = found.compared
    assert compared is not None
    predicted = compared.explanation.prediction.argmax(1)
    ours = compared.explanation.values
    by_hand = [
        stats.pearsonr(ours[i, :, predicted[i]], compared.truth.values[i, :, predicted[i]]).statistic
        for i in range(len(ours))
    ]
    torch.testing.assert_close(compared.correlations(), torch.tensor(by_hand), rtol=1e-4, atol=1e-6)
    correlation = compared.correlation()
    assert correlation is not None
    assert correlation.mean == pytest.approx(sum(by_hand) / len(by_hand), rel=1e-4)
    assert correlation.low < correlation.mean < correlation.high
    assert compared.explanation.stderr is not None
    low, high = compared.explanation.interval(0.95)
    inside = (low - 1e-7 <= compared.truth.values) & (compared.truth.values <= high + 1e-7)
    coverage = compared.coverage()
    assert coverage is not None
    assert coverage.mean == pytest.approx(float(inside.double().mean()), abs=2e-3)
    assert compared.least_coverage == pytest.approx(float(inside.double().mean((0, 2)).min()), abs=5e-3)
    few = compared.coverage(torch.arange(360) < 10)
    assert few is not None
    assert few.mean == pytest.approx(float(inside[:10].double().mean()), abs=1e-2)
    assert compared.coverage(torch.zeros(360, dtype=torch.bool)) is None
    shares = compared.error.coverage.mean(1)
    extremes = (torch.arange(360) == int(shares.argmin())) | (torch.arange(360) == int(shares.argmax()))
    wide = compared.coverage(extremes)  # two unlike images: the interval is wider than all shares
    assert wide is not None
    assert 0 <= wide.low <= wide.mean <= wide.high <= 1
    assert found.promised is not None
    assert float(found.promised.mean()) == pytest.approx(correlation.mean, abs=0.1)


def test_images_are_spread_over_the_data_and_values_are_stored(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    options = {"images": 5, "coalitions": 4, "truth_images": 2, "budget": 100, "folder": tmp_path}
    first = measure(untrained(), load_digits().test, name="few", progress=lambda *step: seen.append(step), **options)
    assert first.compared is not None
    assert first.compared.names == ("image 0", "image 359")
    assert seen == [("few", 5, 5), ("few, converged values", 2, 2)]
    stored = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    again = measure(untrained(), load_digits().test, name="few", **options)
    assert again.compared is not None
    assert torch.equal(first.compared.truth.values, again.compared.truth.values)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")} == stored
    measure(untrained(), load_digits().val, name="others", **options)  # other images: other values
    assert len(list(tmp_path.rglob("*.safetensors"))) == 2
    tops = surrogate()(torch.as_tensor(load_digits().test.images)[[0, 89, 179, 269, 359]]).detach().amax(1)
    assert first.confidence is not None
    torch.testing.assert_close(first.confidence, tops.double(), rtol=1e-5, atol=1e-6)
    below = first.below(float(tops.median()))
    assert below is not None
    assert below.mean == pytest.approx(0.4)
    none = first.below(0.0)
    assert none is not None
    assert none.mean == none.low == 0
    assert none.high > 0.1, "a share of few images, Wilson's interval"


def test_constant_values_have_no_correlation(found: ImageSet) -> None:
    compared = found.compared
    assert compared is not None
    flat = compared.explanation
    constant = replace(flat, values=flat.values.mean(1, keepdim=True).expand_as(flat.values).contiguous(), stderr=None)
    error = metric("error", truth=compared.truth)(surrogate(), compared.pixels, constant)
    without = replace(compared, explanation=constant, error=error)
    assert not without.correlations().any()
    assert without.coverage() is None
    assert without.improvement.mean == pytest.approx(0, abs=1e-4)  # it is the uniform explanation


def test_outputs_without_probabilities_have_no_threshold(tmp_path: Path) -> None:
    explainer = Explainer(wrap(surrogate().net, output="identity", players=2)).eval()
    options = {"images": 4, "coalitions": 4, "truth_images": 2, "budget": 100}
    found = measure(explainer, load_digits().test, name="numbers", folder=tmp_path, **options)
    assert found.confidence is None
    assert found.below(0.5) is None
    assert found.accuracy is None
    assert found.bound.hoeffding is None
    assert found.bound.chebyshev > 0


def regression(unit: float) -> Explainer:
    """An explainer of ten numbers, the first of them in another unit."""
    net = deepcopy(surrogate().net)
    with torch.no_grad():
        net.classifier.weight[0] *= unit
        net.classifier.bias[0] *= unit
    made = Explainer(wrap(net, output="identity", players=2)).eval()
    made.network.load_state_dict(untrained().network.state_dict())
    game = made.surrogate.game(torch.as_tensor(load_digits().val.images))
    made.set_scale(game.grand.std(0))
    return made


def test_a_regression_is_judged_by_all_outputs_whatever_their_units(tmp_path: Path) -> None:
    options = {"images": 20, "coalitions": 32, "truth_images": 20, "budget": 100, "folder": tmp_path}
    one, other = (measure(regression(unit), load_digits().test, name="numbers", **options) for unit in (1.0, 100.0))
    first, second = one.compared, other.compared
    assert first is not None
    assert second is not None
    assert second.explanation.values[..., 0].abs().mean() > 50 * first.explanation.values[..., 0].abs().mean()
    assert one.loss == pytest.approx(other.loss, rel=1e-3)
    assert one.uniform_loss == pytest.approx(other.uniform_loss, rel=1e-3)
    assert first.improvement == pytest.approx(second.improvement, rel=1e-3, abs=1e-4)
    assert first.optimum == pytest.approx(second.optimum, rel=1e-3)
    assert first.distance() == pytest.approx(second.distance(), rel=1e-3)
    assert first.correlation() == pytest.approx(second.correlation(), abs=1e-4)
    assert first.judged == "all outputs"
    by_hand = [
        stats.pearsonr(first.explanation.values[0, :, k], first.truth.values[0, :, k]).statistic for k in range(10)
    ]
    assert float(first.correlations()[0]) == pytest.approx(sum(by_hand) / 10, abs=1e-5)
    assert first.correlation("others") is None
    apart = (first.explanation.values.double() - first.truth.values).square().sum(1).sqrt()
    assert first.distance().mean == pytest.approx(float((apart / first.scale).mean()), rel=1e-3)


def test_losses_of_a_regression_are_those_of_training(tmp_path: Path) -> None:
    explainer, data = regression(0.01), load_digits().test
    found = measure(explainer, data, name="numbers", images=360, coalitions=128)
    images = Images(explainer.surrogate, data, None, seed=0)
    trained_by = ValidationSet(None, Evaluator(explainer.surrogate), images, pairs=128).losses(explainer, 60)
    assert found.loss.mean == pytest.approx(trained_by["loss"], rel=0.03)  # other coalitions
    assert found.uniform_loss.mean == pytest.approx(trained_by["uniform_loss"], rel=0.03)


def test_one_image_has_no_verdict(tmp_path: Path) -> None:
    splits = load_digits()
    few = Settings(images=9, truth_images=9, drift_images=9, budget=100, coalitions=2, corruptions=(), metrics=())
    with pytest.raises(ValueError, match="converged values of at least 2 test images, got 1"):
        certify(untrained(), splits._replace(test=splits.test.subset([5])), folder=tmp_path, settings=few)
    one = {"one photo": splits.val.subset([3])}
    found = certify(untrained(), splits, folder=tmp_path, settings=few, others=one)
    verdict = found.verdict_on(found.drift[0])
    assert verdict.level == "no verdict"
    assert "fewer than two images" in verdict.sentence
    assert found.verdict.level != "no verdict"


def test_the_threshold_has_the_chosen_share_of_images_below_it() -> None:
    random = torch.Generator().manual_seed(0)
    known = 1 - 0.5 * torch.rand(2000, generator=random) ** 3
    others = torch.rand(900, generator=random)
    threshold = low_confidence_threshold(known, 0.1)
    assert threshold == round(threshold, 2)
    assert 0.08 < float((known < threshold).double().mean()) <= 0.1
    assert roc_auc(known, others) == pytest.approx(float((known[:, None] > others).double().mean()), abs=1e-6)
    assert roc_auc(known, torch.full((50,), 0.1)) == 1


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruptions_are_functions_of_pixels(name: str) -> None:
    pixels = torch.rand(3, 3, 28, 20, generator=torch.Generator().manual_seed(0))
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    shift, scale = torch.tensor(mean).view(1, 3, 1, 1), torch.tensor(std).view(1, 3, 1, 1)
    found = corruption(name, mean, std)((pixels - shift) / scale) * scale + shift
    assert found.shape == pixels.shape
    assert float(found.min()) >= -1e-5
    assert float(found.max()) <= 1 + 1e-5
    torch.testing.assert_close(found, CORRUPTIONS[name](pixels), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[1:2], CORRUPTIONS[name](pixels[1:2]), atol=1e-5, rtol=1e-5)
    assert float((found - pixels).abs().mean()) > 0.02
    grey = torch.full((1, 1, 8, 8), 0.5)
    if name in ("blur", "contrast"):
        torch.testing.assert_close(CORRUPTIONS[name](grey), grey)


def test_an_unknown_corruption_is_named() -> None:
    with pytest.raises(ValueError, match='no corruption is named "blurr"; did you mean "blur"'):
        corruption("blurr", (0.0,), (1.0,))


def test_noisy_reference_values_are_said_to_be_noisy(tmp_path: Path) -> None:
    explainer = Explainer(wrap(surrogate().net, players=1)).eval()  # sixteen players are too many for 60 evaluations
    few = Settings(images=4, truth_images=4, drift_images=0, budget=60, coalitions=2, corruptions=(), metrics=())
    found = certify(explainer, load_digits(), folder=tmp_path, settings=few)
    reliability = found.compared.reliability()
    assert reliability < 0.9
    assert f"their reliability is {reliability:.2f}" in found.notes[-1]
    assert found.threshold == low_confidence_threshold(found.validation.confidence)
