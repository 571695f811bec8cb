"""Coalitions per sample: the exact distribution, as a function of (seed, epoch, index)."""

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitshap.coalitions import fixed_size, shapley_kernel, uniform_size
from vitshap.data import sample_coalitions


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize(
    ("law", "n"), [(shapley_kernel(5), 600_000), (shapley_kernel(196), 120_000), (uniform_size(16), 300_000)]
)
def test_sizes_follow_the_law(law, n: int, paired: bool) -> None:
    samples = 20
    drawn = sample_coalitions(law, torch.arange(samples), seed=0, epoch=0, n=n // samples, paired=paired)
    share = torch.bincount(drawn.sum(-1).flatten(), minlength=law.num_players + 1) / n
    # the expected total variation of n draws is at most half the sum of the standard deviations
    expected = (law.size_probabilities * (1 - law.size_probabilities) / n * (2 if paired else 1)).sqrt().sum() / 2
    assert (share - law.size_probabilities).abs().sum() / 2 < 1.3 * expected
    assert not share[law.size_probabilities == 0].any()


def test_members_are_uniform_within_a_size() -> None:
    subsets = sample_coalitions(fixed_size(6, 3), torch.arange(2_000), seed=1, epoch=0, n=10).flatten(0, 1)
    number = (subsets * 2 ** torch.arange(6)).sum(1)
    counts = torch.bincount(number, minlength=64).double()
    counts = counts[[sum(2**i for i in members) for members in combinations(range(6), 3)]]
    assert counts.sum() == 20_000
    assert ((counts - 1000) ** 2 / 1000).sum() < 43.8  # 99.9 % quantile with 19 degrees of freedom


def test_players_and_pairs_of_players_are_as_frequent_as_in_the_law() -> None:
    law, n = shapley_kernel(12), 100_000
    subsets = sample_coalitions(law, torch.arange(n // 10), seed=2, epoch=3, n=10).flatten(0, 1).double()
    moment = subsets.T @ subsets / n
    assert (moment - law.second_moment()).abs().max() < 5 * 0.5 / n**0.5


@given(data=st.data(), d=st.integers(2, 40), pairs=st.integers(1, 6), seed=st.integers(0, 99), epoch=st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_coalitions_depend_only_on_seed_epoch_and_index(
    data: st.DataObject, d: int, pairs: int, seed: int, epoch: int
) -> None:
    indices = torch.tensor(data.draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=12)))
    law = shapley_kernel(d)
    together = sample_coalitions(law, indices, seed=seed, epoch=epoch, n=2 * pairs, paired=True)
    assert together.shape == (len(indices), 2 * pairs, d)
    assert together.dtype == torch.bool
    assert torch.equal(together[:, 0::2], ~together[:, 1::2])
    position = data.draw(st.integers(0, len(indices) - 1))
    alone = sample_coalitions(law, indices[position : position + 1], seed=seed, epoch=epoch, n=2 * pairs, paired=True)
    assert torch.equal(together[position], alone[0])
    more = sample_coalitions(law, indices.flip(0), seed=seed, epoch=epoch, n=2 * pairs + 2, paired=True)
    assert torch.equal(together, more.flip(0)[:, : 2 * pairs])


def test_samples_epochs_seeds_and_purposes_differ() -> None:
    law = uniform_size(64)

    def draw(index: int, seed: int, epoch: int, purpose: str) -> bytes:
        drawn = sample_coalitions(law, torch.tensor([index]), seed=seed, epoch=epoch, n=8, purpose=purpose)
        return drawn.numpy().tobytes()

    assert len({draw(i, s, e, p) for i in range(3) for s in range(3) for e in range(3) for p in ("a", "b")}) == 54


@given(d=st.integers(1, 70), data=st.data())
@settings(deadline=None, max_examples=40)
def test_fixed_size_has_that_size(d: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, d))
    assert (sample_coalitions(fixed_size(d, size), torch.arange(9), seed=0, epoch=0, n=3).sum(-1) == size).all()


@pytest.mark.parametrize(
    ("law", "n", "says"),
    [(uniform_size(4), 3, "even"), (fixed_size(4, 1), 2, "complement")],
)
def test_bad_input_is_reported(law, n: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        sample_coalitions(law, torch.arange(2), seed=0, epoch=0, n=n, paired=True)
