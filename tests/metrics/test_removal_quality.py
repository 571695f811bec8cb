"""The quality of ways to withhold players, against predictions one image and subset at a time."""

import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from tests.small_nets import random_images, small_net
from vitshap.metrics import removal_counts, removal_mechanisms, removal_quality


def test_counts_are_shares_of_the_players():
    assert removal_counts(196) == tuple(range(0, 197, 14))
    assert removal_counts(9)[0] == 0
    assert removal_counts(9)[-1] == 9


def test_seven_mechanisms_on_the_same_subsets():
    model = small_net()
    images, labels = random_images(model, 5), torch.tensor([0, 1, 2, 3, 0])
    tuned = small_net(removal="pixels")
    with torch.no_grad():
        tuned.net.classifier.weight.mul_(0.5)
    ways = removal_mechanisms(
        model,
        reference=random_images(model, 3, seed=9),
        surrogate=tuned.with_removal("attention"),
        fine_tuned_pixels=tuned,
    )
    assert list(ways) == [
        *("attention", "softmax", "pixels", "embeddings", "random"),
        *("attention, fine-tuned", "pixels, fine-tuned"),
    ]
    found = removal_quality(model, ways, images, labels, batch=2)
    assert found.counts.tolist() == list(removal_counts(9))
    whole = model.logits(images).detach()
    for name in ways:
        assert found.divergence[name].shape == found.correct[name].shape == (5, len(found.counts))
    for name in ("attention", "softmax", "pixels", "embeddings", "random"):  # with all players kept nothing is withheld
        torch.testing.assert_close(
            found.divergence[name][:, -1], torch.zeros(5, dtype=torch.float64), atol=1e-9, rtol=0
        )
        assert found.correct[name][:, -1].bool().tolist() == (whole.argmax(1) == labels).tolist()
    part = removal_quality(model, {"pixels": ways["pixels"]}, images[3:], labels[3:], first=3)
    torch.testing.assert_close(part.divergence["pixels"], found.divergence["pixels"][3:])
    other = removal_quality(model, {"pixels": ways["pixels"]}, images, labels, seed=1)
    assert not torch.equal(other.divergence["pixels"], found.divergence["pixels"])


def test_divergence_and_accuracy_by_hand():
    from vitshap.coalitions import fixed_size, sample_coalitions

    model = small_net()
    images, labels = random_images(model, 4), torch.tensor([0, 1, 2, 3])
    found = removal_quality(model, {"attention": model}, images, labels, counts=[3, 6], seed=5)
    for n, count in enumerate((3, 6)):
        kept = sample_coalitions(fixed_size(9, count), torch.arange(4), seed=5, epoch=count, n=1, purpose="removal")
        assert (kept.sum(2) == count).all()
        for i in range(4):
            masked = model(images[i : i + 1], kept[i : i + 1]).detach()[0, 0].double()
            whole = model(images[i : i + 1]).detach()[0].double()
            expected = float(kl_divergence(Categorical(whole), Categorical(masked)))
            assert float(found.divergence["attention"][i, n]) == pytest.approx(expected, abs=1e-5)
            assert bool(found.correct["attention"][i, n]) == (int(masked.argmax()) == int(labels[i]))


@pytest.mark.parametrize(("output", "classes"), [("sigmoid", 1), ("sigmoid", 3), ("identity", 2)])
def test_other_outputs(output, classes):
    model = small_net(num_classes=classes, output=output)
    images = random_images(model, 4)
    labels = torch.randint(0, 2, (4, classes), generator=torch.Generator().manual_seed(0))
    found = removal_quality(
        model, {"attention": model}, images, labels if classes > 1 else labels[:, 0], counts=[0, 4, 9]
    )
    assert bool((found.divergence["attention"][:, :2] > 0).all())
    assert float(found.divergence["attention"][:, 2].abs().max()) < 1e-9
    whole = model(images).detach()
    if output == "sigmoid":
        right = ((whole >= 0.5) == labels.bool()).double().mean(1)
        torch.testing.assert_close(found.correct["attention"][:, 2], right)
    else:
        assert bool(found.correct["attention"].isnan().all())


def test_what_it_refuses():
    model = small_net()
    images, labels = random_images(model, 2), torch.tensor([0, 1])
    assert "random" not in removal_mechanisms(model)
    with pytest.raises(ValueError, match='must have removal="pixels", got "attention"'):
        removal_mechanisms(model, fine_tuned_pixels=model)
    with pytest.raises(ValueError, match="2 images, but 1 labels"):
        removal_quality(model, {"attention": model}, images, labels[:1])
    with pytest.raises(ValueError, match='"other" has 9 players and 5 classes, the classifier 9 and 4'):
        removal_quality(model, {"other": small_net(num_classes=5)}, images, labels)
    with pytest.raises(ValueError, match="no mechanism"):
        removal_quality(model, {}, images, labels)
    with pytest.raises(ValueError, match=r"are 0 to 9, got \[10\]"):
        removal_quality(model, {"attention": model}, images, labels, counts=[10])
