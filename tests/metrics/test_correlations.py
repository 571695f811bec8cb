"""Sensitivity-n, faithfulness and single-patch against scipy, one image and class at a time, and closed forms."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.metrics.games import additive_model, explain
from tests.small_nets import random_images, small_net
from vitshap.coalitions import all_coalitions
from vitshap.methods import method
from vitshap.metrics import coalition_responses, faithfulness, sensitivity_n, sensitivity_sizes, single_patch
from vitshap.metrics.correlations import CoalitionResponses
from vitshap.metrics.statistics import average_ranks, correlate

CORRELATIONS = {"paper": stats.pearsonr, "authors": stats.spearmanr}


@given(
    numbers=st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=3, max_size=12),
    hidden=st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_correlations_with_ties_are_those_of_scipy(numbers, hidden):
    one, two = torch.tensor(numbers, dtype=torch.float64).t()
    where = torch.ones(len(one) + hidden, dtype=torch.bool)
    where[len(one) :] = False
    padded = [torch.cat([side, torch.full((hidden,), 99.0)]) for side in (one, two)]
    np.testing.assert_allclose(average_ranks(one).numpy(), stats.rankdata(one.numpy()))
    for kind, theirs in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
        ours = float(correlate(*padded, kind, where))
        if one.unique().numel() == 1 or two.unique().numel() == 1:
            assert np.isnan(ours)
        else:
            assert ours == pytest.approx(theirs(one.numpy(), two.numpy()).statistic, abs=1e-12)


def test_an_additive_game_has_correlations_of_one():
    model = additive_model(3, 4)
    images = random_images(model, 3)
    right = explain(model, images, model.net.weights[None])
    for definition in ("paper", "authors"):
        found = sensitivity_n(model, images, right, definition=definition, subsets=60)
        torch.testing.assert_close(found.by_size, torch.ones_like(found.by_size), atol=1e-6, rtol=0)
        found = faithfulness(model, images, right, definition=definition, subsets=60)
        torch.testing.assert_close(found.values, torch.ones(3, 2, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(
        single_patch(model, images, right).values, torch.ones(3, 2, dtype=torch.float64), atol=1e-6, rtol=0
    )
    wrong = replace(right, values=-right.values)
    assert faithfulness(model, images, wrong, subsets=60).mean == pytest.approx(-1, abs=1e-6)


def test_random_values_have_no_correlation_on_average():
    model = additive_model(4, 4, outputs=1)
    images = random_images(model, 300)
    noise = explain(model, images, torch.randn(300, 16, 1, generator=torch.Generator().manual_seed(1)))
    for found in (
        sensitivity_n(model, images, noise, subsets=40),
        single_patch(model, images, noise),
    ):
        assert abs(found.mean) < 4 * found.stderr
    # faithfulness counts the sizes: values that are all positive correlate with any sum that grows with the size
    assert abs(faithfulness(model, images, noise, subsets=40).mean) < 0.1


@pytest.mark.parametrize("definition", ["paper", "authors"])
def test_every_correlation_by_hand(definition):
    model = small_net(grid=(2, 3), num_classes=3)
    images = random_images(model, 2)
    explanation = method("leave-one-out", model)(images, target=[2, 0])
    found = sensitivity_n(model, images, explanation, sizes=(2, 4), subsets=25, definition=definition, seed=3)
    assert found.sizes.tolist() == [2, 4]
    responses = coalition_responses(
        model, images, "sensitivity-n", sizes=(2, 4), subsets=25, definition=definition, seed=3
    )
    assert responses.coalitions.shape == (50, 6)
    full = model(images).detach()
    for i in range(2):
        for t, c in enumerate((2, 0)):
            for place, n in enumerate((2, 4)):
                sums, outcome = [], []
                for kept in responses.coalitions:
                    subset = ~kept if definition == "paper" else kept
                    if int(subset.sum()) != n:
                        continue
                    output = float(model.game(images[i : i + 1])(kept[None])[0, 0, c])
                    sums.append(float(explanation.values[i, subset, t].double().sum()))
                    outcome.append(float(full[i, c]) - output if definition == "paper" else output)
                assert len(sums) == 25
                expected = CORRELATIONS[definition](sums, outcome).statistic
                assert float(found.by_size[i, t, place]) == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(found.values, found.by_size.mean(2))
    shared = sensitivity_n(model, images, explanation, definition=definition, responses=responses)
    torch.testing.assert_close(shared.by_size, found.by_size)


@pytest.mark.parametrize("definition", ["paper", "authors"])
def test_faithfulness_and_single_patch_by_hand(definition):
    model = small_net(grid=(2, 3), num_classes=3)
    images = random_images(model, 2)
    explanation = method("kernelshap", model, budget=40)(images)
    found = faithfulness(model, images, explanation, subsets=30, definition=definition)
    responses = coalition_responses(model, images, "faithfulness", subsets=30)
    sums = (responses.coalitions.double() @ explanation.values.double()).numpy()
    alone = single_patch(model, images, explanation).values
    for i in range(2):
        for c in range(3):
            expected = CORRELATIONS[definition](sums[i, :, c], responses.outputs[i, :, c].numpy()).statistic
            assert float(found.values[i, c]) == pytest.approx(expected, abs=1e-6)
            drops = method("leave-one-out", model)(images).values[i, :, c]
            expected = stats.spearmanr(explanation.values[i, :, c].numpy(), drops.numpy()).statistic
            assert float(alone[i, c]) == pytest.approx(expected, abs=1e-6)
    leave_one_out = method("leave-one-out", model)(images)
    assert single_patch(model, images, leave_one_out).mean == pytest.approx(1)


def test_shared_responses_of_some_classes_and_images():
    model = small_net(grid=(2, 3), num_classes=4)
    images = random_images(model, 3)
    explanations = [method(name, model)(images, target=[1, 3]) for name in ("leave-one-out", "random")]
    for name, metric in (
        ("faithfulness", faithfulness),
        ("sensitivity-n", sensitivity_n),
        ("single-patch", single_patch),
    ):
        whole = coalition_responses(model, images, name, subsets=20)
        some = coalition_responses(model, images, name, subsets=20, classes=explanations[0].classes)
        assert some.outputs.shape[2] == 2
        for one in explanations:
            options = {} if name == "single-patch" else {"subsets": 20}
            own = metric(model, images, one, **options).values
            torch.testing.assert_close(metric(model, images, one, responses=whole).values, own)
            torch.testing.assert_close(metric(model, images, one, responses=some).values, own)
            torch.testing.assert_close(metric(model, images[1:], one[1:], responses=whole[1:]).values, own[1:])
        with pytest.raises(ValueError, match="do not have class 2"):
            metric(model, images, method("random", model)(images, target=2), responses=some)


@pytest.mark.parametrize("numbers", [1, 500])
def test_memory_limits_do_not_matter(monkeypatch, numbers):
    model = small_net(grid=(2, 3))
    images = random_images(model, 3)
    explanation = method("leave-one-out", model)(images)
    expected = sensitivity_n(model, images, explanation, subsets=15).by_size
    monkeypatch.setattr("vitshap.game.NUMBERS_AT_ONCE", numbers)
    monkeypatch.setattr("vitshap.metrics.correlations.NUMBERS_AT_ONCE", numbers)
    torch.testing.assert_close(sensitivity_n(model, images, explanation, subsets=15).by_size, expected)


def test_values_without_variance_are_counted_and_never_zero():
    model = small_net(grid=(2, 3), num_classes=2)
    images = random_images(model, 3)
    explanation = method("leave-one-out", model)(images)
    values = explanation.values.clone()
    values[1] = 0.3
    constant = replace(explanation, values=values)
    found = sensitivity_n(model, images, constant, subsets=20)
    assert bool(found.values[1].isnan().all())
    assert found.undefined == 1
    assert found.undefined_correlations == 2 * len(found.sizes)
    assert single_patch(model, images, constant).undefined == 1
    zero = replace(explanation, values=torch.zeros_like(values))
    assert faithfulness(model, images, zero, subsets=20).undefined == 3
    assert np.isnan(faithfulness(model, images, zero, subsets=20).mean)


def test_drops_of_a_saturated_output_are_rounding():
    """The outputs are equal up to rounding, but their differences from the whole image's are not."""
    model = small_net(grid=(2, 3), num_classes=2)
    images = random_images(model, 1)
    explanation = method("random", model)(images)
    outputs = torch.tensor([1.0, 0.8])[None, None].repeat(1, 6, 1)
    outputs[0, :, 0] -= torch.tensor([0, 1, 2, 1, 0, 3]) * 2.0**-24
    outputs[0, :, 1] -= torch.tensor([0, 1, 2, 1, 0, 3]) * 0.1
    coalitions = coalition_responses(model, images, "single-patch").coalitions
    responses = CoalitionResponses("single-patch", coalitions, outputs, torch.tensor([[1.0, 0.8]]))
    assert single_patch(model, images, explanation, responses=responses).values.isnan().tolist() == [[True, False]]


def test_absent_players_do_not_count():
    labels = torch.arange(6).view(1, 2, 3).repeat(2, 1, 1)
    labels[1] = torch.tensor([[0, 0, 1], [2, -1, 2]])
    model = small_net(grid=(2, 3), num_classes=2)
    images = random_images(model, 2)
    explanation = method("kernelshap", model, players=labels, budget=40)(images)
    drops = method("leave-one-out", model, players=labels)(images).values
    expected = stats.spearmanr(explanation.values[1, :3, 0], drops[1, :3, 0]).statistic
    assert float(single_patch(model, images, explanation).values[1, 0]) == pytest.approx(expected)


def test_subsets_of_n_players_are_of_those_that_an_image_has():
    """Equal values have no correlation: all sums over n players are equal, if absent ones are not among the n."""
    labels = torch.arange(6).view(1, 2, 3).repeat(3, 1, 1)
    labels[1] = torch.tensor([[0, 0, 1], [2, -1, 2]])
    model = small_net(grid=(2, 3), num_classes=2)
    images = random_images(model, 3)
    explanation = method("leave-one-out", model, players=labels)(images)
    equal = replace(explanation, values=explanation.player_mask[..., None].repeat(1, 1, 2).float())
    assert bool(sensitivity_n(model, images, equal, subsets=20).by_size.isnan().all())
    for definition in ("paper", "authors"):
        found = sensitivity_n(model, images, explanation, subsets=20, definition=definition).by_size
        responses = coalition_responses(
            model, images, "sensitivity-n", players=labels, subsets=20, definition=definition
        )
        shared = sensitivity_n(model, images, explanation, definition=definition, responses=responses)
        torch.testing.assert_close(shared.by_size, found, equal_nan=True)
        whole = method("leave-one-out", model)(images[::2])  # images with all players do not depend on the others
        alone = sensitivity_n(model, images[::2], whole, subsets=20, definition=definition).by_size
        torch.testing.assert_close(found[::2], alone)
        own = responses.coalitions[1][:, :3]
        for block, n in enumerate(shared.sizes.tolist()):
            withheld = n if definition == "paper" else 6 - n
            kept = own[20 * (len(shared.sizes) - 1 - block if definition == "paper" else block) :][:20]
            assert bool((kept.sum(1) == max(3 - withheld, 0)).all())
            assert bool(found[1, :, block].isnan().all()) == (withheld >= 3)


def test_sizes_are_shares_of_the_players():
    assert sensitivity_sizes(196) == tuple(range(14, 183, 14))
    assert sensitivity_sizes(2) == (1,)
    assert set(sensitivity_sizes(16)) <= set(range(1, 16))
    with pytest.raises(ValueError, match="at least 2 players, got 1"):
        sensitivity_sizes(1)


def test_all_subsets_give_the_exact_faithfulness():
    model = small_net(grid=(2, 3), num_classes=2)
    images = random_images(model, 1)
    explanation = method("exact", model)(images)
    game = model.game(images)
    every = all_coalitions(6)
    weight = torch.tensor([1 / 7 / stats.binom(6, 0.5).pmf(k) / 2**6 for k in range(7)])[every.sum(1)].double()
    sums, outputs = (every.double() @ explanation.values[0].double())[:, 0], game(every)[0, :, 0].double()
    a, b = sums - (weight * sums).sum(), outputs - (weight * outputs).sum()
    exact = float((weight * a * b).sum() / ((weight * a * a).sum() * (weight * b * b).sum()).sqrt())
    assert float(faithfulness(model, images, explanation, subsets=20_000).values[0, 0]) == pytest.approx(
        exact, abs=0.01
    )


def test_options_that_make_no_sense():
    model = small_net(grid=(2, 3))
    images = random_images(model, 2)
    explanation = method("random", model)(images)
    with pytest.raises(ValueError, match='definition is "paper" or "authors", got \'quantus\''):
        faithfulness(model, images, explanation, definition="quantus")
    with pytest.raises(ValueError, match="at least 2 subsets, got 1"):
        faithfulness(model, images, explanation, subsets=1)
    with pytest.raises(ValueError, match=r"are 1 to 5, got \[6\]"):
        sensitivity_n(model, images, explanation, sizes=[6])
    responses = coalition_responses(model, images, "faithfulness", subsets=5)
    with pytest.raises(ValueError, match="of faithfulness, not of sensitivity-n"):
        sensitivity_n(model, images, explanation, responses=responses)
    with pytest.raises(ValueError, match="is of 1 images and 6 players, the responses of 2 images"):
        faithfulness(model, images[:1], explanation[:1], responses=responses)
    with pytest.raises(ValueError, match='belong to sensitivity-n, faithfulness, single-patch, not to "insertion"'):
        coalition_responses(model, images, "insertion")
    with pytest.raises(ValueError, match="of 2 images, but 1 are given"):
        faithfulness(model, images[:1], explanation)
