"""Photos from requests: received with limits, in memory only, and decoded by a short list of Pillow's formats.

The number of bytes is counted as they come; the length that a request states is only used to refuse it early. The number
of pixels is read from the header of the file, before it is decoded.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import torch
from fastapi import Request
from PIL import Image, UnidentifiedImageError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from vitshap.coalitions import Coalitions
from vitshap.data.decode import UnreadableImage
from vitshap.explaining.photos import Opened, read_photo
from vitshap.serving.schemas import ApiError

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""Pillow's names of the formats that are decoded, besides DICOM."""
ACCEPTED = "JPEG, PNG, WebP, GIF, BMP, TIFF or DICOM"
RAW_TYPES = re.compile(r"image/[\w.+-]+|application/(octet-stream|dicom)")
"""Content types of a body that is the photo itself."""
MOST_COALITIONS = 512
_MOST_PARTS = 8


@dataclass(frozen=True)
class Limits:
    """Limits of requests."""

    upload_bytes: int = 20 << 20
    pixels: int = 40_000_000
    seconds: float = 60.0
    """Time from the arrival of a request to its answer."""
    upload_seconds: float = 20.0
    """Time in which the photo must arrive."""
    waiting: int = 256
    """Requests in the server at the same time ..."""
    sampling: int = 4
    """... and those of them that use a method which evaluates the model many times."""
    bytes_at_once: int = 256 << 20
    """Bytes of photos that are received or wait to be decoded at the same time."""
    budget: int = 65_536
    """Evaluations of a sampling method."""


@dataclass
class Received:
    """Counts the bytes of all photos that are not decoded yet."""

    limits: Limits
    total: int = field(default=0, init=False)


@asynccontextmanager
async def received_body(request: Request, received: Received, *, extra: int = 0) -> AsyncIterator[bytes]:
    """Receive the content of a request, and count its bytes as long as the context lasts.

    ``extra`` bytes may come besides the photo. A disconnected client is an error.
    """
    limits = received.limits
    most = limits.upload_bytes + extra
    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and int(stated) > most:
        raise _too_many_bytes(limits)
    body, counted = bytearray(), 0
    try:
        try:
            async with asyncio.timeout(limits.upload_seconds):
                async for chunk in request.stream():
                    body += chunk
                    counted += len(chunk)
                    received.total += len(chunk)
                    if counted > most:
                        raise _too_many_bytes(limits)
                    if received.total > limits.bytes_at_once:
                        raise ApiError(429, "busy", "too many photos arrive at once", {"Retry-After": "1"})
        except TimeoutError:
            raise ApiError(408, "slow_upload", f"the photo must arrive within {limits.upload_seconds:g} s") from None
        except ClientDisconnect:
            raise ApiError(400, "disconnected", "the client has gone") from None
        content = bytes(body)
        del body
        yield content
    finally:
        received.total -= counted


def photo_content(body: bytes, content_type: str) -> bytes:
    """Return the bytes of the photo: the field ``image`` of a form, or the whole body."""
    if _kind(content_type) == "multipart/form-data":
        return _form_image(form_fields(body, content_type))
    if content_type and not RAW_TYPES.fullmatch(_kind(content_type)):
        raise ApiError(
            415,
            "unsupported_content_type",
            f"send multipart/form-data with the photo in the field image, or the photo's bytes as image/...; "
            f"got {_quoted(content_type)}",
        )
    if not body:
        raise ApiError(
            400, "no_image", "the body is empty: send the photo in the field image, or its bytes as the body"
        )
    return body


def photo_and_coalitions(body: bytes, content_type: str, num_players: int) -> tuple[bytes, Coalitions]:
    """Return the bytes of the photo and the coalitions, bool ``[S, d]``, of a form."""
    if _kind(content_type) != "multipart/form-data":
        raise ApiError(
            415,
            "unsupported_content_type",
            "send multipart/form-data with the photo in the field image, and the field coalitions",
        )
    fields = form_fields(body, content_type)
    image = _form_image(fields)
    if "coalitions" not in fields:
        raise ApiError(422, "no_coalitions", "the form has no field coalitions, a JSON list of strings of 0 and 1")
    return image, read_coalitions(fields["coalitions"], num_players)


def read_coalitions(text: bytes, num_players: int) -> Coalitions:
    """Return the coalitions of a JSON list of strings of 0 and 1, bool ``[S, d]``."""
    expected = f"coalitions are a JSON list of 1 to {MOST_COALITIONS} strings, each of {num_players} characters 0 or 1"
    wrong = ApiError(422, "invalid_coalitions", expected)
    if len(text) > 2 * MOST_COALITIONS * (num_players + 8):
        raise wrong
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):
        raise wrong from None
    if not isinstance(rows, list) or not 1 <= len(rows) <= MOST_COALITIONS:
        raise wrong
    if not all(isinstance(row, str) and len(row) == num_players and set(row) <= {"0", "1"} for row in rows):
        raise wrong
    flat = torch.frombuffer(bytearray("".join(rows).encode("ascii")), dtype=torch.uint8)
    return (flat == ord("1")).view(len(rows), num_players)


def form_fields(body: bytes, content_type: str) -> dict[str, bytes]:
    """Return the fields of a form by name; file names in it are ignored."""
    form = _Form()
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise ApiError(400, "malformed_form", "the content type multipart/form-data has no boundary")
    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": form.begin,
                "on_header_field": form.header_name,
                "on_header_value": form.header_value,
                "on_header_end": form.header_end,
                "on_part_data": form.data,
                "on_part_end": form.end,
            },
        )
        parser.write(body)
        parser.finalize()
    except (FormParserError, ValueError):
        raise ApiError(400, "malformed_form", "the form (multipart/form-data) is malformed or incomplete") from None
    if not form.complete:
        raise ApiError(400, "malformed_form", "the form (multipart/form-data) is malformed or incomplete")
    return form.fields


def decode_photo(content: bytes, limits: Limits) -> Opened:
    """Decode a photo, within the limits of bytes and pixels."""
    if len(content) > limits.upload_bytes:
        raise _too_many_bytes(limits)
    try:
        return read_photo(io.BytesIO(content), formats=FORMATS, most_pixels=limits.pixels)
    except UnreadableImage as error:
        cause = error.__cause__
        if isinstance(cause, Image.DecompressionBombError | Image.DecompressionBombWarning):
            most = f"at most {limits.pixels / 1e6:g} megapixels are accepted"
            raise ApiError(413, "too_many_pixels", f"the photo is too large: {most}") from None
        if isinstance(cause, UnidentifiedImageError) and content:
            raise ApiError(415, "unsupported_image", f"this is not a photo in the format {ACCEPTED}") from None
        raise ApiError(422, "unreadable_image", f"the photo cannot be read: {error.reason}") from None


def shown_by_browsers(content: bytes) -> bool:
    """Return whether browsers can show this photo: they cannot show DICOM and TIFF, of which there are several kinds."""
    return content[128:132] != b"DICM" and content[:2] not in (b"II", b"MM")


class _Form:
    """The fields of a form, filled by the parser's callbacks."""

    def __init__(self) -> None:
        self.fields: dict[str, bytes] = {}
        self.complete = True
        self._header = [b"", b""]
        self._name: str | None = None
        self._data = bytearray()

    def begin(self) -> None:
        self._name, self._data, self._header, self.complete = None, bytearray(), [b"", b""], False

    def header_name(self, data: bytes, start: int, end: int) -> None:
        self._header[0] += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1] += data[start:end]

    def header_end(self) -> None:
        name, value = self._header
        self._header = [b"", b""]
        if name.lower() == b"content-disposition":
            _, options = parse_options_header(value)
            self._name = options.get(b"name", b"").decode("utf-8", "replace")

    def data(self, data: bytes, start: int, end: int) -> None:
        self._data += data[start:end]

    def end(self) -> None:
        self.complete = True
        if self._name is None:
            raise ValueError("a part without a name")
        if self._name in self.fields or len(self.fields) == _MOST_PARTS:
            raise ValueError("a field is repeated, or there are too many")
        self.fields[self._name] = bytes(self._data)


def _too_many_bytes(limits: Limits) -> ApiError:
    return ApiError(413, "too_many_bytes", f"at most {limits.upload_bytes / 2**20:.3g} MiB are accepted as a photo")


def _form_image(fields: dict[str, bytes]) -> bytes:
    if "image" not in fields:
        raise ApiError(422, "no_image", "the form has no field image, which holds the photo")
    return fields["image"]


def _kind(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _quoted(text: str) -> str:
    """Return text of a request for an error message: short, printable."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:60]) or "nothing"
