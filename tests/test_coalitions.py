"""Distributions over coalitions against their definitions, and samples against the distributions."""

from fractions import Fraction
from itertools import combinations
from math import comb

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitshap.coalitions import (
    all_coalitions,
    authors_sampler,
    fixed_size,
    harmonic_number,
    shapley_kernel,
    uniform_size,
)


def _seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("d", [2, 5, 16])
def test_shapley_kernel_is_the_normalised_kernel_weight(d: int) -> None:
    weight = torch.tensor([0.0] + [(d - 1) / (k * (d - k)) for k in range(1, d)] + [0.0], dtype=torch.float64)
    torch.testing.assert_close(shapley_kernel(d).size_probabilities, weight / weight.sum(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("law", [shapley_kernel(5), uniform_size(5), fixed_size(5, 2)])
def test_second_moment_is_that_of_all_subsets(law) -> None:
    moment = torch.zeros(5, 5, dtype=torch.float64)
    for size in range(6):
        for members in combinations(range(5), size):
            s = torch.zeros(5, dtype=torch.float64)
            s[list(members)] = 1
            moment += law.size_probabilities[size] / comb(5, size) * torch.outer(s, s)
    torch.testing.assert_close(law.second_moment(), moment, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("d", [2, 3, 5, 16, 196, 400])
def test_smallest_eigenvalue_of_the_second_moment(d: int) -> None:
    smallest = torch.linalg.eigvalsh(shapley_kernel(d).second_moment())[0]
    assert abs(smallest - 1 / (2 * harmonic_number(d - 1))) < 1e-12


def test_harmonic_number_of_195_and_beyond_a_thousand() -> None:
    assert harmonic_number(195) == pytest.approx(5.8528, abs=5e-5)
    assert harmonic_number(1001) == pytest.approx(harmonic_number(1000) + 1 / 1001, abs=1e-14)


def test_an_eighth_of_the_authors_subsets_are_empty_or_full() -> None:
    d = 196
    weight = [Fraction(1, k * (d - k)) for k in range(1, d)]  # of size k, put on k - 1
    ends = sum(w * (Fraction(k, d) ** d + (1 - Fraction(k, d)) ** d) for k, w in enumerate(weight)) / sum(weight)
    law = authors_sampler(d)
    assert float(ends) == pytest.approx(0.1214, abs=5e-5)
    assert float(law.size_probabilities[[0, d]].sum()) == pytest.approx(float(ends), rel=1e-9)
    assert float(law.size_probabilities.sum()) == pytest.approx(1, abs=1e-12)


def test_the_authors_sampler_is_their_two_steps() -> None:
    d, n = 6, 200_000
    weight = torch.tensor([1 / (k * (d - k)) for k in range(1, d)], dtype=torch.float64)
    k = torch.multinomial(weight, n, replacement=True, generator=_seeded())  # 0..d-2
    kept = torch.rand(n, d, generator=_seeded(1)) > k[:, None] / d
    both = torch.cat([kept, ~kept]).sum(1)
    law = authors_sampler(d)
    frequencies = torch.bincount(both, minlength=d + 1) / (2 * n)
    assert (frequencies - law.size_probabilities).abs().max() < 0.004
    pairs = law.sample(1000, paired=True, generator=_seeded(2))
    assert torch.equal(pairs[::2], ~pairs[1::2])


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("d", [5, 16, 196])
def test_a_million_sizes_follow_the_distribution(d: int, paired: bool) -> None:
    law = shapley_kernel(d)
    sizes = law.sample(1_000_000, paired=paired, generator=_seeded()).sum(1)
    drawn = torch.bincount(sizes, minlength=d + 1) / 1_000_000
    assert (drawn - law.size_probabilities).abs().sum() / 2 < 0.007
    assert drawn[0] == drawn[d] == 0


def test_members_are_uniform_within_a_size() -> None:
    subsets = fixed_size(6, 3).sample(20_000, generator=_seeded(1))
    number = (subsets * 2 ** torch.arange(6)).sum(1)
    counts = torch.bincount(number, minlength=64).double()
    counts = counts[[sum(2**i for i in members) for members in combinations(range(6), 3)]]
    assert counts.sum() == 20_000
    chi_square = ((counts - 1000) ** 2 / 1000).sum()
    assert chi_square < 43.8  # 99.9 % quantile with 19 degrees of freedom


@pytest.mark.parametrize("d", [3, 50])
def test_every_player_joins_equally_often(d: int) -> None:
    n = 200_000
    share = shapley_kernel(d).sample(n, generator=_seeded(2)).double().mean(0)
    assert (share - 0.5).abs().max() < 5 * 0.5 / n**0.5


@given(d=st.integers(1, 30), n=st.integers(1, 40), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=40)
def test_pairs_are_complements_and_seeds_repeat(d: int, n: int, seed: int) -> None:
    law = uniform_size(d)
    subsets = law.sample(2 * n, paired=True, generator=_seeded(seed))
    assert subsets.shape == (2 * n, d)
    assert subsets.dtype == torch.bool
    assert torch.equal(subsets[0::2], ~subsets[1::2])
    assert torch.equal(subsets, law.sample(2 * n, paired=True, generator=_seeded(seed)))


@given(d=st.integers(1, 40), data=st.data())
@settings(deadline=None, max_examples=40)
def test_fixed_size_has_that_size(d: int, data: st.DataObject) -> None:
    n = data.draw(st.integers(0, d))
    assert (fixed_size(d, n).sample(17, generator=_seeded(3)).sum(1) == n).all()


def test_all_coalitions_are_all_different() -> None:
    subsets = all_coalitions(7)
    assert len(torch.unique(subsets, dim=0)) == 2**7
    assert subsets[5].nonzero().flatten().tolist() == [0, 2]


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: shapley_kernel(1), ValueError, "at least 2"),
        (lambda: fixed_size(4, -1), ValueError, "at least 0"),
        (lambda: uniform_size(4).sample(0), ValueError, "at least 1"),
        (lambda: uniform_size(4).sample(3, paired=True), ValueError, "even"),
        (lambda: fixed_size(4, 1).sample(2, paired=True), ValueError, "complement"),
        (lambda: all_coalitions(21), ValueError, "20 players"),
    ],
)
def test_bad_input_is_named(call, error, says: str) -> None:
    with pytest.raises(error, match=says):
        call()
