"""Intervals contain the mean as often as they say, for scores as they are measured."""

import math

import pytest
import torch
from scipy import stats

from tests.small_nets import random_images, small_net
from vitshap.methods import method
from vitshap.metrics import metric, roar
from vitshap.metrics.intervals import half_widths, interval_coverage, mean_interval, mean_intervals, wilson

GENERATOR = torch.Generator().manual_seed(0)


def _uniform() -> torch.Tensor:
    return torch.rand(20_000, generator=GENERATOR, dtype=torch.float64)


SKEWED = {
    "areas near one, some images far below": 1 + 0.05 * _uniform().log() - 0.5 * _uniform() * (_uniform() < 0.04),
    "areas near zero": (-_uniform().log()) * 0.05,
    "heavy tail": torch.randn(20_000, generator=GENERATOR, dtype=torch.float64).exp(),
    "correlations": torch.tanh(torch.randn(20_000, generator=GENERATOR, dtype=torch.float64) + 1.5),
}


@pytest.mark.parametrize("name", SKEWED)
def test_coverage_of_skewed_scores(name: str) -> None:
    assert 0.93 <= interval_coverage(SKEWED[name], images=1000, repetitions=4000).share <= 0.97
    assert interval_coverage(SKEWED[name], images=100, repetitions=4000).share >= 0.925


@pytest.mark.parametrize("accuracy", [0.5, 0.97, 0.995])
def test_coverage_of_accuracies(accuracy: float) -> None:
    scores = (_uniform() < accuracy).double()
    for images in (100, 1000):
        assert interval_coverage(scores, images=images, repetitions=4000, binary=True).share >= 0.92


def test_a_narrow_interval_is_seen_to_cover_less() -> None:
    """The check can fail: intervals of 80 % do not contain the mean in 92 % of the samples."""
    assert interval_coverage(SKEWED["correlations"], images=100, level=0.8).share < 0.85


def test_symmetric_scores_have_students_interval() -> None:
    scores = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0], dtype=torch.float64)
    expected = stats.t.interval(0.95, 4, loc=0, scale=float(scores.std()) / 5**0.5)
    assert mean_interval(scores) == pytest.approx(expected)
    assert mean_interval(torch.cat([scores, torch.tensor([math.nan])])) == pytest.approx(expected)


def test_zeros_and_ones_have_wilsons_interval() -> None:
    scores = torch.cat([torch.ones(97), torch.zeros(3)])
    expected = stats.binomtest(97, 100).proportion_ci(0.95, method="wilson")
    assert mean_interval(scores, binary=True) == pytest.approx((expected.low, expected.high))
    low, high = mean_interval(torch.ones(50), binary=True)
    assert 0.9 < low < 0.95
    assert high == pytest.approx(1)
    assert [float(end) for end in wilson(torch.tensor(0.97), 100, level=0.9)] == pytest.approx(
        list(stats.binomtest(97, 100).proportion_ci(0.9, method="wilson"))
    )


def test_scores_that_happen_to_be_zero_or_one_are_no_proportion() -> None:
    """Correlations that are 1 by construction, and shares of several labels."""
    assert mean_interval(torch.ones(50)) == (1.0, 1.0)
    shares = torch.tensor([0.0, 1.0, 0.5, 1.0])
    assert mean_interval(shares, binary=True) == mean_interval(shares)


def test_half_widths_of_the_points_of_a_curve() -> None:
    nan = math.nan
    points = torch.tensor([[0.1, 1, 0.5, 0], [0.4, 0, nan, 0], [0.2, 1, nan, 0], [0.9, 1, nan, nan]])
    found = half_widths(points).tolist()
    wide = stats.t.ppf(0.975, 3) * float(points[:, 0].std()) / 2
    assert found[0] == pytest.approx(wide)
    assert found[1] == pytest.approx(stats.t.ppf(0.975, 3) * float(points[:, 1].std()) / 2)
    assert math.isnan(found[2])
    assert found[3] == 0
    low, high = wilson(torch.tensor([0.75, 0.0]), torch.tensor([4, 3]))
    binary = half_widths(points, binary=True).tolist()
    assert binary == pytest.approx([wide, float(high[0] - low[0]) / 2, nan, float(high[1] - low[1]) / 2], nan_ok=True)


def test_too_few_scores() -> None:
    assert all(math.isnan(end) for end in mean_interval(torch.tensor([0.3])))
    assert all(math.isnan(end) for end in mean_interval(torch.tensor([math.nan])))
    low, high = mean_interval(torch.full((5,), 0.3))
    assert low == high == pytest.approx(0.3)
    with pytest.raises(ValueError, match=r"between 0 and 1 \(0.95 for 95 %\), got 1.96"):
        mean_interval(torch.tensor([1.0, 2.0]), level=1.96)
    with pytest.raises(ValueError, match="at least 2 scores"):
        interval_coverage(torch.tensor([1.0]), images=10)
    assert [end.shape for end in mean_intervals(torch.rand(3, 7))] == [(3,), (3,)]


def test_coverage_of_measured_scores() -> None:
    """Scores per image of every metric that has one, resampled."""
    model = small_net()
    images = random_images(model, 200)
    explanation = method("kernelshap", model, budget=40)(images, target="predicted")
    options = {"sensitivity-n": {"subsets": 40}, "faithfulness": {"subsets": 40}}
    for name in ("insertion", "deletion", "sensitivity-n", "faithfulness", "saco", "single-patch", "randomisation"):
        scores = metric(name, **options.get(name, {}))(model, images, explanation).per_image
        assert 0.93 <= interval_coverage(scores, images=1000, repetitions=2000).share <= 0.97, name
        assert interval_coverage(scores, images=100, repetitions=2000).share >= 0.92, name
    for accuracies in roar(model, images, explanation, counts=[1, 4, 8]).inserted.t():
        for count in (100, 1000):
            assert interval_coverage(accuracies, images=count, repetitions=2000, binary=True).share >= 0.92
