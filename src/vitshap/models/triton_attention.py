"""Attention within concatenated (packed) sequences as a Triton kernel: CUDA, half precision, no gradients.

The usual kernels for sequences of unequal length assign each sequence and head a thread block of about a hundred
queries, but most coalitions have far fewer tokens. Here a block processes a fixed number of *tokens*, of one long sequence
or of ten short ones, iterates over all keys that any of them may see, and masks the keys of other sequences.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

QUERIES, KEYS = 64, 64
"""Tokens of a block, and keys that it processes in one step."""


@torch.library.custom_op("vitshap::attend_packed", mutates_args=())
def attend_packed(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, ends: Tensor, scale: float) -> Tensor:
    """Compute attention of ``[T, H, c]``; a token sees those from its ``starts`` to before its ``ends``, int32 ``[T]``."""
    tokens, heads, width = q.shape
    out = q.new_empty(tokens, heads, width)
    if tokens == 0:
        return out
    q, k, v = (x if x.stride(2) == 1 else x.contiguous() for x in (q, k, v))
    grid = (triton.cdiv(tokens, QUERIES), heads)
    strides = [stride for x in (q, k, v, out) for stride in x.stride()[:2]]
    base_two = scale / math.log(2)  # the hardware computes exp2
    _kernel[grid](q, k, v, out, starts, ends, tokens, base_two, *strides, WIDTH=width, QUERIES=QUERIES, KEYS=KEYS)
    return out


@attend_packed.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, ends: Tensor, scale: float) -> Tensor:
    return q.new_empty(q.shape)


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    out,
    starts,
    ends,
    tokens,
    scale,
    q_token,
    q_head,
    k_token,
    k_head,
    v_token,
    v_head,
    out_token,
    out_head,
    WIDTH: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    row = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    head = tl.program_id(1).to(tl.int64)
    channel = tl.arange(0, WIDTH)
    inside = row < tokens
    start = tl.load(starts + row, mask=inside, other=tokens)
    end = tl.load(ends + row, mask=inside, other=0)
    at = row.to(tl.int64)[:, None]
    query = tl.load(q + head * q_head + at * q_token + channel[None, :], mask=inside[:, None], other=0.0)
    largest = tl.full([QUERIES], -1.0e30, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, WIDTH], tl.float32)
    # All keys that any of these queries may see are contiguous: sequences follow one another.
    for first in range(tl.min(start, 0), tl.max(end, 0), KEYS):
        column = first + tl.arange(0, KEYS)
        there = column < tokens
        of = column.to(tl.int64)[:, None]
        key = tl.load(k + head * k_head + of * k_token + channel[None, :], mask=there[:, None], other=0.0)
        value = tl.load(v + head * v_head + of * v_token + channel[None, :], mask=there[:, None], other=0.0)
        seen = (column[None, :] >= start[:, None]) & (column[None, :] < end[:, None])
        # Finite, so that a query without a key so far is not NaN; its first key scales what was added to zero.
        score = tl.where(seen, tl.dot(query, tl.trans(key)) * scale, -1.0e30)
        larger = tl.maximum(largest, tl.max(score, 1))
        weight = tl.exp2(score - larger[:, None])
        kept = tl.exp2(largest - larger)
        total = total * kept + tl.sum(weight, 1)
        mixed = mixed * kept[:, None] + tl.dot(weight.to(value.dtype), value)
        largest = larger
    result = (mixed / total[:, None]).to(query.dtype)
    tl.store(out + head * out_head + at * out_token + channel[None, :], result, mask=inside[:, None])
