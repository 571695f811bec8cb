"""A folder in which something was begun: it is not written over, nor continued with other settings or other images."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from torch import Tensor

from vitshap import files
from vitshap.data import ImageData, Splits
from vitshap.files import LOCK
from vitshap.training.recipes import Recipe
from vitshap.training.settings import differing_keys, from_plain, read_yaml, to_plain, to_yaml

RECIPE, IMAGES, DONE = "recipe.yaml", "images.json", "done.json"
STAGES = ("classifier", "surrogate", "explainer")
CHOSEN = ("epochs", "batch_size", "learning_rate", "coalitions", "views", "compiled")
"""Keys whose "auto" becomes a number, or true or false, when a training starts."""


def check_folder(recipe: Recipe, out: Path, *, resume: bool) -> Recipe:
    """Refuse to write over something, or to continue with other settings than those it was begun with.

    Returns the recipe with what was chosen for "auto" when it was begun.
    """
    if out.is_file():
        raise ValueError(f"{out} is a file: name a folder")
    if not out.exists() or not any(path.name != LOCK for path in out.iterdir()):
        return recipe
    begun = out / RECIPE
    if not resume:
        hint = "continue it with --resume, or " if begun.is_file() else ""
        raise ValueError(f"the folder {out} is not empty: {hint}choose another with --out")
    if not begun.is_file():
        raise ValueError(f"{out} holds no training that could be continued: it has no {RECIPE}")
    before = read_yaml(begun.read_text(encoding="utf-8"), str(begun))
    recipe = from_plain(recipe, _with_chosen(to_plain(recipe), before))
    differing = differing_keys(before, to_plain(recipe))
    begun_stages = [name for name in STAGES if (out / name / "checkpoints").exists() or (out / name / DONE).is_file()]
    free = tuple(f"{name}{sign}" for name in STAGES if name not in begun_stages for sign in ".:")  # may change
    if differing := [line for line in differing if not line.startswith(free)]:
        raise ValueError(
            f"{out} was begun with another recipe and cannot be continued with this one; {begun.name} / now: "
            f"{'; '.join(differing)}"
        )
    return recipe


def _with_chosen(now: Any, before: Any) -> Any:
    """``now`` with the values of ``before`` in place of "auto"."""
    if not isinstance(now, dict) or not isinstance(before, dict):
        return now
    return {
        key: before[key]
        if key in CHOSEN and value == "auto" and key in before
        else _with_chosen(value, before.get(key))
        for key, value in now.items()
    }


def check_images(splits: Splits, out: Path) -> None:
    """Refuse to continue with other images than those it was begun with."""
    try:
        before = files.read_json(out / IMAGES)
    except FileNotFoundError:
        return  # nothing was begun
    for name, now in _described(splits).items():
        then = before.get(name) if isinstance(before, dict) else None
        if then == now:
            continue
        if not isinstance(then, dict):
            raise ValueError(f"{out / IMAGES} is damaged: it does not say which images were used")
        counts = then.get("images"), now["images"]
        how = "as many, but not the same" if counts[0] == counts[1] else f"{counts[0]} then, {counts[1]} now"
        raise ValueError(f"{out} was begun with other images ({name}: {how}): choose another folder with --out")


def note(recipe: Recipe, splits: Splits, out: Path) -> None:
    """Write down what is begun here."""
    files.write_text(out / RECIPE, to_yaml(to_plain(recipe)))
    files.write_text(out / IMAGES, json.dumps(_described(splits), indent=2) + "\n")


def _described(splits: Splits) -> dict[str, dict[str, Any]]:
    return {
        name: {"images": len(part), "sha256": _hash(part)} for name, part in zip(Splits._fields, splits, strict=True)
    }


def _hash(data: ImageData) -> str:
    """Of what the images are called, or of their pixels, and of their classes."""
    digest = hashlib.sha256(json.dumps(data.class_names).encode())
    digest.update(data.labels.numpy().tobytes())
    if isinstance(data.images, Tensor):
        digest.update(data.images.contiguous().numpy().tobytes())
    else:
        digest.update("\0".join(f"{path.parent.name}/{path.name}" for path in data.images).encode())
    return digest.hexdigest()
