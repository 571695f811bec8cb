"""The authors' networks, written in plain torch from a description of their code: their layers, names and order."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    """Scores of withheld keys are minus infinity."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        parts = [
            part.unflatten(2, (self.heads, -1)).transpose(1, 2)  # [B, heads, L, c]
            for part in self.qkv(x).chunk(3, dim=2)
        ]
        queries, keys, values = parts
        scores = queries @ keys.transpose(2, 3) / queries.shape[3] ** 0.5
        if keep is not None:
            scores = scores.masked_fill(~keep[:, None, None, :], float("-inf"))
        return self.proj((scores.softmax(3) @ values).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(nn.functional.gelu(self.fc1(x)))


class Block(nn.Module):
    """The extra block lacks its first norm and has another epsilon."""

    def __init__(self, width: int, heads: int, *, extra: bool = False) -> None:
        super().__init__()
        eps = 1e-5 if extra else 1e-6
        self.norm1 = nn.Identity() if extra else nn.LayerNorm(width, eps=eps)
        self.attn, self.norm2, self.mlp = Attention(width, heads), nn.LayerNorm(width, eps=eps), Mlp(width)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.norm1(x), keep)
        return x + self.mlp(self.norm2(x))


class PatchEmbedding(nn.Module):
    def __init__(self, width: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, patch, stride=patch)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(images).flatten(2).transpose(1, 2)


class Backbone(nn.Module):
    """A ViT without head: all tokens after the final norm."""

    def __init__(self, *, width: int, depth: int, heads: int, image: int, patch: int) -> None:
        super().__init__()
        self.patch_embed = PatchEmbedding(width, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + (image // patch) ** 2, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        x = torch.cat([self.cls_token.expand(len(images), -1, -1), self.patch_embed(images)], 1) + self.pos_embed
        if keep is not None:
            keep = torch.cat([keep.new_ones(len(keep), 1), keep], 1)
        for block in self.blocks:
            x = block(x, keep)
        return self.norm(x)


class Surrogate(nn.Module):
    """Also their classifier and their masked classifier."""

    def __init__(self, classes: int, **sizes: int) -> None:
        super().__init__()
        self.backbone, self.head = Backbone(**sizes), nn.Linear(sizes["width"], classes)

    def forward(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        return self.head(self.backbone(images, keep)[:, 0]).softmax(1)


class Explainer(nn.Module):
    """Without extra block the head's norm is left out too."""

    def __init__(self, classes: int, *, extra_blocks: int = 1, **sizes: int) -> None:
        super().__init__()
        width = sizes["width"]
        self.backbone = Backbone(**sizes)
        self.attention_blocks = nn.ModuleList(Block(width, sizes["heads"], extra=True) for _ in range(extra_blocks))
        layers: list[nn.Module] = [nn.LayerNorm(width)] if extra_blocks else []
        layers += [nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, 4 * width), nn.GELU()]
        self.mlps = nn.Sequential(*layers, nn.Linear(4 * width, classes))

    def forward(self, images: Tensor, grand: Tensor, null: Tensor) -> Tensor:
        x = self.backbone(images)
        for block in self.attention_blocks:
            x = block(x)
        values = self.mlps(x)[:, 1:].tanh()
        missing = grand - null - values.sum(1)
        return values + missing[:, None] / values.shape[1]
