"""``vitshap.explain``: whatever model and photo are given, the explanation of the methods, and choices said aloud."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitshap
from tests.explaining import made
from tests.models import nets
from vitshap.data import UnreadableImage


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photo") / "photo.png"
    made.picture(0, 90, 60).save(path)
    return path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.bundle(tmp_path_factory.mktemp("bundle") / "small")


def test_a_stored_explainer_and_photos_of_every_kind(
    bundle: Path, photo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = vitshap.Explainer.from_pretrained(bundle)(photo, target="top-5")
    image = Image.open(photo)
    explainer = vitshap.Explainer.from_pretrained(bundle)
    for model in (bundle, str(bundle), explainer):
        for given in (photo, str(photo), image, np.array(image)):
            found = vitshap.explain(model, given)
            assert found.values.equal(expected.values)
            assert found.image_box is not None
            torch.testing.assert_close(found.image_box, expected.image_box)
    pixels = explainer.surrogate.prepare(photo).pixels
    torch.testing.assert_close(vitshap.explain(bundle, pixels[0]).values, expected.values)
    torch.testing.assert_close(vitshap.explain(bundle, pixels.numpy()).values, expected.values)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "method explainer, one forward pass" in captured.err
    assert "done in" in captured.err


def test_any_network_is_wrapped_and_the_choice_is_said(photo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrapped = made.model()
    found = vitshap.explain(wrapped, photo, budget=200, target="bee")
    expected = vitshap.method("refine", wrapped, budget=200)(photo, target="bee")
    torch.testing.assert_close(found.values, expected.values)
    said = capsys.readouterr().err
    assert "method refine, budget=200 evaluations (as requested), less than a second" in said
    net = nets.build("timm ViT")
    found = vitshap.explain(net, photo, budget=100, target=1)
    assert found.method == "refine"
    assert "not fine-tuned with withheld patches" in capsys.readouterr().err
    quiet = vitshap.explain(wrapped, photo, method="leave-one-out", quiet=True)
    assert quiet.method == "leave-one-out"
    assert capsys.readouterr().err == ""


def test_the_budget_is_chosen_by_time(photo: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    from vitshap.explaining import budget

    monkeypatch.setattr(budget, "LADDER", (64, 128))
    monkeypatch.setattr(budget, "ENOUGH", {"cpu": 0.01, "cuda": 0.01})
    found = vitshap.explain(made.model(), photo, target="predicted")
    assert found.evaluations <= 128
    assert "the largest of 64, 128, ... 128 that is expected to take at most 60 s" in capsys.readouterr().err


def test_doubtful_photos_are_called_so(tmp_path: Path, photo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    doubtful = made.bundle(tmp_path / "doubtful", quality={"unknown_threshold": 1.0})
    vitshap.explain(doubtful, photo)
    assert "warning: low confidence: best of 5 classes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "options", "error", "why"),
    [
        (("imagenette-deit-tinny", "x.png"), {}, ValueError, 'did you mean "imagenette-deit-tiny"'),
        ((3, "x.png"), {}, TypeError, "got int"),
        ((..., 3), {}, TypeError, "a photo is a path, a PIL image, an array or a tensor; got int"),
        ((..., "gone.png"), {}, UnreadableImage, "gone"),
        ((..., ...), {"budget": 100}, ValueError, "explainer takes none"),
        ((..., ...), {"method": "magic"}, ValueError, "magic"),
        ((..., ...), {"target": "unicorn"}, ValueError, "unicorn"),
        ((..., torch.zeros(2, 3, 32, 32)), {}, ValueError, "one photo, got 2"),
    ],
)
def test_wrong_arguments(
    bundle: Path, photo: Path, arguments: tuple[Any, Any], options: dict[str, Any], error: type[Exception], why: str
) -> None:
    model = bundle if arguments[0] is ... else arguments[0]
    given = photo if arguments[1] is ... else arguments[1]
    with pytest.raises(error, match=why):
        vitshap.explain(model, given, **options)
