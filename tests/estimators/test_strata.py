"""The sampling design: every unit once, budgets kept, small strata enumerated."""

from math import comb

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitshap.coalitions import shapley_kernel
from vitshap.estimators.strata import Drawer, allocate, strata


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("d", [2, 3, 8, 9])
@pytest.mark.parametrize("paired", [True, False])
def test_all_units_are_all_coalitions(d: int, paired: bool) -> None:
    design = strata(d, paired=paired)
    assert design.mass.sum() == pytest.approx(1)
    counts = torch.tensor(design.population)
    members, groups = Drawer(design, generator()).up_to(counts)
    assert torch.equal(members.sum(1), design.sizes[groups])
    everything = torch.cat([members, ~members]) if paired else members
    assert len({tuple(row) for row in everything.tolist()}) == 2**d - 2 == len(everything)


def test_drawing_in_steps_never_repeats_a_unit() -> None:
    design = strata(10, paired=True)
    drawer = Drawer(design, generator())
    first, _ = drawer.up_to(torch.tensor([5, 10, 20, 30, 40]))
    second, _ = drawer.up_to(torch.tensor([10, 45, 60, 100, 126]))
    drawn = torch.cat([first, second])
    assert len({tuple(row) for row in torch.cat([drawn, ~drawn]).tolist()}) == 2 * (10 + 45 + 60 + 100 + 126)


def test_members_are_uniform_within_a_size() -> None:
    design = strata(12, paired=True)
    counts = torch.zeros(6, 12)
    for seed in range(200):
        members, groups = Drawer(design, generator(seed)).up_to(torch.tensor([3, 6, 6, 6, 6, 6]))
        counts.index_add_(0, groups, members.to(torch.float32))
    # Of halves, the one with the last player stands for the pair, so only sizes 1..5 are uniform over players.
    expected = torch.tensor([3, 6, 6, 6, 6]) * 200 * torch.arange(1, 6) / 12
    chi_square = ((counts[:5] - expected[:, None]) ** 2 / expected[:, None]).sum(1)
    assert chi_square.max() < 31.3  # 99.9 % of chi-square with 11 degrees of freedom


def test_large_strata_are_drawn_without_listing_them() -> None:
    design = strata(196, paired=True)
    members, groups = Drawer(design, generator()).up_to(torch.full((98,), 5))
    assert torch.equal(members.sum(1), design.sizes[groups])
    assert design.population[97] == comb(196, 98) // 2


@settings(max_examples=60, deadline=None)
@given(
    d=st.integers(2, 40), share=st.floats(0.001, 1), seed=st.integers(0, 1000), paired=st.booleans(), even=st.booleans()
)
def test_allocation_keeps_the_total_and_the_populations(
    d: int, share: float, seed: int, paired: bool, even: bool
) -> None:
    design = strata(d, paired=paired)
    total = max(1, min(int(share * design.total), 5000))
    wish = torch.ones_like(design.mass) if even else design.mass
    nothing = torch.zeros(len(design.population), dtype=torch.int64)
    counts, expected = allocate(design, wish, total, nothing, generator(seed))
    assert int(counts.sum()) == total
    assert all(count <= size for count, size in zip(counts.tolist(), design.population, strict=True))
    assert (counts - expected).abs().max() < 1 + 1e-6
    more, _ = allocate(design, wish, min(2 * total, design.total), counts, generator(seed))
    assert bool((more >= counts).all())


@given(st.integers(4, 60), st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(0, 2), st.integers(0, 9))
def test_units_are_only_ever_added_and_the_total_is_kept(d: int, steps: list[int], fewest: int, seed: int) -> None:
    design, rounding = strata(d, paired=True), generator(seed)
    wish = design.relative_mass**0.75 * design.multiplicity
    counts, total = torch.zeros(len(design.population), dtype=torch.int64), 0
    for step in steps:
        total = min(total + step, design.total)
        more, _ = allocate(design, wish, total, counts, rounding, fewest=fewest)
        assert bool((more >= counts).all())
        assert int(more.sum()) <= total
        counts = more


def test_allocation_enumerates_small_strata() -> None:
    design = strata(16, paired=True)
    counts, _ = allocate(design, design.mass, 1000, torch.zeros(8, dtype=torch.int64), generator())
    assert counts[:2].tolist() == [16, 120]
    assert design.mass[0] == pytest.approx(float(2 * shapley_kernel(16).size_probabilities[1]))
