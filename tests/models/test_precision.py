"""Evaluations in another precision: by a copy that is kept, made anew when weights change, and left where it overflows."""

import gc
import weakref

import pytest
import torch

from tests.models import nets
from vitshap import MaskedModel, method, wrap
from vitshap.coalitions import shapley_kernel
from vitshap.models import precision as precisions
from vitshap.models.precision import FastValues

NAME = "timm ViT, wide grid"  # 15 patches
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def model() -> MaskedModel:
    return wrap(nets.build(NAME))


def coalitions(number: int = 32) -> torch.Tensor:
    return shapley_kernel(15).sample(number, generator=torch.Generator().manual_seed(0))


def pixels() -> torch.Tensor:
    return nets.images(NAME)


def overflow(model: MaskedModel) -> None:
    """Weights at which float16 is too small for what the first block computes, and float32 is not."""
    with torch.no_grad():
        model.net.blocks[0].mlp.fc2.weight.mul_(1e6)


def test_a_cpu_keeps_the_nets_own_precision(model: MaskedModel) -> None:
    asked = coalitions()
    assert torch.equal(model.game(pixels(), precision="auto")(asked), model.game(pixels())(asked))
    assert torch.equal(model.game(pixels(), precision="float32")(asked), model.game(pixels())(asked))
    assert model not in precisions._COPIES


def test_half_precision_is_close_and_leaves_the_net_and_both_ends_as_they_are(model: MaskedModel) -> None:
    before = model.fingerprint()
    own, half = model.game(pixels()), model.game(pixels(), precision="float16")
    found = half(coalitions())
    assert found.dtype == torch.float32
    assert not torch.equal(found, own(coalitions()))
    torch.testing.assert_close(found, own(coalitions()), rtol=0, atol=5e-3)
    assert torch.equal(half.grand, own.grand)
    assert torch.equal(half.null, own.null)
    assert half.evaluations == 34
    assert model.fingerprint() == before


def test_sampling_takes_the_precision_as_an_option(model: MaskedModel) -> None:
    own, half = (
        method("kernelshap", model, budget=600, precision=name)(pixels(), target=1) for name in ("float32", "float16")
    )
    assert half.values.dtype == torch.float32
    assert torch.equal(own.prediction, half.prediction)
    assert not torch.equal(own.values, half.values)
    assert torch.corrcoef(torch.stack([own.values.flatten(), half.values.flatten()]))[0, 1] > 0.999


def test_the_copy_is_kept_until_weights_change_and_no_longer_than_the_model() -> None:
    model = wrap(nets.build(NAME))
    first = precisions._kept(model, torch.float16)
    assert precisions._kept(model, torch.float16) is first
    before = model.game(pixels(), precision="float16")(coalitions())
    model.net.head.weight.data.mul_(2)  # unseen by autograd's counters
    changed = model.game(pixels(), precision="float16")(coalitions())
    assert precisions._kept(model, torch.float16) is not first
    assert not torch.allclose(changed, before, atol=1e-2)
    torch.testing.assert_close(changed, model.game(pixels())(coalitions()), rtol=0, atol=1e-2)
    copy = weakref.ref(precisions._kept(model, torch.float16))
    del first, model
    gc.collect()
    assert copy() is None


def test_a_net_that_overflows_float16_is_evaluated_otherwise(model: MaskedModel) -> None:
    overflow(model)
    game = model.game(pixels(), precision="float16")
    with pytest.raises(ValueError, match=r"not finite in torch\.float16: give precision="):
        game(coalitions())
    fast = FastValues(model, pixels(), model.players, "auto")
    fast._left = [torch.float16]  # what a GPU tries first
    assert fast(coalitions().expand(2, -1, -1)) is None
    assert precisions._copies(model).overflowed == {torch.float16}
    assert not precisions._copies(model).models


def test_sampling_goes_on_in_the_nets_own_precision_where_half_overflows(
    model: MaskedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    overflow(model)
    expected = method("kernelshap", model, budget=300)(pixels(), target=0)
    monkeypatch.setattr(precisions, "precisions", lambda model, precision: (torch.float16,))  # as on a GPU
    explanation = method("kernelshap", model, budget=300)(pixels(), target=0)
    assert precisions._copies(model).overflowed == {torch.float16}
    assert torch.equal(explanation.values, expected.values)
    assert explanation.evaluations == expected.evaluations <= 300


def test_a_net_that_fails_in_half_precision_is_evaluated_in_its_own(model: MaskedModel) -> None:
    model.net.norm.register_forward_hook(lambda module, args, output: output @ torch.eye(output.shape[-1]))
    fast = FastValues(model, pixels(), model.players, "auto")
    fast._left = [torch.float16]
    with pytest.warns(UserWarning, match=r"cannot be evaluated in torch\.float16"):
        assert fast(coalitions().expand(2, -1, -1)) is None
    with pytest.raises(RuntimeError):
        model.game(pixels(), precision="float16")(coalitions())


def test_bad_precisions_are_named(model: MaskedModel) -> None:
    with pytest.raises(ValueError, match="for GPUs"):
        model.game(pixels(), precision="bfloat16")
    blended = wrap(nets.build(NAME), removal="random", reference=pixels())
    with pytest.raises(ValueError, match="own precision"):
        blended.game(pixels(), precision="float16")


@needs_gpu
def test_a_gpu_samples_in_half_precision_unless_asked_otherwise(model: MaskedModel) -> None:
    model, images = model.cuda(), pixels().cuda()
    own, half = (method("kernelshap", model, budget=2000, precision=name)(images) for name in ("float32", "auto"))
    assert list(precisions._COPIES[model].models) == [torch.float16]
    assert torch.corrcoef(torch.stack([own.values.flatten(), half.values.flatten()]))[0, 1] > 0.999
    assert torch.equal(own.prediction, half.prediction)


@needs_gpu
def test_a_gpu_goes_on_in_bfloat16_where_float16_overflows(model: MaskedModel) -> None:
    overflow(model)
    model, images = model.cuda(), pixels().cuda()
    explanation = method("kernelshap", model, budget=600)(images, target=0)
    assert bool(torch.isfinite(explanation.values).all())
    assert list(precisions._COPIES[model].models) == [torch.bfloat16]
    assert explanation.evaluations <= 600
