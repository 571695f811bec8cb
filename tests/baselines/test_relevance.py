"""Attention, GradCAM and relevance methods against the dense reference, on every family, and what they leave behind."""

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitshap
from tests.baselines import dense
from tests.baselines.test_dense import CLASSES, NETS, dense_run
from tests.models import nets
from vitshap.baselines.interception import trace
from vitshap.baselines.rules import LibraGradRules, LrpRules
from vitshap.methods import TokenScores
from vitshap.models.base import evaluating
from vitshap.models.convert import as_transformers

MAPS = [
    "attention-last",
    "attention-rollout",
    "generic-attention",
    "gradcam-attention",
    "gradcam-ln",
    "lrp",
    "libragrad",
]
WITH_OPTIONS = [
    *((name, {}) for name in MAPS),
    ("attnlrp", {}),
    ("attnlrp", {"attention": "cp"}),
    ("attnlrp", {"gamma": 0.25}),
    ("attnlrp", {"gamma": 1.0, "attention": "cp"}),
]


def token_scores(name: str, model: Any, pixels: Tensor, targets: Tensor, **options: Any) -> Tensor:
    method: Any = vitshap.method(name, model, **options)
    with evaluating(model.net), model.adapter.ready():
        found = method.score_tokens(pixels, targets)
    return (found.scores if isinstance(found, TokenScores) else found).detach()


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize(("name", "options"), WITH_OPTIONS, ids=str)
def test_every_class_agrees_with_the_dense_reference(kind: str, name: str, options: dict[str, Any]) -> None:
    net, image, run = dense_run(kind)
    model = vitshap.wrap(net)
    found = token_scores(name, model, image[None], torch.arange(CLASSES)[None], **options)[0]
    for target in range(CLASSES):
        if name == "attnlrp":
            expected = dense.attnlrp(run, target, **options)
        elif name in ("attention-last", "attention-rollout"):
            expected = getattr(dense, name.replace("-", "_"))(run)
        else:
            expected = dense.MAPS[name](run, target)
        scale = expected.abs().max().clamp(min=1e-12)
        assert float((found[:, target] - expected).abs().max() / scale) < 1e-6


@pytest.mark.parametrize("family", nets.FAMILIES)
def test_every_method_runs_on_every_family_and_an_image_does_not_depend_on_its_batch(family: str) -> None:
    net, pixels = nets.build(family), nets.images(family)
    exact = "mixed" not in family  # timm's mixed rotary positions are float32 alone
    if exact:
        net, pixels = net.double(), pixels.double()
    model = vitshap.wrap(net, image_size=nets.image_size(family)) if "wide" in family else vitshap.wrap(net)
    targets = torch.tensor([[0, 2], [1, 2]])
    for name in (*MAPS, "attnlrp"):
        both = token_scores(name, model, pixels, targets)
        alone = token_scores(name, model, pixels[1:], targets[1:])
        assert bool(torch.isfinite(both).all()), name
        scale = alone.abs().max().clamp(min=1e-30)
        assert float((both[1] - alone[0]).abs().max() / scale) < (1e-6 if exact else 1e-4), name


def same_net_in_three_libraries() -> list[nn.Module]:
    """One set of weights in timm, transformers and torchvision."""
    ours = nets._timm("vit_tiny_patch16_224", mlp_ratio=2)().eval()
    torch_net = nets.build("torchvision ViT")
    state, theirs = ours.state_dict(), torch_net.state_dict()
    names = {
        "class_token": "cls_token",
        "conv_proj.weight": "patch_embed.proj.weight",
        "conv_proj.bias": "patch_embed.proj.bias",
        "encoder.pos_embedding": "pos_embed",
        "encoder.ln.weight": "norm.weight",
        "encoder.ln.bias": "norm.bias",
        "heads.head.weight": "head.weight",
        "heads.head.bias": "head.bias",
    }
    parts = {
        "ln_1": "norm1",
        "ln_2": "norm2",
        "self_attention.in_proj_": "attn.qkv.",
        "self_attention.out_proj": "attn.proj",
        "mlp.0": "mlp.fc1",
        "mlp.3": "mlp.fc2",
    }
    for name in theirs:
        if name not in names:
            renamed = name.replace("encoder.layers.encoder_layer_", "blocks.")
            for part, timms in parts.items():
                renamed = renamed.replace(part, timms)
            names[name] = renamed
    torch_net.load_state_dict({name: state[names[name]] for name in theirs})
    return [ours, as_transformers(ours), torch_net]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-8), (torch.float32, 1e-4)], ids=str)
def test_the_same_weights_give_the_same_map_in_every_library(dtype: torch.dtype, bound: float) -> None:
    pixels, targets = nets.images("timm ViT").to(dtype), torch.arange(5).expand(2, -1)
    models = [vitshap.wrap(net.to(dtype).eval()) for net in same_net_in_three_libraries()]
    gradients = ("vanilla-pixel", "smoothgrad-embedding", "integrated-gradients-embedding")
    for name in (*MAPS, "attnlrp", *gradients):
        first, *others = (token_scores(name, model, pixels, targets) for model in models)
        for other in others:
            assert float((other - first).abs().max() / first.abs().max()) < bound, name


def test_float32_models_get_lrp_in_float64() -> None:
    net, pixels = nets.build("timm ViT"), nets.images("timm ViT")
    targets = torch.arange(5).expand(2, -1)
    single = token_scores("lrp", vitshap.wrap(net), pixels, targets)
    double = token_scores("lrp", vitshap.wrap(nets.build("timm ViT").double()), pixels.double(), targets)
    assert float((single - double).abs().max() / double.abs().max()) < 1e-4


def test_relevance_sums_are_conserved() -> None:
    net, pixels = nets.build("timm ViT").double(), nets.images("timm ViT").double()
    adapter = vitshap.wrap(net).adapter
    found = trace(adapter, pixels, LrpRules())
    assert found.tokens is not None
    seed = torch.zeros_like(found.logits)
    seed[:, 1] = 1 / found.logits[:, 1].detach()
    (grads,) = torch.autograd.grad(found.logits, [found.tokens], seed)
    torch.testing.assert_close((grads * found.tokens).sum((1, 2)), torch.ones(2, dtype=torch.float64))

    for parameter in net.parameters():  # without biases and positions all of the logit comes from the patches
        if parameter.ndim < 2:
            nn.init.zeros_(parameter)
    for module in net.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
    nn.init.zeros_(net.pos_embed)
    nn.init.zeros_(net.cls_token)
    found = trace(adapter, pixels, LibraGradRules())
    (grads,) = torch.autograd.grad(found.logits[:, 1].sum(), [found.leaf])
    torch.testing.assert_close((grads * found.leaf).sum((1, 2, 3)), found.logits[:, 1].detach())


@pytest.mark.parametrize("name", ["lrp", "attnlrp", "libragrad", "gradcam-ln", "vanilla-pixel"])
def test_the_model_is_left_as_it_was(name: str) -> None:
    net = nets.build("transformers ViT eager")
    net.train()
    first = next(net.parameters())
    first.requires_grad_(False)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    flags = [parameter.requires_grad for parameter in net.parameters()]
    pixels = nets.images("transformers ViT eager")
    model = vitshap.wrap(net)
    token_scores(name, model, pixels, torch.tensor([[0], [1]]))
    assert all(parameter.grad is None for parameter in net.parameters())
    assert [parameter.requires_grad for parameter in net.parameters()] == flags
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
    assert net.training
    assert net.config._attn_implementation == "eager"


def test_an_exception_inside_of_the_model_leaves_nothing_behind() -> None:
    net, pixels = nets.build("timm ViT"), nets.images("timm ViT")
    model = vitshap.wrap(net)
    targets = torch.tensor([[0], [1]])
    before = token_scores("lrp", model, pixels, targets)

    def fail(*_: Any) -> None:
        raise RuntimeError("inside")

    handle = net.blocks[1].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="inside"):
        token_scores("lrp", model, pixels, targets)
    handle.remove()
    assert torch.overrides._get_current_function_mode() is None
    assert torch.equal(token_scores("lrp", model, pixels, targets), before)


def test_threads_do_not_disturb_each_other() -> None:
    net, pixels = nets.build("timm ViT"), nets.images("timm ViT")
    model = vitshap.wrap(net)
    targets = torch.tensor([[0], [1]])
    names = ["lrp", "attnlrp", "libragrad", "attention-rollout"]
    alone = {name: token_scores(name, model, pixels, targets) for name in names}
    together: dict[str, Tensor] = {}

    def work(name: str) -> None:
        for _ in range(3):
            together[name] = token_scores(name, model, pixels, targets)

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(alone[name], together[name]) for name in names)


def test_inference_mode_and_chunks_of_classes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    net, pixels = nets.build("torchvision ViT").double(), nets.images("torchvision ViT").double()
    model = vitshap.wrap(net)
    targets = torch.arange(5).expand(2, -1)
    for name in ("lrp", "attnlrp", "generic-attention"):
        whole = token_scores(name, model, pixels, targets)
        with torch.inference_mode():
            assert torch.allclose(token_scores(name, model, pixels.clone(), targets), whole, atol=1e-12)
        with monkeypatch.context() as patch:
            patch.setattr("vitshap.baselines.interception.NUMBERS_AT_ONCE", 1)
            assert torch.allclose(token_scores(name, model, pixels, targets), whole, atol=1e-12)


def test_players_get_the_sum_of_their_tokens() -> None:
    net, pixels = nets.build("timm ViT"), nets.images("timm ViT")
    model = vitshap.wrap(net)
    single = vitshap.method("attnlrp", model)(pixels, target=2)
    blocks = vitshap.method("attnlrp", model, players=2)(pixels, target=2)
    rows, columns = model.grid
    expected = single.values[..., 0].view(2, rows // 2, 2, columns // 2, 2).sum((2, 4)).flatten(1)
    torch.testing.assert_close(blocks.values[..., 0], expected)
    assert single.unit == "score"
    assert not single.additive


def test_bad_options_are_explained() -> None:
    model = vitshap.wrap(nets.build("timm ViT"))
    with pytest.raises(ValueError, match='attention is "softmax" or "cp"'):
        vitshap.method("attnlrp", model, attention="none")
    with pytest.raises(TypeError, match='did you mean "gamma"'):
        vitshap.method("attnlrp", model, gama=1)


def test_a_gradient_that_is_not_finite_is_reported_with_its_operation() -> None:
    net, pixels = nets.build("timm ViT"), nets.images("timm ViT")

    class Root(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x - x).sqrt() + x  # its slope at 0 is infinite, and infinity times 0 is NaN

    net.norm = nn.Sequential(net.norm, Root())
    model = vitshap.wrap(net, check=False)
    with pytest.raises(ValueError, match="not finite: Function 'SqrtBackward0' returned nan"):
        token_scores("vanilla-embedding", model, pixels, torch.tensor([[0], [1]]))


def test_a_model_known_by_input_and_output_alone_has_gradients_but_no_attention() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.Flatten(), nn.Linear(64, 5)).eval()
    model = vitshap.wrap(net, removal="pixels", image_size=32, players=torch.arange(16).view(4, 4))
    pixels, targets = torch.randn(2, 3, 32, 32), torch.tensor([[0], [1]])
    assert token_scores("integrated-gradients-pixel", model, pixels, targets).shape == (2, 16, 1)
    for name in ("attention-last", "attention-rollout", "generic-attention", "gradcam-attention"):
        with pytest.raises(ValueError, match="no attention is known in Sequential: methods for any model are"):
            token_scores(name, model, pixels, targets)
    for name in ("lrp", "gradcam-ln"):
        with pytest.raises(ValueError, match="Sequential"):
            token_scores(name, model, pixels, targets)


@pytest.mark.parametrize("name", [*MAPS, "attnlrp", "vanilla-pixel", "vanilla-embedding"])
def test_the_prediction_comes_from_the_same_pass(name: str) -> None:
    net, pixels = nets.build("timm ViT"), nets.images("timm ViT")
    model = vitshap.wrap(net)
    method = vitshap.method(name, model)
    expected = model(pixels).detach()
    calls = []
    handle = net.register_forward_hook(lambda *_: calls.append(1))
    for target in (None, "predicted"):
        explanation = method(pixels, target=target)
        assert explanation.evaluations == 1
        torch.testing.assert_close(explanation.prediction, expected, atol=1e-6, rtol=1e-5)
    handle.remove()
    assert len(calls) == 2 * (2 if name == "lrp" else 1)  # lrp runs once more, in float64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_of_large_activations_pass_relevance_on_in_half_precision(dtype: torch.dtype) -> None:
    """The squares of activations above 256 are beyond float16."""
    found = []
    for one in (dtype, torch.float32):
        x = torch.tensor([[400.0, -8.0, 3.0, 40.0]], dtype=one, requires_grad=True)
        y = torch.nn.functional.rms_norm(x.float(), (4,)).to(one)
        LibraGradRules().norm(x, y, None, None, 1e-6, False).sum().backward()
        assert x.grad is not None
        found.append(x.grad.float())
    torch.testing.assert_close(*found, rtol=1e-2, atol=0)
