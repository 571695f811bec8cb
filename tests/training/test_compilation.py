"""Compiled trainings, here on the CPU: they take the same steps, are compiled once, and go on where compilation fails."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils.data import TensorDataset
from transformers import ViTConfig, ViTForImageClassification

from tests.models import nets
from vitshap.models import MaskedModel, wrap
from vitshap.training import compilation
from vitshap.training.compilation import Compilable
from vitshap.training.configs import ClassifierTraining, ExplainerTraining, LoopConfig, SurrogateTraining
from vitshap.training.explainer import fit_explainer
from vitshap.training.fit import _full_length, _packed, fit_classifier, fit_masked_classifier, fit_surrogate
from vitshap.training.loop import _Run

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
# With a small epsilon, rounding errors of gradients that are zero (those of key biases) would become whole steps.
LOOP = LoopConfig(epochs=3, batch_size=8, learning_rate=1e-3, adam_epsilon=1e-3)
IMAGES = 32


@pytest.fixture(scope="module")
def model() -> MaskedModel:
    torch.manual_seed(0)
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=10, initializer_range=0.3, **size)
    return wrap(ViTForImageClassification(config))


@pytest.fixture(scope="module")
def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.rand(IMAGES, 1, 8, 8, generator=generator), torch.arange(IMAGES) % 10)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile on the CPU, where it does not pay."""
    monkeypatch.setattr(compilation, "can_compile", lambda device: True)
    torch._dynamo.reset()
    counters.clear()


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The losses of all steps that are taken."""
    found: list[float] = []
    read = _Run.read_losses

    def reading(self: _Run, *, behind: int = 0) -> None:
        before = len(self.state.losses)
        read(self, behind=behind)
        found.extend(self.state.losses[before:])

    monkeypatch.setattr(_Run, "read_losses", reading)
    return found


def _classifier(**options: Any) -> ClassifierTraining:
    return ClassifierTraining(LOOP, None, **options)


FITS: dict[str, tuple[Callable[..., nn.Module], Callable[..., Any]]] = {
    "classifier": (fit_classifier, _classifier),
    "masked classifier": (fit_masked_classifier, partial(_classifier, coalitions=2)),
    "surrogate": (fit_surrogate, partial(SurrogateTraining, LOOP, None, coalitions=2)),
    "explainer": (fit_explainer, partial(ExplainerTraining, "paper", LOOP, None, coalitions=4)),
}


@needs_compiler
@pytest.mark.long
@pytest.mark.parametrize("kind", FITS)
def test_compiled_training_takes_the_same_steps(
    kind: str, model: MaskedModel, data: TensorDataset, on_cpu: None, losses: list[float]
) -> None:
    fit, config = FITS[kind]
    plain = fit(model, data, data, None, config(compiled=False)).state_dict()
    expected = list(losses)
    assert not counters["stats"], "nothing is compiled unless it is asked for"
    losses.clear()
    compiled = fit(model, data, data, None, config(compiled=True)).state_dict()
    assert len(losses) == LOOP.epochs * IMAGES // LOOP.batch_size
    assert losses == pytest.approx(expected, abs=1e-5)
    for name, weights in plain.items():
        torch.testing.assert_close(compiled[name], weights, atol=1e-5, rtol=0)
    start = model.state_dict()
    assert kind == "explainer" or max((plain[name] - start[name]).abs().max() for name in start) > 1e-3
    assert counters["stats"]["unique_graphs"] == 1, "compiled once, over steps and validations"
    assert not counters["graph_break"]


@needs_compiler
@pytest.mark.parametrize("kind", ["masked classifier", "surrogate"])
def test_training_goes_on_where_compilation_fails(
    kind: str, model: MaskedModel, data: TensorDataset, on_cpu: None
) -> None:
    from torch._inductor.utils import fresh_inductor_cache

    fit, config = FITS[kind]
    plain = fit(model, data, data, None, config(compiled=False)).state_dict()
    with (
        fresh_inductor_cache(),
        torch._inductor.config.patch({"cpp.cxx": ("/no/such/compiler",)}),
        pytest.warns(UserWarning, match="cannot be compiled") as caught,
    ):
        found = fit(model, data, data, None, config(compiled=True)).state_dict()
    assert len([one for one in caught if "cannot be compiled" in str(one.message)]) == 1
    assert all(torch.equal(found[name], weights) for name, weights in plain.items())


@needs_compiler
@pytest.mark.long
def test_compiled_augmentation_takes_the_same_steps(
    model: MaskedModel, data: TensorDataset, on_cpu: None, losses: list[float]
) -> None:
    for compiled in (False, True):
        fit_classifier(model, data, data, None, ClassifierTraining(LOOP, compiled=compiled))
    half = len(losses) // 2
    assert losses[half:] == pytest.approx(losses[:half], abs=1e-4)
    assert counters["stats"]["unique_graphs"] == 2, "network and augmentation"


@pytest.mark.parametrize(
    ("family", "removal"),
    [
        ("timm ViT", "attention"),
        ("timm ViT", "softmax"),
        ("timm ViT", "pixels"),
        ("timm average pooling, no class token", "attention"),
        ("transformers ViT eager", "attention"),
        ("transformers BEiT mean", "attention"),
        ("transformers DINOv2 registers", "attention"),
        ("torchvision ViT", "attention"),
    ],
)
def test_masked_networks_are_one_graph_for_all_coalitions(family: str, removal: str) -> None:
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    net = wrap(nets.build(family).eval(), removal=removal)
    compiled = torch.compile(partial(_full_length, net), backend="eager", dynamic=False)
    pixels = torch.randn(3, 3, 32, 32)
    with torch.no_grad(), net.adapter.ready():
        for seed in range(3):
            keep = torch.rand(3, 2, 16, generator=torch.Generator().manual_seed(seed)) < 0.3 * seed
            torch.testing.assert_close(compiled(pixels, keep), _packed(net, pixels, keep), atol=1e-5, rtol=1e-4)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


def _applied(net: nn.Module, x: Tensor) -> Tensor:
    found: Tensor = net(x)
    return found


@needs_compiler
@pytest.mark.long
def test_trying_a_network_changes_neither_its_state_nor_random_numbers(on_cpu: None) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    nets = [nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    before = torch.get_rng_state()
    found = Compilable(partial(_applied, nets[0]), nets[0], wanted=True)(x)
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(found, nets[1](x))
    for name, tensor in nets[1].state_dict().items():
        torch.testing.assert_close(nets[0].state_dict()[name], tensor)
    assert all(parameter.grad is None for parameter in nets[0].parameters())
    assert counters["stats"]["unique_graphs"] == 1


@needs_compiler
@pytest.mark.long
def test_more_networks_than_pytorch_compiles_by_default(on_cpu: None) -> None:
    widths = range(1, torch._dynamo.config.recompile_limit + 3)
    for width in widths:
        net = nn.Linear(width, 2)
        Compilable(partial(_applied, net), net, wanted=True)(torch.ones(3, width))
    assert counters["stats"]["unique_graphs"] == len(widths)
