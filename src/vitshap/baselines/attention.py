"""Maps from attention weights, with and without gradients; also on models that run fused attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vitshap.baselines.interception import Trace, gradients, one_hot_seeds, trace
from vitshap.methods.base import TokenMethod
from vitshap.models.base import Adapter


@dataclass(frozen=True, eq=False)
class AttentionLast(TokenMethod):
    """Attention of the class token in the last layer, summed over heads."""

    name: ClassVar[str] = "attention-last"
    class_specific: ClassVar[bool] = False

    def score_tokens(self, pixels: Tensor, targets: Tensor, /) -> Tensor:
        """Return the row that the head reads, the same for every class."""
        with torch.no_grad():
            return _for_all(_last_row(trace(self.model.adapter, pixels), self.model.adapter).sum(1), self, targets)


@dataclass(frozen=True, eq=False)
class AttentionRollout(TokenMethod):
    """Attention multiplied through all layers (Abnar & Zuidema 2020): heads averaged, identity added, rows normalised."""

    name: ClassVar[str] = "attention-rollout"
    class_specific: ClassVar[bool] = False

    def score_tokens(self, pixels: Tensor, targets: Tensor, /) -> Tensor:
        """Return the row that the head reads, the same for every class."""
        adapter = self.model.adapter
        with torch.no_grad():
            found = trace(adapter, pixels)
            row = read_row(found, adapter)
            for weights in reversed(block_attention(found, adapter)):
                row = (row @ weights.mean(1) + row) / 2  # attention's rows sum to 1, with the identity to 2
        return _for_all(row[:, 0], self, targets)


@dataclass(frozen=True, eq=False)
class GenericAttention(TokenMethod):
    """Positive gradient times attention, multiplied through all layers (Chefer, Gur & Wolf, ICCV 2021)."""

    name: ClassVar[str] = "generic-attention"

    def score_tokens(self, pixels: Tensor, targets: Tensor, /) -> Tensor:
        """Return a map per class, from gradients of its logit."""
        adapter = self.model.adapter
        found = trace(adapter, pixels)
        maps = []
        for grads in gradients(found.logits, found.attention, one_hot_seeds(targets, found.logits)):
            layers = [(g * a).clamp(min=0).mean(2) for g, a in zip(grads, found.attention, strict=True)]
            maps.append(roll_out(layers, found, adapter))
        return patches(torch.cat(maps), adapter)


@dataclass(frozen=True, eq=False)
class GradCamAttention(TokenMethod):
    """GradCAM on the last attention: class-token row, heads weighted by their mean gradient over patches, positive part."""

    name: ClassVar[str] = "gradcam-attention"

    def score_tokens(self, pixels: Tensor, targets: Tensor, /) -> Tensor:
        """Return a map per class, from gradients of its logit."""
        adapter = self.model.adapter
        found = trace(adapter, pixels)
        row = _last_row(found, adapter)[..., adapter.prefix :]  # [B, H, N]
        maps = []
        for (grads,) in gradients(found.logits, found.attention[-1:], one_hot_seeds(targets, found.logits)):
            of_row = _read(grads, found, adapter)[..., adapter.prefix :]  # [t, B, H, N]
            maps.append((of_row.mean(-1, keepdim=True) * row).mean(2).clamp(min=0))
        return torch.cat(maps).permute(1, 2, 0)


@dataclass(frozen=True, eq=False)
class GradCamNorm(TokenMethod):
    """GradCAM on the layer-normed input of the last attention: channels weighted by their mean gradient, positive part."""

    name: ClassVar[str] = "gradcam-ln"

    def score_tokens(self, pixels: Tensor, targets: Tensor, /) -> Tensor:
        """Return a map per class, from gradients of its logit."""
        adapter = self.model.adapter
        found = trace(adapter, pixels)
        if found.normed is None:
            raise ValueError(
                f"{self.name}: the last attention of {type(adapter.net).__name__} has no layer-normed input; "
                "gradcam-attention works with any attention"
            )
        normed = found.normed[:, adapter.prefix :]
        maps = []
        for (grads,) in gradients(found.logits, [found.normed], one_hot_seeds(targets, found.logits)):
            weights = grads[:, :, adapter.prefix :].mean(2, keepdim=True)
            maps.append((weights * normed).sum(-1).clamp(min=0))
        return torch.cat(maps).permute(1, 2, 0)


def block_attention(found: Trace, adapter: Adapter) -> list[Tensor]:
    """Return the attention weights ``[B, H, L, L]`` of the blocks, first block first."""
    return found.attention[: len(adapter.blocks)]


def read_row(found: Trace, adapter: Adapter) -> Tensor:
    """Return how much the head reads of each token, ``[B, 1, L]``; the attention of its pooling if it has one."""
    pooling = found.attention[len(adapter.blocks) :]
    if pooling:
        return _padded(pooling[-1].mean((1, 2)), adapter)[:, None]
    weights = adapter.readout_weights().to(found.logits)
    return weights.expand(len(found.logits), 1, -1)


def roll_out(layers: list[Tensor], found: Trace, adapter: Adapter, row: Tensor | None = None) -> Tensor:
    """Multiply ``row`` (``[t, B, L]``) with the product of (I + layer), last layer first: ``[t, B, L]``.

    ``layers`` are ``[t, B, L, L]`` per block, then one of a pooling head if there is one, whose mean is the default row.
    """
    depth = len(adapter.blocks)
    if row is None:
        row = _padded(layers[-1].mean(-2), adapter) if len(layers) > depth else read_row(found, adapter)[:, 0]
        row = row.expand(*layers[0].shape[:2], -1)
    for layer in reversed(layers[:depth]):
        row = row + (row[..., None, :] @ layer)[..., 0, :]
    return row


def patches(maps: Tensor, adapter: Adapter) -> Tensor:
    """Return scores ``[B, N, T]`` of the patch tokens from maps over all tokens, ``[T, B, L]``."""
    return maps[..., adapter.prefix :].permute(1, 2, 0)


def _last_row(found: Trace, adapter: Adapter) -> Tensor:
    """The row of the last attention that the head reads, by head: ``[B, H, L]``."""
    return _read(found.attention[-1], found, adapter)


def _read(attention: Tensor, found: Trace, adapter: Adapter) -> Tensor:
    """Of attention (or its gradient) ``[..., H, queries, L]`` the row that the head reads, ``[..., H, L]``."""
    if len(found.attention) > len(adapter.blocks):
        return _padded(attention.mean(-2), adapter)
    return adapter.readout_weights().to(attention) @ attention


def _padded(row: Tensor, adapter: Adapter) -> Tensor:
    """A row over all tokens, from one over all tokens or over patches alone."""
    missing = adapter.prefix + adapter.grid[0] * adapter.grid[1] - row.shape[-1]
    return torch.nn.functional.pad(row, (missing, 0))


def _for_all(row: Tensor, method: TokenMethod, targets: Tensor) -> Tensor:
    """One map ``[B, L]`` for all classes, ``[B, N, T]``."""
    return row[:, method.model.adapter.prefix :, None].expand(-1, -1, targets.shape[1])
