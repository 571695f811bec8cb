"""Where the trunk's weights come from."""

import re
from pathlib import Path

import huggingface_hub
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.models import nets
from vitshap.explainers import Explainer, ExplainerConfig
from vitshap.explainers.bundle import read
from vitshap.explainers.unet import UNet
from vitshap.models import MaskedModel, wrap
from vitshap.models.convert import as_transformers

NAMES = ["timm ViT", "transformers ViT", "torchvision ViT"]
HEADS = {"timm ViT": "head.", "transformers ViT": "classifier.", "torchvision ViT": "heads."}


def _model(name: str = "timm ViT", seed: int = 0) -> MaskedModel:
    return wrap(nets.build(name, seed), check=False)


def _trunk(model: MaskedModel, init: str, classifier: MaskedModel | None = None) -> dict[str, Tensor]:
    return Explainer(model, ExplainerConfig(init=init), classifier=classifier).network.trunk.state_dict()


def _write(path: Path, tensors: dict[str, Tensor]) -> str:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return str(path)


def _equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("name", NAMES)
def test_each_source_gives_its_own_weights(name: str, tmp_path: Path) -> None:
    model, classifier, third = _model(name), _model(name, 1), _model(name, 2)
    path = _write(tmp_path / "third.safetensors", third.net.state_dict())
    assert _equal(_trunk(model, "surrogate", classifier), model.net.state_dict())
    assert _equal(_trunk(model, "classifier", classifier), classifier.net.state_dict())
    assert _equal(_trunk(model, path), third.net.state_dict())
    scratch = _trunk(model, "scratch")
    assert all(not torch.equal(scratch[n], t) for n, t in model.net.state_dict().items() if t.ndim > 1)


def test_neither_surrogate_nor_classifier_is_changed_or_shared() -> None:
    model, classifier = _model(), _model(seed=1)
    before = model.fingerprint(), classifier.fingerprint()
    explainer = Explainer(model, ExplainerConfig(init="classifier"), classifier=classifier)
    with torch.no_grad():
        for parameter in explainer.network.trunk.parameters():
            parameter.zero_()
    assert (model.fingerprint(), classifier.fingerprint()) == before
    assert all(p.grad is None for p in [*model.parameters(), *classifier.parameters()])


def test_the_classifier_must_be_given_and_of_the_same_architecture() -> None:
    config = ExplainerConfig(init="classifier")
    with pytest.raises(
        ValueError, match=r"needs the classifier.*Explainer\(surrogate, config, classifier=.*got NoneType"
    ):
        Explainer(_model(), config)
    with pytest.raises(ValueError, match=r"wrapped by vitshap\.wrap.*VisionTransformer"):
        Explainer(_model(), config, classifier=nets.build("timm ViT"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"the classifier do not fit.*is missing.*and \d+ more"):
        Explainer(_model(), config, classifier=_model("torchvision ViT"))


@pytest.mark.parametrize("name", NAMES)
def test_a_head_for_other_classes_or_none_is_skipped(name: str, tmp_path: Path) -> None:
    model, other = _model(name), _model(name, 1).net.state_dict()
    heads = [n for n in other if n.startswith(HEADS[name])]
    assert heads
    wider = {n: torch.cat([t, t]) if n in heads else t for n, t in other.items()}
    headless = {n: t for n, t in other.items() if n not in heads}
    for tensors in (wider, headless):
        trunk = _trunk(model, _write(tmp_path / "other.safetensors", tensors))
        assert all(torch.equal(trunk[n], other[n]) for n in headless)
        assert all(torch.equal(trunk[n], model.net.state_dict()[n]) for n in heads)


def test_weights_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    model = _model()
    good = model.net.state_dict()
    missing = {n: t for n, t in good.items() if not n.startswith("blocks.1.")}
    with pytest.raises(ValueError, match=r"blocks\.1\.norm1\.weight is missing.*and 9 more"):
        _trunk(model, _write(tmp_path / "a.safetensors", missing))
    with pytest.raises(ValueError, match=r"decoder is unexpected$"):
        _trunk(model, _write(tmp_path / "b.safetensors", {**good, "decoder": torch.ones(2)}))
    longer = {**good, "pos_embed": torch.zeros(1, 50, 32)}
    with pytest.raises(ValueError, match=r"pos_embed has shape \[1, 50, 32\] instead of \[1, 17, 32\]"):
        _trunk(model, _write(tmp_path / "c.safetensors", longer))
    broken = {**good, "cls_token": torch.full((1, 1, 32), float("nan"))}
    with pytest.raises(ValueError, match="cls_token is not finite"):
        _trunk(model, _write(tmp_path / "d.safetensors", broken))


@pytest.mark.parametrize("content", ["text", "cut", "empty", "flipped header"])
def test_a_damaged_file_is_a_clear_error(content: str, tmp_path: Path) -> None:
    model, path = _model(), tmp_path / "damaged.safetensors"
    whole = Path(_write(path, model.net.state_dict())).read_bytes()
    damaged = {
        "text": b"these are not weights",
        "cut": whole[: len(whole) // 2],
        "empty": b"",
        "flipped header": bytes([whole[0] ^ 255]) + whole[1:],
    }
    path.write_bytes(damaged[content])
    with pytest.raises(ValueError, match=r"damaged\.safetensors cannot be read as safetensors"):
        _trunk(model, str(path))


@pytest.mark.parametrize("init", ["surogate", "no/such.safetensors", "/no/such/net"])
def test_a_misspelt_source_names_the_known_ones(init: str) -> None:
    with pytest.raises(ValueError, match=r"surrogate, scratch, classifier, the path of.*a timm name.*; there is no"):
        _trunk(_model(), init)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's own client, offline, with an empty cache."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def _small(image: int = 160) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("test_vit", num_classes=3, img_size=image, dynamic_img_size=False)


@pytest.mark.parametrize("as_timm", [True, False], ids=["timm", "transformers"])
def test_a_pretrained_net_of_timm_by_its_name(as_timm: bool, hub: Path) -> None:
    """As if it had been downloaded before; images of another size have their positions resized."""
    donor = timm.create_model("test_vit")  # 1,000 classes
    snapshot = hub / "models--timm--test_vit.r160_in1k" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    _write(snapshot / "model.safetensors", donor.state_dict())
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0" * 40)
    net = _small(image=96)
    model = wrap(net if as_timm else as_transformers(net), check=False)
    trunk = _trunk(model, "test_vit.r160_in1k")
    own = donor.state_dict()
    first = "blocks.0.mlp.fc1.weight" if as_timm else "vit.layers.0.mlp.fc1.weight"
    assert torch.equal(trunk[first], own["blocks.0.mlp.fc1.weight"])
    positions = "pos_embed" if as_timm else "vit.embeddings.position_embeddings"
    assert trunk[positions].shape == (1, 37, 64)
    assert not torch.equal(trunk[positions], model.net.state_dict()[positions])


def test_a_pretrained_net_of_transformers_by_its_folder(tmp_path: Path) -> None:
    donor, model = nets.build("transformers ViT", 3), _model("transformers ViT")
    donor.save_pretrained(tmp_path / "donor")
    trunk = _trunk(model, str(tmp_path / "donor"))
    own = donor.state_dict()
    assert all(torch.equal(trunk[name], own[name]) for name in own)
    bundle = Explainer(model, ExplainerConfig(init=str(tmp_path / "donor"))).save_pretrained(tmp_path / "bundle")
    assert read(bundle)["explainer"]["config"]["init"] == "donor", "no paths of this machine"


def test_a_pretrained_net_that_does_not_fit_or_cannot_be_had(tmp_path: Path, hub: Path) -> None:
    nets.build("transformers ViT", 3).save_pretrained(tmp_path / "donor")
    with pytest.raises(ValueError, match=r"donor do not fit VisionTransformer: cls_token is missing"):
        _trunk(_model("timm ViT"), str(tmp_path / "donor"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty' cannot be loaded: .*config\.json"):
        _trunk(_model(), str(tmp_path / "empty"))
    weights = load_file(tmp_path / "donor" / "model.safetensors")
    some = {name: tensor for name, tensor in weights.items() if ".layers.1." not in name and ".layer.1." not in name}
    assert len(some) < len(weights)
    save_file(some, tmp_path / "donor" / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"donor' cannot be loaded: its file has no weights for vit\.\S*1\."):
        _trunk(_model("transformers ViT"), str(tmp_path / "donor"))
    with pytest.raises(ValueError, match=r"'test_vit\.r160_in1k' cannot be loaded: ") as caught:
        _trunk(wrap(_small(), check=False), "test_vit.r160_in1k")
    assert "\n" not in str(caught.value)


def _trained(config: ExplainerConfig, name: str = "timm ViT") -> set[str]:
    trunk = Explainer(_model(name), config).network.trunk
    return {n for n, parameter in trunk.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("name", NAMES)
def test_the_first_blocks_are_frozen_with_the_embedding(name: str) -> None:
    everything = _trained(ExplainerConfig(), name)
    one, both = (_trained(ExplainerConfig(frozen_blocks=count), name) for count in (1, 2))
    block = re.compile(r"(layers|blocks)\.(encoder_layer_)?(\d)\.")
    assert both == {n for n in everything if not block.search(n) and re.search(r"^norm|layernorm\.|encoder\.ln\.", n)}
    assert one == both | {n for n in everything if (found := block.search(n)) and found[3] == "1"}
    with pytest.raises(ValueError, match="frozen_blocks is 3, but the trunk has 2 blocks"):
        _trained(ExplainerConfig(frozen_blocks=3), name)


def test_layers_are_frozen_by_name_and_stay_as_they_were() -> None:
    everything = _trained(ExplainerConfig())
    config = ExplainerConfig(frozen=["blocks.0", "*.norm1.*", "pos_embed"])  # type: ignore[arg-type]
    assert config.frozen == ("blocks.0", "*.norm1.*", "pos_embed")
    wanted = {n for n in everything if n.startswith("blocks.0.") or ".norm1." in n or n == "pos_embed"}
    assert _trained(config) == everything - wanted
    assert _trained(ExplainerConfig(train_trunk=False, frozen=("norm",))) == set()
    explainer = Explainer(_model(), config).train()
    before = {n: p.clone() for n, p in explainer.network.trunk.named_parameters()}
    optimiser = torch.optim.SGD([p for p in explainer.parameters() if p.requires_grad], lr=0.1)
    pixels = nets.images("timm ViT")
    explainer.values(pixels, explainer.surrogate(pixels)).square().sum().backward()
    optimiser.step()
    after = dict(explainer.network.trunk.named_parameters())
    assert all(torch.equal(after[n], before[n]) for n in wanted)
    assert any(not torch.equal(after[n], before[n]) for n in everything - wanted)
    with pytest.raises(ValueError, match="no module or parameter 'block'; it has cls_token"):
        _trained(ExplainerConfig(frozen=("block",)))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"frozen_blocks": -1}, "frozen_blocks is a number of blocks, got -1"),
        ({"frozen_blocks": True}, "frozen_blocks is a number of blocks"),
        ({"frozen": "blocks.0"}, "frozen is a list of names, got 'blocks.0'"),
        ({"frozen": (1,)}, "frozen is a list of names"),
        ({"frozen_blocks": 1, "trunk": "unet"}, "a U-Net has no blocks to freeze"),
    ],
)
def test_what_cannot_be_frozen_is_refused(config: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ExplainerConfig(**config)  # type: ignore[arg-type]


def test_a_path_object_is_taken_and_kept_as_text(tmp_path: Path) -> None:
    assert ExplainerConfig(init=tmp_path / "x").init == str(tmp_path / "x")  # type: ignore[arg-type]


def test_a_unet_starts_from_its_own_file_alone(tmp_path: Path) -> None:
    model = wrap(timm.create_model("vit_tiny_patch16_224", **nets.SMALL, img_size=8, patch_size=2))
    donor = UNet(3, (8, 8), (4, 4))
    with torch.no_grad():
        for norm in (m for m in donor.modules() if isinstance(m, nn.GroupNorm)):
            norm.weight.normal_()
    path = _write(tmp_path / "unet.safetensors", donor.state_dict())
    explainer = Explainer(model, ExplainerConfig(trunk="unet", init=path))
    assert _equal(explainer.network.trunk.state_dict(), donor.state_dict())
    vit = _write(tmp_path / "vit.safetensors", model.net.state_dict())
    with pytest.raises(ValueError, match="do not fit UNet"):
        Explainer(model, ExplainerConfig(trunk="unet", init=vit))
    for name in ("magnitudes", "profiles"):
        with pytest.raises(ValueError, match=f"set {name} to false"):
            ExplainerConfig(trunk="unet", **{name: True})
    with pytest.raises(ValueError, match="U-Net cannot start as the classifier"):
        ExplainerConfig(trunk="unet", init="classifier")
    with pytest.raises(ValueError, match='trunk is "own" or "unet"; got \'resnet\''):
        ExplainerConfig(trunk="resnet")  # type: ignore[arg-type]
