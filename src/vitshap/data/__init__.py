"""Data sets: loading, splitting, decoding and augmentation of images."""

from vitshap.coalitions import sample_coalitions
from vitshap.counter_rng import shuffled
from vitshap.data.augment import Augmentation, centre, normalised
from vitshap.data.dataset import UNLABELLED, ImageData, Splits, load_digits, require_a_batch, require_labels
from vitshap.data.decode import Batch, UnreadableImage, read_image
from vitshap.data.held_out import SplitRecord
from vitshap.data.load import load_data
from vitshap.data.pixels import (
    CachedPixels,
    PixelSource,
    StreamedPixels,
    cache_bytes,
    cache_pixels,
    iterate_pixels,
    open_pixels,
)
from vitshap.data.published import authors_evaluation_images

__all__ = [
    "UNLABELLED",
    "Augmentation",
    "Batch",
    "CachedPixels",
    "ImageData",
    "PixelSource",
    "SplitRecord",
    "Splits",
    "StreamedPixels",
    "UnreadableImage",
    "authors_evaluation_images",
    "cache_bytes",
    "cache_pixels",
    "centre",
    "iterate_pixels",
    "load_data",
    "load_digits",
    "normalised",
    "open_pixels",
    "read_image",
    "require_a_batch",
    "require_labels",
    "sample_coalitions",
    "shuffled",
]
