"""The result that all methods return."""

from vitshap.explanation.checks import PredictionBy, Unit
from vitshap.explanation.interop import CaptumTarget, InputShaped, quantus_explain_func
from vitshap.explanation.result import Explanation, PlayerValue
from vitshap.explanation.view import Original, stderr_from, view_data
from vitshap.game import ClassLike, class_index

__all__ = [
    "CaptumTarget",
    "ClassLike",
    "Explanation",
    "InputShaped",
    "Original",
    "PlayerValue",
    "PredictionBy",
    "Unit",
    "class_index",
    "quantus_explain_func",
    "stderr_from",
    "view_data",
]
