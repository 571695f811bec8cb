"""``Explainer`` as a game's values and as a torch module: what it adds up to, where it goes, what an optimiser sees."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.models import nets
from vitshap.explainers import Explainer, ExplainerConfig
from vitshap.models import MaskedModel, wrap
from vitshap.players import Players
from vitshap.training import ExplainerTraining, LoopConfig, fit_explainer
from vitshap.training.batches import Images
from vitshap.training.configs import ValuesConfig
from vitshap.training.explainer import PaperStep
from vitshap.training.objectives import explainer_loss
from vitshap.training.values.store import Evaluator
from vitshap.training.values.validation import ValidationSet

CORNER_STAYS = torch.tensor([[-1, 0, 1, 1], [2, 3, 4, 4], [5, 5, 6, 6], [-1, 5, 6, 7]])
GAMES: dict[str, dict[str, Any]] = {
    "tokens of nobody": {"players": CORNER_STAYS},
    "softmax": {"removal": "softmax"},
    "tokens of nobody, softmax": {"players": CORNER_STAYS, "removal": "softmax"},
    "tokens of nobody, pixels": {"players": CORNER_STAYS, "removal": "pixels"},
    "attention": {},
    "pixels": {"removal": "pixels"},
    "embeddings": {"removal": "embeddings"},
}


def _model(seed: int = 0, **wrapping: Any) -> MaskedModel:
    return wrap(nets.build("timm ViT", seed), check=False, **wrapping)


@pytest.mark.parametrize("wrapping", GAMES.values(), ids=list(GAMES))
def test_values_add_up_to_the_game_of_each_image(wrapping: dict[str, Any]) -> None:
    model, pixels = _model(**wrapping), nets.images("timm ViT", n=3)
    game = model.game(pixels)
    explanation = Explainer(model)(pixels)
    assert explanation.additive
    torch.testing.assert_close(explanation.base_values, game.null, atol=1e-6, rtol=0)
    torch.testing.assert_close(explanation.values.sum(1), game.grand - game.null, atol=1e-5, rtol=0)
    apart = float((game.null - game.null[:1]).abs().max())
    assert model.same_null == (apart < 1e-6), f"v(0) of images differs by {apart}"
    assert explanation.evaluations == (1 if model.same_null else 2)


@pytest.mark.parametrize("wrapping", [{"players": CORNER_STAYS}, {"removal": "softmax"}], ids=["nobody", "softmax"])
def test_training_and_selection_use_the_null_value_of_each_image(wrapping: dict[str, Any], tmp_path: Path) -> None:
    model, pixels = _model(**wrapping), nets.images("timm ViT", n=6)
    explainer, game = Explainer(model), model.game(pixels)
    some = torch.rand(6, 8, model.num_players, generator=torch.Generator().manual_seed(0)) < 0.5
    expected = explainer_loss(explainer(pixels).values, some, game(some), game.null)
    found = PaperStep(explainer, Evaluator(model), compiled=False)(pixels, some)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)
    unseen = Images(model, pixels, None, seed=0)
    held_out = ValidationSet(tmp_path, Evaluator(model), unseen, pairs=4)
    pixels, batch = next(iter(unseen.in_order(6)))
    game, drawn = model.game(pixels), held_out.pairs(batch.indices, 0)
    expected = explainer_loss(explainer(pixels).values, drawn, game(drawn), game.null)
    assert held_out.losses(explainer, 4)["loss"] == pytest.approx(float(expected), rel=1e-4)


def test_a_training_with_null_values_of_each_image_runs() -> None:
    model, images = _model(players=CORNER_STAYS), nets.images("timm ViT", n=16)
    config = ExplainerTraining(
        procedure="values",
        loop=LoopConfig(epochs=1, batch_size=8),
        augmentation=None,
        validation_coalitions=4,
        values=ValuesConfig(views=1, coalitions=4),
    )
    explanation, game = fit_explainer(model, images, images[:8], config=config)(images), model.game(images)
    torch.testing.assert_close(explanation.values.sum(1), game.grand - game.null, atol=1e-5, rtol=0)


def test_players_that_differ_between_images_are_refused() -> None:
    maps = torch.arange(16).view(4, 4)
    per_image = torch.stack([maps, maps.T])
    with pytest.raises(ValueError, match=r"differ between images do not fit an explainer.*kernelshap"):
        Explainer(_model(players=per_image))
    absent = Players(torch.zeros(1, 4, 4, dtype=torch.int64), 2)  # one image, which lacks the second player
    with pytest.raises(ValueError, match="differ between images do not fit an explainer"):
        Explainer(_model(players=absent))


def _both(config: ExplainerConfig | None = None) -> Explainer:
    return Explainer(_model(), config, classifier=_model(seed=5))


def _dtypes(model: torch.nn.Module) -> set[torch.dtype]:
    return {tensor.dtype for tensor in model.state_dict().values()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_precision_is_set_for_surrogate_and_classifier_too(dtype: torch.dtype) -> None:
    explainer = _both()
    pixels = nets.images("timm ViT")
    before = explainer(pixels).values
    moved = explainer.double() if dtype == torch.float64 else explainer.half()
    assert moved is explainer
    assert explainer.classifier is not None
    assert _dtypes(explainer.network) == _dtypes(explainer.surrogate) == _dtypes(explainer.classifier) == {dtype}
    assert explainer.null_values.dtype == explainer.scale.dtype == torch.float32
    after = explainer(pixels.to(dtype))
    torch.testing.assert_close(after.values, before, atol=5e-3 if dtype == torch.float16 else 1e-5, rtol=0)
    back = explainer.to(torch.float32)(pixels).values
    torch.testing.assert_close(back, before, atol=5e-3, rtol=0)


def test_evaluation_mode_is_set_for_all_and_training_mode_for_the_network_alone() -> None:
    explainer = _both()
    assert explainer.classifier is not None
    others = (explainer.surrogate, explainer.classifier)
    for model in others:
        model.train()
    explainer.eval()
    assert not any(module.training for model in (explainer, *others) for module in model.modules())
    explainer.train()
    assert all(module.training for module in explainer.modules())
    assert not any(module.training for model in others for module in model.modules()), "they are not trained with it"


def test_optimisers_and_files_see_the_network_alone(tmp_path: Path) -> None:
    explainer = _both().double()
    names = {name.partition(".")[0] for name in explainer.state_dict()}
    assert names == {"network", "null_values", "scale"}
    theirs = {id(p) for model in (explainer.surrogate, explainer.classifier) for p in model.parameters()}
    assert not theirs & {id(p) for p in explainer.parameters()}
    folder = explainer.save_pretrained(tmp_path / "explainer")
    assert {name.partition(".")[0] for name in load_file(folder / "explainer.safetensors")} <= names
    pixels = nets.images("timm ViT").double()
    assert torch.equal(Explainer.from_pretrained(folder)(pixels).values, explainer(pixels).values)


def test_a_net_that_is_surrogate_and_classifier_is_moved_once() -> None:
    model = _model()
    calls: list[Tensor] = []
    Explainer(model, classifier=model)._apply(lambda tensor: calls.append(tensor) or tensor)  # type: ignore[func-returns-value]
    assert len({id(tensor) for tensor in calls}) == len(calls)


def test_an_explainer_in_half_precision_is_stored_and_loaded(tmp_path: Path) -> None:
    explainer = _both().half()
    loaded = Explainer.from_pretrained(explainer.save_pretrained(tmp_path / "explainer"))
    pixels = nets.images("timm ViT").half()
    torch.testing.assert_close(loaded(pixels).values, explainer(pixels).values, atol=2e-3, rtol=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("move", ["to", "cuda"])
def test_a_gpu_gets_all_of_it(move: str) -> None:
    explainer = _both()
    pixels = nets.images("timm ViT")
    expected = copy.deepcopy(explainer)(pixels).values
    explainer = explainer.to("cuda") if move == "to" else explainer.cuda()
    assert explainer.surrogate.device.type == "cuda"
    torch.testing.assert_close(explainer(pixels.cuda()).values, expected, atol=1e-4, rtol=0)
    explainer.cpu()
    torch.testing.assert_close(explainer(pixels).values, expected, atol=1e-5, rtol=0)


def test_reference_images_go_with_the_net() -> None:
    reference = nets.images("timm ViT", n=4, seed=9)
    model = _model(removal="random", reference=reference).double()
    assert model.reference is not None
    assert model.reference.dtype == torch.float64
    assert "reference" not in model.state_dict()
    some = torch.rand(2, 3, 16) < 0.5
    pixels = nets.images("timm ViT")
    expected = _model(removal="random", reference=reference)(pixels, some)
    torch.testing.assert_close(model(pixels.double(), some), expected, atol=1e-5, rtol=0)
