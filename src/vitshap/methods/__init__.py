"""Methods: how they are looked up by name, which classes they explain, and what all of them share."""

from vitshap.methods.base import (
    Attribution,
    ExplainableModel,
    Method,
    MethodLike,
    PreparedImages,
    SamplingMethod,
    TokenMethod,
    TokenScores,
    explain_game,
    game_in,
    image_generators,
    take_classes,
)
from vitshap.methods.registry import list_methods, method, register
from vitshap.methods.targets import Target, most_classes, names_classes, resolve_target, target_from_words

__all__ = [
    "Attribution",
    "ExplainableModel",
    "Method",
    "MethodLike",
    "PreparedImages",
    "SamplingMethod",
    "Target",
    "TokenMethod",
    "TokenScores",
    "explain_game",
    "game_in",
    "image_generators",
    "list_methods",
    "method",
    "most_classes",
    "names_classes",
    "register",
    "resolve_target",
    "take_classes",
    "target_from_words",
]
