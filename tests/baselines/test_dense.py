"""The dense reference is itself checked: against timm, by sums that must come out, and by surrogate nets."""

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from tests.baselines import dense

CLASSES = 4
NETS = {
    "class token": {"global_pool": "token"},
    "wide, class token": {"global_pool": "token", "embed_dim": 16, "num_heads": 2, "depth": 2},
    "wide, mean": {"global_pool": "avg", "embed_dim": 16, "num_heads": 2, "depth": 2},
    "mean": {"global_pool": "avg"},
    "mean, no class token": {"global_pool": "avg", "class_token": False, "depth": 2, "num_heads": 2},
    "mean, normed before": {"global_pool": "avg", "fc_norm": False},
}


def timm_net(**options) -> VisionTransformer:
    """Three blocks on 3 x 3 patches, with weights and biases large enough to matter."""
    settings = {"img_size": 6, "patch_size": 2, "embed_dim": 12, "depth": 3, "num_heads": 3, "mlp_ratio": 2}
    net = VisionTransformer(**(settings | {"num_classes": CLASSES} | options)).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(1 + 0.2 * noise if "norm" in name and name.endswith("weight") else 0.4 * noise)
    return net


def dense_run(kind: str, seed: int = 0):
    net = timm_net(**NETS[kind])
    image = torch.randn(3, 6, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    heads = net.blocks[0].attn.num_heads
    return net, image, dense.DenseViT(net.state_dict(), heads, NETS[kind]["global_pool"])(image)


every_net = pytest.mark.parametrize("kind", NETS)
every_class = pytest.mark.parametrize("target", range(CLASSES))


@every_net
def test_logits_are_timms(kind):
    net, image, run = dense_run(kind)
    with torch.no_grad():
        expected = net(image[None])[0]
    torch.testing.assert_close(run.logits.detach(), expected, atol=1e-12, rtol=0)


@every_net
def test_rows_of_attention_sum_to_one(kind):
    _, _, run = dense_run(kind)
    for block in run.blocks:
        sums = block.attention.detach().sum(-1)
        torch.testing.assert_close(sums, torch.ones_like(sums), atol=1e-14, rtol=0)


@every_net
def test_attention_normed_tokens_and_their_gradients_are_timms(kind):
    net, image, run = dense_run(kind)
    seen = []
    for block in net.blocks:
        block.attn.fused_attn = False
        for layer in (block.norm1, block.attn.attn_drop):  # dropout is off: its output is the attention
            layer.register_forward_hook(lambda layer, inputs, output: seen.append(output))
    logits = net(image[None])[0]
    ours = [kept for block in run.blocks for kept in (block.normed1, block.attention)]
    for target in range(CLASSES):
        slopes = torch.autograd.grad(logits[target], seen, retain_graph=True)
        for kept, value, slope in zip(ours, seen, slopes, strict=True):
            torch.testing.assert_close(kept, value[0], atol=1e-12, rtol=0)
            torch.testing.assert_close(dense.gradient(run, target, kept), slope[0], atol=1e-12, rtol=0)


@every_net
@every_class
def test_every_map_is_finite_and_has_one_value_per_patch(kind, target):
    _, _, run = dense_run(kind)
    for name, method in dense.MAPS.items():
        values = method(run, target)
        assert values.shape == (9,), name
        assert values.isfinite().all(), name
        assert not values.requires_grad, name


def test_rollout_keeps_the_sum_of_the_row():
    _, _, run = dense_run("mean, no class token")
    assert dense.attention_rollout(run).sum() == pytest.approx(1, abs=1e-14)


@every_net
@every_class
def test_lrp_relevance_sums_to_one(kind, target):
    _, _, run = dense_run(kind)
    found = dense.Backward(run, "lrp")(target)
    assert found.leaving.sum() == pytest.approx(1, abs=1e-12)
    assert found.entering[0].sum() + found.dropped == pytest.approx(1, abs=1e-10)
    if kind.startswith("wide"):
        assert found.dropped == 0
        for relevance in found.entering:
            assert relevance.sum() == pytest.approx(1, abs=1e-10)


def test_lrp_starts_from_the_class_row_and_from_shares_that_are_never_negative():
    _, _, run = dense_run("class token")
    row = dense.Backward(run, "lrp")(0).leaving.sum(1)
    torch.testing.assert_close(row, torch.eye(10, dtype=torch.float64)[0], atol=1e-14, rtol=0)
    _, _, run = dense_run("mean")
    row = dense.Backward(run, "lrp")(0).leaving.sum(1)
    assert row[0] == 0
    assert (row >= 0).all()
    assert row.std() > 0.01  # not a uniform row


@every_net
@every_class
@pytest.mark.parametrize("gamma", [0.0, 0.25])
def test_without_the_softmax_patches_and_constants_sum_to_the_logit(kind, target, gamma):
    _, _, run = dense_run(kind)
    found = dense.Backward(run, "attnlrp", gamma, "cp")(target)
    assert found.patches.sum() + found.kept == pytest.approx(run.logits[target].item(), abs=1e-10)
    assert abs(found.kept) > 1e-3


@every_class
def test_libragrad_is_the_change_of_a_net_with_fixed_gates(target):
    """With its gates held, the net is affine: a patch's relevance is what its embedding alone adds to the logit."""
    net, _, run = dense_run("class token")
    frozen = surrogate(net, run, torch.zeros_like(run.patches), "libragrad")[target]
    for patch, value in enumerate(dense.libragrad(run, target)):
        alone = torch.zeros_like(run.patches)
        alone[patch] = run.patches[patch]
        expected = surrogate(net, run, alone, "libragrad")[target] - frozen
        assert value.item() == pytest.approx(expected.item(), abs=1e-10)


@every_net
@every_class
@pytest.mark.parametrize("method", ["attnlrp", "libragrad"])
def test_proportional_rules_are_gradient_times_input_of_a_surrogate(kind, target, method):
    net, _, run = dense_run(kind)
    patches = run.patches.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(surrogate(net, run, patches, method)[target], patches)
    expected = (patches * slope).detach().sum(1)
    torch.testing.assert_close(dense.MAPS[method](run, target), expected, atol=1e-10, rtol=1e-10)


def surrogate(net: VisionTransformer, run, patches: Tensor, method: str) -> Tensor:
    """Logits from an embedding, with gates as ``run`` had them: deviations, GELU's factor and, in LibraGrad, attention.

    In AttnLRP attention moves, and each factor of a product of two has half of its gradient.
    """

    def half(x: Tensor) -> Tensor:
        return x / 2 + x.detach() / 2

    def norm(layer, x: Tensor, at: Tensor) -> Tensor:
        std = (at.detach().var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt()
        return (x - x.mean(-1, keepdim=True)) / std * layer.weight.detach() + layer.bias.detach()

    def apply(layer, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, layer.weight.detach(), layer.bias.detach())

    x = torch.cat([net.cls_token[0].detach(), patches]) if net.cls_token is not None else patches
    x = x + net.pos_embed[0].detach()
    for block, kept in zip(net.blocks, run.blocks, strict=True):
        y = apply(block.attn.qkv, norm(block.norm1, x, kept.x))
        q, k, v = y.reshape(len(x), 3, run.net.heads, -1).permute(1, 2, 0, 3)
        if method == "libragrad":
            mixed = kept.attention.detach() @ v
        else:
            mixed = half((half(q) @ half(k).transpose(1, 2) * kept.scale).softmax(-1)) @ half(v)
        x = x + apply(block.attn.proj, mixed.transpose(0, 1).reshape(len(x), -1))
        y = apply(block.mlp.fc1, norm(block.norm2, x, kept.middle))
        x = x + apply(block.mlp.fc2, y * (kept.active / kept.hidden).detach())
    if hasattr(net.norm, "weight"):
        x = norm(net.norm, x, run.out)
    x = x[0] if run.net.pool == "token" else x[run.net.prefix :].mean(0)
    if hasattr(net.fc_norm, "weight"):
        x = norm(net.fc_norm, x, run.pooled)
    return apply(net.head, x)


def test_gamma_moves_from_the_proportional_rule_to_the_positive_contributions():
    generator = torch.Generator().manual_seed(2)
    x, weight, relevance = (torch.randn(*size, generator=generator).double() for size in [(6,), (5, 6), (5,)])
    no_bias = torch.zeros(5, dtype=torch.float64)
    y = weight @ x
    plain, kept = dense.gamma_rule(x, weight, no_bias, relevance, 0.0)
    torch.testing.assert_close(plain, x * (weight.T @ (relevance / y)), atol=1e-12, rtol=1e-12)
    assert kept == 0
    positive = torch.where(y > 0, relevance, 0.0)
    far, _ = dense.gamma_rule(x, weight, no_bias, positive, 1e14)
    torch.testing.assert_close(far, dense.z_plus_rule(x, weight, positive)[0], atol=1e-12, rtol=1e-10)
    negative = relevance - positive
    far, _ = dense.gamma_rule(x, weight, no_bias, negative, 1e14)
    torch.testing.assert_close(far, dense.z_plus_rule(x, -weight, negative)[0], atol=1e-12, rtol=1e-10)


def test_gamma_and_the_softmax_change_the_map():
    _, _, run = dense_run("class token")
    maps = [dense.attnlrp(run, 0, gamma, attention) for gamma in (0.0, 0.25) for attention in ("softmax", "cp")]
    for first in range(4):
        for second in range(first):
            assert (maps[first] - maps[second]).abs().max() > 1e-3


def test_the_residual_rule_is_the_published_normalisation():
    a, b = torch.tensor([1.0, -2.0, 3.0]).double(), torch.tensor([0.5, 1.0, -4.0]).double()
    relevance = torch.tensor([0.3, 0.4, 0.3]).double()
    to_a, to_b = dense.residual_rule(a, b, relevance, normalised=True)
    part_a, part_b = a / (a + b) * relevance, b / (a + b) * relevance
    size = part_a.sum().abs() + part_b.sum().abs()
    torch.testing.assert_close(to_a, part_a / part_a.sum() * part_a.sum().abs() / size)
    torch.testing.assert_close(to_b, part_b / part_b.sum() * part_b.sum().abs() / size)


def test_exact_zeros_drop_relevance():
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    assert dense.divided(one, zero) == 0
    assert dense.identity_rule(zero, one) == 0
    assert dense.z_plus_rule(one, -one[None], one) == (0, 1)
    assert dense.residual_rule(one, -one, one, normalised=True) == (0, 0)


def test_a_net_that_it_does_not_know_is_refused():
    with pytest.raises(ValueError, match=r"ls1\.gamma"):
        dense.DenseViT(timm_net(init_values=0.1).state_dict(), 3)
    with pytest.raises(ValueError, match="pool max"):
        dense.DenseViT(timm_net().state_dict(), 3, "max")
