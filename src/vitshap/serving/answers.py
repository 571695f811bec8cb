"""Results as plain data, in the form that ``schemas`` documents."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from vitshap.estimators.estimate import Estimate, reliability_from_errors
from vitshap.explaining import text
from vitshap.explaining.entries import Explained
from vitshap.explaining.source import Source
from vitshap.serving.models import ServedModel


def numbers(values: Tensor) -> list[float]:
    """Return values with seven digits, the precision of float32."""
    return [float(f"{value:.7g}") for value in values.tolist()]


def model_info(model: ServedModel, default: bool) -> dict[str, Any]:
    """Return what ``/v1/models`` says about a model."""
    kind = model.choice.kind
    return {
        "name": model.name,
        "kind": kind,
        "default": default,
        "grid": list(model.model.grid),
        "num_players": model.model.num_players,
        "class_names": model.class_names,
        "methods": model.methods,
        "sampling_methods": [name for name, source in model.sources.items() if source.method.samples],
        "low_confidence": model.source.confidence_threshold,
        "unit": model.model.unit,
        "description": f"stored explainer {model.name}" if kind == "bundle" else f"model {model.name}",
    }


def explanation(model: ServedModel, entry: Explained, source: Source) -> dict[str, Any]:
    """Return an explanation."""
    e = entry.explanation
    reliable = [None] * len(entry.classes) if e.stderr is None else numbers(reliability_from_errors(e)[0])
    classes = [
        {
            "index": index,
            "name": entry.label(index),
            "probability": numbers(e.prediction[0, index : index + 1])[0],
            "base": None if e.base_values is None else numbers(e.base_values[0, column : column + 1])[0],
            "values": numbers(e.values[0, :, column]),
            "stderr": None if e.stderr is None else numbers(e.stderr[0, :, column]),
            "reliability": reliable[column],
        }
        for column, index in enumerate(entry.classes)
    ]
    return {
        "model": model.name,
        "method": e.method,
        "grid": list(e.grid),
        "players": e.players[0].flatten().tolist(),
        "image_size": list(entry.size),
        "box": [round(edge, 2) for edge in entry.box],
        "unit": e.unit,
        "additive": e.additive,
        "class_names": model.class_names,
        "prediction": numbers(e.prediction[0]),
        "classes": classes,
        "evaluations": e.evaluations,
        "seconds": round(e.seconds, 4),
        "reliability": reliable[0],
        "warnings": [*source.warnings, *entry.warnings],
        "notes": [*entry.notes, *text.hints(entry)],
    }


def predictions(model: ServedModel, outputs: Tensor, base: Tensor, full: Tensor) -> dict[str, Any]:
    """Return the outputs for coalitions ``[S, K]``, and for none and all of the patches."""
    return {
        "model": model.name,
        "class_names": model.class_names,
        "unit": model.model.unit,
        "predictions": [numbers(row) for row in outputs],
        "base": numbers(base),
        "full": numbers(full),
    }


def progress(estimate: Estimate, budget: int | None) -> dict[str, Any]:
    """Return a partial estimate; the first output of the game is the first explained class."""
    reliable = None if estimate.stderr is None else round(float(reliability_from_errors(estimate)[0, 0]), 4)
    return {"type": "progress", "evaluations": estimate.evaluations, "budget": budget, "reliability": reliable}
