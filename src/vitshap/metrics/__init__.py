"""How good an explanation is: every metric takes ``(surrogate, images, explanation)``."""

from vitshap.metrics.insertion_deletion import Curve, deletion, insertion

__all__ = ["Curve", "deletion", "insertion"]
