"""ROAR against a plain loop over images and counts."""

from dataclasses import replace

import pytest
import torch

from tests.small_nets import random_images, small_net
from vitshap.methods import method
from vitshap.metrics import roar, roar_counts


def test_the_papers_counts_and_their_shares():
    assert roar_counts(196) == (1, 3, 7, 14, 28, 56, 84, 112, 140, 168, 182)
    assert roar_counts(49) == (1, 2, 4, 7, 14, 21, 28, 35, 42, 46)
    assert roar_counts(1) == (1,)


def by_hand(model, image, values, question, count, insert):
    order = sorted(range(len(values)), key=lambda i: -float(values[i]))
    kept = set(order[:count]) if insert else set(order[count:])
    coalition = torch.tensor([[i in kept for i in range(len(values))]])
    return question(model.game(image[None])(coalition)[0, 0])


def test_accuracy_of_every_count_by_hand():
    model, other = small_net(), small_net(grid=(3, 3))
    with torch.no_grad():
        other.net.classifier.weight.mul_(-1)
    images = random_images(model, 6)
    labels = torch.tensor([0, 3, 1, 2, 2, 0])
    explanation = method("leave-one-out", model)(images)
    for evaluator in (None, other):
        found = roar(model, images, explanation, labels=labels, evaluator=evaluator, counts=(1, 4, 9))
        assert found.counts.tolist() == [1, 4, 9]
        for i, label in enumerate(labels.tolist()):
            for n, count in enumerate((1, 4, 9)):
                for insert, ours in ((True, found.inserted), (False, found.deleted)):
                    right = by_hand(
                        evaluator or model,
                        images[i],
                        explanation.values[i, :, label],
                        lambda output, label=label: int(output.argmax()) == label,
                        count,
                        insert,
                    )
                    assert bool(ours[i, n]) == right
        difference = (found.inserted - found.deleted).mean(1)
        torch.testing.assert_close(found.target(labels).per_image, difference)
        assert found.others(labels).undefined == 6
    assert not torch.equal(roar(model, images, explanation, labels=labels).inserted, found.inserted)


def test_labels_are_the_prediction_unless_they_are_given():
    model = small_net()
    images = random_images(model, 4)
    explanation = method("leave-one-out", model)(images)
    predicted = explanation.prediction.argmax(1)
    one, two = roar(model, images, explanation), roar(model, images, explanation, labels=predicted)
    assert torch.equal(one.inserted, two.inserted)
    assert bool((roar(model, images, explanation, counts=[9]).inserted == 1).all())  # the whole image
    agnostic = method("random", model)(images)
    specific = replace(agnostic, class_specific=True)
    assert torch.equal(roar(model, images, agnostic).inserted, roar(model, images, specific).inserted)


@pytest.mark.parametrize("outputs", [1, 3])
def test_sigmoid_classes_are_separate_questions_and_label_zero_reverses_the_order(outputs):
    model = small_net(num_classes=outputs, output="sigmoid")
    images = random_images(model, 5)
    labels = torch.randint(0, 2, (5, outputs), generator=torch.Generator().manual_seed(2))
    explanation = method("leave-one-out", model)(images)
    given = labels[:, 0] if outputs == 1 else labels
    found = roar(model, images, explanation, labels=given, counts=(2, 5))
    for n, count in enumerate((2, 5)):
        for insert, ours in ((True, found.inserted), (False, found.deleted)):
            for i in range(5):
                right = [
                    by_hand(
                        model,
                        images[i],
                        explanation.values[i, :, c] * (1 if labels[i, c] else -1),
                        lambda output, i=i, c=c: bool(output[c] >= 0.5) == bool(labels[i, c]),
                        count,
                        insert,
                    )
                    for c in range(outputs)
                ]
                assert float(ours[i, n]) == pytest.approx(sum(right) / outputs)
    assert found.undefined == 0


def test_what_it_refuses():
    model = small_net()
    images = random_images(model, 2)
    explanation = method("random", model)(images, target=1)
    with pytest.raises(ValueError, match="class 2 was not explained for image 1"):
        roar(model, images, explanation, labels=torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="labels of 4 classes are 0 to 3, got 1 to 4"):
        roar(model, images, explanation, labels=torch.tensor([1, 4]))
    with pytest.raises(ValueError, match=r"counts of 9 players are 1 to 9, got \[0, 3\]"):
        roar(model, images, explanation, labels=torch.tensor([1, 1]), counts=[0, 3])
    regression = small_net(output="identity")
    with pytest.raises(ValueError, match="not a regression"):
        roar(regression, images, method("random", regression)(images))
