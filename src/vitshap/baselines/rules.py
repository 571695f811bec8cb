"""Rules for the backward pass of single operations: the plain gradient, LRP, AttnLRP and LibraGrad.

The backward pass of relevance rules carries relevance divided by activation, see ``interception``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class Rules:
    """The backward pass of each operation; this class has the plain gradient, subclasses override some methods.

    ``x``, ``a`` and ``b`` are tensors that depend on the image unless stated otherwise.
    """

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``x @ weight.T + bias``."""
        return F.linear(x, weight, bias)

    def norm(
        self, x: Tensor, y: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, centred: bool
    ) -> Tensor:
        """Return ``y``, the layer norm (``centred``) or RMS norm of ``x`` over its last axis."""
        return y

    def activation(self, x: Tensor, y: Tensor) -> Tensor:
        """Return ``y``, an elementwise non-linearity of ``x``."""
        return y

    def gate(self, y: Tensor) -> Tensor:
        """Return ``y``, the output of a sigmoid or a reciprocal root, or a denominator."""
        return y

    def factor(self, a: Tensor) -> Tensor:
        """Return ``a``, one of two factors that both depend on the image."""
        return a

    def scores(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        """Return attention scores ``q @ k.T * scale``; a learned query does not depend on the image."""
        return self.factor(q) @ self.factor(k).transpose(-2, -1) * scale if q.requires_grad else q @ k.mT * scale

    def softmax(self, scores: Tensor, bias: Tensor | None) -> Tensor:
        """Return the attention weights."""
        return (scores if bias is None else scores + bias).softmax(-1)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        """Return ``weights @ v``."""
        return self.factor(weights) @ self.factor(v)

    def residual(self, a: Tensor, b: Tensor) -> Tensor:
        """Return ``a + b``, two tensors of equal shape with 2 or 3 axes."""
        return a + b

    def token_mean(self, x: Tensor, y: Tensor) -> Tensor:
        """Return ``y``, the mean of ``x`` over its second of three axes."""
        return y


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
        return _apply(_Split, a, b)

    def token_mean(self, x: Tensor, y: Tensor) -> Tensor:
        return _apply(_OwnSignMean, x)


class LibraGradRules(RelevanceRules):
    """LibraGrad: gates, attention weights and the deviation of norms are constants."""

    def norm(
        self, x: Tensor, y: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, centred: bool
    ) -> Tensor:
        return _apply(_ConstantDeviation, x, y.detach(), weight, eps, centred)

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
    return _apply(_Passed, x, y.detach())


def _halved(x: Tensor) -> Tensor:
    """Return ``x`` with half of the relevance that arrives at it."""
    return _apply(_Halved, x)


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Divide; zero where the denominator is zero, so that the relevance there is dropped."""
    return (numerator / denominator).masked_fill_(denominator == 0, 0)


class _Passed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(safe_divide(y, x))
        return y.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (ratio,) = ctx.saved_tensors
        return g * ratio, None


class _ConstantDeviation(torch.autograd.Function):
    """A norm ``y`` of ``x`` whose deviation is a constant: a linear function of ``x``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, weight: Tensor | None, eps: float, centred: bool) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))  # squares are soon too large for half precision
        squares = wide.var(-1, correction=0, keepdim=True) if centred else wide.square().mean(-1, keepdim=True)
        scale = torch.rsqrt(squares + eps).to(x.dtype)
        ctx.save_for_backward(scale if weight is None else scale * weight)
        ctx.centred = centred
        return y.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None, None]:
        (scale,) = ctx.saved_tensors
        g = g * scale
        return g - g.mean(-1, keepdim=True) if ctx.centred else g, None, None, None, None


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
        ctx.save_for_backward(x, weight, safe_divide(y, total))
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
        ctx.save_for_backward(x, weight, safe_divide(y, torch.where(y > 0, raised, lowered)), y > 0)
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
        scale = safe_divide(of_a + of_b, of_a.abs() + of_b.abs())
        return g * of_a.sign() * scale, g * of_b.sign() * scale


class _OwnSignMean(torch.autograd.Function):
    """The mean over tokens: relevance of a channel goes to the tokens whose value has the sign of the mean."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.mean(1)
        own = x.sign() == y.sign()[:, None]
        ctx.save_for_backward(own, safe_divide(y, torch.where(own, x, 0).sum(1)))
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        own, ratio = ctx.saved_tensors
        return torch.where(own, (g * ratio)[..., None, :], 0)
