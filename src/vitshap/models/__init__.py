"""Nets that can be asked about any set of patches."""

from vitshap.models.base import Adapter, CannotMask
from vitshap.models.masked import ImageGame, MaskedModel, Prepared
from vitshap.models.preprocess import Preprocess
from vitshap.models.wrap import wrap

__all__ = ["Adapter", "CannotMask", "ImageGame", "MaskedModel", "Prepared", "Preprocess", "wrap"]
