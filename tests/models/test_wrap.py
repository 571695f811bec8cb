"""What ``wrap`` accepts, refuses, finds out by itself, and leaves alone."""

import copy

import peft
import pytest
import timm
import torch
import transformers
from PIL import Image
from torch import nn

from tests.models import nets
from vitshap.models import CannotMask, Preprocess, wrap
from vitshap.models.base import Adapter
from vitshap.models.removal import Removal
from vitshap.models.timm import TimmViT
from vitshap.models.wrap import TOLERANCE, check_mask, relative_change

COALITIONS = torch.rand(2, 4, 16, generator=torch.Generator().manual_seed(0)) < 0.5


def _state(net: nn.Module) -> dict[str, object]:
    """Everything of a net that must not change."""
    return {
        "weights": {name: tensor.clone() for name, tensor in net.state_dict().items()},
        "modes": [module.training for module in net.modules()],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules()],
        "attributes": [
            (getattr(m, "fused_attn", None), getattr(m, "gradient_checkpointing", None)) for m in net.modules()
        ],
        "config": repr(getattr(net, "config", None))
        + str(getattr(net, "config", None) and net.config._attn_implementation),
    }


def _assert_same_state(one: dict[str, object], other: dict[str, object]) -> None:
    assert one.keys() == other.keys()
    for key in one:
        if key == "weights":
            assert all(torch.equal(a, b) for a, b in zip(one[key].values(), other[key].values(), strict=True))
        else:
            assert one[key] == other[key], key


@pytest.mark.parametrize("name", ["timm ViT", "transformers ViT eager", "transformers BEiT mean", "torchvision ViT"])
@pytest.mark.parametrize("removal", ["attention", "softmax", "embeddings", "pixels"])
def test_the_net_is_untouched(name: str, removal: str) -> None:
    net = nets.build(name)
    net.train()
    nets.blocks(net)[0].eval()  # a mode per module, which a plain .train() would lose
    for module in net.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    before = _state(net)
    model = wrap(net, removal=removal)
    model.game(nets.images(name))(COALITIONS)
    _assert_same_state(_state(net), before)


@pytest.mark.parametrize("name", ["timm ViT", "transformers ViT eager"])
def test_the_net_is_untouched_after_an_exception(name: str) -> None:
    net = nets.build(name)
    model = wrap(net)
    net.train()

    def fail(*args: object) -> None:
        raise KeyError("in the middle")

    handle = nets.blocks(net)[1].register_forward_pre_hook(fail)
    before = _state(net)
    with pytest.raises(KeyError, match="in the middle"):
        model.game(nets.images(name))(COALITIONS)
    _assert_same_state(_state(net), before)
    handle.remove()
    model.game(nets.images(name))(COALITIONS)


def test_a_game_does_not_depend_on_the_mode() -> None:
    net = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, drop_path_rate=0.5, **nets.SMALL)
    model = wrap(net.train())
    pixels = nets.images("timm ViT")
    torch.testing.assert_close(model.game(pixels)(COALITIONS), model.game(pixels)(COALITIONS), rtol=0, atol=0)
    net.eval()
    evaluated = model(pixels, COALITIONS)
    net.train()
    torch.testing.assert_close(model.game(pixels)(COALITIONS), evaluated.detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("attention", ["fused", "unfused"])
def test_timm_without_fused_attention(attention: str) -> None:
    net = nets.build("timm ViT")
    expected = wrap(net)(nets.images("timm ViT"), COALITIONS)
    for block in net.blocks:
        block.attn.fused_attn = attention == "fused"
    torch.testing.assert_close(wrap(net)(nets.images("timm ViT"), COALITIONS), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("wrapper", ["compile", "DataParallel", "PEFT"])
def test_wrapped_nets_are_unwrapped(wrapper: str) -> None:
    net = nets.build("transformers ViT")
    expected = wrap(net)(nets.images("timm ViT"), COALITIONS)
    if wrapper == "compile":
        outer: nn.Module = torch.compile(net, backend="eager")
    elif wrapper == "DataParallel":
        outer = nn.DataParallel(net)
    else:
        outer = peft.get_peft_model(net, peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=2)).eval()
    torch.testing.assert_close(wrap(outer)(nets.images("timm ViT"), COALITIONS), expected, rtol=0, atol=1e-6)


def test_lora_weights_are_used_and_trained() -> None:
    outer = peft.get_peft_model(nets.build("timm ViT"), peft.LoraConfig(target_modules=["qkv"], r=2)).eval()
    model = wrap(outer)
    before = model.game(nets.images("timm ViT"))(COALITIONS)
    lora = [parameter for name, parameter in model.named_parameters() if "lora_" in name]
    assert lora
    model(nets.images("timm ViT"), COALITIONS)[..., 0].sum().backward()
    assert any(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in lora)
    with torch.no_grad():
        for parameter in lora:
            parameter.add_(0.5)
    assert (model.game(nets.images("timm ViT"))(COALITIONS) - before).abs().max() > 1e-3


def test_a_deep_copy_is_independent() -> None:
    model = wrap(nets.build("timm ViT"))
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(1.5)
    pixels = nets.images("timm ViT")
    assert (model.game(pixels)(COALITIONS) - twin.game(pixels)(COALITIONS)).abs().max() > 1e-3
    assert twin.adapter.net is twin.net


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (
            lambda: timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1, 1, 1)),
            "not a plain vision transformer",
        ),
        (lambda: timm.create_model("vit_tiny_r_s16_p8_224", depth=1), "mixes neighbouring patches"),
        (lambda: timm.create_model("vit_tiny_patch16_224", depth=1, num_classes=0), "no classification head"),
        (
            lambda: timm.create_model("vit_tiny_patch16_224", depth=1, patch_drop_rate=0.5),
            "drops patches at random",
        ),
        (
            lambda: transformers.ViTModel(transformers.ViTConfig(num_hidden_layers=1)),
            "AutoModelForImageClassification",
        ),
        (
            lambda: transformers.SwinForImageClassification(transformers.SwinConfig(depths=[1], num_heads=[2])),
            "models these can be masked",
        ),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), "is not a model of timm"),
    ],
)
def test_what_cannot_be_masked_is_refused_with_a_reason_and_a_way_out(build, says: str) -> None:
    with pytest.raises(CannotMask, match=says) as caught:
        wrap(build())
    assert 'removal="pixels"' in str(caught.value)


class _PoolsEverything(TimmViT):
    def readout(self, tokens: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        return self._net.forward_head(self._net.norm(tokens))  # average pooling without the masked mean


class _MixesNeighbours(TimmViT):
    def embed(self, images: torch.Tensor) -> torch.Tensor:
        return super().embed(torch.nn.functional.avg_pool2d(images, 3, stride=1, padding=1))  # a convolutional stem


class _TalksAside(TimmViT):
    def encode(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return super().encode(tokens + tokens.mean(1, keepdim=True), positions)


class _DoesMore(TimmViT):
    def predict(self, images: torch.Tensor) -> torch.Tensor:
        return super().predict(images) * 2


@pytest.mark.parametrize(
    ("adapter", "says"),
    [
        (_PoolsEverything, "head reads withheld patches"),
        (_MixesNeighbours, "patch embedding mixes neighbouring patches"),
        (_TalksAside, "outside of attention"),
        (_DoesMore, "does more than"),
    ],
)
def test_the_check_names_what_leaks(adapter: type[TimmViT], says: str) -> None:
    net = nets.build("timm average pooling")
    check_mask(TimmViT(net, None))
    with pytest.raises(CannotMask, match=says):
        check_mask(adapter(net, None))


def test_attention_that_cannot_be_reached_is_refused() -> None:
    class NotReady(TimmViT):
        ready = Adapter.ready

    net = nets.build("timm ViT")
    for block in net.blocks:
        block.attn.fused_attn = False
    with pytest.raises(CannotMask):
        check_mask(NotReady(net, None))


def _change_under_own_mask(net: nn.Module, mask: str) -> float:
    """How a library's own attention mask holds, asked for by its own arguments."""

    def evaluate(pixels: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        present = torch.nn.functional.pad(keep, (1, 0), value=True)
        if mask == "timm":
            return net(pixels, attn_mask=present[:, None, None, :].expand(-1, 1, 17, 17))
        if mask == "2-D":
            return net(pixels, attention_mask=present).logits
        return net(pixels, attention_mask=present[:, None, None, :].expand(-1, 1, 17, 17)).logits

    pixels = nets.images("timm ViT")
    keep = torch.rand(2, 16, generator=torch.Generator().manual_seed(0)) < 0.5
    with torch.no_grad():
        return relative_change(evaluate, pixels, keep, (4, 4))


@pytest.mark.parametrize(
    ("name", "mask", "leaks_out"),
    [
        ("timm average pooling", "timm", True),
        ("timm ViT", "timm", False),
        ("transformers ViT eager", "4-D boolean", True),
        ("transformers ViT", "4-D boolean", False),
        ("transformers ViT eager", "2-D", False),
        ("transformers DINOv2", "2-D", True),
    ],
)
def test_known_leaks_of_the_libraries_own_masks_are_found(name: str, mask: str, leaks_out: bool) -> None:
    moved = _change_under_own_mask(nets.build(name), mask)
    assert (moved > TOLERANCE[torch.float32]) is leaks_out


def test_what_the_net_says_of_itself_is_used() -> None:
    net = nets.build("transformers ViT")
    net.config.id2label = {i: f"thing {i}" for i in range(5)}
    net.config.problem_type = "multi_label_classification"
    model = wrap(net)
    assert model.class_names == [f"thing {i}" for i in range(5)]
    assert model.output == "sigmoid"
    assert wrap(nets.build("transformers ViT")).class_names is None
    net.config.problem_type = "regression"
    assert wrap(net).output == "identity"
    one = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, **{**nets.SMALL, "num_classes": 1})
    assert wrap(one).output == "sigmoid"
    assert wrap(one, output="identity").game(nets.images("timm ViT"))(COALITIONS).shape == (2, 4, 1)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"removal": "atention"}, ValueError, 'did you mean "attention"'),
        ({"output": "probability"}, ValueError, "softmax, sigmoid, identity"),
        ({"class_names": ["a", "b"]}, ValueError, "5 names"),
        ({"image_size": 48}, ValueError, "takes images of"),
        ({"removal": "random"}, ValueError, "reference="),
        ({"reference": torch.zeros(1, 3, 32, 32)}, ValueError, 'removal="random"'),
        ({"removal": "random", "reference": torch.zeros(1, 3, 16, 16)}, ValueError, r"\[B, 3, 32, 32\]"),
        ({"players": "word"}, ValueError, "word"),
    ],
)
def test_bad_options_are_named(options, error, says: str) -> None:
    with pytest.raises(error, match=says):
        wrap(nets.build("timm ViT"), **options)


def test_only_nets_are_wrapped_and_only_once() -> None:
    with pytest.raises(TypeError, match="str"):
        wrap("vit_tiny_patch16_224")
    with pytest.raises(TypeError, match="wrapped already"):
        wrap(wrap(nets.build("timm ViT")))


@pytest.mark.parametrize(
    ("pixels", "error", "says"),
    [
        (torch.zeros(2, 3, 24, 32), ValueError, r"\[B, 3, 32, 32\]"),
        (torch.zeros(2, 1, 32, 32), ValueError, r"\[2, 1, 32, 32\]"),
        (torch.zeros(3, 24, 32), ValueError, r"\[3, 24, 32\]"),
        (torch.zeros(32, 32, 3), ValueError, r"\[32, 32, 3\]"),
        (torch.zeros(0, 3, 32, 32), ValueError, "at least one"),
        (torch.full((2, 3, 32, 32), float("nan")), ValueError, "not finite"),
        ([1, 2], TypeError, "list"),
    ],
)
def test_bad_images_are_named(pixels, error, says: str) -> None:
    model = wrap(nets.build("timm ViT"), check=False)
    for ask in (model, model.game, model.logits):
        with pytest.raises(error, match=says):
            ask(pixels)


@pytest.mark.parametrize(
    ("coalitions", "error", "says"),
    [
        (torch.ones(2, 4, 16), ValueError, "float32"),
        (torch.ones(2, 4, 15, dtype=torch.bool), ValueError, "16 players"),
        (torch.ones(3, 4, 16, dtype=torch.bool), ValueError, "B = 2"),
        (torch.ones(4, 16, dtype=torch.bool), ValueError, r"\[B, S, d\]"),
        (torch.ones(2, 0, 16, dtype=torch.bool), ValueError, r"got torch.bool \[2, 0, 16\]"),
    ],
)
def test_bad_coalitions_are_named(coalitions, error, says: str) -> None:
    model = wrap(nets.build("timm ViT"), check=False)
    with pytest.raises(error, match=says):
        model(nets.images("timm ViT"), coalitions)


def test_players_for_another_number_of_images_are_named() -> None:
    model = wrap(nets.build("timm ViT"), check=False)
    with pytest.raises(ValueError, match="3 images, but there are 2"):
        model.game(nets.images("timm ViT"), players=torch.zeros(3, 4, 4, dtype=torch.int64))


def test_a_coalition_costs_as_many_tokens_as_it_has() -> None:
    model = wrap(nets.build("timm DeiT distilled"), players=2)  # 16 patches in four players, two prefix tokens
    cost = model.evaluation_cost()
    assert (cost - cost[0]).tolist() == [0, 4, 8, 12, 16]
    model.evaluation = "full"
    assert model.evaluation_cost().unique().numel() == 1
    assert wrap(nets.build("timm DeiT"), removal="pixels").evaluation_cost().unique().numel() == 1


@pytest.mark.parametrize(
    ("images", "said"),
    [
        ([], "got an empty list"),
        ([torch.zeros(3, 32, 32)], "got a list of Tensor"),
        (("a.jpg", 3), "got a tuple of int"),
        (3, "got int"),
    ],
)
def test_what_is_no_image_is_named(images: object, said: str) -> None:
    model = wrap(nets.build("timm ViT"), check=False)
    with pytest.raises(TypeError, match=f"one or a list; {said}$"):
        model(images)


@pytest.mark.parametrize(("name", "removal"), [("vit_tiny_patch16_224", "attention"), ("resnet10t", "pixels")])
def test_greyscale_models_of_timm_take_photos(name: str, removal: Removal) -> None:
    sizes = {"img_size": 32, "patch_size": 8} if removal == "attention" else {}
    net = timm.create_model(name, in_chans=1, num_classes=3, **sizes).eval()
    model = wrap(net, removal=removal, image_size=32)
    coloured = wrap(timm.create_model(name, num_classes=3, **sizes), removal=removal, image_size=32).preprocess
    assert isinstance(model.preprocess, Preprocess)
    assert isinstance(coloured, Preprocess)
    assert model.preprocess.mean == pytest.approx([sum(coloured.mean) / 3]), "as in recipes with data.channels=1"
    assert model.preprocess.std == pytest.approx([sum(coloured.std) / 3])
    photo = Image.radial_gradient("L").resize((60, 40)).convert("RGB")
    assert model.prepare(photo).pixels.shape == (1, 1, 32, 32)
