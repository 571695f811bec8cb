"""The explainer that comes with the package: what it is, that its values are Shapley values, and what is said of it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_sample_images

import vitshap
from vitshap.explainers import bundle, folders

NAME = "imagenette-deit-tiny"
MOST_BYTES = 26_000_000
ROOT = Path(__file__).parents[2]


def test_it_is_small_and_stored_in_half_precision() -> None:
    assert bundle.shipped() == [NAME]
    folder = folders.find(NAME)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= MOST_BYTES
    for name in ("surrogate", "explainer"):
        stored = load_file(folder / f"{name}.safetensors")
        exact = {key for key, value in stored.items() if value.dtype != torch.float16}
        assert exact <= {"null_values", "scale"}  # numbers that were measured, not weights


def test_its_values_are_those_of_an_estimator_that_knows_nothing_of_it() -> None:
    explainer = vitshap.Explainer.from_pretrained(NAME)
    photo = next(name for name in load_sample_images().filenames if name.endswith("china.jpg"))
    explained = explainer(photo, target="predicted")
    assert explained.class_names[int(explained.classes[0, 0])] == "church"
    estimated = vitshap.method("kernelshap", explainer.surrogate, budget=1024)(photo, target="predicted")
    correlation = torch.corrcoef(torch.stack([explained.values.flatten(), estimated.values.flatten()]))[0, 1]
    assert correlation > 0.55  # .68: so short an estimate has an error of two thirds of the values' spread itself


@pytest.mark.parametrize(
    ("page", "names", "digits"),
    [
        ("README.md", ("target", "others", "insertion", "deletion", "others_insertion", "random_insertion"), 3),
        ("benchmarks/README.md", ("target", "others", "raw_target", "raw_others", "reliability_target"), 4),
        ("benchmarks/README.md", ("reliability_others", "insertion", "deletion", "others_insertion"), 4),
    ],
)
def test_the_pages_say_what_was_measured(page: str, names: tuple[str, ...], digits: int) -> None:
    quality = bundle.read(NAME)["quality"]
    text = (ROOT / page).read_text()
    missing = {name: quality[name] for name in names if f"{quality[name]:.{digits}f}".lstrip("0") not in text}
    assert not missing
