"""What metrics are given besides the explanation, and what is kept of explanations and of results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import vitshap
from tests.evaluation.small import digits_net, some_digits
from vitshap.data import ImageData, load_digits
from vitshap.estimators import truth
from vitshap.evaluation import evaluate
from vitshap.evaluation.curves import curves
from vitshap.evaluation.explanations import _from_tensors, _to_tensors
from vitshap.models import MaskedModel, wrap

METHODS: dict[str, Any] = {
    "rollout": "attention-rollout",
    "loo": ("leave-one-out", {"removal": "pixels"}),
    "random": "random",
}


@pytest.fixture(scope="module")
def surrogate() -> MaskedModel:
    return digits_net()


def test_stored_parts_belong_to_their_labels(tmp_path: Path) -> None:
    """The labels of a single logit: what was predicted, or those of the data."""
    model, digits = digits_net(classes=1), some_digits(6)
    data = ImageData(digits.images, torch.tensor([0, 1, 1, 0, 1, 0]), ("no", "yes"))
    how: dict[str, Any] = {"methods": {"loo": "leave-one-out"}, "metrics": ["roar"]}
    predicted = evaluate(model, data, **how, folder=tmp_path)
    labelled = evaluate(model, data, **how, folder=tmp_path, target="label")
    fresh = evaluate(model, data, **how, target="label")
    inserted = [one.curve("loo", "roar", "inserted")[0].tolist() for one in (predicted, labelled, fresh)]
    assert inserted[1] == inserted[2] != inserted[0]


@pytest.mark.parametrize("classes", [7, 8, 9])
def test_curves_for_any_number_of_classes(classes: int) -> None:
    """16 patches have 8 counts of roar, and 9 points of insertion by steps of 2."""
    how: dict[str, Any] = {"metrics": ["roar", "insertion:step=2"], "classes": "all"}
    found = evaluate(digits_net(classes=classes), some_digits(4), methods={"loo": "leave-one-out"}, **how)
    assert [one.name for one in curves(found)] == ["roar, inserted", "roar, deleted", "insertion:step=2"]
    assert found.scores["loo", "insertion:step=2"]["image.fractions"].shape == (4, 9)


def test_stored_explanations_keep_their_errors(surrogate: MaskedModel, tmp_path: Path) -> None:
    data = some_digits(4)
    known = truth.of_images(tmp_path / "truth", surrogate, data.images, budget=300)
    how: dict[str, Any] = {"methods": {"shap": ("kernelshap", {"budget": 60})}, "folder": tmp_path / "parts"}
    evaluate(surrogate, data, **how, metrics=["insertion"])
    resumed = evaluate(surrogate, data, **how, metrics=["error"], truth=known)
    fresh = evaluate(surrogate, data, **{**how, "folder": None}, metrics=["error"], truth=known)
    coverage = [one.scores["shap", "error"]["image.coverage"] for one in (resumed, fresh)]
    torch.testing.assert_close(*coverage)
    assert not bool(coverage[0].isnan().any())


def test_explanations_are_stored_whole_and_older_ones_can_be_read(surrogate: MaskedModel) -> None:
    explanation = vitshap.method("kernelshap", surrogate, budget=60)(some_digits(2).images, target="predicted")
    assert explanation.additive
    explanation = replace(explanation, posterior=True)
    stored = _to_tensors(explanation)
    again = _from_tensors(stored, "kernelshap")
    for name in ("values", "stderr", "base_values", "full_values"):
        assert torch.equal(getattr(again, name), getattr(explanation, name))
    assert (again.additive, again.posterior, again.unit) == (True, True, explanation.unit)
    before = {name: stored[name] for name in ("values", "classes", "prediction", "players")}
    older = _from_tensors({**before, "numbers": stored["numbers"][:4]}, "kernelshap")
    assert torch.equal(older.values, explanation.values)
    assert (older.stderr, older.additive, older.posterior) == (None, False, False)


def test_mosaics_do_not_depend_on_the_batch(surrogate: MaskedModel, tmp_path: Path) -> None:
    """Images of one class follow each other, as in folders, so that a batch has no three of other classes."""
    digits = load_digits().test
    some = digits.labels.argsort(stable=True)[::20]
    how: dict[str, Any] = {"methods": METHODS, "metrics": ["grid-pointing"], "target": "label", "folder": tmp_path}
    found = [evaluate(surrogate, digits.subset(some), **how, batch=batch) for batch in (3, 18)]
    for row in METHODS:
        values = [one.values(row, "grid-pointing") for one in found]
        torch.testing.assert_close(*values, equal_nan=True, atol=1e-4, rtol=0)
    assert int(found[0].values("random", "grid-pointing").isnan().sum()) == 0
    fewer = evaluate(surrogate, digits.subset(some[:9]), **how, batch=3)
    assert not torch.equal(fewer.values("random", "grid-pointing"), found[0].values("random", "grid-pointing")[:9])


def test_distances_of_values_that_do_not_add_up() -> None:
    """Random scores are always a row of the table, and have no bound."""
    rows = torch.arange(4).view(2, 2).repeat_interleave(2, 0)
    coarse = wrap(digits_net().net, output="softmax", players=rows.repeat_interleave(2, 1))  # 4 players
    how: dict[str, Any] = {"methods": {"loo": "leave-one-out", "random": "random"}, "metrics": ["shapley-error"]}
    found = evaluate(coarse, some_digits(2), **how)
    assert int(found.values("random", "shapley-error").isnan().sum()) == 0
