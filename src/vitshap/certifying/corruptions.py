"""Corruptions of images: changes that a camera or a file makes, and that a model was not trained for.

They act on pixels in 0..1 and are functions of the image alone, so that reference values of corrupted images can be stored.
Each has one strength, at which people still recognise most photos.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from vitshap.errors import did_you_mean

NOISE = 0.25
"""Standard deviation of the noise."""
BLUR = 1 / 56
"""Standard deviation of the blur, as a share of the shorter side: 4 of 224 pixels."""
CONTRAST = 0.25
"""Share of the contrast that is left."""
LIGHT = 0.25
"""Share of the light that is left."""


def noise(pixels: Tensor) -> Tensor:
    """Add normal noise, independent between pixels and channels; the same for every image."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(pixels.shape[1:], generator=generator).to(pixels)
    return (pixels + NOISE * drawn).clamp(0, 1)


def blur(pixels: Tensor) -> Tensor:
    """Blur with a Gaussian; borders are repeated."""
    sigma = BLUR * min(pixels.shape[-2:])
    reach = min(max(1, round(3 * sigma)), min(pixels.shape[-2:]) - 1)
    places = torch.arange(-reach, reach + 1, dtype=pixels.dtype, device=pixels.device)
    weights = (-places.square() / (2 * max(sigma, 0.5) ** 2)).exp()
    weights = weights / weights.sum()
    channels = pixels.shape[1]
    for shape in ((1, 1, -1, 1), (1, 1, 1, -1)):
        kernel = weights.view(shape).repeat(channels, 1, 1, 1)
        edge = (0, 0, reach, reach) if shape[2] == -1 else (reach, reach, 0, 0)
        pixels = F.conv2d(F.pad(pixels, edge, mode="replicate"), kernel, groups=channels)
    return pixels


def contrast(pixels: Tensor) -> Tensor:
    """Move all pixels towards the image's mean."""
    mean = pixels.mean((1, 2, 3), keepdim=True)
    return mean + CONTRAST * (pixels - mean)


def dark(pixels: Tensor) -> Tensor:
    """Lower the light."""
    return LIGHT * pixels


CORRUPTIONS = MappingProxyType({"noise": noise, "blur": blur, "contrast": contrast, "dark": dark})


def corruption(name: str, mean: Sequence[float], std: Sequence[float], /) -> Callable[[Tensor], Tensor]:
    """Return a corruption of images as a model takes them, normalised by ``mean`` and ``std`` per channel."""
    if name not in CORRUPTIONS:
        raise ValueError(f'no corruption is named "{name}"{did_you_mean(name, list(CORRUPTIONS))}')

    def corrupt(pixels: Tensor) -> Tensor:
        shift, scale = (torch.tensor(numbers).to(pixels).view(1, -1, 1, 1) for numbers in (mean, std))
        plain = (pixels * scale + shift).clamp(0, 1)
        return (CORRUPTIONS[name](plain) - shift) / scale

    return corrupt
