"""Where the trunk's weights come from."""

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.models import nets
from vitshap.explainers import Explainer, ExplainerConfig
from vitshap.explainers.unet import UNet
from vitshap.models import MaskedModel, wrap

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
    with pytest.raises(ValueError, match=r"needs the classifier: Explainer\(surrogate, config, classifier="):
        Explainer(_model(), config)
    with pytest.raises(TypeError, match=r"vitshap\.wrap makes it.*VisionTransformer"):
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
    with pytest.raises(ValueError, match=r"damaged\.safetensors is damaged or not a safetensors file"):
        _trunk(model, str(path))


@pytest.mark.parametrize("init", ["surogate", "no/such.safetensors", "."])
def test_a_misspelt_source_names_the_known_ones(init: str) -> None:
    with pytest.raises(
        ValueError, match=r"surrogate, scratch, classifier or the path of a safetensors file; there is no"
    ):
        _trunk(_model(), init)


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
