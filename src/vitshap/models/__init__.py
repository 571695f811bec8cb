"""Vision models that can be evaluated on any subset of the patches of an image."""

from vitshap.models.base import Adapter, CannotMask
from vitshap.models.masked import ImageGame, MaskedModel, Prepared
from vitshap.models.preprocess import Preprocess
from vitshap.models.wrap import wrap

__all__ = ["Adapter", "CannotMask", "ImageGame", "MaskedModel", "Prepared", "Preprocess", "wrap"]
