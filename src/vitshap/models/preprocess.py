"""Preprocessing of photos: resize, crop, scale, normalise; and the position of the crop in the photo.

It needs PIL and numpy only, so that it works where torchvision does not (beside a CPU-only torch), and so that explanations
can be drawn onto the original image (``box``). Results equal those of timm's own transform pixel by pixel.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from vitshap.files import read_json
from vitshap.models.dicom import is_dicom, read_dicom

_RESAMPLE = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


_MOST_PIXELS = 1 << 25
"""Largest image, in pixels, that is resized as a whole before it is cropped."""


@dataclass(frozen=True)
class Preprocess:
    """Resize the image to cover ``resize``, crop ``size`` from the centre, scale to 0..1, normalise."""

    size: tuple[int, int]
    """Height and width that the model takes."""
    resize: tuple[int, int]
    """Height and width that the image is resized to cover (or squashed to, without keeping the aspect ratio)."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bicubic"
    squash: bool = False
    """Resize to exactly ``resize``, ignoring the aspect ratio."""

    def __post_init__(self) -> None:
        if problem := next(self._problems(), None):
            raise ValueError(problem)

    def _problems(self) -> Iterator[str]:
        if self.interpolation not in _RESAMPLE:
            yield f"interpolation is one of {sorted(_RESAMPLE)}, got {self.interpolation!r}"
        if len(self.mean) != len(self.std) or len(self.mean) not in (1, 3):
            yield f"mean and std have 1 or 3 channels, got {len(self.mean)} and {len(self.std)}"
        if not all(map(math.isfinite, (*self.mean, *self.std))) or 0 in self.std:
            yield f"mean and std are finite, and std is not 0; got {self.mean} and {self.std}"
        for name, sides in (("size", self.size), ("resize", self.resize)):
            if len(sides) != 2 or any(not isinstance(side, int) or side < 1 for side in sides):
                yield f"{name} is a height and a width in pixels, got {sides}"

    def __call__(self, image: Image.Image) -> Tensor:
        """Return pixels ``[C, H, W]``, float32."""
        image = eight_bit(image, channels=len(self.mean))
        image = self._view(image)
        pixels = torch.from_numpy(np.array(image, dtype=np.uint8)).view(*self.size, len(self.mean)).permute(2, 0, 1)
        mean, std = torch.tensor(self.mean).view(-1, 1, 1), torch.tensor(self.std).view(-1, 1, 1)
        return (pixels.float() / 255 - mean) / std

    def _view(self, image: Image.Image) -> Image.Image:
        """Return the image resized and cropped."""
        height, width = self._resized(image.height, image.width)
        top, left = self._corner(height, width)
        edges = (left, top, left + self.size[1], top + self.size[0])
        if height * width <= _MOST_PIXELS:
            return image.resize((width, height), _RESAMPLE[self.interpolation]).crop(edges)
        # A very long image would need gigabytes when resized as a whole: only the crop is resized.
        across, down = image.width / width, image.height / height
        seen = (edges[0] * across, edges[1] * down, edges[2] * across, edges[3] * down)
        return image.resize(self.size[::-1], _RESAMPLE[self.interpolation], box=seen)

    def box(self, image: Image.Image) -> tuple[float, float, float, float]:
        """Return left, top, right and bottom of the crop, in pixels of the (upright) image."""
        image = ImageOps.exif_transpose(image)
        height, width = self._resized(image.height, image.width)
        top, left = self._corner(height, width)
        across, down = image.width / width, image.height / height
        return left * across, top * down, (left + self.size[1]) * across, (top + self.size[0]) * down

    def denormalised(self, pixels: Tensor) -> Tensor:
        """Return pixels in 0..1, for drawing: the inverse of the normalisation."""
        shape = (-1, 1, 1)
        mean, std = pixels.new_tensor(self.mean).view(shape), pixels.new_tensor(self.std).view(shape)
        return (pixels * std + mean).clamp(0, 1)

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        if self.squash:
            return self.resize
        # int(), not round(): as torchvision's Resize does for the longer side
        if self.resize[0] * width <= self.resize[1] * height:
            return int(self.resize[1] * height / width), self.resize[1]
        return self.resize[0], int(self.resize[0] * width / height)

    def _corner(self, height: int, width: int) -> tuple[int, int]:
        return round((height - self.size[0]) / 2), round((width - self.size[1]) / 2)

    @classmethod
    def from_timm(cls, net: Any, size: tuple[int, int]) -> Preprocess | None:
        """Return the preprocessing of timm's data configuration; None if it cannot be represented."""
        from timm.data import resolve_model_data_config

        config = resolve_model_data_config(net)
        if config["crop_mode"] not in ("center", "squash") or config["interpolation"] not in _RESAMPLE:
            return None
        resize = (math.floor(size[0] / config["crop_pct"]), math.floor(size[1] / config["crop_pct"]))
        mean, std = tuple(config["mean"]), tuple(config["std"])
        return cls(size, resize, mean, std, config["interpolation"], config["crop_mode"] == "squash")

    @classmethod
    def from_image_processor(cls, processor: Any, size: tuple[int, int]) -> Preprocess:
        """Return the preprocessing of a transformers image processor."""
        wanted = dict(processor.size)
        crops = bool(getattr(processor, "do_center_crop", False))
        squash = "shortest_edge" not in wanted
        resize = (wanted["height"], wanted["width"]) if squash else (wanted["shortest_edge"],) * 2
        crop = dict(processor.crop_size) if crops else {"height": resize[0], "width": resize[1]}
        if (crop["height"], crop["width"]) != size or resize[0] < size[0] or resize[1] < size[1]:
            raise ValueError(
                f"the image processor resizes images to {wanted} and crops them to {crop}, the model takes "
                f"{size[0]} x {size[1]}"
            )
        name = Image.Resampling(int(processor.resample)).name.lower()
        mean, std = (tuple(v) for v in (processor.image_mean, processor.image_std))
        if not getattr(processor, "do_normalize", True):
            mean, std = (0.0,) * len(mean), (1.0,) * len(std)
        # It multiplies pixels of 0..255 by this before it normalises; here they are 0..1.
        factor = 255 * (getattr(processor, "rescale_factor", 1 / 255) if getattr(processor, "do_rescale", True) else 1)
        mean, std = (tuple(number / factor for number in v) for v in (mean, std))
        return cls(size, resize, mean, std, name, squash)

    def adjusted(
        self, channels: int, *, crop: float | None = None, resize: int | None = None, **fields: Any
    ) -> Preprocess:
        """Return a copy with these ``fields`` replaced, and with one mean and standard deviation per channel.

        ``crop``: the share of the image's side that the model sees; ``resize``: the side that images are resized to.
        """
        fields = {key: _per_channel(value, channels) for key, value in fields.items()}
        for key in ("mean", "std"):
            fields.setdefault(key, _per_channel(getattr(self, key), channels))
        if crop is not None or resize is not None:
            sides = [resize or 0] * 2 if crop is None else [int(side / crop) if crop > 0 else 0 for side in self.size]
            if any(side < own for side, own in zip(sides, self.size, strict=True)):
                raise ValueError(
                    f"crop is a share between 0 and 1, and resize at least what the model takes "
                    f"({self.size[0]} x {self.size[1]}); got {resize if crop is None else crop}"
                )
            fields["resize"] = (sides[0], sides[1])
        return replace(self, **fields)


def _per_channel(value: Any, channels: int) -> Any:
    """Return a mean or standard deviation with as many numbers as there are channels; anything else as it is."""
    if not isinstance(value, tuple) or len(value) == channels:
        return value
    return value * channels if len(value) == 1 else (sum(value) / len(value),) * channels


def read_processor(name: str, wanted: tuple[int, int] | None, usual: tuple[int, int], channels: int) -> Preprocess:
    """Read a model's ``preprocessor_config.json`` without transformers' image processors, which need torchvision.

    ``wanted``: size of images; None: what the file says, which for some models is not the ``usual`` size of the network
    (DINOv2 was trained at 518 pixels and is used at 224), or else that.
    """
    from transformers.utils import cached_file

    try:
        stored = read_json(Path(cached_file(os.path.expanduser(name), "preprocessor_config.json")))
        stored = {key: value for key, value in stored.items() if value is not None}
    except (OSError, TypeError, AttributeError):  # a damaged file is an error, a missing one is not
        warnings.warn(
            f"{name} does not say how it wants its images: mean and standard deviation 0.5 are used", stacklevel=2
        )
        size = wanted or usual
        return Preprocess(size, size, (0.5,) * channels, (0.5,) * channels)
    crops = bool(stored.get("do_center_crop"))
    stated = _sides(stored.get("crop_size" if crops else "size")) or usual
    size = wanted or stated
    if size != usual and not wanted:
        sizes = f"{usual[0]} x {usual[1]} pixels, and its preprocessor_config.json makes {size[0]} x {size[1]}"
        warnings.warn(f"{name} was made for images of {sizes}: these are used", stacklevel=2)
    resize = _resized(stored.get("size"), size, stated) if crops else {"height": size[0], "width": size[1]}
    processor = SimpleNamespace(
        size=resize,
        do_center_crop=crops,
        crop_size={"height": size[0], "width": size[1]},
        resample=stored.get("resample", 2),
        do_rescale=stored.get("do_rescale", True),
        rescale_factor=stored.get("rescale_factor", 1 / 255),
        do_normalize=stored.get("do_normalize", True),
        image_mean=_numbers(stored.get("image_mean", 0.5)),
        image_std=_numbers(stored.get("image_std", 0.5)),
    )
    return Preprocess.from_image_processor(processor, size).adjusted(channels)


def _sides(given: Any) -> tuple[int, int] | None:
    """Return height and width, where an image processor states both."""
    if isinstance(given, int):
        return given, given
    if isinstance(given, dict) and {"height", "width"} <= given.keys():
        return int(given["height"]), int(given["width"])
    return None


def _resized(given: Any, size: tuple[int, int], stated: tuple[int, int]) -> dict[str, int]:
    """Return the size before cropping: as much larger than ``size`` as it is stated for ``stated``."""
    if isinstance(given, int):
        given = {"shortest_edge": given}
    elif not isinstance(given, dict):
        given = {"height": stated[0], "width": stated[1]}
    along = {"shortest_edge": 0, "height": 0, "width": 1}
    return {key: max(size[i], round(given[key] * size[i] / stated[i])) for key, i in along.items() if key in given}


def _numbers(given: Any) -> list[float]:
    return [float(number) for number in given] if isinstance(given, list | tuple) else [float(given)] * 3


@contextmanager
def open_image(source: str | PathLike[str] | Image.Image | np.ndarray) -> Iterator[Image.Image]:
    """Open a path or an array as a PIL image, or pass an image on; close afterwards what was opened here."""
    if isinstance(source, Image.Image):
        yield source
        return
    if not isinstance(source, np.ndarray) and os.path.exists(source) and not os.path.isfile(source):
        raise OSError(f"{os.fspath(source)} is not a regular file")  # reading from a pipe could block for ever
    with _opened(source) as opened:
        yield opened


def _opened(source: str | PathLike[str] | np.ndarray) -> Image.Image:
    if isinstance(source, np.ndarray):
        return Image.fromarray(source)
    return read_dicom(source) if is_dicom(source) else Image.open(source)


def is_photo(source: object) -> bool:
    """Return whether this needs preprocessing: a PIL image, a path, a uint8 array ``[H, W]`` or ``[H, W, 3 or 4]``, or a
    sequence of them."""
    if isinstance(source, Image.Image | str | PathLike):
        return True
    if isinstance(source, np.ndarray):
        coloured = source.ndim == 3 and source.shape[2] in (3, 4) and source.shape[0] > 4  # not [3, H, W]
        return source.dtype == np.uint8 and source.size > 0 and (source.ndim == 2 or coloured)
    return isinstance(source, Sequence) and len(source) > 0 and all(is_photo(item) for item in source)


def from_array(array: np.ndarray, channels: int, size: tuple[int, int]) -> Tensor | list[np.ndarray]:
    """Convert other arrays than one photo: floats ``[(B,) C, H, W]`` are model input, uint8 ``[B, H, W, 3]`` photos."""
    net_input = f"the model's own input is float {[channels, *size]}, with or without a batch"
    if array.dtype == np.uint8 and array.ndim == 4 and len(array) and is_photo(array[0]):
        return list(array)
    floating = np.issubdtype(array.dtype, np.floating)
    if floating and list(array.shape[-3:]) == [channels, *size]:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")))
    why = (
        "; floats may be in 0 to 1, in 0 to 255 or normalised" if floating and array.shape[-1:] in ((1,), (3,)) else ""
    )
    raise ValueError(f"an array is a photo, uint8 [H, W, 3]; {net_input}; got {array.dtype} {list(array.shape)}{why}")


def eight_bit(image: Image.Image, *, channels: int = 3) -> Image.Image:
    """Return an image of any mode upright, in mode L (1 channel) or RGB (3), with transparency on white.

    PIL's plain ``convert`` clips 16-bit radiographs to white, drops transparency (showing the colour hidden under it) and
    ignores the EXIF orientation.
    """
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I") or image.mode == "F":
        image = _scaled_to_eight_bit(image)
    elif "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "La", "RGBa"):
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return image.convert("L" if channels == 1 else "RGB")


def _scaled_to_eight_bit(image: Image.Image) -> Image.Image:
    """Scale a grey image of more than 8 bits by its full range: 16-bit files by 1/257, floats in 0..1 by 255."""
    values = np.asarray(image, dtype=np.float64)
    if image.mode.startswith("I;16"):
        full = 65535.0
    else:  # 32-bit integers or floats: the file does not define the value of white
        scales = (1.0, 255.0, 65535.0) if image.mode == "F" else (255.0, 65535.0)
        greatest = float(np.nanmax(values, initial=0.0))
        full = next((scale for scale in scales if greatest <= scale), greatest)
    scaled = np.nan_to_num(values / full, nan=0.0).clip(0, 1) * 255
    return Image.fromarray(scaled.round().astype(np.uint8))
