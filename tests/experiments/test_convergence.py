"""Convergence, measured on a small model."""

import pytest

from tests.models import nets
from vitshap.estimators import truth
from vitshap.experiments import convergence
from vitshap.models import wrap


@pytest.fixture(scope="module")
def game_of():
    model = wrap(nets.build("timm ViT"))
    pixels = nets.images("timm ViT", n=3)
    return lambda part: model.game(pixels[part])


@pytest.mark.long
def test_more_evaluations_are_more_reliable_and_closer_to_the_reference(game_of) -> None:
    table = convergence.measure_budgets(game_of, 2, [300, 3000], reference=10_000)
    by = {(row["estimator"].value, row["budget"].value): row for row in table.rows}
    assert len(table.rows) == 2 * len(convergence.ESTIMATORS)
    for name in convergence.ESTIMATORS:
        for key in ("correlation", "correlation_other", "reliability_other"):
            assert by[name, 3000][key].value > by[name, 300][key].value
    assert by["kernelshap", 3000]["correlation"].value > 0.999
    assert by["kernelshap", 300]["correlation"].value > by["kernelshap-original", 300]["correlation"].value


def test_measurements_are_announced_and_budgets_that_are_too_small_are_left_out(game_of) -> None:
    announced: list[tuple[str, int | None]] = []

    def start(title: str, evaluations: int | None = None, /) -> None:
        announced.append((title, evaluations))

    table = convergence.measure_budgets(
        game_of,
        3,
        [20],
        reference=400,
        estimators=["kernelshap", "kernelshap-original"],
        start=start,
    )
    assert table.values("estimator") == ["kernelshap"]
    assert announced[0] == ("reference, 3 images, evaluations of each", 400)
    assert "kernelshap-original, budget 20, is left out: a budget of 20 evaluations is too small" in announced[-1][0]
    convergence.measure_threshold(game_of, 1, 0.3, budget=4000, start=start)
    assert announced[-1][0] == "image 1 of 1 until error/range < 0.3, evaluations"


def test_the_threshold_takes_more_when_it_is_smaller(game_of) -> None:
    coarse = convergence.measure_threshold(game_of, 3, 0.3, budget=4000)
    fine = convergence.measure_threshold(game_of, 3, 0.02, budget=4000)
    assert all(coarse.values("converged"))
    assert sum(fine.values("evaluations")) > sum(coarse.values("evaluations"))
    unreachable = convergence.measure_threshold(game_of, 1, 1e-9, budget=300)
    assert unreachable.values("converged") == [False]


def test_stored_values_are_the_reference_and_an_interrupted_measurement_continues(game_of, tmp_path) -> None:
    known = truth.compute(tmp_path, game_of, num_inputs=2, surrogate="", budget=4000, seed=10**6)
    names, announced, parts = ["kernelshap", "permutation"], [], []
    options = {
        "reference": known,
        "estimators": names,
        "start": lambda title, evaluations=None: announced.append(title),
    }
    whole = convergence.measure_budgets(game_of, 2, [300, 600], **options)
    assert "reference of 4,000 evaluations each" in whole.title
    assert len(announced) == 4, "the reference is not estimated again"
    assert min(whole.values("correlation")) > 0.5
    skip = {("kernelshap", 300), ("kernelshap", 600), ("permutation", 300)}
    rest = convergence.measure_budgets(game_of, 2, [300, 600], skip=skip, finished=parts.append, **options)
    assert len(parts) == len(rest.rows) == 1
    assert rest.values("correlation") == whole.values("correlation")[-1:]
    images = convergence.measure_threshold(game_of, 3, 0.3, budget=4000, first=1, finished=parts.append)
    assert images.values("image") == [2, 3]
    assert len(parts) == 3
