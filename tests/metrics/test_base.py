"""The table of metrics, and the result that all of them return."""

import math

import pytest
import torch

from tests.small_nets import random_images, small_net
from vitshap.explainers import Explainer
from vitshap.methods import list_methods, method
from vitshap.metrics import METRICS, MetricResult, deletion, insertion, list_metrics, metric


def result(values: list[list[float]], classes: list[list[int]]) -> MetricResult:
    numbers = torch.tensor(values, dtype=torch.float64)
    return MetricResult(metric="made", values=numbers, classes=torch.tensor(classes), higher_is_better=True)


def test_every_metric_measures_every_additive_method():
    model = small_net(grid=(2, 2))
    images = random_images(model, 2)
    for name in list_metrics():
        for by in list_methods():
            options = {"references": images} if by == "expected-gradients" else {}
            explanation = method(by, Explainer(model) if by == "explainer" else model, **options)(images, target=[2, 0])
            if name == "shapley-error" and not explanation.additive:
                continue
            found = metric(name)(model, images, explanation)
            assert found.metric == name
            assert found.values.shape == (2, 2)
            assert found.classes.tolist() == [[2, 0], [2, 0]]
            assert found.class_specific == explanation.class_specific
            assert found.undefined == 0
    exact = method("exact", model)(images, target=[2, 0])
    assert metric("shapley-error")(model, images, exact).mean < 1e-6


def test_metrics_by_name_take_their_options():
    model = small_net(grid=(2, 2))
    images = random_images(model, 2)
    explanation = method("random", model)(images)
    named = metric("insertion", seed=3)(model, images, explanation)
    assert torch.equal(named.values, insertion(model, images, explanation, seed=3).values)
    assert named.higher_is_better
    assert not deletion(model, images, explanation).higher_is_better
    with pytest.raises(ValueError, match='no metric is named "insertions"; did you mean "insertion"'):
        metric("insertions")
    with pytest.raises(TypeError, match='insertion has no option "sed"; did you mean "seed"'):
        metric("insertion", sed=3)


def test_users_register_their_own(monkeypatch):
    monkeypatch.setattr(METRICS, "table", dict(METRICS.table))
    METRICS.register("made", f"{__name__}:result")
    assert list_metrics()[-1] == "made"
    with pytest.raises(ValueError, match="taken"):
        METRICS.register("insertion", f"{__name__}:result")


def test_mean_and_error_are_over_images_that_have_a_value():
    nan = math.nan
    found = result([[1, 3], [nan, 5], [nan, nan], [3, 3]], [[0, 1]] * 4)
    torch.testing.assert_close(found.per_image[[0, 1, 3]], torch.tensor([2.0, 5.0, 3.0], dtype=torch.float64))
    assert found.undefined == 1
    assert found.mean == pytest.approx(10 / 3)
    assert found.stderr == pytest.approx((7 / 3 / 3) ** 0.5)  # variance of 2, 5, 3 is 7/3
    low, high = found.interval(2)
    assert (low, high) == pytest.approx((found.mean - 2 * found.stderr, found.mean + 2 * found.stderr))
    assert math.isnan(result([[1]], [[0]]).stderr)
    assert found.others(torch.tensor([0, 1, 0, 1])).per_image[0] == 3
    assert found.target(torch.tensor([0, 1, 0, 1])).per_image[1] == 5
