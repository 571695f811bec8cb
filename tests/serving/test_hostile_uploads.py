"""Uploads that are meant to do harm: each is answered with 4xx and a reason, the server lives, its memory is bounded."""

from __future__ import annotations

import io
import struct
import tarfile
import threading
import zipfile
import zlib
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from tests import hostile
from tests.serving.running import photo, server
from vitshap.serving.uploads import FORMATS, form_fields

MEMORY = 400 << 20
"""Bytes by which the process may grow while hostile photos are decoded."""


def _black(kind: str, side: int, mode: str = "1") -> bytes:
    """A picture of one colour: many pixels in few bytes."""
    buffer = io.BytesIO()
    Image.new(mode, (side, side)).save(buffer, kind, **({"compression": "group4"} if kind == "TIFF" else {}))
    return buffer.getvalue()


def _archive(kind: str) -> bytes:
    buffer = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("photo.png", bytes(10**6))
    else:
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.addfile(tarfile.TarInfo("../../photo.png"))
    return buffer.getvalue()


def _deep_exif() -> bytes:
    """A JPEG whose EXIF data refer to themselves, cut within the picture."""
    loop = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 1) + struct.pack("<HHII", 0x8769, 4, 1, 8) + struct.pack("<I", 8)
    data = hostile.encoded("jpeg", exif=loop * 900)
    return data[: len(data) - 700]


def _dicom(**changes: object) -> bytes:
    """A radiograph with some tags changed."""
    import pydicom
    from pydicom.data import get_testdata_file

    dataset = pydicom.dcmread(get_testdata_file("CT_small.dcm"))
    for name, value in changes.items():
        setattr(dataset, name, value)
    buffer = io.BytesIO()
    dataset.save_as(buffer)
    return buffer.getvalue()


def _deflated_dicom() -> bytes:
    """A DICOM file that inflates to 500 MB."""
    head = _dicom()
    meta = head[: 144 + struct.unpack("<I", head[140:144])[0]].replace(
        b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.1.99"
    )
    squeezer = zlib.compressobj(1, zlib.DEFLATED, -15)
    return meta + b"".join(squeezer.compress(bytes(10**7)) for _ in range(50)) + squeezer.flush()


OTHER_KINDS = {
    "drawing.svg": b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"><image href="file:///etc/passwd"/></svg>',
    "entities.svg": b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]><svg>&b;</svg>',
    "page.html": b"<!doctype html><script>fetch('http://example.org')</script>",
    "document.pdf": b"%PDF-1.7\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>",
    "script.eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nsystemdict /quit get exec\n",
    "archive.zip": _archive("zip"),
    "archive.tar": _archive("tar"),
    "program.exe": b"MZ" + bytes(500),
    "program.elf": b"\x7fELF" + bytes(500),
    "weights.pickle": b"\x80\x04\x95\x1e\0\0\0\0\0\0\0\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    "weights.npy": b"\x93NUMPY\x01\0v\0{'descr': '|O', 'fortran_order': False, 'shape': (1,)}\n",
    "photo.ppm": hostile.encoded("ppm"),
    "photo.tga": hostile.encoded("tga"),
    "photo.ico": hostile.encoded("ico"),
    "photo.jp2": hostile.encoded("jpeg2000"),
    "photo.pcx": hostile.encoded("pcx"),
    "path.txt": b"/etc/passwd",
    "address.txt": b"http://127.0.0.1:8000/v1/models",
    "html-before.png": b"<html>" + hostile.encoded("png"),
}
LARGE = {
    "100-megapixels.png": _black("PNG", 10_000),
    "100-megapixels.tiff": _black("TIFF", 10_000),
    "100-megapixels.webp": b"RIFF"
    + struct.pack("<I", 30)
    + b"WEBPVP8X"
    + struct.pack("<IB3x", 10, 0)
    + (16_383).to_bytes(3, "little") * 2,
    "100-megapixels.jpg": hostile._sized_jpeg(10_000),
    "100-megapixels.gif": hostile._patched(hostile.encoded("gif"), 6, struct.pack("<HH", 10_000, 10_000)),
    "100-megapixels.bmp": hostile._patched(hostile.encoded("bmp"), 18, struct.pack("<ii", 10_000, 10_000)),
    "large.dcm": _dicom(Rows=60_000, Columns=60_000),
}
DAMAGED = {
    "deep-exif.jpg": _deep_exif(),
    "frames.dcm": _dicom(NumberOfFrames=1000),
    "short.dcm": _dicom()[:-5000],
    "deflated.dcm": _deflated_dicom(),
    "no-tags.dcm": bytes(128) + b"DICM" + bytes(200),
    "half.webp": hostile.encoded("webp")[:100],
}
HOSTILE = {**hostile.UNREADABLE, **OTHER_KINDS, **LARGE, **DAMAGED}


class Growth:
    """Watches the memory of this process."""

    def __init__(self) -> None:
        self.start = self.most = self._now()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Growth:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def bytes(self) -> int:
        return self.most - self.start

    @staticmethod
    def _now() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    def _watch(self) -> None:
        while not self._ended.wait(0.002):
            self.most = max(self.most, self._now())


def test_hostile_uploads(bundle: Path, tmp_path: Path) -> None:
    assert len(HOSTILE) >= 60
    before = set(Path("/tmp").iterdir()) if Path("/tmp").is_dir() else set()
    found: dict[str, tuple[int, str]] = {}
    with server(bundle) as (client, _), Growth() as growth:
        for name, content in HOSTILE.items():
            response = client.post("/v1/explanations", files={"image": (name, content, "image/png")})
            error = response.json()["error"]
            found[name] = (response.status_code, error["code"])
            assert 400 <= response.status_code < 500, (name, response.text)
            assert 20 < len(error["message"]) < 300, (name, error)
            for secret in ("/tmp", "site-packages", "0x", "object at", name):
                assert secret not in error["message"], (name, error)
        assert client.post("/v1/explanations", files={"image": photo()}).status_code == 200
        assert client.get("/readyz").status_code == 200
    for name in OTHER_KINDS:
        assert found[name] == (415, "unsupported_image"), name
    for name in LARGE:
        assert found[name] == (413, "too_many_pixels"), name
    for name in DAMAGED:
        assert found[name][0] == 422, name
    assert growth.bytes < MEMORY, f"{growth.bytes >> 20} MiB"
    assert not [path for path in set(Path("/tmp").iterdir()) - before if path.is_file()]


def test_unusual_and_damaged_photos_never_harm(client: httpx.Client) -> None:
    for name, content in (hostile.READABLE | hostile.EITHER).items():
        response = client.post("/v1/explanations", files={"image": (name, content)})
        assert response.status_code in ({200} if name in hostile.READABLE else {200, 415, 422}), (name, response.text)


def test_a_photo_that_is_something_else_too_is_a_photo(client: httpx.Client) -> None:
    polyglots = [
        hostile.encoded("jpeg") + _archive("zip"),
        hostile.encoded("png") + b"<script>alert(1)</script>",
        b"GIF89a" + hostile.encoded("gif")[6:] + b"*/=1;alert(1)//",
        hostile.encoded("jpeg") + b"%PDF-1.7",
    ]
    for content in polyglots:
        response = client.post("/v1/explanations", files={"image": ("photo.html", content, "text/html")})
        assert response.status_code == 200
        assert response.headers["content-type"] == "application/json"
        assert "alert" not in response.text


def test_file_names_of_forms_are_ignored(client: httpx.Client) -> None:
    for name in ("../../etc/passwd", "/etc/passwd", "a\0b.png", "x" * 5000, "file:///etc/passwd"):
        response = client.post("/v1/explanations", files={"image": (name, photo())})
        assert response.status_code in (200, 400), name
        assert "passwd" not in response.text


def test_the_largest_allowed_photo_is_explained_with_bounded_memory(bundle: Path) -> None:
    large = _black("PNG", 6300, "L")  # 39.7 megapixels
    with server(bundle) as (client, _), Growth() as growth:
        assert client.post("/v1/explanations", files={"image": large}).status_code == 200
    assert growth.bytes < MEMORY, f"{growth.bytes >> 20} MiB"


@pytest.mark.parametrize("kind", [*FORMATS])
def test_every_accepted_format_is_read(client: httpx.Client, kind: str) -> None:
    assert client.post("/v1/explanations", content=hostile.encoded(kind)).status_code == 200


def test_a_radiograph_is_explained(client: httpx.Client) -> None:
    response = client.post("/v1/explanations", files={"image": ("DOE^JANE.dcm", _dicom(PatientName="Doe^Jane"))})
    assert response.json()["image_size"] == [128, 128]
    assert "jane" not in response.text.lower()
    broken = client.post("/v1/explanations", content=_dicom(PatientName="Doe^Jane", NumberOfFrames=7))
    assert "7 frames" in broken.json()["error"]["message"]
    assert "jane" not in broken.text.lower()


def test_forms_are_read_as_they_are_written() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        fields = {
            f"f{i}": generator.bytes(int(generator.integers(0, 3000))) for i in range(int(generator.integers(1, 6)))
        }
        request = httpx.Request("POST", "http://x", files=fields)
        assert form_fields(request.read(), request.headers["content-type"]) == fields
