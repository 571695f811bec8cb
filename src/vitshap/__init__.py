"""Which parts of an image drive a vision transformer's prediction: Shapley values, and how good they are."""

import os

# Read when torch loads its OpenMP: threads that spin while they wait are many times slower beside any other job.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from vitshap import coalitions, metrics, players
from vitshap._version import __version__
from vitshap.estimators import truth
from vitshap.explanation import Explanation
from vitshap.game import Game
from vitshap.methods import method, methods, register
from vitshap.models import CannotMask, MaskedModel, Preprocess, wrap

__all__ = [
    "CannotMask",
    "Explanation",
    "Game",
    "MaskedModel",
    "Preprocess",
    "__version__",
    "coalitions",
    "method",
    "methods",
    "metrics",
    "players",
    "register",
    "truth",
    "wrap",
]
