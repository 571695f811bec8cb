"""Maps from attention weights, with and without gradients; also on models that run fused attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from vitshap.baselines.interception import Trace, gradients, one_hot_seeds, trace
from vitshap.methods.base import TokenMethod, TokenScores
from vitshap.models.base import Adapter


@dataclass(frozen=True, eq=False)
class AttentionLast(TokenMethod):
    """Attention of the class token in the last layer, summed over heads."""

    name: ClassVar[str] = "attention-last"
    class_specific: ClassVar[bool] = False

    def score_tokens(self, pixels: Tensor, targets: Tensor, /) -> TokenScores:
        """Return the row that the head reads, the same for every class."""
        with torch.no_grad():
            found = trace(self.model.adapter, pixels, graph="none")
            last = found.attention[_last_attention(found, self.model.adapter)]
            row = _read(last, self.model.adapter).sum(1)
        return TokenScores(_for_all(row, self, targets), found.logits)


@dataclass(frozen=True, eq=False)
class AttentionRollout(TokenMethod):
    """Attention multiplied through all layers (Abnar & Zuidema 2020): heads averaged, identity added, rows normalised."""

    name: ClassVar[str] = "attention-rollout"
    class_specific: ClassVar[bool] = False

    def score_tokens(self, pixels: Tensor, targets: Tensor, /) -> TokenScores:
        """Return the row that the head reads, the same for every class."""
        adapter = self.model.adapter
        with torch.no_grad():
            found = trace(adapter, pixels, graph="none")
            row = read_row(found, adapter)
            for weights in reversed(block_attention(found, adapter)):
                row = (row @ weights.mean(1) + row) / 2  # attention's rows sum to 1, with the identity to 2
        return TokenScores(_for_all(row[:, 0], self, targets), found.logits)


@dataclass(frozen=True, eq=False)
class GenericAttention(TokenMethod):
    """Positive gradient times attention, multiplied through all layers (Chefer, Gur & Wolf, ICCV 2021)."""

    name: ClassVar[str] = "generic-attention"

    def score_tokens(self, pixels: Tensor, targets: Tensor, /) -> TokenScores:
        """Return a map per class, from gradients of its logit."""
        adapter = self.model.adapter
        found = trace(adapter, pixels)
        block_attention(found, adapter)
        maps = []
        for grads in gradients(found.logits, found.attention, one_hot_seeds(targets, found.logits)):
            layers = [(g * a).clamp(min=0).mean(2) for g, a in zip(grads, found.attention, strict=True)]
            maps.append(roll_out(layers, found, adapter))
        return TokenScores(patches(torch.cat(maps), adapter), found.logits)


@dataclass(frozen=True, eq=False)
class GradCamAttention(TokenMethod):
    """GradCAM on the last attention: class-token row, heads weighted by their mean gradient over patches, positive part."""

    name: ClassVar[str] = "gradcam-attention"

    def score_tokens(self, pixels: Tensor, targets: Tensor, /) -> TokenScores:
        """Return a map per class, from gradients of its logit."""
        adapter = self.model.adapter
        found = trace(adapter, pixels, graph="last block")
        number = _last_attention(found, adapter)
        mixed, v = found.mixed[number]
        row = _read(found.attention[number], adapter)[..., adapter.prefix :]  # [B, H, N]
        maps = []
        for (grads,) in gradients(found.logits, [mixed], one_hot_seeds(targets, found.logits)):
            # the gradient of the attention weights is grads @ v.mT, of which one row is needed
            of_row = _all_tokens(_query(grads, adapter) @ v.mT, adapter)[..., 0, adapter.prefix :]  # [t, B, H, N]
            maps.append((of_row.mean(-1, keepdim=True) * row).mean(2).clamp(min=0))
        return TokenScores(torch.cat(maps).permute(1, 2, 0), found.logits)


@dataclass(frozen=True, eq=False)
class GradCamNorm(TokenMethod):
    """GradCAM on the layer-normed input of the last attention: channels weighted by their mean gradient, positive part."""

    name: ClassVar[str] = "gradcam-ln"

    def score_tokens(self, pixels: Tensor, targets: Tensor, /) -> TokenScores:
        """Return a map per class, from gradients of its logit."""
        adapter = self.model.adapter
        found = trace(adapter, pixels, graph="last block")
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
        return TokenScores(torch.cat(maps).permute(1, 2, 0), found.logits)


def block_attention(found: Trace, adapter: Adapter) -> list[Tensor]:
    """Return the attention weights ``[B, H, L, L]`` of the blocks, first block first."""
    depth = len(adapter.blocks)
    if not depth or len(found.attention) < depth:
        raise ValueError(
            f"no attention is known in {type(adapter.net).__name__}: methods for any model are vanilla-pixel, "
            "smoothgrad-pixel, vargrad-pixel, integrated-gradients-pixel, leave-one-out, rise and kernelshap"
        )
    return found.attention[:depth]


def read_row(found: Trace, adapter: Adapter) -> Tensor:
    """Return how much the head reads of each token, ``[B, 1, L]``; the attention of its pooling if it has one."""
    weights = adapter.readout_weights()
    if weights is None:
        return _read(found.attention[-1], adapter).mean(1, keepdim=True)
    return weights.to(found.logits).expand(len(found.logits), 1, -1)


def roll_out(layers: list[Tensor], found: Trace, adapter: Adapter, row: Tensor | None = None) -> Tensor:
    """Multiply ``row`` (``[t, B, L]``) with the product of (I + layer), last layer first: ``[t, B, L]``.

    ``layers`` are ``[t, B, L, L]`` per block, then one of a pooling head if there is one, whose mean is the default row.
    """
    depth = len(adapter.blocks)
    if row is None:
        pooled = adapter.readout_weights() is None
        row = _read(layers[-1], adapter) if pooled else read_row(found, adapter)[:, 0]
        row = row.expand(*layers[0].shape[:2], -1)
    for layer in reversed(layers[:depth]):
        row = row + (row[..., None, :] @ layer)[..., 0, :]
    return row


def patches(maps: Tensor, adapter: Adapter) -> Tensor:
    """Return scores ``[B, N, T]`` of the patch tokens from maps over all tokens, ``[T, B, L]``."""
    return maps[..., adapter.prefix :].permute(1, 2, 0)


def _last_attention(found: Trace, adapter: Adapter) -> int:
    """Return which attention the head reads: the last block's, or that of a pooling head."""
    depth = len(block_attention(found, adapter))
    return len(found.attention) - 1 if adapter.readout_weights() is None else depth - 1


def _read(attention: Tensor, adapter: Adapter) -> Tensor:
    """Return the row that the head reads, ``[..., L]``, of attention (or its gradient) ``[..., queries, keys]``."""
    return _all_tokens(_query(attention, adapter), adapter)[..., 0, :]


def _query(by_query: Tensor, adapter: Adapter) -> Tensor:
    """Return what the head reads of ``[..., queries, n]``, ``[..., 1, n]``; of a pooling head the mean over its queries."""
    weights = adapter.readout_weights()
    return by_query.mean(-2, keepdim=True) if weights is None else weights.to(by_query)[None] @ by_query


def _all_tokens(by_key: Tensor, adapter: Adapter) -> Tensor:
    """Return ``[..., L]`` of ``[..., keys]``: the keys of a pooling head may be the patches alone."""
    return F.pad(by_key, (adapter.prefix + adapter.grid[0] * adapter.grid[1] - by_key.shape[-1], 0))


def _for_all(row: Tensor, method: TokenMethod, targets: Tensor) -> Tensor:
    """Return one map ``[B, L]`` for all classes, ``[B, N, T]``."""
    return row[:, method.model.adapter.prefix :, None].expand(-1, -1, targets.shape[1])
