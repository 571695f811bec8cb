"""Counter-based random numbers: a pure function of seed, epoch and sample index.

The stream of an ordinary generator depends on the order of the samples, the batch size and the number of processes.
Here, a sample's key is a hash of purpose, seed, epoch and index, and its random numbers are hashes of key and position
(SplitMix64, Steele, Lea and Flood 2014), in integer arithmetic that is the same on every device. A resumed, a re-batched
and a distributed run therefore use the same augmentations and the same coalitions.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

_GAMMA = -7046029254386353131  # 0x9E3779B97F4A7C15, the golden ratio: SplitMix64's step
_FIRST = -4658895280553007687  # 0xBF58476D1CE4E5B9
_SECOND = -7723592293110705685  # 0x94D049BB133111EB


def mixed(x: Tensor) -> Tensor:
    """Scramble the bits of int64 numbers (read as unsigned); the mapping is one to one."""
    x = (x ^ _shifted(x, 30)) * _FIRST
    x = (x ^ _shifted(x, 27)) * _SECOND
    return x ^ _shifted(x, 31)


def sample_keys(purpose: str, indices: Tensor, *, seed: int, epoch: int) -> Tensor:
    """Return one key per sample, int64 ``[B]``, on the device of the indices (int ``[B]``).

    Different purposes give independent random numbers for the same sample, for example its crop and its coalitions.
    """
    start = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "little", signed=True)
    key = torch.tensor(start)
    for part in (seed, epoch):
        key = mixed((key ^ _wrapped(part)) + _GAMMA)
    return mixed((indices.long() ^ int(key)) + _GAMMA)


def random_bits(keys: Tensor, n: int) -> Tensor:
    """Return ``n`` numbers of 64 random bits for each key ``[...]``: int64 ``[..., n]``; a larger n adds to the end."""
    position = torch.arange(1, n + 1, device=keys.device)
    return mixed(keys[..., None] + position * _GAMMA)


def uniforms(keys: Tensor, n: int) -> Tensor:
    """Return ``n`` numbers in [0, 1) per key, ``[..., n]``: float64 with 53 random bits (on MPS float32 with 24)."""
    if keys.device.type == "mps":
        return _shifted(random_bits(keys, n), 40).float() * 2.0**-24
    return _shifted(random_bits(keys, n), 11).double() * 2.0**-53


def whole_numbers(keys: Tensor, n: int, *, bits: int) -> Tensor:
    """Return ``n`` integers in 0..2^bits - 1 for each key, int64 ``[..., n]``; at most 63 bits."""
    return _shifted(random_bits(keys, n), 64 - bits)


def shuffled(n: int, *, seed: int, epoch: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the order in which an epoch visits ``n`` samples: a permutation of 0..n-1, int64 ``[n]``."""
    keys = sample_keys("order", torch.arange(n, device=device), seed=seed, epoch=epoch)
    return keys.argsort()


def _shifted(x: Tensor, by: int) -> Tensor:
    """Shift to the right and fill with zeros (torch fills with the sign bit)."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _wrapped(number: int) -> int:
    """Wrap an integer to 64 bits, signed."""
    return (number + 2**63) % 2**64 - 2**63
