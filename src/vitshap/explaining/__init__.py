"""From photos to explanations as a stream; the work behind ``vitshap explain``."""

from vitshap.explaining.photos import Found, find_photos, read_photo
from vitshap.explaining.sources import Source, open_bundle, open_model
from vitshap.explaining.stream import CannotExplain, explain_photos
from vitshap.explaining.wanted import Wanted
from vitshap.report import Explained, Failed

__all__ = [
    "CannotExplain",
    "Explained",
    "Failed",
    "Found",
    "Source",
    "Wanted",
    "explain_photos",
    "find_photos",
    "open_bundle",
    "open_model",
    "read_photo",
]
