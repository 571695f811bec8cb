"""Augmentation of whole batches on the device: crop, flips and colour jitter in one vectorised pass.

What happens to a sample is a pure function of (seed, epoch, sample index), see ``counter.py``; every decision has its
own random number, so that switching one part off leaves the others unchanged. Crop and flips are one separable warp.

The crop is torchvision's ``RandomResizedCrop`` with the authors' scale 0.8 to 1.2: up to ten tries draw an area of 0.8
to 1.2 times the image's and an aspect ratio of 3/4 to 4/3; the first that fits into the image is used, or the whole
image if none fits. No area above 1 fits, so nothing is padded: about 87 % of square images are cropped to 0.8 to 1 of
their area, 13 % stay whole. Two details of torchvision are optional: corners at whole pixels (``whole_pixels``), and a
random order of the jitter's four steps for each image (``jitter_order``). Interpolation is bilinear without smoothing;
torchvision smooths a crop that it makes smaller, slightly at these sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitshap.counter_rng import sample_keys, uniforms

WEAK_CROP = 0.8
"""Smallest area of a weakly augmented crop: the paper's."""
_TRIES = 10
# Index of each decision among a sample's random numbers
_ACROSS, _DOWN, _JITTERED, _BRIGHTNESS, _CONTRAST, _SATURATION, _HUE, _LEFT, _TOP, _SCALES = range(10)
_RATIOS = _SCALES + _TRIES
_ORDER = _RATIOS + _TRIES
_STEPS = 4
_NUMBERS = _ORDER + _STEPS
_PARTNER, _PASTED, _AREA, _SHAPE, _PASTE_LEFT, _PASTE_TOP, _PASTE_NUMBERS = range(7)


@dataclass(frozen=True)
class Augmentation:
    """How training images are augmented; the defaults are those of the paper's authors."""

    crop_scale: tuple[float, float] = (0.8, 1.2)
    """Smallest and largest area of the crop, as a share of the image's."""
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Smallest and largest width of the crop over its height."""
    horizontal_flip: float = 0.5
    """Probability of a flip from left to right."""
    vertical_flip: float = 0.5
    """Probability of a flip from top to bottom."""
    jitter: float = 0.8
    """Probability that the colours are changed at all."""
    brightness: float = 0.2
    """Brightness is multiplied by 1 - this to 1 + this."""
    contrast: float = 0.2
    """The distance to the image's mean grey is multiplied by 1 - this to 1 + this."""
    saturation: float = 0.1
    """The distance to the pixel's own grey is multiplied by 1 - this to 1 + this."""
    hue: float = 0.1
    """The hue is rotated by up to this share of the colour circle, in either direction."""
    jitter_order: Literal["fixed", "random"] = "fixed"
    """Order of these four steps: as listed, or random for each image, as the authors' (slower)."""
    whole_pixels: bool = False
    """Whether the corners of crops are rounded to whole pixels, as the authors'."""
    paste: float = 0.0
    """Probability that a rectangle of another augmented training image is pasted over this one. Not for classifiers: the
    label is not changed."""
    paste_area: tuple[float, float] = (0.1, 0.6)
    """Smallest and largest area of that rectangle, as a share of the image's."""

    def __post_init__(self) -> None:
        shares = ("horizontal_flip", "vertical_flip", "jitter", "brightness", "contrast", "saturation", "paste")
        wrong = [f"{name} must be between 0 and 1" for name in shares if not 0 <= getattr(self, name) <= 1]
        wrong += ["hue must be between 0 and 0.5"] if not 0 <= self.hue <= 0.5 else []
        for name, most in (("crop_scale", math.inf), ("crop_ratio", math.inf), ("paste_area", 1)):
            low, high = getattr(self, name)
            if not 0 < low <= high <= most:
                wrong.append(f"{name} must be a pair (low, high) with 0 < low <= high" + (" <= 1" if most == 1 else ""))
        if wrong:
            given = getattr(self, wrong[0].partition(" ")[0])
            raise ValueError(f"{wrong[0]}, got {given}")

    def weak(self) -> Augmentation:
        """Return a weaker augmentation: crops of at least 0.8 of the area and nothing pasted."""
        least, greatest = (max(bound, WEAK_CROP) for bound in self.crop_scale)
        return replace(self, crop_scale=(least, greatest), paste=0.0)

    def __call__(
        self,
        pixels: Tensor,
        indices: Tensor,
        *,
        seed: int,
        epoch: int,
        mean: Sequence[float],
        std: Sequence[float],
        partners: Tensor | None = None,
        size: tuple[int, int] | None = None,
        view: View | None = None,
    ) -> Tensor:
        """Augment and normalise images, uint8 or float in 0..1 ``[B, C, H, W]``; return float32 ``[B, C, H, W]``.

        ``partners``: for every sample the image of which a rectangle may be pasted into it, as ``pixels``.
        ``size``: height and width of the result; by default those of ``pixels``.
        ``view``: ``Augmentation.view``, if it has been compiled.
        """
        unit = _unit_range(pixels)
        indices = indices.to(pixels.device)
        numbers = _numbers("augmentation", indices, seed, epoch, _NUMBERS)
        strengths = _constants((self.brightness, self.contrast, self.saturation, self.hue), numbers)
        shape = (1, -1, 1, 1)
        shift, scale = (_constants(tuple(each), unit).view(shape) for each in (mean, std))
        others = None
        if partners is not None:
            again = _numbers("partner", indices, seed, epoch, _NUMBERS)
            others = _unit_range(partners), again, _numbers("paste", indices, seed, epoch, _PASTE_NUMBERS)
        height, width = size or unit.shape[-2:]
        view = view or Augmentation.view
        return view(self, unit, numbers, strengths, shift, scale, others, (height, width))

    def view(
        self,
        images: Tensor,
        numbers: Tensor,
        strengths: Tensor,
        mean: Tensor,
        std: Tensor,
        others: tuple[Tensor, Tensor, Tensor] | None,
        size: tuple[int, int],
    ) -> Tensor:
        """Compute the pixels from images and their random numbers: all that takes time, and can be compiled.

        ``others``: the images to paste, and the random numbers of how they are augmented and pasted.
        """
        augmented = self._warped(images, numbers, size)
        if others is not None:
            partners, partner_numbers, paste_numbers = others
            augmented = self._pasted(augmented, self._warped(partners, partner_numbers, size), paste_numbers)
        return (self._jittered(augmented, numbers, strengths) - mean) / std

    def partners(self, indices: Tensor, count: int, *, seed: int, epoch: int) -> Tensor:
        """Draw the index, among ``count`` images, of the one that is pasted into each sample, int64 ``[B]``."""
        return (_numbers("paste", indices, seed, epoch, _PASTE_NUMBERS)[:, _PARTNER] * count).long()

    def _pasted(self, images: Tensor, others: Tensor, numbers: Tensor) -> Tensor:
        area = _between(numbers[:, _AREA], *self.paste_area)
        log_ratio = _between(numbers[:, _SHAPE], math.log(self.crop_ratio[0]), math.log(self.crop_ratio[1]))
        wide, high = (area * log_ratio.exp()).sqrt().clamp(max=1), (area / log_ratio.exp()).sqrt().clamp(max=1)
        height, width = images.shape[-2:]
        across = _within(numbers[:, _PASTE_LEFT] * (1 - wide), wide, width)  # [B, W]
        down = _within(numbers[:, _PASTE_TOP] * (1 - high), high, height)  # [B, H]
        covered = across[:, None] & down[:, :, None] & (numbers[:, _PASTED] < self.paste)[:, None, None]
        return torch.where(covered[:, None], others, images)

    def crops(self, numbers: Tensor, height: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Draw left, top, width and height of each sample's crop, ``[B]`` each, as shares of the image's."""
        aspect = width / height
        scale = _between(numbers[:, _SCALES:_RATIOS], *self.crop_scale)  # [B, tries]
        drawn = numbers[:, _RATIOS:_ORDER]
        log_ratio = _between(drawn, math.log(self.crop_ratio[0]), math.log(self.crop_ratio[1]))
        wide, high = (scale * log_ratio.exp() / aspect).sqrt(), (scale / log_ratio.exp() * aspect).sqrt()
        if self.whole_pixels:
            wide, high = (wide * width).round() / width, (high * height).round() / height
        fits = (wide <= 1) & (high <= 1)
        taken = fits & (fits.cumsum(1) == 1)  # the first that fits, if any
        # otherwise the whole image, or as much of its centre as the ratios allow
        whole = min(self.crop_ratio[1] / aspect, 1.0), min(aspect / self.crop_ratio[0], 1.0)
        if self.whole_pixels:
            whole = round(whole[0] * width) / width, round(whole[1] * height) / height
        none = ~fits.any(1)
        wide = torch.where(none, whole[0], (wide * taken).sum(1))
        high = torch.where(none, whole[1], (high * taken).sum(1))
        if self.whole_pixels:
            left, top = (
                torch.where(none, margin // 2, (numbers[:, at] * (margin + 1)).floor()) / side
                for at, margin, side in (
                    (_LEFT, ((1 - wide) * width).round(), width),
                    (_TOP, ((1 - high) * height).round(), height),
                )
            )
            return left, top, wide, high
        left = torch.where(none, 0.5, numbers[:, _LEFT]) * (1 - wide)
        top = torch.where(none, 0.5, numbers[:, _TOP]) * (1 - high)
        return left, top, wide, high

    def _warped(self, images: Tensor, numbers: Tensor, size: tuple[int, int]) -> Tensor:
        left, top, wide, high = self.crops(numbers, *images.shape[-2:])
        height, width = size
        across = torch.where(numbers[:, _ACROSS] < self.horizontal_flip, -wide, wide)
        down = torch.where(numbers[:, _DOWN] < self.vertical_flip, -high, high)
        x = (2 * left + wide - 1)[:, None] + across[:, None] * _pixel_centres(width, numbers)  # [B, W]
        y = (2 * top + high - 1)[:, None] + down[:, None] * _pixel_centres(height, numbers)  # [B, H]
        x, y, shape = x.to(images.dtype), y.to(images.dtype), (len(images), height, width)
        grid = torch.stack([x[:, None].expand(shape), y[:, :, None].expand(shape)], dim=-1)  # [B, H, W, 2]
        return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)

    def _jittered(self, images: Tensor, numbers: Tensor, strengths: Tensor) -> Tensor:
        change = (2 * numbers[:, _BRIGHTNESS : _HUE + 1] - 1) * strengths  # [B, 4]
        change = torch.where((numbers[:, _JITTERED] < self.jitter)[:, None], change, 0.0)
        brightness, contrast, saturation, hue = change.to(images.dtype)[:, :, None, None, None].unbind(
            1
        )  # [B, 1, 1, 1]
        if self.jitter == 0:
            return images
        steps: list[Callable[[Tensor], Tensor]] = [
            lambda images: (images * (1 + brightness)).clamp(0, 1),
            lambda images: _blended(images, _grey(images).mean((-2, -1), keepdim=True), contrast),
        ]
        if images.shape[1] == 3:  # other channels than red, green and blue have no colours
            steps += [
                lambda images: _blended(images, _grey(images), saturation),
                lambda images: _hue_rotated(images, hue),
            ]
        if self.jitter_order == "fixed":
            for step in steps:
                images = step(images)
            return images
        order = numbers[:, _ORDER:].argsort(1)[..., None, None, None]  # [B, 4, 1, 1, 1]: which step comes when
        for turn in range(_STEPS):
            before = images
            for number, step in enumerate(steps):
                images = torch.where(order[:, turn] == number, step(before), images)
        return images


View = Callable[..., Tensor]
"""``Augmentation.view``, or its compiled version."""


def normalised(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Normalise pixels, uint8 or float in 0..1, without augmentation; return float32 ``[B, C, H, W]``."""
    unit, shape = _unit_range(pixels), (1, -1, 1, 1)
    return (unit - _constants(tuple(mean), unit).view(shape)) / _constants(tuple(std), unit).view(shape)


def centre(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """Crop the centre of images ``[B, C, H, W]``, as ``Preprocess`` does."""
    top, left = (round((whole - seen) / 2) for whole, seen in zip(pixels.shape[-2:], size, strict=True))
    return pixels[..., top : top + size[0], left : left + size[1]]


def _unit_range(pixels: Tensor) -> Tensor:
    if pixels.dtype == torch.uint8:
        return pixels.float() / 255
    if not pixels.is_floating_point():
        raise ValueError(f"pixels must be uint8 or float between 0 and 1, got {pixels.dtype}")
    return pixels.float()


def _constants(numbers: tuple[float, ...], like: Tensor) -> Tensor:
    """Return the numbers as a tensor like ``like``; it is cached, because a copy from the CPU makes a GPU wait."""
    return _cached(numbers, like.device, like.dtype)


@lru_cache(maxsize=64)
def _cached(numbers: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(numbers, device=device, dtype=dtype)


def _between(uniform: Tensor, least: float, greatest: float) -> Tensor:
    return least + uniform * (greatest - least)


def _numbers(purpose: str, indices: Tensor, seed: int, epoch: int, n: int) -> Tensor:
    """Draw ``n`` numbers in [0, 1) for each sample, ``[B, n]``."""
    return uniforms(sample_keys(purpose, indices, seed=seed, epoch=epoch), n)


def _within(start: Tensor, length: Tensor, n: int) -> Tensor:
    """Return which of n pixels have their centre in an interval of the side (shares, ``[B]`` each): bool ``[B, n]``."""
    centres = (_pixel_centres(n, start) + 1) / 2
    return (centres >= start[:, None]) & (centres < (start + length)[:, None])


def _pixel_centres(n: int, like: Tensor) -> Tensor:
    """Return the centres of n pixels on the axis from -1 to 1, ``[n]``."""
    return (2 * torch.arange(n, device=like.device, dtype=like.dtype) + 1) / n - 1


def _grey(images: Tensor) -> Tensor:
    """Compute the luma, ``[B, 1, H, W]``; the mean over channels if they are not red, green and blue."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    red, green, blue = images.unbind(1)
    return (0.299 * red + 0.587 * green + 0.114 * blue)[:, None]


def _blended(images: Tensor, grey: Tensor, change: Tensor) -> Tensor:
    """Move away from the grey (change > 0) or towards it (change < 0)."""
    return (images + change * (images - grey)).clamp(0, 1)


def _hue_rotated(images: Tensor, turn: Tensor) -> Tensor:
    """Rotate the hue of HSV by a share of the circle, without changing value and saturation."""
    red, green, blue = images.unbind(1)  # [B, H, W] each
    value, chroma = images.amax(1), images.amax(1) - images.amin(1)
    safe = torch.where(chroma > 0, chroma, 1.0)
    hue = torch.where(value == red, (green - blue) / safe, (blue - red) / safe + 2)
    hue = torch.where((value == blue) & (value != red) & (value != green), (red - green) / safe + 4, hue)
    hue = hue + 6 * turn.squeeze(1)  # in sixths of the circle
    # A channel is below the value by the chroma times the distance of the hue from that channel's sector
    offsets = torch.arange(5, 0, -2, device=hue.device, dtype=hue.dtype).view(1, 3, 1, 1)
    sector = (hue[:, None] + offsets) % 6  # [B, 3, H, W]
    return value[:, None] - chroma[:, None] * torch.minimum(sector, 4 - sector).clamp(0, 1)
