"""Training: from a model and images to a surrogate and an explainer."""

from vitshap.training.configs import (
    ClassifierTraining,
    ExplainerTraining,
    LoopConfig,
    SurrogateTraining,
    ValuesConfig,
)
from vitshap.training.explainer import fit_explainer
from vitshap.training.fit import fit_classifier, fit_masked_classifier, fit_surrogate
from vitshap.training.loop import TrainingDiverged

__all__ = [
    "ClassifierTraining",
    "ExplainerTraining",
    "LoopConfig",
    "SurrogateTraining",
    "TrainingDiverged",
    "ValuesConfig",
    "fit_classifier",
    "fit_explainer",
    "fit_masked_classifier",
    "fit_surrogate",
]
