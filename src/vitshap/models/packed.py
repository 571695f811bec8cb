"""Evaluate coalitions on kept tokens only: withheld tokens are not computed at all.

There are two layouts. *Packed*: the kept tokens of all coalitions are concatenated in one row ``[1, T, D]``, with
attention within each coalition by a variable-length kernel (CUDA, half precision). *Buckets*: coalitions of similar size
are padded to the longest among them, ``[n, L, D]`` (any device). Both gather rows of the same table of embedded patches,
which is computed once per image, and both pass the blocks' output to the same head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from vitshap.models.attention import AttentionOverride, KeysOnly, VariableLength
from vitshap.models.base import Adapter


class Rows(NamedTuple):
    """Coalitions to evaluate: ``keep`` over patches, bool ``[n, N]``, and the ``image`` each is about, int64 ``[n]``."""

    keep: Tensor
    image: Tensor


EncodePacked: TypeAlias = Callable[[Adapter, Tensor, Tensor, Tensor, int], Tensor]
"""``encode_packed``, or its compiled version."""


def encode_packed(adapter: Adapter, tokens: Tensor, positions: Tensor, boundaries: Tensor, longest: int) -> Tensor:
    """Run all blocks on concatenated sequences, ``[1, T, D]``."""
    with AttentionOverride(VariableLength(boundaries, longest)):
        return adapter.encode(tokens, positions)


def run_packed(adapter: Adapter, table: Tensor, rows: Rows, encode: EncodePacked = encode_packed) -> Tensor:
    """Return logits ``[n, K]`` by variable-length attention; ``table``: the tokens of all images, ``[B, P + N, D]``."""
    present = F.pad(rows.keep, (adapter.prefix, 0), value=True)  # [n, P + N]
    lengths = present.sum(1)
    boundaries = F.pad(lengths.cumsum(0), (1, 0))
    row, position = present.nonzero(as_tuple=True)  # [T] each
    tokens = table.flatten(0, 1)[rows.image[row] * table.shape[1] + position]
    # An upper bound of the longest is enough, and needs no synchronisation with the device.
    longest = present.shape[1]
    tokens = encode(adapter, tokens[None], position[None], boundaries.to(torch.int32), longest)[0]
    if not adapter.reads_patches:
        first = boundaries[:-1, None] + torch.arange(adapter.prefix, device=tokens.device)  # [n, P]
        return adapter.readout(tokens[first], first.ge(0))
    padded = tokens.new_zeros(*present.shape, tokens.shape[-1])
    # Each token returns to its own position: a head that pools ignores the gaps.
    padded = padded.index_put((row, position), tokens)
    return adapter.readout(padded, present)


def run_bucket(adapter: Adapter, table: Tensor, rows: Rows) -> Tensor:
    """Return logits ``[n, K]`` of coalitions of similar size, padded to the longest of them."""
    present = F.pad(rows.keep, (adapter.prefix, 0), value=True)  # [n, P + N]
    lengths = present.sum(1)
    shortest, longest = (int(x) for x in torch.aminmax(lengths))
    if longest == 0:  # no row has a token
        empty = table.new_zeros(len(rows.keep), 1, table.shape[-1])
        return adapter.readout(empty, torch.zeros_like(empty[..., 0], dtype=torch.bool))
    # A stable sort puts kept tokens first, in their order.
    positions = present.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :longest]
    valid = torch.arange(longest, device=lengths.device) < lengths[:, None]
    # Not table[image, positions]: on a CPU its gradient is summed in an order that varies from run to run.
    tokens = F.embedding(rows.image[:, None] * table.shape[1] + positions, table.flatten(0, 1))
    attend = KeysOnly(None if shortest == longest else valid, positions, may_be_empty=adapter.prefix == 0)
    with AttentionOverride(attend):
        tokens = adapter.encode(tokens, positions)
    if not adapter.reads_patches:
        tokens, valid = tokens[:, : adapter.prefix], valid[:, : adapter.prefix]
    return adapter.readout(tokens, valid)
