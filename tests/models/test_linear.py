"""Fully connected layers by oneDNN equal PyTorch's own, with their gradients, and are used where they are said to be."""

import pytest
import torch
import torch.nn.functional as F

import vitshap
from tests.models.nets import FAMILIES
from vitshap.models import linear
from vitshap.models.linear import LinearByOneDNN, fast_linear

pytestmark = pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this PyTorch has no oneDNN")


@pytest.fixture
def used(monkeypatch):
    """Return the numbers of multiplications of the products that oneDNN computes; it takes small ones too."""
    sizes, product = [], linear._product

    def counted(rows, weight, bias=None):
        sizes.append(rows.numel() * len(weight))
        return product(rows, weight, bias)

    monkeypatch.setattr(linear, "_product", counted)
    monkeypatch.setattr(linear, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(linear, "SMALLEST", 1)
    return sizes


@pytest.mark.parametrize("shape", [(5, 24), (3, 7, 24), (2, 3, 5, 24)])
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_those_of_pytorch(shape, bias, used):
    torch.manual_seed(0)
    arguments = [torch.randn(shape), torch.randn(11, 24), torch.randn(11) if bias else None]
    arguments = [t if t is None else t.requires_grad_() for t in arguments]
    gradient = torch.randn(*shape[:-1], 11)
    leaves = [t for t in arguments if t is not None]
    expected = F.linear(*arguments)
    with LinearByOneDNN():
        found = F.linear(*arguments)
    assert used == [arguments[0].numel() * 11]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    for ours, theirs in zip(
        torch.autograd.grad(found, leaves, gradient), torch.autograd.grad(expected, leaves, gradient), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)


def test_gradients_can_be_differentiated(used):
    torch.manual_seed(0)
    leaves = [torch.randn(4, 8, requires_grad=True), torch.randn(6, 8, requires_grad=True)]

    def penalty():
        gradients = torch.autograd.grad(F.linear(*leaves).tanh().sum(), leaves, create_graph=True)
        return sum(gradient.square().sum() for gradient in gradients)

    expected = torch.autograd.grad(penalty(), leaves)
    with LinearByOneDNN():
        found = torch.autograd.grad(penalty(), leaves)
    assert used
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_gradients_are_computed_only_where_they_are_needed(used):
    rows, weight = torch.randn(4, 8), torch.randn(6, 8, requires_grad=True)
    with LinearByOneDNN():
        out = F.linear(rows, weight)
    del used[:]
    out.sum().backward()
    assert len(used) == 1
    assert (weight.grad is None, rows.grad is None) == (False, True)


def test_rows_need_not_be_contiguous(used):
    rows, weight = torch.randn(8, 6, 5).permute(2, 0, 1), torch.randn(4, 12, 6).permute(1, 0, 2)[:, 1]
    with LinearByOneDNN(), torch.no_grad():
        torch.testing.assert_close(F.linear(rows, weight), F.linear(rows.contiguous(), weight.contiguous()))
    assert len(used) == 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_other_types_and_small_products_are_left_to_pytorch(dtype, used, monkeypatch):
    monkeypatch.setattr(linear, "SMALLEST", 1000)
    rows, weight = torch.randn(3, 8, dtype=dtype), torch.randn(6, 8, dtype=dtype)
    with LinearByOneDNN():
        assert torch.equal(F.linear(rows, weight), rows @ weight.T)
    assert not used


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_is_evaluated_by_it(family, used):
    model = vitshap.wrap(FAMILIES[family]().eval())
    torch.manual_seed(0)
    images = torch.randn(2, model.adapter.channels, *model.image_size)
    coalitions = torch.rand(2, 6, model.num_players) < 0.5
    del used[:]
    by_onednn = model(images, coalitions)
    assert used
    linear.onednn_is_faster = lambda: False  # undone with the fixture
    torch.testing.assert_close(by_onednn, model(images, coalitions), rtol=0, atol=1e-5)


def test_it_is_for_the_cpu_only(used):
    assert isinstance(fast_linear(torch.device("cpu")), LinearByOneDNN)
    assert not isinstance(fast_linear(torch.device("cuda")), LinearByOneDNN)


@pytest.mark.parametrize(
    ("processor", "capability", "faster"),
    [
        ("vendor_id : AuthenticAMD", "AVX512", True),
        ("vendor_id : AuthenticAMD", "AVX2", False),
        ("vendor_id : GenuineIntel", "AVX512", False),
        ("", "AVX512", False),
    ],
)
def test_only_amd_with_avx512_gains(processor, capability, faster, monkeypatch):
    monkeypatch.setattr(linear, "_processor", lambda: processor)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert linear.onednn_is_faster.__wrapped__() is faster
