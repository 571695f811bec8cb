"""Evaluate many coalitions in chunks of a token budget, which is reduced when the device runs out of memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vitshap.coalitions import Coalitions
from vitshap.models.packed import Rows
from vitshap.models.removal import Session
from vitshap.players import Players

ROWS_AT_ONCE = 1 << 15
"""Rows whose masks and sizes are in memory at the same time. Variable-length attention takes at most 65,535 sequences
at once."""
CUDA_TOKENS = 1 << 20
CPU_BYTES = 48 << 20
"""Larger chunks are not faster: these fill an H200, and fit a CPU's cache roughly (4,096 tokens of a ViT-Tiny)."""
PADDING = 0.98
"""Rows longer than the shortest of a bucket divided by this start a new bucket, if the bucket is large enough."""


def token_budget(bytes_per_token: int, device: torch.device) -> int:
    """Return how many tokens to compute at once, by free memory and up to a size that is still faster."""
    if device.type != "cuda":
        return max(1, CPU_BYTES // bytes_per_token)
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return max(1, min(CUDA_TOKENS, int(0.5 * free / bytes_per_token)))


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
        # Outside the handler, whose traceback would keep the chunk's tensors alive.
        torch.cuda.empty_cache()
        budget = max(1, int(lengths[start:end].sum()) // 2)
        note(budget)
    logits = torch.cat(parts) if len(parts) > 1 else parts[0]
    if order is not None:
        logits = logits[order.argsort().to(logits.device)]
    return logits, budget


def _chunk_end(lengths: Tensor, start: int, budget: int, padded: bool) -> int:
    """Return the end of the chunk that begins at ``start``; ``padded``: sorted lengths, padded to the longest."""
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
