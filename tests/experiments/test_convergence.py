"""Convergence, measured on a small model."""

from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from tests.models import nets
from vitshap.coalitions import shapley_kernel
from vitshap.experiments import convergence
from vitshap.models import wrap


@pytest.fixture(scope="module")
def game_of():
    model = wrap(nets.build("timm ViT"))
    pixels = nets.images("timm ViT", n=3)
    return lambda part: model.game(pixels[part])


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
    parts: list[int] = []

    def start(title: str, evaluations: int | None = None, /) -> None:
        announced.append((title, evaluations))

    table = convergence.measure_budgets(
        lambda part: convergence.watched(game_of(part), parts.append),
        3,
        [20],
        reference=400,
        estimators=["kernelshap", "kernelshap-original"],
        start=start,
    )
    assert table.values("estimator") == ["kernelshap"]
    assert announced[0] == ("reference, 3 images, evaluations of each", 400)
    assert "kernelshap-original, budget 20, is left out: a budget of 20 evaluations is too small" in announced[-1][0]
    assert max(parts) <= 128
    before = sum(parts)
    reached = convergence.measure_threshold(
        lambda part: convergence.watched(game_of(part), parts.append), 1, 0.3, budget=4000, start=start
    )
    assert announced[-1][0] == "image 1 of 1 until error/range < 0.3, evaluations"
    assert sum(parts) - before == reached.values("evaluations")[0] + 64  # and those to warm up


def test_a_watched_game_has_the_same_values(game_of) -> None:
    asked = shapley_kernel(16).sample(300, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(convergence.watched(game_of(slice(0, 2)), print)(asked), game_of(slice(0, 2))(asked))


def test_the_threshold_takes_more_when_it_is_smaller(game_of) -> None:
    coarse = convergence.measure_threshold(game_of, 3, 0.3, budget=4000)
    fine = convergence.measure_threshold(game_of, 3, 0.02, budget=4000)
    assert all(coarse.values("converged"))
    assert sum(fine.values("evaluations")) > sum(coarse.values("evaluations"))
    unreachable = convergence.measure_threshold(game_of, 1, 1e-9, budget=300)
    assert unreachable.values("converged") == [False]


def test_weights_rows_of_the_head_and_images_are_loaded(tmp_path: Path) -> None:
    net = timm.create_model("vit_tiny_patch16_224").eval()
    save_file(net.state_dict(), tmp_path / "weights.safetensors")
    Image.new("RGB", (64, 48), "red").save(tmp_path / "one.png")
    arguments = ("vit_tiny_patch16_224", tmp_path / "weights.safetensors", [7, 3])
    model, pixels = convergence.load(*arguments, tmp_path, 5, torch.device("cpu"))
    assert pixels.shape == (1, 3, 224, 224)
    torch.testing.assert_close(model.logits(pixels), net(pixels)[:, [7, 3]])
    with pytest.raises(ValueError, match="holds no image"):
        convergence.load(*arguments, tmp_path / "nowhere", 5, torch.device("cpu"))
