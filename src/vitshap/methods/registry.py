"""The table of methods by name. To add a method, write its class and add a line here."""

from __future__ import annotations

from typing import Any

from vitshap.methods.base import MethodLike
from vitshap.registry import Registry

METHODS: Registry[MethodLike] = Registry(
    "method",
    {
        "exact": "vitshap.estimators.as_methods:Exact",
        "kernelshap": "vitshap.estimators.as_methods:KernelShap",
        "kernelshap-original": "vitshap.estimators.as_methods:KernelShapOriginal",
        "refine": "vitshap.estimators.as_methods:Refine",
        "permutation": "vitshap.estimators.as_methods:Permutation",
        "leave-one-out": "vitshap.baselines.simple:LeaveOneOut",
        "rise": "vitshap.baselines.simple:Rise",
        "random": "vitshap.baselines.simple:Random",
        "attention-last": "vitshap.baselines.attention:AttentionLast",
        "attention-rollout": "vitshap.baselines.attention:AttentionRollout",
        "generic-attention": "vitshap.baselines.attention:GenericAttention",
        "gradcam-attention": "vitshap.baselines.attention:GradCamAttention",
        "gradcam-ln": "vitshap.baselines.attention:GradCamNorm",
        "vanilla-pixel": "vitshap.baselines.gradients:VanillaPixel",
        "vanilla-embedding": "vitshap.baselines.gradients:VanillaEmbedding",
        "smoothgrad-pixel": "vitshap.baselines.gradients:SmoothGradPixel",
        "smoothgrad-embedding": "vitshap.baselines.gradients:SmoothGradEmbedding",
        "vargrad-pixel": "vitshap.baselines.gradients:VarGradPixel",
        "vargrad-embedding": "vitshap.baselines.gradients:VarGradEmbedding",
        "integrated-gradients-pixel": "vitshap.baselines.gradients:IntegratedGradientsPixel",
        "integrated-gradients-embedding": "vitshap.baselines.gradients:IntegratedGradientsEmbedding",
        "expected-gradients": "vitshap.baselines.gradients:ExpectedGradientsPixel",
        "lrp": "vitshap.baselines.relevance:Lrp",
        "attnlrp": "vitshap.baselines.relevance:AttnLrp",
        "libragrad": "vitshap.baselines.relevance:LibraGrad",
        "explainer": "vitshap.explainers.explainer:explainer_method",
    },
)
"""A name, and the class (or function) that is called as ``attribute(model, **options)``."""


def list_methods() -> list[str]:
    """Return the names that ``method`` knows."""
    return METHODS.names()


def method(name: str, model: Any, /, **options: Any) -> MethodLike:
    """Return the method of this name for ``model``; call it with images.

    ``model`` is a network wrapped by ``vitshap.wrap``; for "explainer", an ``Explainer`` or the name or folder of a
    bundle. Unknown options are a ``TypeError``.
    """
    return METHODS.load(name, options)(model, **options)


def register(name: str, location: str, /) -> None:
    """Add a method: ``location`` is ``"module:attribute"``, called as ``attribute(model, **options)``."""
    METHODS.register(name, location)
