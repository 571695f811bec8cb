"""How good an explanation is: every metric takes ``(surrogate, images, explanation)``, Theorem 1 a game and values."""

from vitshap.metrics.bound import ErrorBound, error_bound
from vitshap.metrics.insertion_deletion import Curve, deletion, insertion

__all__ = ["Curve", "ErrorBound", "deletion", "error_bound", "insertion"]
