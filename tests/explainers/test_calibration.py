"""Standard errors of an explainer's values: learned on some images, right on others; stored with the bundle."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.small_nets import random_images, small_net
from vitshap.estimators.priors import read_tokens
from vitshap.estimators.truth import compute
from vitshap.explainers import Explainer, bundle
from vitshap.explainers.calibration import FEATURES, Calibration, _white, calibrate
from vitshap.methods import method


@pytest.fixture(scope="module")
def explained() -> tuple[Explainer, Tensor, Tensor]:
    """An explainer with a new head, whose errors are as large as the values, and images with exact values."""
    model = small_net((3, 3)).float()
    explainer = Explainer(model)
    pixels = random_images(model, 180).float()
    truth = method("exact", model)(pixels).values.double()
    return explainer, pixels, truth


@pytest.fixture(scope="module")
def calibration(explained: tuple[Explainer, Tensor, Tensor]) -> Calibration:
    explainer, pixels, truth = explained
    return calibrate(explainer, pixels[:90], truth[:90])


def test_intervals_of_other_images_hold_the_exact_values(
    explained: tuple[Explainer, Tensor, Tensor], calibration: Calibration
) -> None:
    explainer, pixels, truth = explained
    explainer.calibration = calibration
    explanation = explainer(pixels[90:])
    low, high = explanation.interval(0.95)
    inside = ((low <= truth[90:]) & (truth[90:] <= high)).double()
    assert explanation.posterior
    assert 0.9 < float(inside.mean()) < 0.99
    assert float(inside.mean((0, 2)).min()) > 0.85
    half = explanation.interval(0.5)
    assert 0.4 < float(((half[0] <= truth[90:]) & (truth[90:] <= half[1])).double().mean()) < 0.65


def test_inexact_reference_values_give_the_same_calibration(
    explained: tuple[Explainer, Tensor, Tensor], calibration: Calibration, tmp_path: Path
) -> None:
    explainer, pixels, truth = explained
    surrogate = explainer.surrogate
    known = compute(
        tmp_path,
        lambda part: surrogate.game(pixels[:90][part]),
        num_inputs=90,
        surrogate=surrogate.fingerprint(),
        budget=512,  # all coalitions
    )
    explainer.calibration = None
    error = (explainer(pixels[:90]).values.double() - truth[:90]).square().mean((1, 2), keepdim=True).sqrt()
    stderr = 0.7 * error.expand_as(known.values)  # half as large as what is learned, as variances
    noise = torch.randn(known.values.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    known = replace(known, values=known.values + stderr * noise, stderr=stderr)
    found = calibrate(explainer, pixels[:90], known)
    explainer.calibration = found
    low, high = explainer(pixels[90:]).interval(0.95)
    assert 0.9 < float(((low <= truth[90:]) & (truth[90:] <= high)).double().mean()) < 0.98
    assert abs(found.factor - calibration.factor) < 0.15
    assert abs(found.spread - calibration.spread) < 0.2


@pytest.mark.parametrize("white", [0.1, 0.25, 0.5, 0.75])
@pytest.mark.parametrize("uneven", [0.0, 1.0])
def test_the_share_of_white_variance_is_found_again(white: float, uneven: float) -> None:
    explainer = Explainer(small_net((4, 4)).float())
    pixels = random_images(explainer.surrogate, 60).float()
    tokens = read_tokens(explainer.surrogate.adapter, pixels, explainer.surrogate.players)
    assert tokens is not None
    random = torch.Generator().manual_seed(0)
    root = torch.linalg.cholesky(tokens.similarity[:, 0] + 1e-9 * torch.eye(16))
    alike, own = (torch.randn(60, 16, 4, generator=random, dtype=torch.float64) for _ in range(2))
    profile = (uneven * torch.randn(60, 16, 1, generator=random, dtype=torch.float64)).exp()
    drawn = profile.sqrt() * ((1 - white) ** 0.5 * (root @ alike) + white**0.5 * own)
    errors = drawn - drawn.mean(1, keepdim=True)  # an explainer's values add up
    assert _white(explainer, pixels, errors, profile.expand_as(errors)) == white


def test_errors_follow_the_size_of_the_values(
    explained: tuple[Explainer, Tensor, Tensor], calibration: Calibration
) -> None:
    explainer, pixels, truth = explained
    explainer.calibration = calibration
    explanation = explainer(pixels[90:])
    assert explanation.stderr is not None
    true = (explanation.values - truth[90:]).square().mean((0, 1))  # [K]
    told = explanation.stderr.double().square().mean((0, 1))
    assert float((told / true).max()) < 3
    assert float((told / true).min()) > 0.3


def test_a_bundle_keeps_it_and_one_without_has_no_errors(
    explained: tuple[Explainer, Tensor, Tensor], calibration: Calibration, tmp_path: Path
) -> None:
    explainer, pixels, _ = explained
    explainer.calibration = None
    assert explainer(pixels[:2]).stderr is None
    explainer.save_pretrained(tmp_path / "bundle")
    assert bundle.load(tmp_path / "bundle").calibration is None
    bundle.record_calibration(tmp_path / "bundle", calibration)
    loaded = bundle.load(tmp_path / "bundle")
    assert loaded.calibration == calibration
    explainer.calibration = calibration
    torch.testing.assert_close(loaded(pixels[:2]).stderr, explainer(pixels[:2]).stderr)
    explainer.save_pretrained(tmp_path / "again")
    assert bundle.load(tmp_path / "again").calibration == calibration


@pytest.mark.parametrize(
    "change",
    [
        {"players": [0.0]},
        {"coefficients": [1.0] * (len(FEATURES) + 1)},
        {"factor": -1.0},
        {"spread": "large"},
        {"extra": 1},
    ],
)
def test_a_damaged_calibration_is_an_error(calibration: Calibration, change: dict[str, Any]) -> None:
    stored = json.loads(json.dumps(calibration.to_json()))
    assert Calibration.from_json(stored, 9, 4) == calibration
    with pytest.raises(ValueError, match="calibration"):
        Calibration.from_json({**stored, **change}, 9, 4)
    with pytest.raises(ValueError, match="calibration"):
        Calibration.from_json([1, 2], 9, 4)


def test_too_few_images_and_values_of_other_shapes(explained: tuple[Explainer, Tensor, Tensor]) -> None:
    explainer, pixels, truth = explained
    with pytest.raises(ValueError, match="at least 20 images"):
        calibrate(explainer, pixels[:5], truth[:5])
    with pytest.raises(ValueError, match=r"values \[30, 9, 4\]"):
        calibrate(explainer, pixels[:30], truth[:29])


def test_refine_with_a_calibrated_explainer(
    explained: tuple[Explainer, Tensor, Tensor], calibration: Calibration
) -> None:
    explainer, pixels, truth = explained
    explainer.calibration = calibration
    some, known = pixels[90:120], truth[90:120]
    for budget in (60, 150):
        refined = method("refine", explainer.surrogate, prior=explainer, budget=budget)(some)
        sampled = method("kernelshap", explainer.surrogate, budget=budget)(some)
        errors = [float((one.values - known).square().mean()) for one in (refined, sampled, explainer(some))]
        assert errors[0] <= 1.05 * min(errors[1:]), (budget, errors)
        low, high = refined.interval()
        assert float(((low <= known) & (known <= high)).double().mean()) > 0.88
