"""Leave-one-out against its formula, one coalition at a time."""

import pytest
import torch

from tests.small_nets import random_images, small_net
from vitshap import game
from vitshap.baselines.occlusion import LeaveOneOut


def test_each_value_is_what_is_lost_without_the_player():
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


def test_it_asks_once_per_player_and_says_what_it_is():
    model = small_net(grid=(2, 3))
    explanation = LeaveOneOut(model)(random_images(model, 2), target=1)
    assert explanation.evaluations == 6 + 1
    assert not explanation.additive
    assert explanation.base_values is None
    assert explanation.unit == "probability"
    assert explanation.class_specific


@pytest.mark.parametrize("numbers", [1, 50])
def test_the_answer_does_not_depend_on_chunks(monkeypatch, numbers):
    model = small_net(grid=(2, 3))
    images = random_images(model, 2)
    expected = LeaveOneOut(model)(images)
    monkeypatch.setattr(game, "NUMBERS_AT_ONCE", numbers)
    chunked = LeaveOneOut(model)(images)
    assert chunked.evaluations == expected.evaluations
    torch.testing.assert_close(chunked.values, expected.values, atol=1e-7, rtol=0)
