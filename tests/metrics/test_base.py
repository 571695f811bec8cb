"""The table of metrics, and the result that all of them return."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.small_nets import random_images, small_net
from vitshap.estimators import truth
from vitshap.explainers import Explainer
from vitshap.explanation import Explanation
from vitshap.methods import list_methods, method
from vitshap.metrics import (
    METRICS,
    MetricResult,
    deletion,
    insertion,
    list_metrics,
    mean_interval,
    metric,
    own_classes,
    predicted_classes,
)
from vitshap.models import MaskedModel


def result(values: list[list[float]], classes: list[list[int]]) -> MetricResult:
    numbers = torch.tensor(values, dtype=torch.float64)
    return MetricResult(metric="made", values=numbers, classes=torch.tensor(classes), higher_is_better=True)


def options_of(name: str, model: MaskedModel, images: Tensor, folder: Path) -> dict[str, Any]:
    """What a metric needs beyond model, images and explanation, and smaller numbers than its defaults."""
    if name == "error":
        return {"truth": truth.of_images(folder, model, images, budget=60)}
    if name == "randomisation":
        return {"method": lambda copy: method("leave-one-out", copy)}
    if name == "grid-pointing":
        return {"method": method("leave-one-out", model)}
    return {"subsets": 30} if name in ("sensitivity-n", "faithfulness") else {}


@pytest.fixture(scope="module")
def by_every_method() -> tuple[MaskedModel, Tensor, list[Explanation]]:
    """Two images explained by every method."""
    model = small_net(grid=(2, 2))
    images = random_images(model, 2)
    explanations = []
    for name in list_methods():
        given = {"references": images} if name == "expected-gradients" else {}
        made = method(name, Explainer(model) if name == "explainer" else model, **given)
        explanations.append(made(images, target=[2, 0]))
    return model, images, explanations


@pytest.mark.parametrize("name", list_metrics())
def test_every_metric_measures_every_method(name, by_every_method, tmp_path):
    model, images, explanations = by_every_method
    options = options_of(name, model, images, tmp_path)
    for explanation in explanations:
        if name == "roar":
            options = {"labels": torch.tensor([2, 0])}
        found = metric(name, **options)(model, images, explanation)
        assert found.metric == name
        assert found.values.shape == (2, 2)
        assert found.classes.tolist() == [[2, 0], [2, 0]]
        assert found.class_specific == explanation.class_specific
        if name != "grid-pointing":  # which needs four images
            assert found.undefined == 0
    if name == "shapley-error":
        assert metric(name)(model, images, method("exact", model)(images, target=[2, 0])).mean < 1e-6


OUTPUTS = {
    "softmax": ({"num_classes": 3}, torch.tensor([2, 0, 1, 1, 0])),
    "multi-label": (
        {"num_classes": 3, "output": "sigmoid"},
        torch.tensor([[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1], [0, 0, 1]]),
    ),
    "one logit": ({"num_classes": 1}, torch.tensor([1, 0, 0, 1, 0])),
    "regression": ({"num_classes": 2, "output": "identity"}, torch.randn(5, 2)),
}
OWN = {
    "softmax": [[0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 1, 0], [1, 0, 0]],
    "multi-label": [[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1], [0, 0, 1]],
    "one logit": [[1], [0], [0], [1], [0]],
    "regression": [[1, 1]] * 5,
}


@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.parametrize("name", list_metrics())
def test_targets_and_other_classes_of_every_output(name, kind, tmp_path):
    """Target: the class that is there; non-target: an explained class that is not; probability: the model's output."""
    how, labels = OUTPUTS[kind]
    model = small_net(grid=(2, 2), **how)
    images = random_images(model, 5)
    explanation = method("exact", model)(images)
    own = own_classes(labels, model)
    assert own.tolist() == torch.tensor(OWN[kind]).bool().tolist()
    options = options_of(name, model, images, tmp_path)
    if name in ("roar", "grid-pointing"):
        options["labels"] = labels
        if kind == "regression":
            with pytest.raises(ValueError, match="not a regression"):
                metric(name, **options)(model, images, explanation)
            return
    found = metric(name, **options)(model, images, explanation)
    assert found.values.shape == own.shape
    target, others = found.target(own), found.others(own)
    assert bool(target.values[~own].isnan().all() and others.values[own].isnan().all())
    assert torch.equal(target.values[own].nan_to_num(9), found.values[own].nan_to_num(9))
    assert torch.equal(others.values[~own].nan_to_num(9), found.values[~own].nan_to_num(9))
    if kind == "softmax":
        assert torch.equal(found.target(labels).values.nan_to_num(9), target.values.nan_to_num(9))
    if name in ("insertion", "deletion"):
        ends = model(images).detach(), model.game(images).null
        first, last = ends[::-1] if name == "insertion" else ends
        torch.testing.assert_close(found.points[..., 0], first.double(), atol=1e-6, rtol=0)
        torch.testing.assert_close(found.points[..., -1], last.double(), atol=1e-6, rtol=0)
    if name == "grid-pointing":
        assert bool(found.values[~own].isnan().all())
    elif name != "roar":
        assert found.undefined == 0


def test_labels_that_do_not_fit_the_output():
    softmax, several = small_net(num_classes=3), small_net(num_classes=3, output="sigmoid")
    with pytest.raises(ValueError, match="labels of 3 classes are 0 to 2, got 0 to 3"):
        own_classes(torch.tensor([0, 3]), softmax)
    with pytest.raises(ValueError, match=r"whole numbers \[B\], one class per image"):
        own_classes(torch.tensor([0.0, 1.0]), softmax)
    with pytest.raises(ValueError, match=r"0 or 1, \[B, 3\]; got \[2\]"):
        own_classes(torch.tensor([0, 1]), several)
    with pytest.raises(ValueError, match=r"0 or 1, \[B\]"):
        own_classes(torch.tensor([0, 2]), small_net(num_classes=1))
    found = result([[1, 3]], [[0, 1]])
    with pytest.raises(ValueError, match="1 images were measured, but there are 2 labels"):
        found.target(torch.tensor([0, 1]))


def test_predicted_classes_of_every_output():
    probability = torch.tensor([[0.2, 0.7, 0.1], [0.5, 0.3, 0.6]])
    assert predicted_classes(probability, small_net(num_classes=3)).tolist() == [1, 2]
    several = predicted_classes(probability, small_net(num_classes=3, output="sigmoid"))
    assert several.tolist() == [[0, 1, 0], [1, 0, 1]]


@pytest.mark.parametrize("name", [n for n in list_metrics() if n != "shapley-error"])
def test_explanations_of_something_else_are_refused_by_every_metric(name, tmp_path):
    model = small_net(grid=(2, 2))
    images = random_images(model, 3)
    explanation = method("leave-one-out", model)(images)
    run = metric(name, **options_of(name, model, images, tmp_path))
    with pytest.raises(ValueError, match="of 3 images, but 2 are given"):
        run(model, images[:2], explanation)
    with pytest.raises(ValueError, match="has 4 classes, the surrogate 5"):
        run(small_net(grid=(2, 2), num_classes=5), images, explanation)
    other = small_net(grid=(2, 3))
    with pytest.raises(ValueError, match=r"grid of \(2, 2\), the surrogate \(2, 3\)"):
        run(other, random_images(other, 3), explanation)


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
    assert found.interval() == pytest.approx(mean_interval(torch.tensor([2.0, 5.0, 3.0])))
    assert found.interval(0.5)[0] > found.interval()[0]
    assert math.isnan(result([[1]], [[0]]).stderr)
    assert found.others(torch.tensor([0, 1, 0, 1])).per_image[0] == 3
    assert found.target(torch.tensor([0, 1, 0, 1])).per_image[1] == 5
