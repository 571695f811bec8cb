"""Gradient methods against captum and by what they must satisfy; RISE and leave-one-out against plain loops."""

import copy
import gc
import weakref
from typing import Any

import captum.attr
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitshap
from tests.baselines.test_relevance import token_scores
from tests.models import nets
from vitshap.baselines.interception import patch_embedding
from vitshap.methods.base import image_generators
from vitshap.models.base import within_memory

FAMILY = "timm ViT"
TARGETS = torch.tensor([[0, 2], [1, 2]])


@pytest.fixture(scope="module")
def model() -> Any:
    return vitshap.wrap(nets.build(FAMILY).double())


@pytest.fixture(scope="module")
def pixels() -> Tensor:
    return nets.images(FAMILY).double()


class FromEmbedding(nn.Module):
    """The probabilities of a timm ViT as a function of its patch embedding."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, embedding: Tensor) -> Tensor:
        tokens = self.net.patch_embed.norm(embedding.flatten(2).transpose(1, 2))
        tokens = self.net.norm_pre(self.net._pos_embed(tokens))
        return self.net.forward_head(self.net.norm(self.net.blocks(tokens))).softmax(-1)


def captum_input(model: Any, pixels: Tensor, level: str) -> tuple[nn.Module, Tensor, Tensor]:
    """The function, its input and the baseline at a level."""
    if level == "pixel":
        return nn.Sequential(model.net, nn.Softmax(-1)), pixels, torch.zeros_like(pixels)
    embedding = patch_embedding(model.adapter, pixels)
    return FromEmbedding(model.net), embedding, patch_embedding(model.adapter, torch.zeros_like(pixels))


def per_patch(scores: Tensor, grid: tuple[int, int]) -> Tensor:
    """Sum over channels and the pixels of each patch, by a plain loop."""
    height, width = scores.shape[-2] // grid[0], scores.shape[-1] // grid[1]
    cells = [
        scores[:, :, row * height : (row + 1) * height, column * width : (column + 1) * width].sum((1, 2, 3))
        for row in range(grid[0])
        for column in range(grid[1])
    ]
    return torch.stack(cells, 1)


@pytest.mark.parametrize("level", ["pixel", "embedding"])
def test_vanilla_and_integrated_gradients_are_captums(level: str, model: Any, pixels: Tensor) -> None:
    function, given, base = captum_input(model, pixels, level)
    for column in range(2):
        target = TARGETS[:, column]
        saliency = captum.attr.Saliency(function).attribute(given.clone(), target=target, abs=True)
        found = token_scores(f"vanilla-{level}", model, pixels, TARGETS)[..., column]
        torch.testing.assert_close(found, per_patch(saliency, model.grid).detach())
        path = captum.attr.IntegratedGradients(function).attribute(
            given.clone(), baselines=base, target=target, n_steps=10, method="gausslegendre"
        )
        found = token_scores(f"integrated-gradients-{level}", model, pixels, TARGETS)[..., column]
        torch.testing.assert_close(found, per_patch(path, model.grid).detach())


@pytest.mark.parametrize("level", ["pixel", "embedding"])
def test_noisy_gradients_are_the_mean_and_variance_of_captums(level: str, model: Any, pixels: Tensor) -> None:
    function, given, _ = captum_input(model, pixels, level)
    saliency = captum.attr.Saliency(function)
    generators = image_generators(pixels, 3)
    draws = [torch.stack([torch.randn(given.shape[1:], generator=one) for one in generators]) for _ in range(4)]
    for column in range(2):
        slopes = torch.stack(
            [saliency.attribute(given + draw, target=TARGETS[:, column], abs=True).detach() for draw in draws]
        )
        for name, expected in (("smoothgrad", slopes.mean(0)), ("vargrad", slopes.var(0, correction=0))):
            found = token_scores(f"{name}-{level}", model, pixels, TARGETS, num_samples=4, seed=3)[..., column]
            torch.testing.assert_close(found, per_patch(expected, model.grid))


@pytest.mark.parametrize("name", ["vanilla-pixel", "integrated-gradients-embedding"])
def test_half_precision_has_the_gradients_of_a_certain_prediction(name: str, pixels: Tensor) -> None:
    """In float16 the probability is 1 and its gradient 0; the scores are summed in float32, too."""
    net = nets.build(FAMILY).half()
    with torch.no_grad():
        logits = net(pixels.half()).float()
        best = logits.argmax(1)
        net.head.bias[best[0]] += 12 - (logits[0, best[0]] - logits[0].topk(2).values[1]).half()
    whole = vitshap.wrap(copy.deepcopy(net).float())
    assert 1e-6 < 1 - float(whole(pixels[:1].float()).detach()[0, best[0]]) < 1e-4
    target = int(best[0])
    half = vitshap.method(name, vitshap.wrap(net))(pixels[:1].half(), target=target).values
    exact = vitshap.method(name, whole)(pixels[:1].half().float(), target=target).values
    assert float(exact.abs().max()) > 0
    torch.testing.assert_close(half, exact, rtol=0, atol=0.05 * float(exact.abs().max()))


def test_integrated_gradients_agree_between_levels_and_the_gap_shrinks(model: Any, pixels: Tensor) -> None:
    with torch.no_grad():
        difference = model(pixels) - model(torch.zeros_like(pixels))
    gaps = []
    for nodes in (10, 20, 40, 80):
        by_pixel, by_embedding = (
            token_scores(f"integrated-gradients-{level}", model, pixels, TARGETS, nodes=nodes)
            for level in ("pixel", "embedding")
        )
        assert float((by_pixel - by_embedding).abs().max()) < 1e-4
        gaps.append(float((by_pixel.sum(1) - difference.gather(1, TARGETS)).abs().mean()))
    assert gaps == sorted(gaps, reverse=True)


def test_expected_gradients_with_one_reference_converge_to_integrated_gradients(model: Any, pixels: Tensor) -> None:
    many = token_scores(
        "expected-gradients", model, pixels, TARGETS, references=torch.zeros_like(pixels[:1]), num_samples=400
    )
    path = token_scores("integrated-gradients-pixel", model, pixels, TARGETS, nodes=80)
    assert float((many - path).norm() / path.norm()) < 0.2
    with pytest.raises(ValueError, match="needs references="):
        token_scores("expected-gradients", model, pixels, TARGETS)


@pytest.mark.parametrize("removal", [None, "pixels"])
def test_occlusion_is_a_plain_loop(removal: str | None, model: Any, pixels: Tensor) -> None:
    other = model if removal is None else model.with_removal(removal)
    players = model.num_players
    size = (50, (players + 7) // 8)
    drawn = [torch.randint(256, size, generator=one, dtype=torch.uint8) for one in image_generators(pixels, 1)]
    bits = np.unpackbits(torch.stack(drawn).numpy(), axis=-1, bitorder="little", count=players)
    masks = torch.from_numpy(bits).bool()
    assert 0.4 < float(masks.double().mean()) < 0.6
    with torch.no_grad():
        full = other(pixels, torch.ones(2, 1, players, dtype=torch.bool))[:, 0]
        without = other(pixels, ~torch.eye(players, dtype=torch.bool).expand(2, -1, -1))
        values = other(pixels, masks)
    found = vitshap.method("leave-one-out", model, removal=removal)(pixels)
    torch.testing.assert_close(found.values, (full[:, None] - without).float(), atol=1e-5, rtol=1e-4)
    rise = vitshap.method("rise", model, removal=removal, masks=50, seed=1)(pixels)
    assert (found.unit, rise.unit) == ("probability", "score")  # differences share a scale, means of outputs do not
    for image in range(2):
        for player in range(players):
            expected = values[image, masks[image, :, player]].mean(0).float()
            torch.testing.assert_close(rise.values[image, player], expected, atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match='did you mean "pixels"'):
        vitshap.method("rise", model, removal="pixel")(pixels)


def test_less_is_computed_at_once_where_memory_ends() -> None:
    sizes: list[int] = []

    def compute(part: Tensor) -> tuple[Tensor, ...]:
        if len(part) > 2:
            raise torch.OutOfMemoryError("no memory left")
        sizes.append(len(part))
        return part.square(), part[:, 0]

    inputs = torch.arange(14.0).view(7, 2)
    (squares, firsts), fitting = within_memory(compute, inputs, 5)
    torch.testing.assert_close(squares, inputs.square())
    torch.testing.assert_close(firsts, inputs[:, 0])
    assert sizes == [2, 2, 2, 1]
    assert fitting == 2
    with pytest.raises(torch.OutOfMemoryError):
        within_memory(lambda part: compute(part.new_zeros(3, 2)), inputs, 5)


def test_memory_in_reference_cycles_is_free_before_less_is_computed() -> None:
    alive: list[weakref.ref[Tensor]] = []

    def compute(part: Tensor) -> tuple[Tensor, ...]:
        assert all(one() is None for one in alive)
        result = part.square()
        alive.append(weakref.ref(result))
        cycle: list[Any] = [result]
        cycle.append(cycle)
        if len(part) > 1:
            raise torch.OutOfMemoryError("no memory left")
        alive.clear()
        return (part,)

    gc.disable()
    try:
        (found,), _ = within_memory(compute, torch.arange(4.0), 4)
    finally:
        gc.enable()
    torch.testing.assert_close(found, torch.arange(4.0))
