"""How good an explanation is. A metric is a function of a model, images and their explanation."""

from vitshap.metrics.base import METRICS, Metric, MetricResult, list_metrics, metric
from vitshap.metrics.bound import ErrorBound, error_bound, shapley_error
from vitshap.metrics.insertion_deletion import Curve, deletion, insertion

__all__ = [
    "METRICS",
    "Curve",
    "ErrorBound",
    "Metric",
    "MetricResult",
    "deletion",
    "error_bound",
    "insertion",
    "list_metrics",
    "metric",
    "shapley_error",
]
