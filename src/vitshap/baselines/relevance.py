"""Relevance propagation: LRP (Chefer, Gur & Wolf 2021), AttnLRP (Achtibat et al. 2024) and LibraGrad (Mehri et al. 2025).

Each method is a set of rules for the backward pass (see ``interception``). What flows backward is relevance divided by activation; the
methods below say what each operation passes on.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitshap.baselines.interception import Rules


class LrpRules(Rules):
    """LRP as Chefer, Gur & Wolf (2021) apply it to vision transformers."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows: Tensor = _PositiveLinear.apply(x.reshape(-1, x.shape[-1]), weight, bias)
        return rows.view(*x.shape[:-1], -1)

    def norm(self, x: Tensor, y: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, centred: bool) -> Tensor:
        return _passed(x, y)

    def activation(self, x: Tensor, y: Tensor) -> Tensor:
        return _passed(x, y)

    def gate(self, y: Tensor) -> Tensor:
        return y.detach()

    def factor(self, a: Tensor) -> Tensor:
        return _halved(a)

    def softmax(self, scores: Tensor, bias: Tensor | None) -> Tensor:
        return _passed(scores, super().softmax(scores.detach(), bias))

    def residual(self, a: Tensor, b: Tensor) -> Tensor:
        total: Tensor = _Split.apply(a, b)
        return total

    def token_mean(self, x: Tensor, y: Tensor) -> Tensor:
        mean: Tensor = _OwnSignMean.apply(x)
        return mean


class LibraGradRules(Rules):
    """LibraGrad: gates, attention weights and the deviation of norms are constants."""

    def norm(self, x: Tensor, y: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, centred: bool) -> Tensor:
        centre = x - x.mean(-1, keepdim=True) if centred else x
        deviation = (centre.detach().square().mean(-1, keepdim=True) + eps).sqrt()
        z = centre / deviation
        z = z if weight is None else z * weight
        return z if bias is None else z + bias

    def activation(self, x: Tensor, y: Tensor) -> Tensor:
        return _passed(x, y)

    def gate(self, y: Tensor) -> Tensor:
        return y.detach()

    def factor(self, a: Tensor) -> Tensor:
        return _halved(a)

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
        rows: Tensor = _GammaLinear.apply(x.reshape(-1, x.shape[-1]), weight, bias, self.gamma)
        return rows.view(*x.shape[:-1], -1)

    def scores(self, q: Tensor, k: Tensor, scale: float) -> Tensor:
        return Rules.scores(self, q, k, scale) if self.through_attention else super().scores(q, k, scale)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return Rules.mix(self, weights, v) if self.through_attention else super().mix(weights, v)


def _passed(x: Tensor, y: Tensor) -> Tensor:
    """Return ``y`` whose relevance goes to ``x`` unchanged, element by element."""
    passed: Tensor = _Passed.apply(x, y.detach())
    return passed


def _halved(x: Tensor) -> Tensor:
    """Return ``x`` with half of the relevance that arrives at it."""
    halved: Tensor = _Halved.apply(x)
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
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (ratio,) = ctx.saved_tensors
        return g * ratio, None


class _Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
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
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
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
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
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
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
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
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        own, ratio = ctx.saved_tensors
        return torch.where(own, (g * ratio)[..., None, :], 0)
