"""Leak check: change the pixels of withheld patches at random, and verify that no output for kept patches changes.

Each stage is checked separately (patch embedding, blocks, head), so that the error message can name what leaks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vitshap.models.attention import AttentionOverride, KeysOnly
from vitshap.models.base import Adapter, CannotMask, evaluating, net_device_dtype
from vitshap.models.packed import Rows
from vitshap.models.removal import AttentionSession, FullLengthSession

TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 2e-2}
"""Largest change, relative to the largest output, that counts as rounding and not as a leak."""


def relative_change(
    evaluate: Callable[[Tensor, Tensor], Tensor], images: Tensor, keep: Tensor, grid: tuple[int, int]
) -> float:
    """Return how much ``evaluate(images, keep)`` changes when the pixels of withheld patches are changed at random.

    Relative to the largest absolute output. ``keep``: bool ``[B, N]``.
    """
    down, across = grid
    height, width = images.shape[-2:]
    kept = keep.view(-1, 1, down, across).repeat_interleave(height // down, 2).repeat_interleave(width // across, 3)
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(1)).to(images)
    before, after = evaluate(images, keep), evaluate(torch.where(kept, images, noise - images), keep)
    return distance(before, after)


def distance(one: Tensor, other: Tensor) -> float:
    """Return the largest difference relative to the largest absolute value; infinity if a value is not finite."""
    gap = float((one - other).abs().max() / one.abs().max().clamp(min=1e-30)) if one.numel() else 0.0
    return gap if gap == gap else float("inf")


def check_mask(adapter: Adapter) -> None:
    """Raise ``CannotMask``, naming the stage, if withheld patches influence what the network computes from kept ones."""
    if leak := _find_leak(adapter):
        raise CannotMask(adapter.net, leak)


def _find_leak(adapter: Adapter) -> str | None:
    device, dtype = net_device_dtype(adapter.net)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, adapter.channels, *adapter.image_size, generator=generator).to(device, dtype)
    keep = torch.rand(2, adapter.grid[0] * adapter.grid[1], generator=generator).to(device) < 0.5
    keep[:, 0], keep[:, -1] = True, False
    # Without autocast, whose rounding would look like a leak.
    with torch.no_grad(), torch.autocast(device.type, enabled=False), evaluating(adapter.net), adapter.ready():
        for stage, what_leaks in (
            (_embedded, "its patch embedding mixes neighbouring patches"),
            (_encoded, "its blocks mix kept and withheld tokens outside of attention"),
            (_logits, "its head reads withheld patches"),
        ):
            moved = relative_change(lambda x, k, stage=stage: stage(adapter, x, k), images, keep, adapter.grid)  # type: ignore[misc]
            if moved > TOLERANCE[dtype]:
                return f"{what_leaks} (relative change of kept outputs: {moved:.1e})"
        return _unmasked_layers(adapter, images) or _disagreement(adapter, images, keep, TOLERANCE[dtype])


def _embedded(adapter: Adapter, images: Tensor, keep: Tensor) -> Tensor:
    tokens = adapter.embed(images)
    return torch.cat([tokens[:, : adapter.prefix].flatten(0, 1), tokens[:, adapter.prefix :][keep]])


def _encoded(adapter: Adapter, images: Tensor, keep: Tensor) -> Tensor:
    session = FullLengthSession(adapter, images)
    present = torch.nn.functional.pad(keep, (adapter.prefix, 0), value=True)
    with AttentionOverride(KeysOnly(present)):
        return adapter.encode(session.table, session.positions)[present]


def _logits(adapter: Adapter, images: Tensor, keep: Tensor) -> Tensor:
    rows = Rows(keep, torch.arange(len(images), device=images.device))
    return FullLengthSession(adapter, images).run(rows)


def _unmasked_layers(adapter: Adapter, images: Tensor) -> str | None:
    calls = 0

    class Counted(KeysOnly):
        def _mask(self, bias: Tensor | None) -> Tensor | None:
            nonlocal calls
            calls += 1
            return super()._mask(bias)

    session = FullLengthSession(adapter, images)
    with AttentionOverride(Counted(None)):
        adapter.encode(session.table, session.positions)
    if calls < len(adapter.blocks):
        return f"only {calls} of its {len(adapter.blocks)} attention layers use calls that can be masked"
    return None


def _disagreement(adapter: Adapter, images: Tensor, keep: Tensor, tolerance: float) -> str | None:
    rows = Rows(keep, torch.arange(len(images), device=images.device))
    full, packed = (session(adapter, images).run(rows) for session in (FullLengthSession, AttentionSession))
    if distance(full, packed) > tolerance:
        return "its output changes when withheld tokens are dropped instead of masked"
    whole = FullLengthSession(adapter, images).run(Rows(torch.ones_like(keep), rows.image))
    if distance(adapter.predict(images), whole) > tolerance:
        return "its own forward pass does more than its embedding, blocks and head"
    return None
