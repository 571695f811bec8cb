"""Relevance propagation: LRP (Chefer, Gur & Wolf 2021), AttnLRP (Achtibat et al. 2024) and LibraGrad (Mehri et al. 2025).

Each method is a set of rules for the backward pass (see ``rules``).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from vitshap.baselines.attention import block_attention, patches, roll_out
from vitshap.baselines.interception import gradients, numbers_at_once, one_hot_seeds, trace
from vitshap.baselines.rules import AttnLrpRules, LibraGradRules, LrpRules, Rules, safe_divide
from vitshap.methods.base import TokenMethod, TokenScores


@dataclass(frozen=True, eq=False)
class Lrp(TokenMethod):
    """LRP of Chefer, Gur & Wolf (2021): gradient times relevance of the attention weights, multiplied through all layers.

    The relevance pass is computed in float64: in float32, division by small activations makes it wrong by up to 30 %.
    """

    name: ClassVar[str] = "lrp"

    def score_tokens(self, pixels: Tensor, targets: Tensor, /) -> TokenScores:
        """Return a map per class, from the relevance of its logit."""
        adapter = self.model.adapter
        plain = trace(adapter, pixels)
        relevance = trace(adapter, pixels, LrpRules(), dtype=torch.float64)
        if relevance.tokens is None:
            raise ValueError(f"{self.name}: the blocks of {type(adapter.net).__name__} have no residual connections")
        attention, weights = block_attention(plain, adapter), block_attention(relevance, adapter)
        wanted = [*weights, relevance.tokens]
        at_once = max(1, numbers_at_once(pixels.device) // (8 * sum(one.numel() for one in attention)))
        first = one_hot_seeds(targets, plain.logits)
        second = one_hot_seeds(targets, relevance.logits) * safe_divide(
            torch.ones_like(relevance.logits), relevance.logits
        )
        maps = []
        for slopes, (*shares, of_tokens) in zip(
            gradients(plain.logits, attention, first, at_once=at_once),
            gradients(relevance.logits, wanted, second.detach(), at_once=at_once),
            strict=True,
        ):
            layers = [
                (slope * (share * weight)).clamp(min=0).mean(2)
                for slope, share, weight in zip(slopes, shares, weights, strict=True)
            ]
            after = (of_tokens * relevance.tokens).sum(-1)  # relevance of each token after the last block
            maps.append(roll_out(layers, relevance, adapter, safe_divide(after, after.sum(-1, keepdim=True))))
        return TokenScores(patches(torch.cat(maps), adapter), plain.logits)


@dataclass(frozen=True, eq=False)
class RelevanceOfEmbedding(TokenMethod):
    """What AttnLRP and LibraGrad share: relevance that arrives at the patch embedding, summed over channels."""

    def rules(self) -> Rules:
        """Return the rules of the backward pass."""
        raise NotImplementedError

    def score_tokens(self, pixels: Tensor, targets: Tensor, /) -> TokenScores:
        """Return a map per class, from the relevance of its logit."""
        found = trace(self.model.adapter, pixels, self.rules())
        seeds = one_hot_seeds(targets, found.logits)
        maps = [(grads * found.leaf).sum(2).flatten(2) for (grads,) in gradients(found.logits, [found.leaf], seeds)]
        return TokenScores(torch.cat(maps).permute(1, 2, 0), found.logits)


@dataclass(frozen=True, eq=False)
class AttnLrp(RelevanceOfEmbedding):
    """AttnLRP (Achtibat et al. 2024)."""

    _: KW_ONLY
    gamma: float = 0.0
    """Of the gamma rule in linear layers; 0: the proportional rule."""
    attention: Literal["softmax", "cp"] = "softmax"
    """"softmax": relevance flows through the attention weights; "cp": they are constants (CP-LRP)."""

    name: ClassVar[str] = "attnlrp"

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if self.attention not in ("softmax", "cp") or not self.gamma >= 0:
            raise ValueError(
                f'attnlrp: attention is "softmax" or "cp" and gamma at least 0, got {self.attention!r}, {self.gamma}'
            )

    def rules(self) -> Rules:
        """Return the rules of the backward pass."""
        return AttnLrpRules(self.gamma, through_attention=self.attention == "softmax")


@dataclass(frozen=True, eq=False)
class LibraGrad(RelevanceOfEmbedding):
    """LibraGrad (Mehri et al. 2025) as gradient times input."""

    name: ClassVar[str] = "libragrad"

    def rules(self) -> Rules:
        """Return the rules of the backward pass."""
        return LibraGradRules()
