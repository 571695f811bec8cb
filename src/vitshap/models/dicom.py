"""Radiographs as they come: the image of a DICOM file, as a viewer of radiographs would show it.

Of the file only the tags that describe its pixels are read (``_PIXEL_TAGS``). What identifies a patient is never in
memory, so it cannot reach a report or an error message; for the same reason no text of pydicom's errors, which quote
values of the file, is passed on.
"""

from __future__ import annotations

import importlib
import io
import logging
import os
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NoReturn

import numpy as np
from PIL import Image

_PREAMBLE, _MAGIC = 128, b"DICM"
_DEFLATED = "1.2.840.10008.1.2.1.99"
_RUN_LENGTHS = "1.2.840.10008.1.2.5"
_PALETTE = tuple(
    f"{colour}PaletteColorLookupTable{part}" for colour in ("Red", "Green", "Blue") for part in ("Descriptor", "Data")
)
_PIXEL_TAGS = (
    "SamplesPerPixel",
    "PhotometricInterpretation",
    "PlanarConfiguration",
    "NumberOfFrames",
    "Rows",
    "Columns",
    "BitsAllocated",
    "BitsStored",
    "HighBit",
    "PixelRepresentation",
    "PixelPaddingValue",
    "RescaleIntercept",
    "RescaleSlope",
    "ModalityLUTSequence",
    "WindowCenter",
    "WindowWidth",
    "VOILUTFunction",
    "VOILUTSequence",
    "ExtendedOffsetTable",
    "ExtendedOffsetTableLengths",
    "PixelData",
    "FloatPixelData",
    "DoubleFloatPixelData",
    *_PALETTE,
    *(f"Segmented{name}" for name in _PALETTE if name.endswith("Data")),
)


_ONE_AT_A_TIME = threading.Lock()


class UnreadableDicom(ValueError):
    """A DICOM file that has no picture to show, with the reason; never with a value from the file."""


def is_dicom(file: str | os.PathLike[str] | BinaryIO, /) -> bool:
    """Return whether a regular file, or a stream at its start, is in the DICOM format; the stream stays where it was."""
    if isinstance(file, str | os.PathLike):
        if not os.path.isfile(file):  # a pipe may never end
            return False
        with open(file, "rb") as opened:
            return is_dicom(opened)
    start = file.tell()
    head = file.read(_PREAMBLE + len(_MAGIC))
    file.seek(start)
    return head[_PREAMBLE:] == _MAGIC


def read_dicom(file: str | os.PathLike[str] | BinaryIO, /, *, most_pixels: int | None = None) -> Image.Image:
    """Return the picture of a DICOM file with one frame, in mode L or RGB.

    Grey values are rescaled and windowed as the file says (its first window; without one, from the least to the greatest
    value); MONOCHROME1, in which large values are dark, is inverted. More than ``most_pixels`` (by default twice
    ``PIL.Image.MAX_IMAGE_PIXELS``) are a ``DecompressionBombError``.
    """
    if isinstance(file, str | os.PathLike):
        with open(file, "rb") as opened:
            return read_dicom(opened, most_pixels=most_pixels)
    try:
        pydicom: Any = importlib.import_module("pydicom")
    except ImportError:
        _fail('it is a DICOM file, and pydicom is not installed: pip install "vitshap[dicom]"')
    with _silent_pydicom():
        dataset = _read(pydicom, file)
        _check(dataset, most_pixels)
        try:
            return _picture(pydicom, dataset)
        except UnreadableDicom:
            raise
        except Exception as error:
            _fail(_undecoded(dataset, error))


@contextmanager
def _silent_pydicom() -> Iterator[None]:
    """Suppress pydicom's warnings and log, which quote values of the file; one file at a time, as filters are global."""
    log = logging.getLogger("pydicom")

    def drop(record: logging.LogRecord) -> bool:
        return False

    with _ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log.addFilter(drop)
        try:
            yield
        finally:
            log.removeFilter(drop)


def _read(pydicom: Any, file: BinaryIO) -> Any:
    """Read the tags that describe the pixels; a deflated file, which could be a bomb, is not inflated."""
    try:
        start = file.tell()
        pydicom.filereader.read_preamble(file, False)
        meta = pydicom.filereader.read_dataset(file, False, True, stop_when=lambda tag, *_: tag.group != 2)
        deflated = str(meta.get("TransferSyntaxUID", "")) == _DEFLATED
        file.seek(start)
        dataset = None if deflated else pydicom.dcmread(file, specific_tags=list(_PIXEL_TAGS))
    except Exception:
        _fail("it is a damaged DICOM file")
    if dataset is None:
        _fail("it is a DICOM file compressed as a whole (deflated), which is not read: store it uncompressed")
    return dataset


def _check(dataset: Any, most_pixels: int | None) -> None:
    """Raise unless this is one frame of a size that is decoded."""
    try:
        frames, rows, columns = (int(dataset.get(name) or 0) for name in ("NumberOfFrames", "Rows", "Columns"))
        has_pixels = any(name in dataset for name in ("PixelData", "FloatPixelData", "DoubleFloatPixelData"))
    except Exception:
        _fail("it is a damaged DICOM file")
    if not has_pixels or rows < 1 or columns < 1:
        _fail("it is a DICOM file without an image (a report, a plan or a waveform, for example)")
    if frames > 1:
        _fail(f"it has {frames:,} frames: only a single image can be explained; store the wanted frame as its own file")
    most = 2 * (Image.MAX_IMAGE_PIXELS or 1 << 31) if most_pixels is None else most_pixels
    if rows * columns > most:
        raise Image.DecompressionBombError(f"{rows * columns / 1e6:.0f} megapixels, at most {most / 1e6:.0f} are read")
    syntax = getattr(dataset.file_meta, "TransferSyntaxUID", None)
    if syntax is None or not syntax.is_transfer_syntax or syntax.is_private:
        _fail("it is a DICOM file that does not say how its pixels are stored (no known transfer syntax)")
    if syntax.is_compressed:
        _check_compressed(dataset, (columns, rows))


def _check_compressed(dataset: Any, size: tuple[int, int]) -> None:
    """Raise if the compressed picture is larger than the file says: it would be decoded as a whole."""
    try:
        frame = importlib.import_module("pydicom.encaps").get_frame(dataset.PixelData, 0, number_of_frames=1)
        if dataset.file_meta.TransferSyntaxUID == _RUN_LENGTHS:
            fits = _runs_fit(frame, 2 * size[0] * size[1] + 64)  # twice: some files are padded
        else:
            with Image.open(io.BytesIO(frame)) as image:
                fits = image.size == size
    except Exception:
        return  # not a format of Pillow's (JPEG-LS), or damaged: decoding will say so
    if not fits:
        _fail("it is a damaged DICOM file: its picture has another size than it says")


def _runs_fit(frame: bytes, most: int) -> bool:
    """Return whether no segment of run lengths (DICOM PS3.5, annex G) decodes to more bytes: two bytes become up to 128."""
    count, *offsets = struct.unpack_from("<16L", frame)
    starts = offsets[:count]
    for at, end in zip(starts, [*starts[1:], len(frame)], strict=True):
        found = 0
        while at < min(end, len(frame)):
            head = frame[at]
            found += head + 1 if head < 128 else 257 - head if head > 128 else 0
            at += head + 2 if head < 128 else 2 if head > 128 else 1
            if found > most:
                return False
    return True


def _picture(pydicom: Any, dataset: Any) -> Image.Image:
    pixels = np.asarray(pydicom.pixels.pixel_array(dataset))  # YBR colours are converted to RGB
    kind = str(dataset.PhotometricInterpretation)
    if kind == "PALETTE COLOR":
        pixels = np.asarray(pydicom.pixels.apply_color_lut(pixels, dataset))
    if pixels.ndim == 3 and pixels.shape[2] == 3:
        return Image.fromarray(_eight_bit(pixels, dataset), "RGB")
    if pixels.ndim != 2 or not kind.startswith("MONOCHROME"):
        _fail("it is a DICOM file with colours that are not read (grey, RGB, YBR and palettes are)")
    grey = _windowed(pydicom, pixels, dataset)
    shown = 1 - grey if kind == "MONOCHROME1" else grey
    return Image.fromarray((255 * shown).round().astype(np.uint8))


def _eight_bit(colours: np.ndarray, dataset: Any) -> np.ndarray:
    """Return colours of any depth in 8 bits."""
    if colours.dtype == np.uint8:
        return np.ascontiguousarray(colours)
    bits = 8 * colours.dtype.itemsize if "RedPaletteColorLookupTableDescriptor" in dataset else int(dataset.BitsStored)
    scaled: np.ndarray = (colours.astype(np.float64) * (255 / (2**bits - 1))).round().clip(0, 255).astype(np.uint8)
    return scaled


def _windowed(pydicom: Any, stored: np.ndarray, dataset: Any) -> np.ndarray:
    """Return grey values in 0 to 1, float64: rescaled, then windowed (DICOM PS3.3, C.11.2)."""
    values = np.asarray(pydicom.pixels.apply_modality_lut(stored, dataset), dtype=np.float64)
    if dataset.get("WindowCenter") not in (None, "") and dataset.get("WindowWidth") not in (None, ""):
        centre, width = (float(np.atleast_1d(dataset[name].value)[0]) for name in ("WindowCenter", "WindowWidth"))
        return _window(values, centre, width, str(dataset.get("VOILUTFunction") or "LINEAR"))
    if table := dataset.get("VOILUTSequence"):
        looked_up = np.asarray(pydicom.pixels.apply_voi(values.astype(np.int64), dataset), dtype=np.float64)
        shown: np.ndarray = (looked_up / (2 ** int(table[0].LUTDescriptor[2]) - 1)).clip(0, 1)
        return shown
    padding = dataset.get("PixelPaddingValue")
    seen = values if padding is None else values[stored != padding]
    seen = seen[np.isfinite(seen)]
    least, most = (float(seen.min()), float(seen.max())) if seen.size else (0.0, 1.0)
    return np.nan_to_num((values - least) / ((most - least) or 1.0)).clip(0, 1)


def _window(values: np.ndarray, centre: float, width: float, function: str) -> np.ndarray:
    if function == "SIGMOID":
        curve: np.ndarray = 1 / (1 + np.exp((-4 * (values - centre) / max(width, 1e-6)).clip(-700, 700)))
        return curve
    if function == "LINEAR_EXACT":
        return ((values - centre) / max(width, 1e-6) + 0.5).clip(0, 1)
    if width <= 1:
        return (values > centre - 0.5).astype(np.float64)
    return ((values - (centre - 0.5)) / (width - 1) + 0.5).clip(0, 1)


def _undecoded(dataset: Any, error: Exception) -> str:
    syntax = dataset.file_meta.TransferSyntaxUID  # a known one: its name is from the standard
    if isinstance(error, RuntimeError | NotImplementedError) and syntax.is_compressed:
        how = f"its pixels are compressed in a way that cannot be decoded here ({syntax.name})"
        return f"{how}: store it uncompressed, or install pylibjpeg"
    return "it is a damaged DICOM file: its pixels cannot be decoded"


def _fail(reason: str) -> NoReturn:
    raise UnreadableDicom(reason) from None
