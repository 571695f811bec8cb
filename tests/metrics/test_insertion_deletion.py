"""Insertion and deletion agree with a plain loop, whatever the batch, the chunks and the ties."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.metrics.games import additive_model
from tests.metrics.games import explain as known_values
from tests.small_nets import ROUNDING, random_images, small_net
from vitshap.explanation import Explanation
from vitshap.methods import method
from vitshap.metrics import deletion, insertion
from vitshap.models import MaskedModel, wrap
from vitshap.players import Players


def explain(model: MaskedModel, images: Tensor, values: Tensor, players=None) -> Explanation:
    """Return given values for all classes as an explanation."""
    made = method("leave-one-out", model, players=players)(images)
    return replace(made, values=values)


def by_hand(model, image, values, class_index, players, insert):
    """Compute the curve of one image and class without ties, one coalition at a time."""
    game = model.game(image[None], players=players)
    order = sorted(range(len(values)), key=lambda i: -float(values[i]))
    points = []
    for k in range(len(order) + 1):
        kept = set(order[:k]) if insert else set(order[k:])
        coalition = torch.tensor([[i in kept for i in range(game.num_players)]])
        points.append(float(game(coalition)[0, 0, class_index]))
    return points


@pytest.mark.parametrize("insert", [True, False])
@given(rows=st.integers(1, 3), columns=st.integers(1, 3), images=st.integers(1, 3), seed=st.integers(0, 99))
@settings(max_examples=12, deadline=None)
def test_curves_agree_with_a_plain_loop(insert, rows, columns, images, seed):
    model = small_net(grid=(rows, columns), num_classes=3)
    pixels = random_images(model, images, seed)
    values = torch.randn(images, rows * columns, 3, generator=torch.Generator().manual_seed(seed))
    curve = (insertion if insert else deletion)(model, pixels, explain(model, pixels, values))
    assert curve.points.shape == (images, 3, rows * columns + 1)
    for i in range(images):
        for c in range(3):
            expected = by_hand(model, pixels[i], values[i, :, c], c, None, insert)
            assert curve.points[i, c].tolist() == pytest.approx(expected, abs=ROUNDING)
            assert float(curve.values[i, c]) == pytest.approx(sum(expected) / len(expected), abs=ROUNDING)


@pytest.mark.parametrize("insert", [True, False])
def test_images_with_fewer_players_have_shorter_curves(insert):
    labels = torch.arange(6).view(1, 2, 3).repeat(2, 1, 1)
    labels[1] = torch.tensor([[0, 0, 1], [2, -1, 2]])
    model = small_net(grid=(2, 3), num_classes=2)
    pixels = random_images(model, 2)
    values = torch.randn(2, 6, 2, generator=torch.Generator().manual_seed(0)) - 1  # mostly below 0
    values[1, 3:] = 0
    curve = (insertion if insert else deletion)(model, pixels, explain(model, pixels, values, labels))
    for c in range(2):
        whole = by_hand(model, pixels[0], values[0, :, c], c, labels[0], insert)
        short = by_hand(model, pixels[1], values[1, :3, c], c, Players(labels[1:], 3), insert)
        assert curve.points[0, c].tolist() == pytest.approx(whole, abs=ROUNDING)
        assert curve.points[1, c, :4].tolist() == pytest.approx(short, abs=ROUNDING)
        assert bool(curve.points[1, c, 4:].isnan().all())
        assert float(curve.values[1, c]) == pytest.approx(sum(short) / 4, abs=ROUNDING)
    assert curve.fractions[0].tolist() == pytest.approx([k / 6 for k in range(7)])
    assert curve.fractions[1, :4].tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert bool(curve.fractions[1, 4:].isnan().all())


def test_deleting_is_inserting_backwards():
    model = small_net()
    pixels = random_images(model, 2)
    explanation = method("leave-one-out", model)(pixels)
    backwards = replace(explanation, values=-explanation.values)
    torch.testing.assert_close(
        deletion(model, pixels, explanation).points.flip(2), insertion(model, pixels, backwards).points
    )


def test_endpoints_are_evaluated_once_and_class_agnostic_maps_have_one_path():
    model = small_net(num_classes=4)
    pixels = random_images(model, 2)
    specific, shared = (method(name, model)(pixels) for name in ("leave-one-out", "random"))
    answered = []  # rows of the classification head: one per image and coalition
    model.net.classifier.register_forward_hook(lambda head, args, logits: answered.append(len(logits)))
    insertion(model, pixels, specific)
    assert sum(answered) == 2 * (4 * 8 + 2)
    answered.clear()
    one_path = insertion(model, pixels, shared)
    assert sum(answered) == 2 * (8 + 2)
    as_if_specific = insertion(model, pixels, replace(shared, class_specific=True))
    assert torch.equal(one_path.points, as_if_specific.points)


@pytest.mark.parametrize("numbers", [1, 500])
def test_chunks_do_not_matter(monkeypatch, numbers):
    model = small_net()
    pixels = random_images(model, 2)
    explanations = [method(name, model)(pixels) for name in ("leave-one-out", "random")]
    expected = [insertion(model, pixels, one).points for one in explanations]
    monkeypatch.setattr("vitshap.game.NUMBERS_AT_ONCE", numbers)
    for one, points in zip(explanations, expected, strict=True):
        torch.testing.assert_close(insertion(model, pixels, one).points, points, atol=ROUNDING, rtol=0)


def tied(model: MaskedModel, pixels: Tensor) -> Explanation:
    return explain(model, pixels, torch.zeros(len(pixels), model.num_players, model.num_classes))


def test_ties_are_broken_by_the_image_and_the_seed_alone():
    model = small_net(num_classes=3)
    pixels = random_images(model, 4)
    explanation = tied(model, pixels)
    together = insertion(model, pixels, explanation).points
    alone = torch.cat([insertion(model, pixels[i : i + 1], explanation[i]).points for i in (2, 0)])
    torch.testing.assert_close(together[[2, 0]], alone, atol=ROUNDING, rtol=0)
    one_class = method("leave-one-out", model)(pixels, target=1)
    one_class = replace(one_class, values=torch.zeros_like(one_class.values))
    torch.testing.assert_close(insertion(model, pixels, one_class).points[:, 0], together[:, 1])
    assert not torch.allclose(insertion(model, pixels, explanation, seed=1).points, together)


class Additive(nn.Module):
    """Three pixels that add 1, 2 and 4 unless they are blank: the sum tells which ones are withheld."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64))

    def forward(self, images: Tensor) -> Tensor:
        return images[:, :, 0].ne(0).any(1).double() @ self.weights  # [B, 3, 1, 3] to [B, 1]


def test_every_order_of_ties_is_equally_likely():
    pixels_as_players = torch.arange(3).view(1, 3)
    model = wrap(Additive(), removal="pixels", output="identity", image_size=(1, 3), players=pixels_as_players)
    pixels = random_images(model, 3000)
    values = torch.tensor([1.0, 1.0, 0.0]).view(1, 3, 1).repeat(3000, 1, 1)
    explanation = explain(model, pixels, values)
    first_inserted = insertion(model, pixels, explanation).points[:, 0, 1]
    # players 0 (adds 1) and 1 (adds 2) come first half of the time each, within 5 standard deviations
    assert abs(int((first_inserted == 1).sum()) - 1500) < 137
    assert int((first_inserted == 1).sum() + (first_inserted == 2).sum()) == 3000


def test_areas_of_the_own_class_and_of_the_others():
    model = small_net(num_classes=4)
    pixels = random_images(model, 3)
    curve = insertion(model, pixels, method("leave-one-out", model)(pixels))
    labels = torch.tensor([2, 0, 3])
    for i, label in enumerate(labels.tolist()):
        others = [float(curve.values[i, c]) for c in range(4) if c != label]
        assert float(curve.target(labels).per_image[i]) == float(curve.values[i, label])
        assert float(curve.others(labels).per_image[i]) == pytest.approx(sum(others) / 3)
    single = insertion(model, pixels, method("leave-one-out", model)(pixels, target=labels))
    torch.testing.assert_close(single.target(labels).per_image, curve.target(labels).per_image)
    assert single.others(labels).undefined == 3
    with pytest.raises(ValueError, match="class 1 was not explained for image 0"):
        single.target(torch.tensor([1, 0, 3]))


def test_an_explanation_of_something_else_is_refused():
    model = small_net()
    pixels = random_images(model, 3)
    explanation = method("leave-one-out", model)(pixels)
    with pytest.raises(ValueError, match="of 3 images, but 2 are given"):
        insertion(model, pixels[:2], explanation)
    with pytest.raises(ValueError, match="has 4 classes, the surrogate 5"):
        deletion(small_net(num_classes=5), pixels, explanation)
    other = small_net(grid=(2, 2))
    with pytest.raises(ValueError, match="grid"):
        insertion(other, random_images(other, 3), explanation)


@pytest.mark.parametrize("step", [1, 2, 3, 4, 9, 20])
def test_steps_are_every_so_many_points_and_the_last(step):
    model = small_net()
    pixels = random_images(model, 2)
    explanation = method("leave-one-out", model)(pixels)
    for metric in (insertion, deletion):
        whole, some = metric(model, pixels, explanation), metric(model, pixels, explanation, step=step)
        kept = [*range(0, 9, step), 9]
        torch.testing.assert_close(some.points, whole.points[..., kept], atol=ROUNDING, rtol=0)
        assert some.fractions[0].tolist() == pytest.approx([k / 9 for k in kept])
        torch.testing.assert_close(some.values, some.points.mean(2))
        trapezoid = metric(model, pixels, explanation, step=step, area="trapezoid").values
        torch.testing.assert_close(trapezoid, torch.trapezoid(some.points, some.fractions[:, None], dim=2))


def test_steps_of_images_with_fewer_players():
    labels = torch.arange(6).view(1, 2, 3).repeat(2, 1, 1)
    labels[1] = torch.tensor([[0, 0, 1], [2, -1, 2]])
    model = small_net(grid=(2, 3), num_classes=2)
    pixels = random_images(model, 2)
    values = torch.randn(2, 6, 2, generator=torch.Generator().manual_seed(0))
    values[1, 3:] = 0
    explanation = explain(model, pixels, values, labels)
    whole, some = (insertion(model, pixels, explanation, step=k, area="trapezoid") for k in (1, 2))
    torch.testing.assert_close(some.points[0], whole.points[0][:, [0, 2, 4, 6]], atol=ROUNDING, rtol=0)
    torch.testing.assert_close(some.points[1, :, :3], whole.points[1][:, [0, 2, 3]], atol=ROUNDING, rtol=0)
    assert bool(some.points[1, :, 3].isnan().all())
    assert some.fractions[1, :3].tolist() == pytest.approx([0, 2 / 3, 1])
    expected = torch.trapezoid(some.points[1, :, :3], some.fractions[1, :3])
    torch.testing.assert_close(some.values[1], expected)
    with pytest.raises(ValueError, match=r"step is at least 1 .* got 0"):
        insertion(model, pixels, explanation, step=0)
    with pytest.raises(ValueError, match='area "mean" or "trapezoid", got 1 and \'auc\''):
        insertion(model, pixels, explanation, area="auc")


def test_areas_of_an_additive_game_are_known():
    model = additive_model(3, 4)
    pixels = random_images(model, 2)
    weights = model.net.weights.detach()
    right = known_values(model, pixels, weights[None])
    ordered = weights.sort(dim=0, descending=True).values  # [12, 2]
    share = torch.arange(12, 0, -1, dtype=torch.float64)[:, None] / 13  # points that include the k-th player
    inserted, total = (share * ordered).sum(0), weights.sum(0)
    deleted = total - inserted
    for metric, expected in ((insertion, inserted), (deletion, deleted)):
        torch.testing.assert_close(metric(model, pixels, right).values, expected.expand(2, 2), atol=1e-6, rtol=0)
    middle = (torch.arange(12, 0, -1, dtype=torch.float64)[:, None] - 0.5) / 12
    area = insertion(model, pixels, right, area="trapezoid").values
    torch.testing.assert_close(area, (middle * ordered).sum(0).expand(2, 2), atol=1e-6, rtol=0)


def test_random_orders_have_the_expected_area():
    """Every player is among the first k with probability k / d, so the expected curve of an additive game is a line."""
    model = additive_model(3, 4)
    pixels = random_images(model, 400)
    for metric in (insertion, deletion):
        found = metric(model, pixels, method("random", model)(pixels, target=0))
        assert abs(found.mean - float(model.net.weights.detach()[:, 0].sum()) / 2) < 4 * found.stderr
