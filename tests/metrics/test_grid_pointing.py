"""The grid pointing game: what is in the mosaics, where the values lie, and what random values reach."""

from dataclasses import replace

import pytest
import torch

from tests.small_nets import random_images, small_net
from vitshap.methods import method
from vitshap.metrics import grid_pointing, own_classes
from vitshap.metrics.grid_pointing import Candidates, mosaics, share_in_quarter


def test_mosaics_show_the_image_in_its_quarter():
    pixels = torch.arange(1.0, 6.0)[:, None, None, None].expand(5, 3, 8, 6)
    made = mosaics(pixels, torch.tensor([0, 4]), torch.tensor([[1, 2, 3], [3, 2, 1]]), torch.tensor([0, 2]))
    assert made.shape == (2, 3, 8, 6)
    assert [float(q.unique()) for q in (made[0, :, :4, :3], made[0, :, :4, 3:])] == [1, 2]
    assert [float(q.unique()) for q in (made[0, :, 4:, :3], made[0, :, 4:, 3:])] == [3, 4]
    corners = made[1, :, :4, :3], made[1, :, :4, 3:], made[1, :, 4:, :3], made[1, :, 4:, 3:]
    assert [float(q.unique()) for q in corners] == [4, 3, 5, 2]


def test_shares_of_positive_values_by_area():
    model = small_net(grid=(3, 4))
    images = random_images(model, 2)
    made = method("random", model)(images, target=0)
    values = torch.zeros(2, 12, 1)
    values[0, 0] = 3.0  # in the first quarter
    values[0, 4] = 1.0  # in the middle row: half of it is above
    values[0, 5] = -9.0
    values[1, 11] = -1.0
    found = share_in_quarter(replace(made, values=values), torch.tensor([0, 3]))
    assert float(found[0]) == pytest.approx(3.5 / 4)
    assert bool(found[1].isnan())
    below = share_in_quarter(replace(made, values=values), torch.tensor([2, 3]))
    assert float(below[0]) == pytest.approx(0.5 / 4)


def test_random_values_reach_a_quarter_and_a_perfect_method_one():
    model = small_net(grid=(4, 4), num_classes=5)
    images = random_images(model, 200)
    labels = torch.randint(5, (200,), generator=torch.Generator().manual_seed(0))
    explanation = method("random", model)(images, target=labels)
    found = grid_pointing(model, images, explanation, labels=labels)
    assert found.undefined == 0
    assert abs(found.mean - 0.25) < 4 * found.stderr
    colours = torch.arange(5.0, dtype=torch.float64)[labels][:, None, None, None].expand_as(images).contiguous() + 1

    def perfect(pixels, target):
        """Give 1 to every patch of the colour of the class."""
        shown = torch.nn.functional.avg_pool2d(pixels[:, :1], 2).flatten(1)  # [n, 16]
        values = (shown - target[:, None] - 1).abs() < 1e-6
        assert (values.sum(1) == 4).all()  # a quarter, because no other image has the class
        assert all(len(set(row.tolist())) == 4 for row in shown[:, [0, 3, 12, 15]])  # four different classes
        return replace(method("random", model)(pixels, target=target), values=values.float()[..., None])

    found = grid_pointing(model, colours, explanation, labels=labels, method=perfect)
    assert found.mean == 1


def test_the_batch_does_not_matter_if_all_images_are_candidates():
    model = small_net(grid=(4, 4), num_classes=3)
    images, labels = random_images(model, 12), torch.arange(12) // 4  # images of one class follow each other
    explanation = method("vanilla-pixel", model)(images, target=labels)
    own = own_classes(labels, model)
    whole = grid_pointing(model, images, explanation, labels=labels)
    assert whole.undefined == 0
    parts = [
        grid_pointing(
            model,
            images[some],
            explanation[some],
            candidates=Candidates(own, torch.arange(12)[some], images.__getitem__),
        ).values
        for some in (slice(0, 4), slice(4, 5), slice(5, 12))
    ]
    torch.testing.assert_close(torch.cat(parts), whole.values)
    alone = grid_pointing(model, images[:4], explanation[:4], labels=labels[:4])
    assert alone.undefined == 4


def test_several_labels_and_one_logit():
    model = small_net(num_classes=3, output="sigmoid")
    images = random_images(model, 6)
    labels = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 1], [0, 0, 1], [0, 0, 1]])
    explanation = method("leave-one-out", model)(images)
    found = grid_pointing(model, images, explanation, labels=labels)
    assert torch.equal(~found.values.isnan() | (labels == 0), torch.ones_like(labels, dtype=torch.bool))
    assert bool(found.values[labels == 0].isnan().all())
    single = small_net(num_classes=1)
    explanation = method("leave-one-out", single)(images)
    found = grid_pointing(single, images, explanation, labels=torch.tensor([1, 1, 0, 0, 0, 1]))
    assert found.values[:, 0].isnan().tolist() == [False, False, True, True, True, False]


def test_too_few_images_are_undefined_and_regression_is_refused():
    model = small_net()
    images = random_images(model, 3)
    explanation = method("leave-one-out", model)(images)
    assert grid_pointing(model, images, explanation, labels=torch.tensor([0, 1, 2])).undefined == 3
    more = random_images(model, 5)
    stored = replace(method("random", model)(more), method="truth")
    assert grid_pointing(model, more, stored, labels=torch.tensor([0, 1, 2, 3, 0])).undefined == 5
    regression = small_net(output="identity")
    with pytest.raises(ValueError, match="not a regression"):
        grid_pointing(regression, images, method("random", regression)(images))
