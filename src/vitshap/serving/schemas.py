"""What the interface answers: the documented form of every response, and errors as exceptions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field

NDJSON = "application/x-ndjson"


class ApiError(Exception):
    """A request that is answered with an error: ``status`` of HTTP, ``code`` for programs, ``message`` for people."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, code, message)
        self.status, self.code, self.message, self.headers = status, code, message, dict(headers or {})

    def content(self) -> dict[str, Any]:
        """Return the response's content."""
        return {"error": {"code": self.code, "message": self.message}}

    def response(self) -> Response:
        """Return the response."""
        return json_response(self.content(), self.status, self.headers)


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response of JSON; NaN and infinity are an error."""
    return Response(encode(content), status, dict(headers or {}), "application/json")


def encode(content: Any) -> bytes:
    """Return JSON in bytes."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ErrorDetail(_Schema):
    """What went wrong."""

    code: str = Field(description="For programs; does not change.", examples=["too_many_bytes"])
    message: str = Field(description="For people: what was given, and what is expected.")


class ErrorResponse(_Schema):
    """Every response that is not a success."""

    error: ErrorDetail


class Status(_Schema):
    """Of the server."""

    status: Literal["alive", "ready"]


class ModelInfo(_Schema):
    """A model that explains photos."""

    name: str
    kind: Literal["bundle", "model"] = Field(description="bundle: a stored explainer; model: any vision transformer.")
    default: bool = Field(description="Whether it is used if a request names none.")
    grid: list[int] = Field(min_length=2, max_length=2, description="Rows and columns of patches.")
    num_players: int
    class_names: list[str]
    methods: list[str] = Field(description="The first is the default.")
    sampling_methods: list[str] = Field(description="Those that take a budget and report progress.")
    low_confidence: float | None = Field(description="A largest probability below this is called low confidence.")
    unit: Literal["probability", "output"]
    description: str


class ModelList(_Schema):
    """The models of this server."""

    models: list[ModelInfo]


class ClassValues(_Schema):
    """The values of one explained class."""

    index: int
    name: str
    probability: float = Field(description="Output of the model for the whole photo (a probability if unit says so).")
    base: float | None = Field(description="Output with all patches withheld; null if the method is not additive.")
    values: list[float] = Field(description="Value of each player.")
    stderr: list[float] | None = Field(description="Standard errors of the values, if the method estimates them.")
    interval: list[list[float]] | None = Field(
        min_length=2, max_length=2, description="Lower and upper ends of intervals of the values, if stderr is known."
    )
    reliability: float | None = Field(description="Share of the variance between players that is not error.")


class ExplanationResponse(_Schema):
    """The explanation of one photo."""

    model: str
    method: str
    grid: list[int] = Field(min_length=2, max_length=2, description="Rows and columns of patches.")
    players: list[int] = Field(description="The player of each patch, row by row; -1: none.")
    image_size: list[int] = Field(min_length=2, max_length=2, description="Width and height of the upright photo.")
    box: list[float] = Field(
        min_length=4, max_length=4, description="Left, top, right and bottom of what the model sees, in pixels."
    )
    unit: Literal["probability", "logit", "output", "score"]
    additive: bool = Field(description="Whether base and values add up to the output for the whole photo.")
    class_names: list[str]
    prediction: list[float] = Field(description="Output for every class of the model.")
    classes: list[ClassValues] = Field(description="The explained classes.")
    evaluations: int
    seconds: float
    reliability: float | None = Field(description="Of the first explained class.")
    interval_level: float | None = Field(description="Probability with which an interval holds the exact value.")
    stderr_from: str | None = Field(description="Where the standard errors come from, in words.")
    warnings: list[str] = Field(description="Why the explanation may be unreliable.")
    notes: list[str] = Field(description="How the photo was read, if that is not obvious.")
    picture: str | None = Field(description="A data: address of the photo, if browsers cannot show its format (DICOM).")


class PredictionsResponse(_Schema):
    """Outputs for parts of a photo."""

    model: str
    class_names: list[str]
    unit: Literal["probability", "output"]
    predictions: list[list[float]] = Field(description="Outputs of all classes for each coalition.")
    base: list[float] = Field(description="Outputs with all patches withheld.")
    full: list[float] = Field(description="Outputs for the whole photo.")


ERRORS: dict[int, str] = {
    400: "The request is malformed.",
    401: "The bearer token is missing or wrong.",
    403: "The Host or the Origin of the request is not allowed.",
    404: "There is no such model or address.",
    405: "The address has no such method.",
    408: "The photo did not arrive in time.",
    413: "The photo has too many bytes or pixels.",
    415: "The content is not a photo of a kind that is read.",
    422: "A parameter is wrong, or the photo is damaged.",
    429: "Too many requests wait: try again after the seconds in Retry-After.",
    503: "The server is loading or stopping, or the request took too long.",
}
"""Statuses of errors, and what they mean."""
_RETRY = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}}


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the documentation of these errors, for a route."""
    found: dict[int | str, dict[str, Any]] = {}
    for status in sorted({403, *statuses}):
        found[status] = {"model": ErrorResponse, "description": ERRORS[status]}
        if status == 429:
            found[status]["headers"] = _RETRY
    return found


_BINARY = {"type": "string", "format": "binary"}
_LINES = "as lines of JSON, {type: progress, ...} and at last {type: result, ...} or {type: error, ...}"
EXPLANATION: dict[str, Any] = {
    "description": f"The explanation; or, with Accept: {NDJSON}, {_LINES}.",
    "content": {NDJSON: {"schema": {"type": "string"}}},
}
"""The documentation of an explanation's response, besides its model."""


def photo_body(formats: str) -> dict[str, Any]:
    """Return the documentation of a request's body: a form with a photo, or the photo itself."""
    raw = {kind: {"schema": _BINARY} for kind in ("image/jpeg", "image/png", "application/octet-stream")}
    return {"required": True, "content": {**_form(image={**_BINARY, "description": f"The photo: {formats}."}), **raw}}


def coalitions_body(formats: str, most: int) -> dict[str, Any]:
    """Return the documentation of a request's body: a form with a photo and coalitions."""
    coalitions = {
        "type": "string",
        "format": "coalitions",
        "description": f"JSON list of up to {most} strings of 0 and 1, a character for each player; 1: it is shown.",
        "examples": ['["0110"]'],
    }
    image = {**_BINARY, "description": f"The photo: {formats}."}
    return {"required": True, "content": _form(image=image, coalitions=coalitions)}


def _form(**fields: dict[str, Any]) -> dict[str, Any]:
    return {"multipart/form-data": {"schema": {"type": "object", "required": list(fields), "properties": fields}}}
