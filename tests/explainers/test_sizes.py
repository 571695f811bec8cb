"""Profiles of sizes: mixtures of bumps whose mean over sizes is 1, so that they never move the Shapley values."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitshap.explainers.network import size_basis, uniform_shares


@given(d=st.integers(2, 600), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_every_mixture_has_mean_one_and_no_part_at_the_ends(d: int, seed: int) -> None:
    bumps = size_basis(d)
    shares = torch.rand(len(bumps), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    profile = shares / shares.sum() @ bumps
    assert float(profile[1:d].mean()) == pytest.approx(1)
    assert profile[0] == profile[d] == 0
    assert bool((bumps >= 0).all())


@given(d=st.integers(2, 600))
@settings(max_examples=60, deadline=None)
def test_uniform_shares_are_flat(d: int) -> None:
    shares = uniform_shares(d)
    assert float(shares.sum()) == pytest.approx(1)
    torch.testing.assert_close((shares @ size_basis(d))[1:d], torch.ones(d - 1, dtype=torch.float64))


def test_bumps_are_narrow_where_sizes_are_small() -> None:
    bumps = size_basis(196)
    assert float(bumps[0, 1]) == pytest.approx(195)  # the first is size 1 alone
    assert [int(bump.argmax()) for bump in bumps] == [1, 2, 4, 8, 16, 32, 64, 98, 132, 164, 180, 188, 192, 194, 195]
