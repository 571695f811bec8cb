"""Models by name: folders of transformers, names of timm, weights files, surrogates of bundles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from tests.models import nets
from vitshap.explainers import Explainer
from vitshap.models import wrap
from vitshap.models.load import ModelSpec, load_model

TIMM = "vit_tiny_patch16_224"


@pytest.mark.filterwarnings("ignore:.*does not say how it wants its images")
@pytest.mark.parametrize("name", ["transformers ViT", "transformers CLIP", "transformers SigLIP"])
def test_a_folder_of_transformers_gives_the_same_probabilities(name: str, tmp_path: Path) -> None:
    net = nets.build(name)
    net.save_pretrained(tmp_path / "net")
    state = torch.get_rng_state()
    model = load_model(str(tmp_path / "net"))
    assert torch.equal(state, torch.get_rng_state()), "the caller's random numbers go on"
    with torch.no_grad():
        assert torch.equal(model.eval()(nets.images(name)), net(nets.images(name)).logits.softmax(-1))
    assert model.preprocess is not None
    assert model.preprocess.size == (32, 32)
    names = ("cat", "dog", "owl")
    trained = load_model(ModelSpec(str(tmp_path / "net"), class_names=names))
    assert trained.num_classes == 3
    assert trained.class_names == list(names)


@pytest.mark.parametrize("name", ["transformers ViT", "transformers CLIP"])
def test_a_configuration_with_more_blocks_than_tensors_is_refused(name: str, tmp_path: Path) -> None:
    nets.build(name).save_pretrained(tmp_path / "net")
    path = tmp_path / "net" / "config.json"
    config = json.loads(path.read_text())
    config.get("vision_config", config)["num_hidden_layers"] = 10**9
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="1,000,000,000 blocks, and its file"):
        load_model(str(tmp_path / "net"))


def test_a_bundle_gives_its_surrogate(tmp_path: Path) -> None:
    explainer = Explainer(wrap(nets.build("transformers ViT"), check=False, class_names=list("abcde")))
    explainer.save_pretrained(tmp_path / "bundle")
    model = load_model(str(tmp_path / "bundle"))
    assert model.fingerprint() == explainer.surrogate.fingerprint()
    assert model.class_names == list("abcde")


def test_a_weights_file_with_rows_of_its_head(tmp_path: Path) -> None:
    given = timm.create_model(TIMM, img_size=32, num_classes=7)
    save_file(given.state_dict(), tmp_path / "weights.safetensors")
    spec = ModelSpec(TIMM, image_size=32, weights=str(tmp_path / "weights.safetensors"), head_rows=(4, 2))
    model = load_model(spec)
    assert torch.equal(model.net.head.weight, given.head.weight[[4, 2]])
    assert load_model(ModelSpec(TIMM, image_size=32, weights=spec.weights)).num_classes == 7


@pytest.mark.parametrize(
    ("option", "expected"), [("--{}", "--weights: .* does not hold"), ("model.{}", r"model\.weights: .* does not hold")]
)
def test_errors_name_the_option_as_the_caller_writes_it(option: str, expected: str, tmp_path: Path) -> None:
    save_file({"head.weight": torch.zeros(3, 192)}, tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match=expected):
        load_model(ModelSpec(TIMM, weights=str(tmp_path / "weights.safetensors"), option=option))


def test_a_family_is_no_trained_model() -> None:
    with pytest.raises(ValueError, match='"vit" names a family'):
        load_model("vit")
