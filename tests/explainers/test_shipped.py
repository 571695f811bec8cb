"""The explainer that comes with the package: what it is, that its values are Shapley values, and what is said of it."""

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_sample_images

import vitshap
from vitshap.explainers import bundle
from vitshap.explainers.card import MEASURES, measured
from vitshap.models import stored

NAME = "imagenette-deit-tiny"
MOST_BYTES = 26_000_000
ROOT = Path(__file__).parents[2]


def test_it_is_small_and_stored_in_half_precision() -> None:
    assert bundle.shipped() == [NAME]
    folder = stored.find(NAME)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= MOST_BYTES
    for name in ("surrogate", "explainer"):
        tensors = load_file(folder / f"{name}.safetensors")
        exact = {key for key, value in tensors.items() if value.dtype != torch.float16}
        assert exact <= {"null_values", "scale"}  # numbers that were measured, not weights


def test_its_values_are_those_of_an_estimator_that_knows_nothing_of_it() -> None:
    explainer = vitshap.Explainer.from_pretrained(NAME)
    photo = next(name for name in load_sample_images().filenames if name.endswith("china.jpg"))
    explained = explainer(photo, target="predicted")
    assert explained.class_names[int(explained.classes[0, 0])] == "church"
    estimated = vitshap.method("kernelshap", explainer.surrogate, budget=768)(photo, target="predicted")
    correlation = torch.corrcoef(torch.stack([explained.values.flatten(), estimated.values.flatten()]))[0, 1]
    assert correlation > 0.55  # so short an estimate has a large error itself


def test_its_card_says_what_was_measured_line_by_line_and_how_it_was_trained() -> None:
    card = (stored.find(NAME) / stored.CARD).read_text()
    rows = [f"| {what} | {value} |" for what, value in measured(bundle.read(NAME)["quality"])]
    assert rows == [line for line in card.splitlines() if line.startswith("| ")][1:]
    assert len(set(MEASURES.values())) == len(MEASURES)
    for name, words in MEASURES.items():
        assert "the same" not in words, "a line must be understood wherever it stands"
        assert ("other classes" in words) == ("others" in name)
    for said in ("this project's own, not that of the paper's authors", "squashed to squares", "are not squashed"):
        assert said in " ".join(card.split())


def test_a_new_configuration_has_its_fields_and_an_old_one_their_defaults() -> None:
    stored = bundle.read(NAME)["explainer"]["config"]
    loaded = vitshap.Explainer.from_pretrained(NAME).network.config
    fields = dataclasses.asdict(loaded)
    assert set(stored) < set(fields)  # it was stored before some of them were there
    assert {name: fields[name] for name in stored} == stored
    assert {name: fields[name] for name in set(fields) - set(stored)} == {
        "block_norm": True,
        "class_token": True,
        "frozen_blocks": 0,
        "frozen": (),
    }


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
