"""Adapters for timm's plain vision transformers: ViT, DeiT (plain, distilled), DeiT3, CLIP, DINOv2, SigLIP, EVA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vitshap.models.attention import AttentionOverride, KeysOnly
from vitshap.models.base import (
    Adapter,
    CannotMask,
    attributes_set,
    masked_max,
    masked_mean,
    pair,
    patch_grid,
    require_size,
)
from vitshap.models.preprocess import Preprocess

IMAGENET = 1000


def adapter_for(net: Any, image_size: tuple[int, int] | None) -> Adapter:
    """Return the adapter for a timm model, or raise ``CannotMask``."""
    from timm.models.eva import Eva

    if obstacle := next(_obstacles(net), None):
        raise CannotMask(net, obstacle)
    return (TimmEva if isinstance(net, Eva) else TimmViT)(net, image_size)


def _obstacles(net: Any) -> Iterator[str]:
    from timm.layers import PatchEmbed
    from timm.models.eva import Eva
    from timm.models.vision_transformer import VisionTransformer

    if not isinstance(net, Eva | VisionTransformer):
        yield "it is not a plain vision transformer, so its layers mix patches outside of attention"
    if not isinstance(net.patch_embed, PatchEmbed):
        yield f"its stem ({type(net.patch_embed).__name__}) mixes neighbouring patches by convolution"
    pool = _pooling(net)
    if net.num_classes == 0 or not pool:
        yield "it has no classification head (num_classes=0 or no pooling)"
    if pool not in ("token", "avg", "max", "avgmax", "map"):
        yield f'there is no masked version of its pooling "{pool}"'
    if pool == "map" and getattr(net.attn_pool, "pos_embed", None) is not None:
        yield "its attention pooling adds positions of its own"
    if getattr(getattr(net, "patch_drop", None), "prob", 0) > 0:
        yield "it drops patches at random (patch_drop_rate); create it without"


def _pooling(net: Any) -> str:
    return "token" if hasattr(net, "head_dist") else str(net.global_pool or "")


def imagenet_names(net: Any) -> list[str] | None:
    """Return ImageNet's class names for timm's models of 1,000 classes; None for other models."""
    if getattr(net, "num_classes", None) != IMAGENET:
        return None
    from timm.data import ImageNetInfo

    info = ImageNetInfo()
    whole = [str(info.index_to_description(index)) for index in range(IMAGENET)]  # "tench, Tinca tinca"
    short = [name.partition(",")[0] for name in whole]
    return [first if short.count(first) == 1 else name for first, name in zip(short, whole, strict=True)]


class TimmViT(Adapter):
    """``timm.models.vision_transformer.VisionTransformer`` and what is built from it."""

    def __init__(self, net: Any, image_size: tuple[int, int] | None) -> None:
        self.net = self._net = net
        self.pool = _pooling(net)
        self.reads_patches = self.pool != "token"
        embedding = net.patch_embed
        own = pair(embedding.img_size)
        self.image_size = image_size or own
        if not net.dynamic_img_size:
            require_size(self.image_size, own, ": create it with img_size=... or dynamic_img_size=True")
        self.grid = patch_grid(self.image_size, pair(embedding.patch_size))
        self.prefix = net.num_prefix_tokens
        self.channels = embedding.proj.in_channels
        self.num_classes = net.num_classes

    @property
    def patch_embedding(self) -> nn.Module:
        module: nn.Module = self._net.patch_embed
        return module

    @property
    def final_norm(self) -> nn.Module:
        module: nn.Module = self._net.norm
        return module

    @property
    def blocks(self) -> list[nn.Module]:
        return list(self._net.blocks)

    def embed(self, images: Tensor) -> Tensor:
        tokens: Tensor = self._net.norm_pre(self._net._pos_embed(self._net.patch_embed(images)))
        return tokens

    def readout_weights(self) -> Tensor | None:
        if self.pool == "map":
            return None
        if self.pool == "token":
            return self._mean_of(0, 2 if hasattr(self._net, "head_dist") else 1)
        return self._mean_of(0 if getattr(self._net, "pool_include_prefix", False) else self.prefix)

    def encode(self, tokens: Tensor, positions: Tensor) -> Tensor:
        for block in self._net.blocks:
            tokens = block(tokens)
        return tokens

    def readout(self, tokens: Tensor, valid: Tensor) -> Tensor:
        tokens = self._net.norm(tokens)
        logits: Tensor = self._pooled(tokens, valid) if self.reads_patches else self._net.forward_head(tokens)
        return logits

    def _pooled(self, tokens: Tensor, valid: Tensor) -> Tensor:
        """Apply timm's own head to kept tokens only: with a key mask, or to their mean as a single token."""
        net, with_prefix = self._net, getattr(self._net, "pool_include_prefix", self.pool == "map")
        start = 0 if with_prefix else self.prefix
        patches, kept = tokens[:, start:], valid[:, start:]
        if self.pool == "map":
            with AttentionOverride(KeysOnly(kept, may_be_empty=True)):
                logits: Tensor = net.forward_head(tokens)
            return logits
        if self.pool == "avg":
            pooled = masked_mean(patches, kept)
        elif self.pool == "max":
            pooled = masked_max(patches, kept)
        else:
            pooled = (masked_mean(patches, kept) + masked_max(patches, kept)) / 2
        # All of timm's poolings of equal tokens return that token.
        logits = net.forward_head(pooled[:, None].expand(-1, self.prefix + 1, -1))
        return logits

    def class_names(self) -> list[str] | None:
        return imagenet_names(self._net)

    def preprocess(self) -> Preprocess | None:
        return Preprocess.from_timm(self._net, self.image_size)

    @contextmanager
    def ready(self) -> Iterator[None]:
        unfused = [m for m in self._net.modules() if getattr(m, "fused_attn", True) is False]
        with attributes_set([(module, "fused_attn", True) for module in unfused]):
            yield


class TimmEva(TimmViT):
    """``timm.models.eva.Eva``: with rotary positions, which are gathered with the kept tokens."""

    def embed(self, images: Tensor) -> Tensor:
        tokens, _ = self._net._pos_embed(self._net.patch_embed(images))
        tokens = self._net.norm_pre(tokens)
        return tokens  # type: ignore[no-any-return]

    def encode(self, tokens: Tensor, positions: Tensor) -> Tensor:
        rotations = self._rotations(positions)
        for i, block in enumerate(self._net.blocks):
            tokens = block(tokens, rope=rotations if rotations is None or rotations.ndim == 4 else rotations[i])
        return tokens

    def _rotations(self, positions: Tensor) -> Tensor | None:
        """Return the rotation of each patch token, ``[n, 1 or H, L - prefix, c]``, by layer if layers differ."""
        rope = self._net.rope
        if rope is None:
            return None
        table: Tensor = rope.get_embed(shape=self.grid) if self._net.dynamic_img_size else rope.get_embed()
        # Prefix tokens are not rotated: sine 0, cosine 1 (timm stores sines first, then cosines).
        half = table.shape[-1] // 2
        still = table.new_zeros(*table.shape[:-2], self.prefix, table.shape[-1])
        still[..., half:] = 1
        rows = torch.cat([still, table], dim=-2)[..., positions[:, self.prefix :], :]
        if table.ndim == 2:  # [n, L, c]
            return rows.unsqueeze(1)
        return rows.transpose(1, 2)  # mixed mode, [depth, H, n, L, c] -> [depth, n, H, L, c]
