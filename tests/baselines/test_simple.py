"""Leave-one-out against its formula; random scores: reproducible, independent of the batch, uniform."""

import pytest
import torch

from tests.small_nets import random_images, small_net
from vitshap import game
from vitshap.baselines.simple import LeaveOneOut, Random


def test_each_value_is_the_output_lost_without_the_player():
    model = small_net(grid=(2, 3))
    images = random_images(model, 3)
    explanation = LeaveOneOut(model)(images)
    for image in range(3):
        alone = model.game(images[image : image + 1])
        for player in range(6):
            coalition = torch.ones(1, 6, dtype=torch.bool)
            coalition[0, player] = False
            lost = alone.grand[0] - alone(coalition)[0, 0]
            torch.testing.assert_close(explanation.values[image, player], lost, atol=1e-7, rtol=0)


def test_it_evaluates_once_per_player_and_is_not_additive():
    model = small_net(grid=(2, 3))
    explanation = LeaveOneOut(model)(random_images(model, 2), target=1)
    assert explanation.evaluations == 6 + 1
    assert not explanation.additive
    assert explanation.base_values is None
    assert explanation.unit == "probability"
    assert explanation.class_specific


@pytest.mark.parametrize("numbers", [1, 50])
def test_values_do_not_depend_on_chunks(monkeypatch, numbers):
    model = small_net(grid=(2, 3))
    images = random_images(model, 2)
    expected = LeaveOneOut(model)(images)
    monkeypatch.setattr(game, "NUMBERS_AT_ONCE", numbers)
    chunked = LeaveOneOut(model)(images)
    assert chunked.evaluations == expected.evaluations
    torch.testing.assert_close(chunked.values, expected.values, atol=1e-7, rtol=0)


def test_an_image_gets_its_scores_in_any_batch_and_order():
    model = small_net()
    images = random_images(model, 4)
    together = Random(model)(images)
    turned = Random(model)(images.flip(0)[:3])
    assert torch.equal(together.values[1:], turned.values.flip(0))


def test_images_and_seeds_differ():
    model = small_net()
    images = random_images(model, 2)
    first, other = Random(model)(images).values, Random(model, seed=1)(images).values
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, other)
    assert torch.equal(first, Random(model, seed=0)(images).values)


def test_scores_are_uniform_and_the_same_for_every_class():
    model = small_net(grid=(10, 10))
    explanation = Random(model)(random_images(model, 50))
    assert not explanation.class_specific
    assert explanation.unit == "score"
    assert explanation.evaluations == 1  # the prediction
    scores = explanation.values[..., 0].flatten().sort().values
    uniform = (torch.arange(len(scores)) + 0.5) / len(scores)
    # Kolmogorov-Smirnov distance of 5,000 draws: above 0.023 once in a hundred seeds
    assert float((scores - uniform).abs().max()) < 0.023
