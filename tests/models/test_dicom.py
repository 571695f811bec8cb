"""DICOM files, those that pydicom's own package contains: pixels as a viewer shows them, and no patient anywhere."""

from __future__ import annotations

import io
import json
import logging
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.data import get_testdata_file
from pydicom.pixels import apply_modality_lut, apply_windowing
from typer.testing import CliRunner

import vitshap
from tests.explaining import made
from vitshap.cli import app
from vitshap.data import UnreadableImage, load_data, read_image
from vitshap.explaining import find_photos, read_photo
from vitshap.models.dicom import UnreadableDicom, is_dicom, read_dicom

PATIENT = "Secret^Person"
SECRETS = ("secret", "person", "mrn-4711", "19700131", "hospital of")


def _file(name: str) -> Path:
    found = get_testdata_file(name, download=False)
    assert found is not None, f"pydicom does not contain {name}"
    return Path(str(found))


def _written(path: Path, name: str = "CT_small.dcm", **changes: Any) -> Path:
    """Write a sample with patient tags, and with tags changed."""
    dataset = pydicom.dcmread(_file(name))
    identity = {
        "PatientName": PATIENT,
        "PatientID": "MRN-4711",
        "PatientBirthDate": "19700131",
        "InstitutionName": "Hospital of Secret",
        "PatientComments": "Secret" * 50,
    }
    for key, value in {**identity, **changes}.items():
        if value is None:
            del dataset[key]
        else:
            setattr(dataset, key, value)
    dataset.save_as(path)
    return path


READ = {
    "CT_small.dcm": ("L", (128, 128)),
    "MR_small.dcm": ("L", (64, 64)),
    "MR_small_RLE.dcm": ("L", (64, 64)),
    "MR_small_bigendian.dcm": ("L", (64, 64)),
    "MR_small_jp2klossless.dcm": ("L", (64, 64)),
    "examples_palette.dcm": ("RGB", (800, 350)),
    "examples_rgb_color.dcm": ("RGB", (320, 240)),
    "SC_rgb_rle_16bit.dcm": ("RGB", (100, 100)),
    "SC_ybr_full_422_uncompressed.dcm": ("RGB", (100, 100)),
    "SC_rgb_jpeg_dcmtk.dcm": ("RGB", (100, 100)),
    "examples_overlay.dcm": ("L", (484, 300)),
}
REFUSED = {
    "examples_ybr_color.dcm": "it has 30 frames: only a single image",
    "rtdose.dcm": "it has 15 frames",
    "reportsi.dcm": "without an image",
    "waveform_ecg.dcm": "without an image",
    "MR_truncated.dcm": "damaged",
    "MR_small_jpeg_ls_lossless.dcm": "compressed in a way that cannot be decoded here .JPEG-LS",
    "image_dfl.dcm": "deflated",
}


@pytest.mark.parametrize("name", READ)
def test_samples_are_read(name: str) -> None:
    picture = read_dicom(_file(name))
    assert (picture.mode, picture.size) == READ[name]
    assert len(np.unique(np.asarray(picture))) >= 5


@pytest.mark.parametrize("name", REFUSED)
def test_samples_that_have_no_picture_are_refused_with_a_reason(name: str) -> None:
    with pytest.raises(UnreadableDicom, match=REFUSED[name]) as error:
        read_dicom(_file(name))
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__
    with pytest.raises(UnreadableImage, match=REFUSED[name]):
        read_photo(_file(name))


def test_equal_pictures_in_different_encodings() -> None:
    plain = np.asarray(read_dicom(_file("MR_small.dcm")))
    for name in ("MR_small_RLE.dcm", "MR_small_bigendian.dcm", "MR_small_implicit.dcm", "MR_small_jp2klossless.dcm"):
        np.testing.assert_array_equal(np.asarray(read_dicom(_file(name))), plain)


@pytest.mark.parametrize("function", [None, "LINEAR", "LINEAR_EXACT", "SIGMOID"])
@pytest.mark.parametrize("window", [(40, 400), (-600, 1500), (50, 80.5)])
def test_rescale_and_window_are_those_of_pydicom(tmp_path: Path, window: tuple[float, float], function: str) -> None:
    changes = {"WindowCenter": window[0], "WindowWidth": window[1]}
    path = _written(tmp_path / "ct.dcm", **changes, **({} if function is None else {"VOILUTFunction": function}))
    dataset = pydicom.dcmread(path)
    values = apply_modality_lut(dataset.pixel_array, dataset)
    assert not np.array_equal(values, dataset.pixel_array)  # the sample is rescaled
    expected = apply_windowing(values, dataset)  # to the range of the stored values, rescaled
    least = dataset.RescaleIntercept + dataset.RescaleSlope * (-(2 ** (dataset.BitsStored - 1)))
    span = dataset.RescaleSlope * (2**dataset.BitsStored - 1)
    found = np.asarray(read_dicom(path)).astype(float)
    np.testing.assert_allclose(found, 255 * (expected - least) / span, atol=0.51)


def test_the_first_of_several_windows_is_used(tmp_path: Path) -> None:
    one = read_dicom(_written(tmp_path / "1.dcm", WindowCenter=40, WindowWidth=400))
    several = read_dicom(_written(tmp_path / "2.dcm", WindowCenter=[40, 300], WindowWidth=[400, 1500]))
    assert one.tobytes() == several.tobytes()


def test_without_a_window_the_range_of_the_image_is_used(tmp_path: Path) -> None:
    dataset = pydicom.dcmread(_file("CT_small.dcm"))
    for key in ("WindowCenter", "WindowWidth", "PixelPaddingValue"):
        if key in dataset:
            del dataset[key]
    dataset.save_as(tmp_path / "ct.dcm")
    values = dataset.pixel_array.astype(float)
    expected = 255 * (values - values.min()) / np.ptp(values)
    np.testing.assert_allclose(np.asarray(read_dicom(tmp_path / "ct.dcm")), expected, atol=0.51)


def test_monochrome1_is_inverted(tmp_path: Path) -> None:
    bright = np.asarray(read_dicom(_written(tmp_path / "a.dcm")))
    dark = np.asarray(read_dicom(_written(tmp_path / "b.dcm", PhotometricInterpretation="MONOCHROME1")))
    np.testing.assert_allclose(dark, 255.0 - bright, atol=1)


def test_a_large_picture_inside_a_small_one_is_not_decoded(tmp_path: Path) -> None:
    """The JPEG within the file is larger than the file says: it could be a bomb."""
    from pydicom.encaps import encapsulate

    buffer = io.BytesIO()
    Image.new("RGB", (4000, 4000)).save(buffer, "JPEG")
    path = _written(tmp_path / "x.dcm", "SC_rgb_jpeg_dcmtk.dcm", PixelData=encapsulate([buffer.getvalue()]))
    with pytest.raises(UnreadableDicom, match="another size than it says"):
        read_dicom(path)
    with pytest.raises(Image.DecompressionBombError):
        read_dicom(_file("CT_small.dcm"), most_pixels=128 * 128 - 1)


def test_run_lengths_of_more_bytes_than_the_picture_has_are_not_decoded(tmp_path: Path) -> None:
    dataset = pydicom.dcmread(_file("MR_small_RLE.dcm"))
    high = b"\x81\x00" * 10_000  # 128 zeros each
    low = b"\x81\x00" * 32  # 64 x 64
    offsets = struct.pack("<16L", 2, 64, 64 + len(high), *[0] * 13)
    dataset.PixelData = pydicom.encaps.encapsulate([offsets + high + low])
    dataset.save_as(tmp_path / "bomb.dcm")
    with pytest.raises(UnreadableDicom, match="another size than it says"):
        read_dicom(tmp_path / "bomb.dcm")
    offsets = struct.pack("<16L", 2, 64, 64 + len(low), *[0] * 13)
    dataset.PixelData = pydicom.encaps.encapsulate([offsets + low + low + b"\0\0"])
    dataset.save_as(tmp_path / "padded.dcm")
    assert read_dicom(tmp_path / "padded.dcm").size == (64, 64)


def test_only_files_with_the_magic_word_are_dicom(tmp_path: Path) -> None:
    made.picture(0).save(tmp_path / "photo.png")
    (tmp_path / "empty.dcm").touch()
    assert is_dicom(_file("CT_small.dcm"))
    for path in (tmp_path / "photo.png", tmp_path / "empty.dcm", tmp_path, tmp_path / "gone.dcm"):
        assert not is_dicom(path)
    stream = io.BytesIO(b"x" * 128 + b"DICM" + b"y" * 10)
    assert is_dicom(stream)
    assert stream.tell() == 0


def test_radiographs_are_taken_wherever_photos_are(tmp_path: Path) -> None:
    (tmp_path / "scans").mkdir()
    path = _written(tmp_path / "scans" / "scan.dcm")
    assert find_photos([str(tmp_path)]).photos == [path]
    expected = np.asarray(read_dicom(path))
    assert np.array_equal(np.asarray(read_image(path, channels=1)), expected)
    model = made.model()
    prepared = model.prepare(path)
    assert prepared.pixels.equal(model.prepare(read_dicom(path)).pixels)
    explanation = vitshap.explain(made.explainer(), path, quiet=True)
    assert explanation.values.equal(made.explainer()(path, target="top-5").values)
    for label in ("ill", "well"):
        (tmp_path / "data" / label).mkdir(parents=True)
        for number in range(12):
            _written(tmp_path / "data" / label / f"{number}.dcm", RescaleIntercept=number + 20 * (label == "ill"))
    data = load_data(tmp_path / "data")
    assert len(data.train) > 0


def _said(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text.lower()]


def test_no_patient_tag_reaches_a_report_json_log_or_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    scans = tmp_path / "scans"
    scans.mkdir()
    _written(scans / "good.dcm")
    _written(scans / "frames.dcm", NumberOfFrames=3)
    _written(scans / "odd-rows.dcm", Rows=None)
    _written(scans / "odd-kind.dcm", PhotometricInterpretation=PATIENT[:16].upper())
    data = (scans / "good.dcm").read_bytes()
    (scans / "cut.dcm").write_bytes(data[:-9000])
    (scans / "cut-early.dcm").write_bytes(data[: data.index(b"MRN-4711") + 3])
    (scans / "bad-length.dcm").write_bytes(data.replace(b"PN" + struct.pack("<H", 14), b"PN\xff\xff", 1))
    (scans / "bad-kind.dcm").write_bytes(data.replace(b"\x10\x00\x20\x00LO", b"\x10\x00\x20\x00??", 1))
    for tag in (b"\x28\x00\x52\x10DS", b"\x28\x00\x10\x00US"):  # a patient's name where numbers are expected
        place = data.index(tag) + 8
        (scans / f"text-{place}.dcm").write_bytes(data[:place] + b"SE" + data[place + 2 :])
    bundle = made.bundle(tmp_path / "bundle")
    caplog.clear()  # writing them was logged
    recwarn.clear()
    caplog.set_level(logging.DEBUG)
    options = ["--bundle", str(bundle), "--out", str(tmp_path / "out"), "--json", str(tmp_path / "out.jsonl")]
    result = CliRunner().invoke(app, ["explain", str(scans), "--top", "1", *options])
    assert result.exit_code == 1, result.output
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert {Path(line["file"]).name: "error" in line for line in lines}["good.dcm"] is False
    assert sum("error" in line for line in lines) >= 6
    shown = [result.output, caplog.text, *(str(one.message) for one in recwarn)]
    written = [path.read_text(errors="replace") for path in (tmp_path / "out").rglob("*.*")]
    assert [_said(text) for text in (*shown, *written, (tmp_path / "out.jsonl").read_text())] == [[]] * (
        len(shown) + len(written) + 1
    )
    for path in scans.iterdir():
        assert not _said(" ".join(_error(read, path) for read in (read_photo, read_image, read_dicom)))


def _error(read: Any, path: Path) -> str:
    """Return the text of the error, and of those behind it."""
    try:
        read(path)
    except Exception as error:
        return f"{error!r} {error.__cause__!r}"
    return ""


def test_without_pydicom_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    path = _file("CT_small.dcm")
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(UnreadableImage, match=r"pip install \"vitshap\[dicom\]\""):
        read_photo(path)
