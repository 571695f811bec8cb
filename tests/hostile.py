"""Damaged, hostile and unusual images, folders, archives and stored models."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import socket
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.explaining import made

FORMATS = ("jpeg", "png", "gif", "bmp", "tiff", "webp", "ppm", "tga")
DEEP = 200_000


def encoded(kind: str, image: Image.Image | None = None, **options: Any) -> bytes:
    """Return a valid image file of this format."""
    buffer = io.BytesIO()
    (image or made.picture(0, 120, 80)).save(buffer, kind, **options)
    return buffer.getvalue()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png(width: int, height: int, *chunks: bytes, depth: int = 8, colour: int = 2) -> bytes:
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + _chunk(b"IDAT", zlib.compress(b"")) + _chunk(b"IEND", b"")


def _patched(data: bytes, offset: int, new: bytes) -> bytes:
    return data[:offset] + new + data[offset + len(new) :]


def _noisy(kind: str) -> bytes:
    """Return an image file with some bytes after the header changed."""
    data = bytearray(encoded(kind))
    for place in np.random.default_rng(0).integers(len(data) // 4, len(data), 12):
        data[place] ^= 0xA5
    return bytes(data)


def _sized_jpeg(size: int) -> bytes:
    data = encoded("jpeg")
    return _patched(data, data.index(b"\xff\xc0") + 5, struct.pack(">HH", size, size))


def _tiff_header(entries: list[tuple[int, int, int, int]]) -> bytes:
    packed = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + packed + struct.pack("<I", 0)


def _exif(entries: list[tuple[int, int, int, int]], cut: int | None = None) -> bytes:
    return encoded("jpeg", exif=(b"Exif\0\0" + _tiff_header(entries))[:cut])


ORIENTATION = 0x112
UNREADABLE: dict[str, bytes] = {
    **{f"half.{kind}": encoded(kind)[: len(encoded(kind)) // 2] for kind in FORMATS if kind != "gif"},
    **{f"beginning.{kind}": encoded(kind)[:12] for kind in FORMATS},
    "empty.jpg": b"",
    "words.png": b"these are words",
    "page.jpg": b"<html><img src=x></html>",
    "drawing.png": b'<svg xmlns="http://www.w3.org/2000/svg"><rect width="9" height="9"/></svg>',
    "zeros.bmp": bytes(10_000),
    "noise.png": np.random.default_rng(1).bytes(10_000),
    "bomb.png": made.bomb(),
    "largest.png": _png(2**31 - 1, 2**31 - 1),
    "no-size.png": _png(0, 0),
    "no-height.png": _png(5, 0),
    "odd-depth.png": _png(5, 5, depth=7),
    "text-bomb.png": _png(5, 5, _chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(5 * 10**6)))),
    "profile-bomb.png": _png(5, 5, _chunk(b"iCCP", b"k\0\0" + zlib.compress(bytes(5 * 10**6)))),
    "wrong-sum.png": _patched(encoded("png"), 29, b"\0\0\0\0"),
    "huge.bmp": _patched(encoded("bmp"), 18, struct.pack("<ii", 2**31 - 1, 2**31 - 1)),
    "negative.bmp": _patched(encoded("bmp"), 18, struct.pack("<ii", -5, -5)),
    "huge.gif": _patched(encoded("gif"), 6, struct.pack("<HH", 65_535, 65_535)),
    "huge.jpg": _sized_jpeg(65_500),
    "huge.ppm": b"P6 999999999 999999999 255\n" + bytes(100),
    "words.ppm": b"P6 five six 255\n" + bytes(100),
    "huge.tiff": _tiff_header([(256, 4, 1, 10**9), (257, 4, 1, 10**9), (258, 3, 1, 8), (262, 3, 1, 1), (273, 4, 1, 8)]),
    "itself.tiff": b"II*\0" + struct.pack("<I", 4),
    "nothing.tiff": _tiff_header([]),
    "short.webp": _patched(encoded("webp"), 4, struct.pack("<I", 2**31)),
    "huge.tga": struct.pack("<BBBHHBHHHHBB", 0, 0, 2, 0, 0, 0, 0, 0, 65_535, 65_535, 24, 0),
    "archive.jpg": b"PK\x03\x04" + bytes(100),
    "program.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(pwned) (w) file pop\nshowpage\n",
    "pickle.png": b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR.",
}
"""File name -> content that is not an image; other photos of the run are explained."""

READABLE: dict[str, bytes] = {
    "zero-exif.jpg": encoded("jpeg", exif=b"Exif\0\0" + bytes(100)),
    "cut-exif.jpg": _exif([(ORIENTATION, 3, 1, 6)], cut=17),
    "turned-99.jpg": _exif([(ORIENTATION, 3, 1, 99)]),
    "turned-text.jpg": _exif([(ORIENTATION, 2, 4, 0x41414141)]),
    "turned-far.jpg": _exif([(ORIENTATION, 3, 10**6, 2**31)]),
    "turned-ratio.jpg": _exif([(ORIENTATION, 5, 1, 8)]),
    "many-exif.jpg": _exif([(ORIENTATION, 3, 1, 6)] * 2000),
    "exif.png": encoded("png", exif=b"Exif\0\0II*\0" + bytes(50)),
    "one.png": encoded("png", made.picture(0, 1, 1)),
    "line.png": encoded("png", made.picture(0, 60_000, 1)),
    "column.png": encoded("png", made.picture(0, 1, 60_000)),
    "animated.gif": encoded("gif", save_all=True, append_images=[made.picture(1, 120, 80)]),
    "pages.tiff": encoded("tiff", save_all=True, append_images=[made.picture(1, 30, 20)]),
    "ink.jpg": encoded("jpeg", made.picture(0).convert("CMYK")),
    "lab.tiff": encoded("tiff", made.picture(0).convert("LAB")),
    "deep.png": encoded("png", Image.fromarray(np.arange(4096, dtype=np.uint16).reshape(64, 64) * 16)),
    "palette.png": encoded("png", made.picture(0).convert("P"), transparency=3),
    "glass.png": encoded("png", made.picture(0).convert("LA")),
    "bits.png": encoded("png", made.picture(0).convert("1")),
    "whole.tiff": encoded("tiff", Image.fromarray(np.arange(4096, dtype=np.int32).reshape(64, 64) * 10**5)),
    "float.tiff": encoded("tiff", Image.fromarray(np.linspace(-3, 1e30, 4096, dtype=np.float32).reshape(64, 64))),
    "nan.tiff": encoded("tiff", Image.fromarray(np.full((64, 64), np.nan, dtype=np.float32))),
    "inf.tiff": encoded("tiff", Image.fromarray(np.full((64, 64), np.inf, dtype=np.float32))),
    "odd-profile.jpg": encoded("jpeg", icc_profile=b"no profile"),
}
"""File name -> content of an unusual image, which is explained."""

EITHER: dict[str, bytes] = {
    **{f"noisy.{kind}": _noisy(kind) for kind in FORMATS},
    "half.gif": encoded("gif")[: len(encoded("gif")) // 2],
    "many-pages.tiff": encoded("tiff")[:4] + struct.pack("<I", 2**31 - 1) + encoded("tiff")[8:],
}
"""File name -> content that Pillow may or may not decode."""


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # addresses are short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


def _to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def _forbidden(path: Path) -> None:
    made.picture(0).save(path)
    path.chmod(0)


NO_FILES: dict[str, Callable[[Path], None]] = {
    "fifo.jpg": _fifo,
    "socket.jpg": _socket,
    "endless.png": _to("/dev/zero"),
    "null.png": _to("/dev/null"),
    "loop.png": lambda path: path.symlink_to(path.name),
    "dangling.png": _to("nowhere.png"),
    "folder.jpg": lambda path: path.mkdir(),
    "to-fifo.png": lambda path: (_fifo(path.with_name("fifo")), path.symlink_to("fifo"))[0],
    "forbidden.png": _forbidden,
}
"""File name -> function that creates something there that is not a readable regular file."""

NAMES = [
    os.fsdecode(b"caf\xe9.png"),
    "line\nbreak.png",
    "\x1b[31mred\x1b[0m.png",
    "[bold]markup[blink].png",
    "[red](x)[link=evil].png",
    "&lt;b&gt;<img src=x onerror=alert(1)>.png",
    "-".join("0123456789" * 24)[:200] + ".png",
    "‮gnp.exe.png",
    "%s%n{0}.png",
    " .png",
]
"""Names of valid photos."""


def nested(opening: str, closing: str = "") -> str:
    """Return deeply nested brackets."""
    return opening * DEEP + closing * DEEP


def changed(bundle: Path, path: str, value: Any) -> None:
    """Set a key of a stored explainer's configuration (``a.b.c``); ``...`` removes it."""
    file = bundle / "config.json"
    config = json.loads(file.read_text())
    *outer, last = path.split(".")
    entry = config
    for key in outer:
        entry = entry[key]
    if value is ...:
        del entry[last]
    else:
        entry[last] = value
    file.write_text(json.dumps(config))


def reweighted(bundle: Path, file: str, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Change tensors of a stored explainer, and their hash with them."""
    tensors = load_file(bundle / file)
    change(tensors)
    save_file(tensors, bundle / file)
    rehashed(bundle, file)


def rehashed(bundle: Path, file: str) -> None:
    """Update the hash of a file."""
    config = json.loads((bundle / "config.json").read_text())
    config["sha256"][file] = hashlib.sha256((bundle / file).read_bytes()).hexdigest()
    (bundle / "config.json").write_text(json.dumps(config))


def replaced(bundle: Path, file: str, content: bytes | Callable[[Path], None]) -> None:
    """Replace a file, and its hash where it has one."""
    (bundle / file).unlink()
    if callable(content):
        content(bundle / file)
        return
    (bundle / file).write_bytes(content)
    if file != "config.json":
        rehashed(bundle, file)


def fill(tensors: dict[str, torch.Tensor], number: float) -> None:
    """Set all weights to a number."""
    for tensor in tensors.values():
        tensor.fill_(number)


def tree(root: Path, classes: dict[str, int]) -> Path:
    """Make class folders of small, different images."""
    for name, count in classes.items():
        (root / name).mkdir(parents=True)
        for i in range(count):
            made.picture(hash((name, i)) % 2**32, 10, 10).save(root / name / f"{i:03}.png")
    return root


def zipped(path: Path, *members: tuple[str, bytes]) -> Path:
    """Make a zip archive with members of any name."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


def tarred(path: Path, *members: tuple[str, bytes, str]) -> Path:
    """Make a tar archive with members of any name and type: name, type, target of a link."""
    with tarfile.open(path, "w:gz") as archive:
        for name, kind, target in members:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, target
            archive.addfile(entry)
    return path


def zip_bomb(path: Path) -> Path:
    """Make a small archive that unpacks to a gigabyte."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for label in "ab":
            for i in range(4):
                with archive.open(f"{label}/{i}.png", "w", force_zip64=True) as member:
                    for _ in range(16):
                        member.write(bytes(2**23))
    return path


def copy(bundle: Path, folder: Path) -> Path:
    """Copy a bundle in order to damage it."""
    return Path(shutil.copytree(bundle, folder / "bundle"))
