"""Relevance propagation: LRP (Chefer, Gur & Wolf 2021), AttnLRP (Achtibat et al. 2024) and LibraGrad (Mehri et al. 2025).

Each method is a set of rules for the backward pass (see ``interception``), which carries relevance divided by activation.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitshap.baselines.attention import block_attention, patches, roll_out
from vitshap.baselines.interception import NUMBERS_AT_ONCE, Rules, gradients, one_hot_seeds, trace
from vitshap.methods.base import TokenMethod


@dataclass(frozen=True, eq=False)
class Lrp(TokenMethod):
    """LRP of Chefer, Gur & Wolf (2021): gradient times relevance of the attention weights, multiplied through all layers.

    The relevance pass is computed in float64: in float32, division by small activations makes it wrong by up to 30 %.
    """

    name: ClassVar[str] = "lrp"

    def score_tokens(self, pixels: Tensor, targets: Tensor, /) -> Tensor:
        """Return a map per class, from the relevance of its logit."""
        adapter = self.model.adapter
        plain = trace(adapter, pixels)
        relevance = trace(adapter, pixels, LrpRules(), dtype=torch.float64)
        if relevance.tokens is None:
            raise ValueError(f"{self.name}: the blocks of {type(adapter.net).__name__} have no residual connections")
        attention, weights = block_attention(plain, adapter), block_attention(relevance, adapter)
        wanted = [*weights, relevance.tokens]
        at_once = max(1, NUMBERS_AT_ONCE // (4 * sum(one.numel() for one in attention)))
        first = one_hot_seeds(targets, plain.logits)
        second = one_hot_seeds(targets, relevance.logits) * _ratio(torch.ones_like(relevance.logits), relevance.logits)
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
            maps.append(roll_out(layers, relevance, adapter, _ratio(after, after.sum(-1, keepdim=True))))
        return patches(torch.cat(maps), adapter).detach()


@dataclass(frozen=True, eq=False)
class RelevanceOfEmbedding(TokenMethod):
    """What AttnLRP and LibraGrad share: relevance that arrives at the patch embedding, summed over channels."""

    def rules(self) -> Rules:
        """Return the rules of the backward pass."""
        raise NotImplementedError

    def score_tokens(self, pixels: Tensor, targets: Tensor, /) -> Tensor:
        """Return a map per class, from the relevance of its logit."""
        found = trace(self.model.adapter, pixels, self.rules())
        seeds = one_hot_seeds(targets, found.logits)
        maps = [(grads * found.leaf).sum(2).flatten(2) for (grads,) in gradients(found.logits, [found.leaf], seeds)]
        return torch.cat(maps).permute(1, 2, 0).detach()


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


class RelevanceRules(Rules):
    """What all three have in common: non-linearities pass relevance on, gates are constants, factors share it equally."""

    def activation(self, x: Tensor, y: Tensor) -> Tensor:
        return _passed(x, y)

    def gate(self, y: Tensor) -> Tensor:
        return y.detach()

    def factor(self, a: Tensor) -> Tensor:
        return _halved(a)


class LrpRules(RelevanceRules):
    """LRP as Chefer, Gur & Wolf (2021) apply it to vision transformers."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = _apply(_PositiveLinear, x.reshape(-1, x.shape[-1]), weight, bias)
        return rows.view(*x.shape[:-1], -1)

    def norm(
        self, x: Tensor, y: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, centred: bool
    ) -> Tensor:
        return _passed(x, y)

    def softmax(self, scores: Tensor, bias: Tensor | None) -> Tensor:
        return _passed(scores, super().softmax(scores.detach(), bias))

    def residual(self, a: Tensor, b: Tensor) -> Tensor:
        total = _apply(_Split, a, b)
        return total

    def token_mean(self, x: Tensor, y: Tensor) -> Tensor:
        mean = _apply(_OwnSignMean, x)
        return mean


class LibraGradRules(RelevanceRules):
    """LibraGrad: gates, attention weights and the deviation of norms are constants."""

    def norm(
        self, x: Tensor, y: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, centred: bool
    ) -> Tensor:
        centre = x - x.mean(-1, keepdim=True) if centred else x
        deviation = (centre.detach().square().mean(-1, keepdim=True) + eps).sqrt()
        z = centre / deviation
        z = z if weight is None else z * weight
        return z if bias is None else z + bias

    def scores(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        return super().scores(q.detach(), k.detach(), scale)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ v


class AttnLrpRules(LibraGradRules):
    """AttnLRP: relevance also flows through the attention weights; ``gamma`` favours contributions of the output's sign."""

    def __init__(self, gamma: float = 0.0, *, through_attention: bool = True) -> None:
        self.gamma = gamma
        self.through_attention = through_attention

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not self.gamma:
            return F.linear(x, weight, bias)
        rows = _apply(_GammaLinear, x.reshape(-1, x.shape[-1]), weight, bias, self.gamma)
        return rows.view(*x.shape[:-1], -1)

    def scores(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        return Rules.scores(self, q, k, scale) if self.through_attention else super().scores(q, k, scale)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return Rules.mix(self, weights, v) if self.through_attention else super().mix(weights, v)


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    result: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


def _passed(x: Tensor, y: Tensor) -> Tensor:
    """Return ``y`` whose relevance goes to ``x`` unchanged, element by element."""
    passed = _apply(_Passed, x, y.detach())
    return passed


def _halved(x: Tensor) -> Tensor:
    """Return ``x`` with half of the relevance that arrives at it."""
    halved = _apply(_Halved, x)
    return halved


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Divide; zero where the denominator is zero, so that the relevance there is dropped."""
    zero = denominator == 0
    return torch.where(zero, 0, numerator / torch.where(zero, 1, denominator))


class _Passed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(_ratio(y, x))
        return y.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (ratio,) = ctx.saved_tensors
        return g * ratio, None


class _Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g / 2


class _PositiveLinear(torch.autograd.Function):
    """The z+ rule: relevance in proportion to contributions ``x_i w_ij`` that are positive; the bias gets none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = F.linear(x, weight, bias)
        positive, negative = weight.clamp(min=0), weight.clamp(max=0)
        total = F.linear(x.clamp(min=0), positive) + F.linear(x.clamp(max=0), negative)
        ctx.save_for_backward(x, weight, _ratio(y, total))
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        x, weight, ratio = ctx.saved_tensors
        share = g * ratio
        above, below = share @ weight.clamp(min=0), share @ weight.clamp(max=0)
        return torch.where(x > 0, above, torch.where(x < 0, below, 0)), None, None


class _GammaLinear(torch.autograd.Function):
    """The gamma rule for inputs and outputs of both signs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, gamma: float) -> Tensor:
        y = F.linear(x, weight, bias)
        above, below = x.clamp(min=0), x.clamp(max=0)
        positive, negative = gamma * weight.clamp(min=0), gamma * weight.clamp(max=0)
        raised = y + F.linear(above, positive) + F.linear(below, negative)
        lowered = y + F.linear(above, negative) + F.linear(below, positive)
        if bias is not None:
            raised, lowered = raised + gamma * bias.clamp(min=0), lowered + gamma * bias.clamp(max=0)
        ctx.save_for_backward(x, weight, _ratio(y, torch.where(y > 0, raised, lowered)), y > 0)
        ctx.gamma = gamma
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        x, weight, ratio, above = ctx.saved_tensors
        share = g * ratio
        every = share @ weight
        own = torch.where(above, share, 0) @ weight.clamp(min=0) + torch.where(above, 0, share) @ weight.clamp(max=0)
        return every + ctx.gamma * torch.where(x > 0, own, every - own), None, None, None


class _Split(torch.autograd.Function):
    """A residual connection: relevance of each image in proportion to the absolute relevance of its two parts."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a + b

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        axes = tuple(range(1, a.ndim))  # one image: other images in the batch have no influence
        of_a, of_b = (a * g).sum(axes, keepdim=True), (b * g).sum(axes, keepdim=True)
        scale = _ratio(of_a + of_b, of_a.abs() + of_b.abs())
        return g * of_a.sign() * scale, g * of_b.sign() * scale


class _OwnSignMean(torch.autograd.Function):
    """The mean over tokens: relevance of a channel goes to the tokens whose value has the sign of the mean."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.mean(1)
        own = x.sign() == y.sign()[:, None]
        ctx.save_for_backward(own, _ratio(y, torch.where(own, x, 0).sum(1)))
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        own, ratio = ctx.saved_tensors
        return torch.where(own, (g * ratio)[..., None, :], 0)
