"""Training on a GPU: recorded graphs compute what single launches do, and a resumed run goes on from where it was."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

from transformers import ViTConfig, ViTForImageClassification  # noqa: E402

from vitshap.data import Augmentation, Splits, load_digits  # noqa: E402
from vitshap.explainers import Explainer  # noqa: E402
from vitshap.models import MaskedModel, wrap  # noqa: E402
from vitshap.training.configs import (  # noqa: E402
    ClassifierTraining,
    ExplainerTraining,
    LoopConfig,
    Procedure,
    SurrogateTraining,
    ValuesConfig,
)
from vitshap.training.explainer import fit_explainer  # noqa: E402
from vitshap.training.fit import fit_classifier, fit_masked_classifier, fit_surrogate  # noqa: E402
from vitshap.training.values.store import Evaluator  # noqa: E402
from vitshap.training.values.validation import ValidationSet  # noqa: E402

PASTING = Augmentation(crop_scale=(1, 1), horizontal_flip=0, vertical_flip=0, jitter=0, paste=0.5)


@pytest.fixture(scope="module")
def digits() -> Splits:
    return load_digits()


@pytest.fixture(scope="module")
def model() -> MaskedModel:
    torch.manual_seed(0)
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=10, initializer_range=0.3, **size)
    return wrap(ViTForImageClassification(config).eval().cuda())


def _fitted(
    model: MaskedModel,
    digits: Splits,
    folder: Path,
    *,
    compiled: bool,
    procedure: Procedure = "values",
    resume: bool = False,
) -> Explainer:
    loop = LoopConfig(epochs=4, batch_size=128, learning_rate=1e-3, save_every=7)
    values = ValuesConfig(views=2, coalitions=16)
    config = ExplainerTraining(procedure, loop, PASTING, values=values, compiled=compiled)
    return fit_explainer(model, digits.train, digits.val, folder, config, resume=resume)


def _distance(one: Explainer, two: Explainer, model: MaskedModel, digits: Splits) -> float:
    """Relative, of the values of test images."""
    pixels = torch.stack([digits.test[i][0] for i in range(60)]).to(model.device)
    values = [explainer(pixels).values for explainer in (one, two)]
    return float((values[0] - values[1]).norm() / values[0].norm())


@pytest.mark.parametrize("procedure", ["values", "paper"])
def test_compiled_training_ends_where_plain_training_does(
    model: MaskedModel, digits: Splits, tmp_path: Path, procedure: Procedure
) -> None:
    plain, compiled = (
        _fitted(model, digits, tmp_path / str(how), compiled=how, procedure=procedure) for how in (False, True)
    )
    untrained = Explainer(model, plain.network.config).eval()
    apart = _distance(plain, compiled, model, digits)
    assert apart < 0.1, "bfloat16 rounds differently in fused kernels"
    assert apart < 0.3 * _distance(plain, untrained, model, digits)


@pytest.mark.parametrize("fit", [fit_classifier, fit_masked_classifier, fit_surrogate])
def test_compiled_networks_learn_what_plain_ones_do(
    model: MaskedModel, digits: Splits, fit: Callable[..., MaskedModel]
) -> None:
    config = SurrogateTraining if fit is fit_surrogate else ClassifierTraining
    loop = LoopConfig(epochs=4, batch_size=128, learning_rate=1e-3)
    plain, compiled = (
        fit(model, digits.train, digits.val, None, config(loop, None, coalitions=2, compiled=how))
        for how in (False, True)
    )
    pixels = torch.stack([digits.test[i][0] for i in range(60)]).to(model.device)
    some = torch.rand(60, 4, 16, generator=torch.Generator().manual_seed(0)) < 0.5
    before, one, two = (net(pixels, some.to(model.device)).detach() for net in (model, plain, compiled))
    apart = (one - two).norm()
    assert apart < 0.1 * one.norm(), "bfloat16 rounds differently in fused kernels"
    assert apart < 0.3 * (one - before).norm()


@pytest.mark.parametrize("compiled", [False, True])
def test_a_stopped_training_goes_on(
    model: MaskedModel, digits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    whole = _fitted(model, digits, tmp_path / "whole", compiled=compiled)
    losses, calls = ValidationSet.losses, []

    def stopping(self: ValidationSet, explainer: Explainer, batch_size: int) -> dict[str, float]:
        calls.append(1)
        if len(calls) == 3:
            raise InterruptedError
        return losses(self, explainer, batch_size)

    monkeypatch.setattr(ValidationSet, "losses", stopping)
    with pytest.raises(InterruptedError):
        _fitted(model, digits, tmp_path / "stopped", compiled=compiled)
    resumed = _fitted(model, digits, tmp_path / "stopped", compiled=compiled, resume=True)
    assert _distance(whole, resumed, model, digits) < 0.02


def test_a_net_too_large_for_float16_is_evaluated_in_bfloat16(model: MaskedModel, digits: Splits) -> None:
    large = copy.deepcopy(model)
    with torch.no_grad():
        large.net.vit.layernorm.weight.mul_(1e5)
        large.net.classifier.weight.mul_(1e-5)
    pixels = torch.stack([digits.test[i][0] for i in range(6)]).to(model.device)
    coalitions = torch.rand(6, 9, 16, device=model.device) < 0.5
    evaluate = Evaluator(large)
    full, values = evaluate(pixels, coalitions)
    assert evaluate.dtype == torch.bfloat16
    expected = large.game(pixels)
    assert (full - expected.grand).abs().max() <= 0.05
    assert (values - expected(coalitions)).abs().max() <= 0.05
