"""The explainer network: the explained net's own trunk, the paper's head, one value per patch and class.

Any net that ``wrap`` accepts lends its trunk: the adapter's ``embed`` and ``encode`` run on whole images, so the explainer
is of the same family as the net it explains and starts from its weights. The head is one more attention block and three
fully connected layers of four times the width; class and register tokens are kept as its input and their outputs dropped.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitshap.models import MaskedModel
from vitshap.models.base import find_adapter, unwrapped
from vitshap.players import Players

Init = Literal["surrogate", "scratch"]


@dataclass(frozen=True)
class ExplainerConfig:
    """What the network is made of; each field is a row of the paper's ablation table."""

    extra_block: bool = True
    """One more attention block between trunk and fully connected layers."""
    train_trunk: bool = True
    """Whether the trunk is trained, or only the head."""
    init: Init = "surrogate"
    """Where the trunk's weights come from; "scratch" forgets them."""
    tanh: bool = True
    """Bound the values before normalisation, as the paper does."""
    output_scale: float = 1.0
    """Unit of the head's output: small values are learned faster in small units."""


class ExplainerNetwork(nn.Module):
    """Images ``[B, C, H, W]`` to raw values ``[B, d, K]``, before the additive efficient normalisation."""

    def __init__(self, model: MaskedModel, config: ExplainerConfig | None = None) -> None:
        """A trunk like ``model``'s, and a fresh head for its players and classes."""
        super().__init__()
        self.config = config or ExplainerConfig()
        self.trunk = copy.deepcopy(unwrapped(model.net))
        self.adapter = find_adapter(self.trunk, model.image_size)
        if self.config.init == "scratch":
            _forget(self.trunk)
        with torch.no_grad():
            blank = next(self.trunk.parameters()).new_zeros(1, self.adapter.channels, *self.adapter.image_size)
            width = self.adapter.embed(blank).shape[-1]
        self.head = Head(width, _heads(width), model.num_classes, extra_block=self.config.extra_block)
        self.head.to(model.device)
        self._freeze_what_is_unused()

    def forward(self, images: Tensor, players: Players) -> Tensor:
        """Values of the players: a player of several tokens has the sum of theirs."""
        adapter = self.adapter
        tokens = adapter.embed(images)
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        tokens = adapter.final_norm(adapter.encode(tokens, positions))
        values = self.head(tokens)[:, adapter.prefix :].float()  # [B, N, K]
        if self.config.tanh:
            values = values.tanh()
        return sum_over_players(values * self.config.output_scale, players)

    def _freeze_what_is_unused(self) -> None:
        """The trunk's own classification head gets no gradient: leave it out of training."""
        if not self.config.train_trunk:
            self.trunk.requires_grad_(False)
            return
        used = {id(p) for module in (self.adapter.final_norm, *self.adapter.blocks) for p in module.parameters()}
        used |= _used_by_embedding(self)
        for parameter in self.trunk.parameters():
            parameter.requires_grad_(id(parameter) in used)


class Head(nn.Module):
    """One attention block, a norm, and three fully connected layers D - 4D - 4D - K."""

    def __init__(self, width: int, heads: int, num_classes: int, *, extra_block: bool = True) -> None:
        """``heads`` of the attention block."""
        super().__init__()
        self.block = AttentionBlock(width, heads) if extra_block else nn.Identity()
        self.layers = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, num_classes),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """``[B, L, D] -> [B, L, K]``."""
        values: Tensor = self.layers(self.block(tokens))
        return values


class AttentionBlock(nn.Module):
    """A plain pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        """``width`` must be a multiple of ``heads``."""
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """``[B, L, D] -> [B, L, D]``."""
        batch, length, width = tokens.shape
        qkv = self.qkv(self.norm1(tokens)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # [B, heads, L, c]
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        tokens = tokens + self.project(attended)
        mixed: Tensor = tokens + self.mlp(self.norm2(tokens))
        return mixed


def normalised(values: Tensor, base: Tensor, full: Tensor, player_mask: Tensor | None = None) -> Tensor:
    """Additive efficient normalisation: shift the values ``[B, d, K]`` equally until they add up to ``full - base``.

    ``base``, ``full``: ``[B, K]``. Players that an image lacks (``player_mask`` bool ``[B, d]``) stay at zero.
    """
    if player_mask is None:
        missing = full - base - values.sum(1)
        return values + missing[:, None] / values.shape[1]
    present = player_mask[..., None].to(values.dtype)
    values = values * present
    missing = full - base - values.sum(1)
    return values + present * missing[:, None] / present.sum(1, keepdim=True)


def sum_over_players(values: Tensor, players: Players) -> Tensor:
    """Values of tokens ``[B, N, K]`` to values of players ``[B, d, K]``; nobody's tokens are dropped."""
    batch, _, classes = values.shape
    labels = players.labels.flatten(1).to(values.device).expand(batch, -1)  # [B, N]
    index = labels.where(labels >= 0, players.num_players)[..., None].expand(-1, -1, classes)
    sums = values.new_zeros(batch, players.num_players + 1, classes).scatter_add(1, index, values)
    return sums[:, :-1]


def _heads(width: int) -> int:
    """Heads of 64, as vision transformers have them, or of 8 in very narrow nets; fewer where these do not divide."""
    return next((width // size for size in ((64, 32, 16, 8) if width >= 64 else (8, 4)) if width % size == 0), 1)


def _forget(net: nn.Module) -> None:
    """Draw all weights anew: modules by their own rule, bare parameters (class token, positions) by a narrow normal."""
    bare = {id(p): p for p in net.parameters()}
    for module in net.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
            for parameter in module.parameters(recurse=False):
                bare.pop(id(parameter), None)
    for parameter in bare.values():
        nn.init.trunc_normal_(parameter, std=0.02)


def _used_by_embedding(network: ExplainerNetwork) -> set[int]:
    """Parameters that the embedding reads, found by asking for their gradients."""
    adapter = network.adapter
    parameters = list(network.trunk.parameters())
    with torch.enable_grad():
        for parameter in parameters:
            parameter.requires_grad_(True)
        image = parameters[0].new_ones(1, adapter.channels, *adapter.image_size)
        total = adapter.embed(image).float().sum()
        gradients = torch.autograd.grad(total, parameters, allow_unused=True)
    return {id(p) for p, gradient in zip(parameters, gradients, strict=True) if gradient is not None}
