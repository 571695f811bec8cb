"""SaCo against a loop over pairs of groups, and its closed form."""

from dataclasses import replace
from itertools import combinations

import pytest
import torch

from tests.metrics.games import additive_model, explain
from tests.small_nets import random_images, small_net
from vitshap.methods import method
from vitshap.metrics import saco


def by_hand(model, image, values, c, groups, players=None):
    game = model.game(image[None], players=players)
    d = len(values)
    order = sorted(range(d), key=lambda i: -float(values[i]))
    parts = [[i for place, i in enumerate(order) if place * groups // d == g] for g in range(groups)]
    full = float(game.grand[0, c])
    drops, sums = [], []
    for part in parts:
        kept = torch.tensor([[i not in part for i in range(game.num_players)]])
        drops.append((full - float(game(kept)[0, 0, c])) / len(part))
        sums.append(sum(float(values[i]) for i in part) / len(part))
    signed, total = 0.0, 0.0
    for i, j in combinations(range(groups), 2):
        weight = abs(sums[i] - sums[j])
        signed += weight if (sums[i] - sums[j]) * (drops[i] - drops[j]) >= 0 else -weight
        total += weight
    return signed / total


@pytest.mark.parametrize("groups", [2, 3, 4, 9])
def test_pairs_of_groups_by_hand(groups):
    model = small_net(num_classes=3)
    images = random_images(model, 2)
    explanation = method("kernelshap", model, budget=30)(images)
    found = saco(model, images, explanation, groups=groups)
    for i in range(2):
        for c in range(3):
            expected = by_hand(model, images[i], explanation.values[i, :, c].double(), c, groups)
            assert float(found.values[i, c]) == pytest.approx(expected, abs=1e-6)
    shared = method("random", model)(images)
    as_specific = saco(model, images, replace(shared, class_specific=True), groups=groups)
    torch.testing.assert_close(saco(model, images, shared, groups=groups).values, as_specific.values)


def test_an_additive_game_in_its_own_order_is_one():
    model = additive_model(3, 5)
    images = random_images(model, 2)
    right = explain(model, images, model.net.weights[None])
    for groups in (2, 4, 10, 15, 99):
        found = saco(model, images, right, groups=groups)
        torch.testing.assert_close(found.values, torch.ones(2, 2, dtype=torch.float64), atol=1e-6, rtol=0)
    wrong = replace(right, values=-right.values)
    assert saco(model, images, wrong, groups=15).mean == pytest.approx(-1, abs=1e-6)


def test_random_values_are_zero_on_average():
    model = additive_model(4, 4, outputs=1)
    images = random_images(model, 300)
    # also if all are positive, and groups have one or two players
    for noise in (
        torch.randn(300, 16, 1, generator=torch.Generator().manual_seed(3)),
        torch.rand(300, 16, 1, generator=torch.Generator().manual_seed(4)) + 1,
    ):
        found = saco(model, images, explain(model, images, noise))
        assert abs(found.mean) < 4 * found.stderr


def test_constant_values_and_images_with_fewer_players():
    labels = torch.arange(6).view(1, 2, 3).repeat(2, 1, 1)
    labels[1] = torch.tensor([[0, 0, 1], [2, -1, 2]])
    model = small_net(grid=(2, 3), num_classes=2)
    images = random_images(model, 2)
    explanation = method("kernelshap", model, players=labels, budget=40)(images)
    found = saco(model, images, explanation, groups=4)
    expected = by_hand(model, images[0], explanation.values[0, :, 1].double(), 1, 4, labels[0])
    assert float(found.values[0, 1]) == pytest.approx(expected, abs=1e-6)
    short = by_hand(model, images[1], explanation.values[1, :3, 1].double(), 1, 3, labels[1])
    assert float(found.values[1, 1]) == pytest.approx(short, abs=1e-6)
    values = explanation.values.clone()
    values[1, :3] = 0.2
    changed = replace(explanation, values=values, additive=False, base_values=None, full_values=None)
    assert saco(model, images, changed, groups=4).undefined == 1
    with pytest.raises(ValueError, match="groups is at least 2, got 1"):
        saco(model, images, explanation, groups=1)
