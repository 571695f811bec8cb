"""Explain photos with the ONNX graphs of this folder: values of patches and predictions, without torch.

    python explain.py PHOTO [PHOTO ...] [--top CLASSES] [--json]

It needs numpy, onnxruntime and pillow. The functions can be imported too.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

HERE = Path(__file__).resolve().parent
HALF_WIDTH = 1.959964
"""Standard errors on each side of a 95 % interval."""
UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
"""What Pillow raises for files that are not images, damaged or too large."""
DESCRIPTION = json.loads((HERE / "description.json").read_text(encoding="utf-8"))


def prepare(photo: Image.Image) -> np.ndarray:
    """Return a PIL image as the model takes it, float32 [C, H, W]: upright, resized, cropped, normalised."""
    given = DESCRIPTION["preprocess"]
    if given is None:
        raise SystemExit("error: this model does not say how it wants photos; call explainer.onnx with its own pixels")
    channels, (height, width), resize = len(given["mean"]), given["size"], given["resize"]
    photo = ImageOps.exif_transpose(photo)
    if photo.mode.startswith("I") or photo.mode == "F":
        photo = scaled(photo)
    elif "transparency" in photo.info or photo.mode in ("RGBA", "LA", "PA", "La", "RGBa"):
        photo = photo.convert("RGBA")
        photo = Image.alpha_composite(Image.new("RGBA", photo.size, (255, 255, 255, 255)), photo)
    photo = photo.convert("L" if channels == 1 else "RGB")
    if given["squash"]:
        down, across = resize
    elif resize[0] * photo.width <= resize[1] * photo.height:
        down, across = int(resize[1] * photo.height / photo.width), resize[1]
    else:
        down, across = resize[0], int(resize[0] * photo.width / photo.height)
    photo = photo.resize((across, down), Image.Resampling[given["interpolation"].upper()])
    top, left = round((down - height) / 2), round((across - width) / 2)
    crop = np.array(photo.crop((left, top, left + width, top + height)), dtype=np.float32)
    pixels = crop.reshape(height, width, channels).transpose(2, 0, 1) / np.float32(255)
    mean, std = (np.array(given[key], dtype=np.float32).reshape(-1, 1, 1) for key in ("mean", "std"))
    return (pixels - mean) / std


def scaled(photo: Image.Image) -> Image.Image:
    """Return a grey image of more than 8 bits in 8 bits: 16-bit ones by 1/257, floats in 0..1 by 255, as vitshap does."""
    values = np.asarray(photo, dtype=np.float64)
    full = 65535.0
    if not photo.mode.startswith("I;16"):  # 32-bit integers or floats: the file does not define the value of white
        scales = (1.0, 255.0, 65535.0) if photo.mode == "F" else (255.0, 65535.0)
        greatest = float(np.nanmax(values, initial=0.0))
        full = next((scale for scale in scales if greatest <= scale), greatest)
    return Image.fromarray((np.nan_to_num(values / full, nan=0.0).clip(0, 1) * 255).round().astype(np.uint8))


def open_graph(name: str) -> onnxruntime.InferenceSession:
    """Open "explainer" or "game"."""
    return onnxruntime.InferenceSession(HERE / f"{name}.onnx", providers=onnxruntime.get_available_providers())


def explain(session: onnxruntime.InferenceSession, pixels: np.ndarray) -> list[np.ndarray]:
    """Return values [B, players, classes], predictions [B, classes] and base [B, classes] of pixels [B, C, H, W]."""
    return list(session.run(["values", "predictions", "base"], {"pixels": pixels}))


def standard_errors(values: np.ndarray, predictions: np.ndarray) -> np.ndarray | None:
    """Return how far values [B, players, classes] may be from the exact ones, from the errors on held-out images.

    None if the explainer was not calibrated. A 95 % interval is value - 1.96 errors to value + 1.96 errors.
    """
    given = DESCRIPTION["calibration"]
    if given is None:
        return None
    values, p = values.astype(np.float64), predictions.astype(np.float64)[:, None]
    constant, size, uncertainty, doubt, own = given["coefficients"]
    squares = (values - values.mean(1, keepdims=True)) ** 2
    mean = np.maximum(squares.mean(1, keepdims=True), 1e-16)
    log_variance = constant + size * np.log(mean) + own * np.log(squares / mean + 0.05)
    log_variance += np.array(given["players"])[:, None] + np.array(given["classes"])
    if DESCRIPTION["unit"] == "probability":
        inside = np.clip(p, 1e-4, 1 - 1e-4)
        log_variance += uncertainty * np.log(inside * (1 - inside))
        log_variance += doubt * np.log(np.maximum(1 - p.max(2, keepdims=True), 1e-4))
    return np.asarray(given["factor"] * np.exp(log_variance / 2))


def play(session: onnxruntime.InferenceSession, pixels: np.ndarray, coalitions: np.ndarray) -> np.ndarray:
    """Return predictions [B, S, classes] of coalitions, bool [B, S, players]; False: the player's patches are hidden."""
    (predictions,) = session.run(["predictions"], {"pixels": pixels, "coalitions": coalitions})
    return np.asarray(predictions)


def numbers(values: np.ndarray, stderr: np.ndarray | None) -> dict[str, list[Any]]:
    """Return the values of a class for JSON; with standard errors also these and 95 % intervals, lower and upper ends."""
    if stderr is None:
        return {"values": values.tolist()}
    ends = [(values + side * HALF_WIDTH * stderr).tolist() for side in (-1, 1)]
    return {"values": values.tolist(), "stderr": stderr.tolist(), "interval": ends}


def main() -> int:
    """Print predictions, and the values of the most probable classes; return 1 if a photo could not be read."""
    parser = argparse.ArgumentParser(description="Explain photos with the ONNX graphs of this folder.")
    parser.add_argument("photos", nargs="+", metavar="PHOTO")
    parser.add_argument("--top", type=int, default=1, help="classes to explain (default: 1)")
    parser.add_argument("--json", action="store_true", help="a line of JSON per photo, with all values")
    options = parser.parse_args()
    session, names, code = open_graph("explainer"), DESCRIPTION["class_names"], 0
    for path in options.photos:
        try:
            with Image.open(path) as photo:
                pixels = prepare(photo)
        except UNREADABLE as error:
            print(f"error: {path} cannot be read: {error}", file=sys.stderr)
            code = 1
            continue
        found = explain(session, pixels[None])
        values, predictions, base = (rows[0] for rows in found)
        errors = standard_errors(found[0], found[1])
        best = [int(index) for index in np.argsort(-predictions)[: options.top]]
        if options.json:
            classes = [{"class": names[i], "base": float(base[i])} for i in best]
            for one, i in zip(classes, best, strict=True):
                one.update(numbers(values[:, i], None if errors is None else errors[0, :, i]))
            about = {"photo": path, "predictions": predictions.tolist(), "stderr_from": DESCRIPTION["stderr_from"]}
            print(json.dumps({**about, "classes": classes}))
            continue
        for index in best:
            print(f"{path}: {names[index]} {predictions[index]:.4f} (without any patch {base[index]:.4f})")
            labels = np.array(DESCRIPTION["players"])
            map_ = np.where(labels < 0, 0.0, values[labels, index]).reshape(DESCRIPTION["grid"])
            print("\n".join(" ".join(f"{value:+.4f}" for value in row) for row in map_))
            if errors is not None:
                print(f"standard error up to {errors[0, :, index].max():.4f}, {DESCRIPTION['stderr_from']}")
    return code


if __name__ == "__main__":
    sys.exit(main())
