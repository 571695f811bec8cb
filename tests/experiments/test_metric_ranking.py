"""The test of the metrics: what is degraded, which metrics see it, and how they agree."""

import math
from dataclasses import replace

import pytest
import torch

from tests.small_nets import random_images, small_net
from vitshap.data import load_digits
from vitshap.experiments import metric_ranking as ranking
from vitshap.methods import method
from vitshap.metrics import MetricResult, metric
from vitshap.models import wrap
from vitshap.training import ClassifierTraining, LoopConfig, fit_masked_classifier


def test_levels_are_nested_and_end_at_chance():
    model = small_net(grid=(3, 4), num_classes=2)
    truth = method("kernelshap", model, budget=100)(random_images(model, 40))
    before: torch.Tensor | None = None
    for level in (0, 0.25, 0.5, 1):
        found = ranking.degraded(truth, level)
        moved = (found.values != truth.values).any(2)
        assert moved.sum(1).unique().tolist() == [round(level * 12)]
        torch.testing.assert_close(found.values.sort(1).values, truth.values.sort(1).values)
        if before is not None:
            assert bool((moved | ~before).all())  # what is degraded once stays degraded
        before = moved
    chance = ranking.degraded(truth, 1).values - truth.values.mean(1, keepdim=True)
    kept = truth.values - truth.values.mean(1, keepdim=True)
    assert abs(float((chance * kept).sum() / kept.square().sum())) < 0.2
    with pytest.raises(ValueError, match=r"0 to 1; got 1\.5"):
        ranking.degraded(truth, 1.5)


def test_absent_players_keep_their_zero():
    labels = torch.arange(6).view(1, 2, 3).repeat(2, 1, 1)
    labels[1] = torch.tensor([[0, 0, 1], [2, -1, 2]])
    model = small_net(grid=(2, 3), num_classes=2)
    truth = method("kernelshap", model, players=labels, budget=40)(random_images(model, 2))
    found = ranking.degraded(truth, 1)
    assert bool((found.values[1, 3:] == 0).all())
    assert bool((found.values[1, :3] != truth.values[1, :3]).all())


def test_good_metrics_recover_the_order_and_a_useless_one_does_not():
    model = small_net()
    images = random_images(model, 24)
    truth = method("exact", model)(images, target="predicted")

    def useless(surrogate, images, explanation, /):
        values = explanation.values.sum(1).double()  # the same at every level, up to rounding
        return MetricResult(
            metric="sum", values=values.round(decimals=3), classes=explanation.classes, higher_is_better=True
        )

    named = {name: metric(name) for name in ("insertion", "deletion", "saco", "single-patch")}
    named |= {name: metric(name, subsets=60) for name in ("sensitivity-n", "faithfulness")}
    table = ranking.recovery_table(model, images, truth, metrics={**named, "sum": useless}, seeds=2)
    assert table.values("metric") == [*named, "sum"]
    *orders, nothing = table.values("order")
    assert min(orders) >= 0.8
    assert math.isnan(nothing) or abs(nothing) < 0.8
    assert min(table.values("separation")[:-1]) > 3
    with pytest.raises(ValueError, match="increasing shares"):
        ranking.recovery_table(model, images, truth, levels=[1.0, 0.0])


def test_methods_are_ranked_and_metrics_compared():
    model = small_net()
    images = random_images(model, 12)
    explanations = {
        name: method(name, model)(images, target="predicted") for name in ("exact", "leave-one-out", "random")
    }
    explanations["reversed"] = replace(
        explanations["exact"],
        values=-explanations["exact"].values,
        additive=False,
        base_values=None,
        full_values=None,
    )
    scores = ranking.measure_methods(model, images, explanations, metrics=("insertion", "saco", "single-patch"))
    assert scores["single-patch"]["leave-one-out"].mean == pytest.approx(1)
    del scores["single-patch"]
    ranks = ranking.ranks_table(scores)
    assert ranks.values("method") == list(explanations)
    for name in ("insertion", "saco"):
        found = dict(zip(ranks.values("method"), ranks.values(name), strict=True))
        assert sorted(found.values()) == [1, 2, 3, 4]
        assert found["exact"] < found["random"] < found["reversed"]
    agreement = ranking.agreement_table(scores)
    assert agreement.values("insertion")[0] == agreement.values("saco")[1] == pytest.approx(1)
    assert agreement.values("insertion")[1] == agreement.values("saco")[0] > 0
    with pytest.raises(ValueError, match="at least two methods"):
        ranking.agreement_table({"insertion": {}})


@pytest.mark.long
def test_on_digits():
    """A trained model: the table in docs/metrics.md."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=10, **size)
    splits = load_digits()
    training = ClassifierTraining(
        loop=LoopConfig(epochs=25, batch_size=64, learning_rate=3e-3), augmentation=None, coalitions=4
    )
    model = fit_masked_classifier(wrap(ViTForImageClassification(config)), splits.train, splits.val, config=training)
    model.eval()
    images, labels = splits.test.images[:60], splits.test.labels[:60]
    assert float((model(images).argmax(1) == labels).float().mean()) > 0.85
    truth = method("kernelshap", model, budget=4096)(images, target=labels)
    table = ranking.recovery_table(model, images, truth)
    print(table.to_markdown())
    assert min(table.values("order")) == pytest.approx(1)
    names = ("leave-one-out", "rise", "vanilla-pixel", "integrated-gradients-pixel", "attention-rollout", "gradcam-ln")
    explanations = {name: method(name, model)(images, target=labels) for name in (*names, "random")}
    scores = ranking.measure_methods(model, images, {"Shapley values": truth, **explanations})
    print(ranking.ranks_table(scores).to_markdown())
    agreement = ranking.agreement_table(scores)
    print(agreement.to_markdown())
    for by_metric in scores.values():
        best = by_metric["Shapley values"]
        sign = 1 if best.higher_is_better else -1
        assert sign * best.mean > sign * by_metric["random"].mean
