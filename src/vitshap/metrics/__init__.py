"""How good an explanation is. A metric is a function of a model, images and their explanation."""

from vitshap.metrics.base import METRICS, Metric, MetricResult, list_metrics, metric, own_classes, predicted_classes
from vitshap.metrics.bound import ErrorBound, SampledBound, error_bound, shapley_error
from vitshap.metrics.correlations import (
    CoalitionResponses,
    SensitivityN,
    coalition_responses,
    faithfulness,
    sensitivity_n,
    sensitivity_sizes,
    single_patch,
)
from vitshap.metrics.grid_pointing import grid_pointing
from vitshap.metrics.insertion_deletion import Curve, deletion, insertion
from vitshap.metrics.intervals import Coverage, interval_coverage, mean_interval
from vitshap.metrics.randomisation import Randomisation, randomisation
from vitshap.metrics.removal_quality import RemovalQuality, removal_counts, removal_mechanisms, removal_quality
from vitshap.metrics.roar import Roar, roar, roar_counts
from vitshap.metrics.saco import saco
from vitshap.metrics.truth_error import TruthError, agreement, error

__all__ = [
    "METRICS",
    "CoalitionResponses",
    "Coverage",
    "Curve",
    "ErrorBound",
    "Metric",
    "MetricResult",
    "Randomisation",
    "RemovalQuality",
    "Roar",
    "SampledBound",
    "SensitivityN",
    "TruthError",
    "agreement",
    "coalition_responses",
    "deletion",
    "error",
    "error_bound",
    "faithfulness",
    "grid_pointing",
    "insertion",
    "interval_coverage",
    "list_metrics",
    "mean_interval",
    "metric",
    "own_classes",
    "predicted_classes",
    "randomisation",
    "removal_counts",
    "removal_mechanisms",
    "removal_quality",
    "roar",
    "roar_counts",
    "saco",
    "sensitivity_n",
    "sensitivity_sizes",
    "shapley_error",
    "single_patch",
]
