"""The result that all methods return."""

from vitshap.explanation.checks import ClassLike, PredictionBy, Unit, class_index
from vitshap.explanation.result import Explanation, PlayerValue

__all__ = ["ClassLike", "Explanation", "PlayerValue", "PredictionBy", "Unit", "class_index"]
