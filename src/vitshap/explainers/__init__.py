"""Networks that output Shapley values in one forward pass."""

from vitshap.explainers.explainer import Explainer
from vitshap.explainers.network import ExplainerConfig

__all__ = ["Explainer", "ExplainerConfig"]
