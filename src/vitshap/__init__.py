"""Which parts of an image drive a vision transformer's prediction: Shapley values, and how good they are."""
# ruff: noqa: E402 (settings come before the imports)

import gc
import os
from typing import TYPE_CHECKING, Any

# Read when torch loads its OpenMP: threads that spin while they wait are many times slower beside any other job.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Imports create many objects and hardly any garbage: looking for it takes a tenth of their time.
_collecting = gc.isenabled()
gc.disable()

from vitshap import coalitions, methods, metrics, players
from vitshap._version import __version__
from vitshap.compat import make_torchvision_importable
from vitshap.estimators import truth
from vitshap.explainers import Explainer, ExplainerConfig
from vitshap.explanation import Explanation, quantus_explain_func
from vitshap.game import Game
from vitshap.methods import list_methods, method, register
from vitshap.models import CannotMask, MaskedModel, Preprocess, wrap

if TYPE_CHECKING:
    from vitshap.explaining import BatchExplainer, explain
    from vitshap.training import fit_classifier, fit_explainer, fit_masked_classifier, fit_surrogate

if _collecting:
    gc.enable()
make_torchvision_importable()  # timm's and transformers' nets import it; nothing above does

__all__ = [
    "BatchExplainer",
    "CannotMask",
    "Explainer",
    "ExplainerConfig",
    "Explanation",
    "Game",
    "MaskedModel",
    "Preprocess",
    "__version__",
    "coalitions",
    "explain",
    "fit_classifier",
    "fit_explainer",
    "fit_masked_classifier",
    "fit_surrogate",
    "list_methods",
    "method",
    "methods",
    "metrics",
    "players",
    "quantus_explain_func",
    "register",
    "truth",
    "wrap",
]


def __getattr__(name: str) -> Any:
    """Training is loaded when it is asked for: accelerate takes longer to import than an explanation takes."""
    if name in ("BatchExplainer", "explain"):
        from vitshap import explaining

        return getattr(explaining, name)
    if name.startswith("fit_") and name in __all__:
        from vitshap import training

        return getattr(training, name)
    raise AttributeError(f"module 'vitshap' has no attribute {name!r}")
