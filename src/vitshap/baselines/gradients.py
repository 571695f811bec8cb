"""Gradients of the class probability, on pixels or on the patch embedding, summed over each patch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from vitshap.baselines.interception import (
    Leaf,
    Trace,
    gradients,
    numbers_at_once,
    one_hot_seeds,
    patch_embedding,
    trace,
)
from vitshap.methods.base import TokenMethod, TokenScores, image_generators
from vitshap.models.base import apply_link


@dataclass(frozen=True, eq=False)
class GradientMethod(TokenMethod):
    """What gradient methods share: the gradient of the model's output (probability or, for regression, its value)."""

    level: ClassVar[Leaf]

    def gradient_parts(
        self, pixels: Tensor, targets: Tensor, replace: Callable[[Tensor], Tensor] | None = None
    ) -> Iterator[Tensor]:
        """Run the model, with the leaf changed by ``replace``, and yield its gradients as ``class_gradients`` does."""
        return self.class_gradients(trace(self.model.adapter, pixels, leaf=self.level, replace=replace), targets)

    def class_gradients(self, found: Trace, targets: Tensor) -> Iterator[Tensor]:
        """Yield gradients ``[t, B, *leaf]`` of the outputs of a recorded forward pass, for a few classes at a time."""
        if found.logits.dtype in (torch.float16, torch.bfloat16):
            yield from self._scaled_gradients(found, targets)
            return
        with torch.inference_mode(False), torch.enable_grad():
            output = apply_link(found.logits, self.model.output)
        for (grads,) in gradients(output, [found.leaf], one_hot_seeds(targets, output)):
            yield grads

    def _scaled_gradients(self, found: Trace, targets: Tensor) -> Iterator[Tensor]:
        """Yield the same in float32 for a network in half precision, in which gradients of a certain probability are zero.

        Each class's slope by the logits is computed in float32 and divided by its largest entry for the backward pass.
        """
        with torch.inference_mode(False), torch.enable_grad():
            logits = found.logits.detach().float().requires_grad_()
            output = apply_link(logits, self.model.output)
        slopes = torch.cat([one for (one,) in gradients(output, [logits], one_hot_seeds(targets, output))])  # [T, B, K]
        scale = slopes.abs().amax(2)  # [T, B]
        seeds = slopes / scale.clamp(min=torch.finfo(scale.dtype).tiny)[..., None]
        start = 0
        for (grads,) in gradients(found.logits, [found.leaf], seeds.to(found.logits.dtype)):
            part = scale[start : start + len(grads)]
            yield grads.float() * part.view(*part.shape, *[1] * (grads.ndim - 2))
            start += len(grads)

    def leaf(self, pixels: Tensor) -> Tensor:
        """The pixels, or their patch embedding."""
        return pixels if self.level == "pixels" else patch_embedding(self.model.adapter, pixels)

    def sum_patches(self, scores: Tensor) -> Tensor:
        """Sum scores ``[t, B, *leaf]`` over each patch: ``[t, B, N]``."""
        rows, columns = self.model.adapter.grid
        scores = scores.sum(2)  # channels
        height, width = scores.shape[-2] // rows, scores.shape[-1] // columns
        return scores.reshape(*scores.shape[:2], rows, height, columns, width).sum((3, 5)).flatten(2)


@dataclass(frozen=True, eq=False)
class Vanilla(GradientMethod):
    """Absolute gradient (Simonyan et al. 2013)."""

    def score_tokens(self, pixels: Tensor, targets: Tensor, /) -> TokenScores:
        """Return the sum of absolute gradients per patch."""
        found = trace(self.model.adapter, pixels, leaf=self.level)
        maps = [self.sum_patches(grads.abs()) for grads in self.class_gradients(found, targets)]
        return TokenScores(torch.cat(maps).permute(1, 2, 0), found.logits)


@dataclass(frozen=True, eq=False)
class NoisyGradients(GradientMethod):
    """Absolute gradients at inputs with Gaussian noise, drawn per image from its pixels and the seed."""

    _: KW_ONLY
    num_samples: int = 10
    deviation: float = 1.0
    """Standard deviation, in units of the normalised input or of the embedding."""
    seed: int = 0

    def score_tokens(self, pixels: Tensor, targets: Tensor, /) -> Tensor:
        """Return the mean or variance over the draws, summed over each patch."""
        leaf = self.leaf(pixels)
        generators = image_generators(pixels, self.seed)
        noise = [
            torch.stack([torch.randn(leaf.shape[1:], generator=one) for one in generators]).to(leaf) * self.deviation
            for _ in range(self.num_samples)
        ]
        # every class needs two sums of the leaf's size, over all draws
        at_once = max(1, numbers_at_once(leaf.device) // (2 * leaf.numel()))
        maps = []
        for start in range(0, targets.shape[1], at_once):
            part = targets[:, start : start + at_once]
            total, squares = leaf.new_zeros(()), leaf.new_zeros(())
            for draw in noise:
                found = torch.cat(list(self.gradient_parts(pixels, part, lambda x, draw=draw: x + draw))).abs()  # type: ignore[misc]
                total, squares = total + found, squares + found.square()
            maps.append(self.sum_patches(self.combine(total / len(noise), squares / len(noise))))
        return torch.cat(maps).permute(1, 2, 0)

    @abstractmethod
    def combine(self, mean: Tensor, mean_square: Tensor, /) -> Tensor:
        """Combine the mean of absolute gradients and of their squares."""


@dataclass(frozen=True, eq=False)
class SmoothGrad(NoisyGradients):
    """Mean absolute gradient under noise (Smilkov et al. 2017)."""

    def combine(self, mean: Tensor, mean_square: Tensor, /) -> Tensor:
        """Return the mean."""
        return mean


@dataclass(frozen=True, eq=False)
class VarGrad(NoisyGradients):
    """Variance of the absolute gradient under noise (Adebayo et al. 2018)."""

    def combine(self, mean: Tensor, mean_square: Tensor, /) -> Tensor:
        """Return the variance."""
        return (mean_square - mean.square()).clamp(min=0)


@dataclass(frozen=True, eq=False)
class IntegratedGradients(GradientMethod):
    """Gradients along the line from a blank image (zero in the normalised input), times the difference from it."""

    _: KW_ONLY
    nodes: int = 10
    """Nodes of Gauss-Legendre quadrature."""

    def score_tokens(self, pixels: Tensor, targets: Tensor, /) -> Tensor:
        """Return the signed sum per patch; over all patches it approximates v(image) - v(blank)."""
        base = self.leaf(torch.zeros_like(pixels))
        places, weights = np.polynomial.legendre.leggauss(self.nodes)
        total = torch.zeros((), device=pixels.device)
        for place, weight in zip((places + 1) / 2, weights / 2, strict=True):
            total = total + float(weight) * self.along(pixels, targets, base, float(place))
        return total

    def along(self, pixels: Tensor, targets: Tensor, base: Tensor, place: float | Tensor) -> Tensor:
        """Return gradient times difference at ``base + place * (input - base)``, summed over each patch: ``[B, N, T]``."""
        difference: list[Tensor] = []

        def between(x: Tensor) -> Tensor:
            difference.append(x - base)
            return base + place * difference[0]

        maps = [self.sum_patches(grads * difference[0]) for grads in self.gradient_parts(pixels, targets, between)]
        return torch.cat(maps).permute(1, 2, 0)


@dataclass(frozen=True, eq=False)
class ExpectedGradients(IntegratedGradients):
    """Integrated gradients averaged over reference images (Erion et al. 2021), which the user gives."""

    _: KW_ONLY
    references: Tensor | None = None
    """Images as the model takes them, ``[R, C, H, W]``."""
    num_samples: int = 50
    """Draws of a reference and a place on the line to it, per image."""
    seed: int = 0

    def score_tokens(self, pixels: Tensor, targets: Tensor, /) -> Tensor:
        """Return the signed sum per patch."""
        if self.references is None:
            raise ValueError(f"{self.name} needs references=, a batch of images as the model takes them")
        references = self.leaf(self.model.prepare(self.references).pixels)
        generators = image_generators(pixels, self.seed)
        total = torch.zeros((), device=pixels.device)
        for _ in range(self.num_samples):
            chosen = torch.cat([torch.randint(len(references), (1,), generator=one) for one in generators])
            places = torch.cat([torch.rand(1, generator=one) for one in generators]).to(pixels)
            base = references[chosen.to(references.device)]
            total = total + self.along(pixels, targets, base, places[:, None, None, None])
        return total / self.num_samples


class VanillaPixel(Vanilla):
    """Absolute gradient on pixels."""

    name: ClassVar[str] = "vanilla-pixel"
    level: ClassVar[Leaf] = "pixels"


class VanillaEmbedding(Vanilla):
    """Absolute gradient on the patch embedding."""

    name: ClassVar[str] = "vanilla-embedding"
    level: ClassVar[Leaf] = "embedding"


class SmoothGradPixel(SmoothGrad):
    """SmoothGrad on pixels."""

    name: ClassVar[str] = "smoothgrad-pixel"
    level: ClassVar[Leaf] = "pixels"


class SmoothGradEmbedding(SmoothGrad):
    """SmoothGrad on the patch embedding."""

    name: ClassVar[str] = "smoothgrad-embedding"
    level: ClassVar[Leaf] = "embedding"


class VarGradPixel(VarGrad):
    """VarGrad on pixels."""

    name: ClassVar[str] = "vargrad-pixel"
    level: ClassVar[Leaf] = "pixels"


class VarGradEmbedding(VarGrad):
    """VarGrad on the patch embedding."""

    name: ClassVar[str] = "vargrad-embedding"
    level: ClassVar[Leaf] = "embedding"


class IntegratedGradientsPixel(IntegratedGradients):
    """Integrated gradients on pixels."""

    name: ClassVar[str] = "integrated-gradients-pixel"
    level: ClassVar[Leaf] = "pixels"


class IntegratedGradientsEmbedding(IntegratedGradients):
    """Integrated gradients on the patch embedding."""

    name: ClassVar[str] = "integrated-gradients-embedding"
    level: ClassVar[Leaf] = "embedding"


class ExpectedGradientsPixel(ExpectedGradients):
    """Expected gradients on pixels."""

    name: ClassVar[str] = "expected-gradients"
    level: ClassVar[Leaf] = "pixels"
