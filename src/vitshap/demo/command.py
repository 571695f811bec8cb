"""The demo from beginning to end, with progress all the way.

What it makes lies in folders of its own, which a later run replaces; a folder of anybody else's is never touched.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from vitshap.data import ImageData, load_data
from vitshap.demo import compare, page, photos, pictures
from vitshap.training.loop import TrainingDiverged
from vitshap.training.recipes import Recipe, load_recipe, summary
from vitshap.training.recipes.run import BUNDLE, SUMMARY
from vitshap.training.recipes.run import run as train

RECIPE = "digits"
IMAGES = 8
MARK, TRAINING, DIGITS, PHOTOS, NUMBERS, REPORT = (
    "vitshap-demo",
    "training",
    "digits",
    "photos",
    "numbers.json",
    "report.html",
)


def main(out: Path, console: Console) -> int:
    """Run it as a command; returns the exit code: 2, after one line, where the user can do something about it."""
    try:
        run(out, console)
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except TrainingDiverged as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the next run starts anew", file=sys.stderr)
        return 130
    return 0


def run(
    out: Path,
    console: Console,
    *,
    recipe: Recipe | None = None,
    images: int = IMAGES,
    budgets: Sequence[int] = compare.BUDGETS,
    estimate: bool = True,
) -> compare.Comparison:
    """Train, compare, explain, draw; everything goes to the folder ``out``.

    ``recipe``: the shipped ``digits`` unless given. ``estimate``: say first how long the trainings will take.
    """
    started = time.perf_counter()
    prepare(out)
    recipe = recipe or load_recipe(RECIPE)
    _heading(console, "1. Training on handwritten digits: classifier, surrogate, explainer")
    explainer = train(recipe, out / TRAINING, console=console, device="cpu", estimate=estimate)
    trained = summary.in_words(json.loads((out / TRAINING / SUMMARY).read_text()))

    _heading(console, f"2. {images} unseen digits, and what their patches are worth")
    test = load_data(RECIPE, seed=recipe.data.seed).test
    found = compare.compare(explainer, _pixels(test)[:images], test.labels[:images], console, budgets=budgets)
    console.print(compare.table(found.lines, images))
    _heading(console, "3. Theorem 1: the explainer's loss bounds its error")
    for name, number in compare.theorem_lines(found.theorem):
        console.print(f"{name}: {number}", highlight=False, soft_wrap=True)

    _heading(console, "4. Photos, by the explainer that comes with the package")
    explained = photos.explain_samples(out / PHOTOS, console)

    _heading(console, "5. Pictures and report")
    drawn = list(pictures.draw_digits(found, out / DIGITS))
    curves = list(pictures.draw_training(out / DIGITS, out / TRAINING))
    found.explanations["exact"].save(out / DIGITS / "exact.safetensors")
    found.explanations["explainer"].save(out / DIGITS / "explainer.safetensors")
    _write_numbers(out / NUMBERS, found, time.perf_counter() - started)
    page.write_page(out / REPORT, found, trained, drawn, curves, explained)
    _say_where(out, console, photos=bool(explained.entries))
    console.print(f"{time.perf_counter() - started:.0f} s in all", highlight=False)
    return found


def prepare(out: Path) -> None:
    """Make the folder ready: what an earlier demo left is removed, what somebody else did is refused."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: name a folder with --out")
    there = [name for name in (TRAINING, DIGITS, PHOTOS, NUMBERS, REPORT) if (out / name).exists()]
    if there and not (out / MARK).is_file():
        raise ValueError(f"{out / there[0]} is there and no demo made it: name another folder with --out")
    for name in there:
        shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink()
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).write_text("vitshap demo made what lies here, and replaces it when it runs again.\n")


def _pixels(digits: ImageData) -> Tensor:
    """Digits are held as pixels, not as files."""
    if not isinstance(digits.images, Tensor):
        raise TypeError("these digits are files")
    return digits.images


def _write_numbers(path: Path, found: compare.Comparison, seconds: float) -> None:
    theorem = found.theorem
    numbers: dict[str, Any] = {
        "images": len(found.images),
        "methods": [line._asdict() for line in found.lines],
        "theorem": {
            "error": theorem.error,
            "bound": theorem.bound,
            "loose_bound": theorem.loose_bound,
            "holds": theorem.holds,
        },
        "seconds": round(seconds, 1),
        "torch": torch.__version__,
    }
    path.write_text(json.dumps(numbers, indent=2) + "\n")


def _say_where(out: Path, console: Console, *, photos: bool) -> None:
    places = {
        "report, to be opened in a browser": out / REPORT,
        "pictures of digits": out / DIGITS,
        **({"heatmaps of photos": out / PHOTOS} if photos else {}),
        "numbers": out / NUMBERS,
        "the explainer, for vitshap.Explainer.from_pretrained": out / TRAINING / BUNDLE,
    }
    for name, place in places.items():
        console.print(f"{name}: {place}", highlight=False, soft_wrap=True, markup=False)


def _heading(console: Console, text: str) -> None:
    console.print(f"\n{text}", style="bold", highlight=False)
