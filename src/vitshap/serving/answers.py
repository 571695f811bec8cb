"""Results as plain data, in the form that ``schemas`` documents."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from vitshap.estimators.estimate import Estimate, reliability_from_errors
from vitshap.explaining import text
from vitshap.explaining.entries import Explained
from vitshap.explaining.sinks import class_numbers
from vitshap.explaining.sinks import rounded as numbers
from vitshap.explaining.source import Source
from vitshap.plots import LEVEL
from vitshap.serving.models import ServedModel


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


def explanation(model: ServedModel, entry: Explained, source: Source, picture: str | None = None) -> dict[str, Any]:
    """Return an explanation; ``picture`` is the photo, if browsers cannot show it as it was sent."""
    e = entry.explanation
    absent = dict.fromkeys(("stderr", "interval", "reliability"))
    classes = [
        {
            "index": index,
            "name": entry.label(index),
            "probability": numbers(e.prediction[0, index : index + 1])[0],
            "base": None if e.base_values is None else numbers(e.base_values[0, column : column + 1])[0],
            **absent,
            **values,
        }
        for column, (index, values) in enumerate(zip(entry.classes, class_numbers(entry), strict=True))
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
        "reliability": classes[0]["reliability"],
        "interval_level": None if e.stderr is None else LEVEL,
        "stderr_from": entry.stderr_from,
        "warnings": [*source.warnings, *entry.warnings],
        "notes": [*entry.notes, *text.hints(entry)],
        "picture": picture,
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
