"""Distances from reference values, and their correction for noise in these values."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy import stats

from tests.small_nets import random_images, small_net
from vitshap.estimators import truth
from vitshap.methods import method
from vitshap.metrics import agreement, error


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory):
    model = small_net(grid=(3, 3), num_classes=3)
    images = random_images(model, 5)
    noisy = truth.of_images(Path(tmp_path_factory.mktemp("truth")), model, images, budget=90, batch=5)
    return model, images, noisy, method("exact", model)(images)


def test_every_measure_by_hand(measured) -> None:
    model, images, known, _ = measured
    explanation = method("leave-one-out", model)(images, target=[2, 0])
    found = error(model, images, explanation, truth=known)
    for i in range(5):
        for t, c in enumerate((2, 0)):
            ours, theirs = explanation.values[i, :, t].double(), known.values[i, :, c]
            assert float(found.l2[i, t]) == pytest.approx(float((ours - theirs).norm()))
            assert float(found.pearson[i, t]) == pytest.approx(stats.pearsonr(ours, theirs).statistic)
            assert float(found.spearman[i, t]) == pytest.approx(stats.spearmanr(ours, theirs).statistic)
            assert float(found.reliability[i, t]) == float(known.reliability[i, c])
    assert torch.equal(found.values, found.l2)
    assert not found.higher_is_better
    other = error(model, images, explanation, truth=known, measure="spearman", corrected=True)
    assert other.higher_is_better
    assert torch.equal(other.values, other.corrected_spearman)
    part = error(model, images[1:3], explanation[1:3], truth=known, rows=slice(1, 3))
    torch.testing.assert_close(part.l2, found.l2[1:3])


def test_the_correction_is_right_for_exact_values(measured) -> None:
    model, images, known, exact = measured
    found = error(model, images, exact, truth=known)
    assert float(found.pearson.mean()) < 0.995  # the reference values are noisy
    assert float(found.corrected_pearson.nanmean()) == pytest.approx(1, abs=0.03)
    assert float(found.corrected_l2.mean()) < 0.7 * float(found.l2.mean())
    assert agreement(exact.values, known, torch.zeros(5, dtype=torch.long))["target"] == pytest.approx(1, abs=0.05)


def test_noise_alone_cannot_be_corrected(measured) -> None:
    model, images, known, exact = measured
    noise = replace(known, reliability=torch.full_like(known.reliability, 0.05))
    found = error(model, images, exact, truth=noise, measure="pearson", corrected=True)
    assert found.undefined == 5
    assert agreement(exact.values, noise, torch.zeros(5, dtype=torch.long))["target"] is None


def test_reference_values_of_other_images_are_refused(measured) -> None:
    model, images, known, exact = measured
    with pytest.raises(ValueError, match=r"of 2 images, 9 players .* are \[5, 9, 3\]: give rows="):
        error(model, images[:2], exact[:2], truth=known)
    with pytest.raises(ValueError, match='measure is "l2", "pearson" or "spearman", got \'l1\''):
        error(model, images, exact, truth=known, measure="l1")


def test_coverage_counts_both_errors(measured) -> None:
    model, images, known, exact = measured
    without = method("leave-one-out", model)(images)
    assert bool(error(model, images, without, truth=known).coverage.isnan().all())
    shift = torch.linspace(-0.02, 0.02, 9)[None, :, None]
    shifted = replace(exact, values=exact.values + shift, stderr=torch.full_like(exact.values, 0.004))
    found = error(model, images, shifted, truth=known).coverage
    for i in range(5):
        for c in range(3):
            inside = [
                abs(float(shifted.values[i, p, c]) - float(known.values[i, p, c]))
                <= 1.96 * (0.004**2 + float(known.stderr[i, p, c]) ** 2) ** 0.5
                for p in range(9)
            ]
            assert float(found[i, c]) == pytest.approx(sum(inside) / 9)
    assert 0 < float(found.mean()) < 1
