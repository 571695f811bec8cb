"""Evaluate coalitions on kept tokens only: withheld tokens are not computed at all.

There are two layouts. *Packed*: the kept tokens of all coalitions are concatenated in one row ``[1, T, D]``, with
attention within each coalition by a variable-length kernel (CUDA, half precision). *Buckets*: coalitions of similar size
are padded to the longest among them, ``[n, L, D]`` (any device). Both gather rows of the same table of embedded patches,
which is computed once per image, and both pass the blocks' output to the same head.

Many coalitions are evaluated in chunks of a token budget, which is reduced when the device runs out of memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from vitshap.coalitions import Coalitions
from vitshap.models.attention import AttentionOverride, KeysOnly, VariableLength
from vitshap.models.base import Adapter, gpu_memory_left
from vitshap.players import Players

if TYPE_CHECKING:
    from vitshap.models.removal import Session

ROWS_AT_ONCE = 1 << 15
"""Rows whose masks and sizes are in memory at the same time. Variable-length attention takes at most 65,535 sequences
at once."""
CUDA_TOKENS = 1 << 20
CPU_BYTES = 48 << 20
"""Larger chunks are not faster: these fill an H200, and fit a CPU's cache roughly (4,096 tokens of a ViT-Tiny)."""
PADDING = 0.98
"""Rows longer than the shortest of a bucket divided by this start a new bucket, if the bucket is large enough."""


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


def token_budget(bytes_per_token: int, device: torch.device) -> int:
    """Return how many tokens to compute at once, by free memory and up to a size that is still faster."""
    if device.type != "cuda":
        return max(1, CPU_BYTES // bytes_per_token)
    return max(1, min(CUDA_TOKENS, gpu_memory_left(device) // (2 * bytes_per_token)))


def evaluate_rows(
    session: Session, coalitions: Coalitions, players: Players, budget: int, note: Callable[[int], None]
) -> Tensor:
    """Return logits ``[B, S, K]`` of coalitions ``[B, S, d]``.

    ``note`` is called with a smaller budget after an out-of-memory error, so that the next call starts with it.
    """
    batch, per_image, _ = coalitions.shape
    parts: list[Tensor] = []
    out: Tensor | None = None
    for start in range(0, batch * per_image, ROWS_AT_ONCE):
        number = torch.arange(start, min(start + ROWS_AT_ONCE, batch * per_image), device=coalitions.device)
        image = number // per_image
        keep = players.keep_tokens(coalitions[image, number % per_image], image)
        logits, budget = _evaluate_block(session, Rows(keep, image), budget, note)
        if logits.requires_grad:
            parts.append(logits)
            continue
        if out is None:
            out = logits.new_empty(batch * per_image, logits.shape[1])
        out[start : start + len(logits)] = logits
    result = torch.cat(parts) if out is None else out
    return result.view(batch, per_image, -1)


def _evaluate_block(session: Session, rows: Rows, budget: int, note: Callable[[int], None]) -> tuple[Tensor, int]:
    lengths = session.lengths(rows.keep).cpu()
    order = lengths.argsort(stable=True) if session.sort_by_length else None
    if order is not None:
        lengths = lengths[order]
        on_device = order.to(rows.keep.device)
        rows = Rows(rows.keep[on_device], rows.image[on_device])
    parts: list[Tensor] = []
    start = 0
    while start < len(lengths):
        end = _chunk_end(lengths, start, budget, session.sort_by_length)
        try:
            parts.append(session.run(Rows(rows.keep[start:end], rows.image[start:end])))
        except torch.OutOfMemoryError:
            if end - start == 1:
                raise
        else:
            start = end
            continue
        # Outside the handler, whose traceback would keep the chunk's tensors alive; as would reference cycles.
        gc.collect()
        torch.cuda.empty_cache()
        budget = max(1, int(lengths[start:end].sum()) // 2)
        note(budget)
    logits = torch.cat(parts) if len(parts) > 1 else parts[0]
    if order is not None:
        logits = logits[order.argsort().to(logits.device)]
    return logits, budget


def _chunk_end(lengths: Tensor, start: int, budget: int, padded: bool) -> int:
    """Return the end of the chunk that begins at ``start``; ``padded``: sorted rows are padded to the longest."""
    rest = lengths[start:]
    if not padded:
        tokens = rest.cumsum(0)
        return start + max(1, int(torch.searchsorted(tokens, budget, right=True)))
    count = torch.arange(1, len(rest) + 1)
    fits = int((rest * count <= budget).sum())  # padded tokens grow with every row
    # Of what fits, end where the padding would cost more than another forward pass of a small remainder.
    similar = int((rest[0] >= PADDING * rest[:fits]).sum())
    smallest = int((rest * count < budget // 4).sum()) + 1
    return start + max(1, min(fits, max(similar, smallest)))
