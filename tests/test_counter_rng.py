"""Counter-based random numbers against published values of SplitMix64, and tests of uniformity."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitshap.counter_rng import mixed, random_bits, sample_keys, shuffled, uniforms, whole_numbers


def test_the_stream_of_a_key_is_splitmix64() -> None:
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    drawn = [number % 2**64 for number in random_bits(torch.tensor(1234567), 5).tolist()]
    assert drawn == published


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
@settings(deadline=None, max_examples=50)
def test_mixing_agrees_with_python_integers(numbers: list[int]) -> None:
    def by_hand(x: int) -> int:
        x %= 2**64
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    assert [y % 2**64 for y in mixed(torch.tensor(numbers)).tolist()] == [by_hand(x) for x in numbers]


def test_uniform_numbers_are_uniform_and_unrelated() -> None:
    n = 20_000
    keys = sample_keys("a", torch.arange(n), seed=0, epoch=0)
    numbers = uniforms(keys, 4)
    assert numbers.dtype == torch.float64
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = torch.histc(numbers, bins=50, min=0, max=1)
    assert ((counts - 4 * n / 50) ** 2 / (4 * n / 50)).sum() < 85.4  # 99.9 % quantile with 49 degrees of freedom
    others = [
        uniforms(sample_keys(*args, seed=seed, epoch=epoch), 1)
        for args, seed, epoch in (
            (("b", torch.arange(n)), 0, 0),
            (("a", torch.arange(n)), 1, 0),
            (("a", torch.arange(n)), 0, 1),
            (("a", torch.arange(1, n + 1)), 0, 0),
        )
    ]
    correlation = torch.corrcoef(torch.cat([numbers, *others], 1).T) - torch.eye(8, dtype=torch.float64)
    assert correlation.abs().max() < 4.5 / n**0.5


def test_seed_and_epoch_do_not_trade_places() -> None:
    index = torch.arange(100)
    a, b = (sample_keys("a", index, seed=seed, epoch=epoch) for seed, epoch in ((3, 7), (7, 3)))
    assert not (a == b).any()


@given(n=st.integers(1, 200), seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 1000))
@settings(deadline=None, max_examples=30)
def test_an_epochs_order_is_a_permutation_that_repeats(n: int, seed: int, epoch: int) -> None:
    order = shuffled(n, seed=seed, epoch=epoch)
    assert sorted(order.tolist()) == list(range(n))
    assert torch.equal(order, shuffled(n, seed=seed, epoch=epoch))


def test_integers_keep_within_their_bits() -> None:
    numbers = whole_numbers(torch.arange(1000), 3, bits=5)
    assert set(numbers.flatten().tolist()) == set(range(32))
