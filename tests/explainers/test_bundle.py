"""A stored explainer gives the same values after loading, or one clear line that says why it cannot be loaded."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.full_disk import full_disk
from tests.models import nets
from vitshap.explainers import Explainer, ExplainerConfig, bundle
from vitshap.explainers.bundle import BundleError
from vitshap.models import MaskedModel, Preprocess, stored, wrap
from vitshap.players import blocks, from_labels

FAMILIES = ["transformers ViT", "timm ViT", "torchvision ViT"]
NAMES = ["ant", "bee", "cow", "dog", "eel"]


def _explainer(name: str = "transformers ViT", config: ExplainerConfig | None = None, **wrapping: Any) -> Explainer:
    """As after training: no weight is the surrogate's any more, where training changes it."""
    torch.manual_seed(3)
    explainer = Explainer(wrap(nets.build(name), check=False, **wrapping), config).eval()
    with torch.no_grad():
        for parameter in explainer.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    explainer.set_scale(torch.linspace(0.5, 2, nets.CLASSES))
    return explainer


def _values(explainer: Explainer, name: str = "transformers ViT") -> Tensor:
    return explainer(nets.images(name)).values


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    preprocess = Preprocess((32, 32), (32, 32), (0.5,) * 3, (0.5,) * 3)
    explainer = _explainer(class_names=NAMES, preprocess=preprocess)
    return explainer.save_pretrained(tmp_path_factory.mktemp("saved") / "explainer")


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def _edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


@contextmanager
def _one_line(match: str) -> Iterator[None]:
    with pytest.raises(BundleError, match=match) as caught:
        yield
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", nets.FAMILIES)
def test_values_are_the_same_to_the_bit(name: str, tmp_path: Path) -> None:
    explainer = _explainer(name)
    explainer.save_pretrained(tmp_path / "explainer")
    state = torch.get_rng_state()
    loaded = Explainer.from_pretrained(tmp_path / "explainer")
    assert torch.equal(state, torch.get_rng_state()), "loading must not move the user's random numbers"
    assert torch.equal(_values(loaded, name), _values(explainer, name))
    assert torch.equal(loaded.null_values, explainer.null_values)
    assert _values(explainer, name).std() > 1e-3, "values that are all alike prove nothing"


@pytest.mark.parametrize("name", FAMILIES)
def test_half_precision_is_close_and_half_as_large(name: str, tmp_path: Path) -> None:
    explainer = _explainer(name)
    full = explainer.save_pretrained(tmp_path / "full")
    half = explainer.save_pretrained(tmp_path / "half", half=True)
    loaded = Explainer.from_pretrained(half)
    assert (_values(loaded, name) - _values(explainer, name)).abs().max() < 2e-3
    assert not torch.equal(_values(loaded, name), _values(explainer, name))
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    explanation = loaded(nets.images(name))
    gap = explanation.values.sum(1) - (explanation.full_values - explanation.base_values)
    assert gap.abs().max() < 1e-5, "values add up in the game as it was stored"
    for file in ("surrogate.safetensors", "explainer.safetensors"):
        assert (half / file).stat().st_size < 0.65 * (full / file).stat().st_size


@pytest.mark.parametrize(
    "config",
    [
        ExplainerConfig(extra_block=False, tanh=False, output_scale=0.1),
        ExplainerConfig(init="scratch"),
        ExplainerConfig(train_trunk=False),
        ExplainerConfig(init="scratch", train_trunk=False),
        ExplainerConfig(trunk="unet"),
    ],
    ids=["plain head", "from scratch", "frozen trunk", "frozen random trunk", "U-Net"],
)
def test_every_configuration_comes_back(config: ExplainerConfig, tmp_path: Path) -> None:
    explainer = _explainer(config=config)
    trained = [parameter.requires_grad for parameter in explainer.parameters()]
    explainer.save_pretrained(tmp_path / "explainer")
    assert trained == [parameter.requires_grad for parameter in explainer.parameters()]
    loaded = Explainer.from_pretrained(tmp_path / "explainer")
    assert loaded.network.config == config
    assert torch.equal(_values(loaded), _values(explainer))


def test_only_what_differs_and_is_read_is_stored(tmp_path: Path) -> None:
    whole = _explainer().save_pretrained(tmp_path / "whole")
    stored = set(load_file(whole / "explainer.safetensors"))
    assert not any("classifier" in name for name in stored), "the trunk's classification head is never read"
    assert {"null_values", "scale", "network.trunk.vit.embeddings.cls_token"} <= stored
    frozen = _explainer(config=ExplainerConfig(train_trunk=False)).save_pretrained(tmp_path / "frozen")
    assert not any(name.startswith("network.trunk.") for name in load_file(frozen / "explainer.safetensors"))


def test_what_was_wrapped_how_comes_back(tmp_path: Path) -> None:
    preprocess = Preprocess((32, 32), (36, 40), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), "bilinear", squash=True)
    explainer = _explainer(preprocess=preprocess, class_names=NAMES, output="sigmoid", removal="pixels", players=2)
    explainer.save_pretrained(tmp_path / "explainer")
    loaded = Explainer.from_pretrained(tmp_path / "explainer")
    assert loaded.surrogate.preprocess == preprocess
    assert (loaded.surrogate.output, loaded.surrogate.removal) == ("sigmoid", "pixels")
    assert torch.equal(loaded.surrogate.players.labels, blocks((4, 4), 2).labels)
    photo = Image.radial_gradient("L").convert("RGB")
    expected, got = explainer(photo, target="cow"), loaded(photo, target="cow")
    assert torch.equal(got.values, expected.values)
    assert got.class_names == tuple(NAMES)


def test_what_cannot_be_stored_is_refused_or_said(tmp_path: Path) -> None:
    per_image = from_labels(torch.stack([torch.arange(16).view(4, 4), torch.arange(16).view(4, 4).T]), (4, 4))
    for wrapping, message in (
        ({"players": per_image}, "differ between images"),
        ({"removal": "random", "reference": torch.zeros(1, 3, 32, 32)}, 'removal="random"'),
    ):
        classifier = wrap(nets.build("timm ViT"), check=False, **wrapping)
        with _one_line(message):
            _explainer().save_pretrained(tmp_path / "explainer", include_classifier=classifier)
    with pytest.warns(UserWarning, match="preprocess is a function"):
        _explainer(preprocess=lambda photo: torch.zeros(3, 32, 32)).save_pretrained(tmp_path / "explainer")
    assert Explainer.from_pretrained(tmp_path / "explainer").surrogate.preprocess is None
    changed = _explainer("timm ViT")
    changed.surrogate.net.blocks[1].mlp.act = nn.SiLU()
    with pytest.raises(ValueError, match=r"blocks\.1\.mlp\.act's class is SiLU instead of GELU"):
        changed.save_pretrained(tmp_path / "changed")
    huge = _explainer()
    with torch.no_grad():
        huge.network.head.layers[1].bias.fill_(1e6)
    with _one_line("16 bits cannot hold"):
        huge.save_pretrained(tmp_path / "huge", half=True)
    with _one_line("quality must be finite"):
        _explainer().save_pretrained(tmp_path / "quality", quality={"error": float("nan")})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["explainer"], "what failed leaves nothing behind"


def test_config_and_card_say_what_it_is(tmp_path: Path) -> None:
    quality = {"correlation": 0.93218, "insertion": {"mean": 0.8}, "deletion": 0.4}
    explainer = _explainer(class_names=NAMES)
    explainer.save_pretrained(tmp_path / "explainer", quality=quality)
    config = bundle.read(tmp_path / "explainer")
    assert config["quality"] == quality
    assert set(config["versions"]) == {"vitshap", "torch", "transformers"}
    assert config["surrogate"]["net"]["name"] == "ViTForImageClassification"
    assert config["surrogate"]["fingerprint"] == explainer.surrogate.fingerprint()
    assert len({path.stat().st_mode for path in (tmp_path / "explainer").iterdir()}) == 1, "who reads one may read all"
    card = (tmp_path / "explainer" / "README.md").read_text()
    for said in (
        "from_pretrained",
        "5 classes: ant, bee",
        "| correlation | 0.9322 |",
        "| insertion, mean | 0.8 |",
        "| deletion, area under the curve of the own class | 0.4 |",
        "icence",
    ):
        assert said in card


@pytest.mark.parametrize("file", ["surrogate.safetensors", "explainer.safetensors"])
def test_a_flipped_bit_is_found(folder: Path, file: str) -> None:
    data = bytearray((folder / file).read_bytes())
    data[-100] ^= 1
    (folder / file).write_bytes(data)
    with _one_line(rf"{file} is damaged: its SHA-256 is \w{{12}}\.\.\., expected \w{{12}}\.\.\."):
        Explainer.from_pretrained(folder)


def test_a_short_file_a_missing_one_and_none_at_all(folder: Path) -> None:
    path = folder / "explainer.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with _one_line("explainer.safetensors is damaged"):
        Explainer.from_pretrained(folder)
    path.unlink()
    with _one_line("explainer.safetensors is missing"):
        Explainer.from_pretrained(folder)
    (folder / "config.json").write_text((folder / "config.json").read_text()[:50])
    with _one_line("config.json is damaged"):
        Explainer.from_pretrained(folder)
    (folder / "config.json").unlink()
    with _one_line("config.json is missing"):
        Explainer.from_pretrained(folder)


def test_a_foreign_folder_and_a_newer_version(folder: Path, tmp_path: Path) -> None:
    _edit(folder, lambda config: config.update(version=2))
    with _one_line("format version 2, vitshap .* reads up to 1: upgrade"):
        Explainer.from_pretrained(folder)
    nets.build("transformers ViT").save_pretrained(tmp_path / "foreign")
    with _one_line("not a vitshap bundle: its config.json is of .*ViTForImageClassification"):
        Explainer.from_pretrained(tmp_path / "foreign")
    with _one_line("is a file"):
        Explainer.from_pretrained(folder / "config.json")


UNTRUSTED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "unknown field": (lambda c: c["explainer"]["config"].update(wings=2), "knows no 'wings'"),
    "missing entry": (lambda c: c["surrogate"].pop("wrap"), "cannot be built: there is no entry 'wrap'"),
    "missing hash": (lambda c: c.pop("sha256"), "surrogate.safetensors is damaged: its SHA-256 is .*expected None"),
    "wrong type": (lambda c: c.update(surrogate=[1]), "cannot be built"),
    "another class": (
        lambda c: c["surrogate"]["net"].update(name="AutoModel"),
        "transformers has no model 'AutoModel'",
    ),
    "another library": (lambda c: c["surrogate"]["net"].update(library="os", name="system"), "got 'os'"),
    "a net to fetch": (
        lambda c: c["surrogate"]["net"].update(library="timm", name="hf-hub:owner/name", arguments={}),
        "has no model 'hf-hub:owner/name'",
    ),
    "code to fetch": (lambda c: c["surrogate"]["net"]["arguments"].update(auto_map={}), "has no argument 'auto_map'"),
    "a kernel to fetch": (lambda c: c["surrogate"]["net"].update(attention="owner/kernel"), "got 'owner/kernel'"),
    "another size": (lambda c: c["surrogate"]["net"]["arguments"].update(hidden_size=36), "do not fit .* is \\["),
    "no size": (lambda c: c["surrogate"]["net"]["arguments"].update(hidden_size="big"), "cannot be built"),
    "no heads": (lambda c: c["surrogate"]["net"]["arguments"].update(num_attention_heads=0), "cannot be built"),
    "another depth": (lambda c: c["surrogate"]["net"]["arguments"].update(num_hidden_layers=3), "is missing, and"),
    "a tensor too many": (lambda c: c["explainer"]["config"].update(extra_block=False), "is unexpected"),
    "a million blocks": (
        lambda c: c["surrogate"]["net"]["arguments"].update(num_hidden_layers=1_000_000),
        r"cannot be built: there are 1000000 blocks, but only \d+ tensors$",
    ),
    "terabytes": (lambda c: c["surrogate"]["net"]["arguments"].update(intermediate_size=10**10), r"not \[1\d+"),
    "huge images": (lambda c: c["surrogate"]["wrap"].update(image_size=[2**20, 2**20]), "1048576 x 1048576 pixels"),
    "other images": (
        lambda c: c["surrogate"]["wrap"]["preprocess"].update(size=[64, 64], resize=[64, 64]),
        r"photos are prepared as \[64, 64\] pixels for a model of \[32, 32\]",
    ),
    "no deviation": (lambda c: c["surrogate"]["wrap"]["preprocess"].update(std=[0, 1, 1]), "std is not 0"),
    "a text for a mean": (lambda c: c["surrogate"]["wrap"]["preprocess"].update(mean=["a"] * 3), "cannot be built"),
    "too few names": (lambda c: c["surrogate"]["wrap"].update(class_names=["ant", "bee"]), "5 names.*; got 2"),
    "too many names": (lambda c: c["surrogate"]["wrap"].update(class_names=["a"] * 6), "5 names.*; got 6"),
    "names as text": (lambda c: c["surrogate"]["wrap"].update(class_names="abcde"), "a list of names, got str"),
    "numbers as names": (lambda c: c["surrogate"]["wrap"].update(class_names=[1, 2, 3, 4, 5]), "a list of names"),
    "a distant player": (
        lambda c: c["surrogate"]["wrap"].update(players=[[0, 1, 2, 10**12]] * 4),
        "16 patches and a player 1000000000000",
    ),
    "a text for a unit": (lambda c: c["explainer"]["config"].update(output_scale="big"), "output_scale is a positive"),
    "a list for quality": (lambda c: c.update(quality=[1]), "quality must be numbers and text by name"),
    "another activation": (
        lambda c: c["surrogate"]["net"]["arguments"].update(hidden_act="relu"),
        r"v\(0\) changed by",
    ),
}


@pytest.mark.parametrize(("change", "message"), UNTRUSTED.values(), ids=list(UNTRUSTED))
def test_a_config_that_was_tampered_with(
    folder: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    _edit(folder, change)
    with _one_line(message):
        Explainer.from_pretrained(folder)


def test_values_nested_too_deeply(folder: Path) -> None:
    for deep in ("[" * 200_000 + "]" * 200_000, '{"a":' * 200_000 + "1" + "}" * 200_000):
        (folder / "config.json").write_text(deep)
        with _one_line("config.json is damaged: nested too deeply"):
            Explainer.from_pretrained(folder)
    with _one_line("nested too deeply"):  # nor is such a folder replaced
        _explainer().save_pretrained(folder, overwrite=True)


def test_quality_nested_deeply_is_refused(folder: Path) -> None:
    quality: dict[str, Any] = {}
    for _ in range(50):
        quality = {"a": quality}
    _edit(folder, lambda config: config.update(quality=quality))
    with _one_line("in at most 8 levels"):
        Explainer.from_pretrained(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("file", ["config.json", "surrogate.safetensors", "explainer.safetensors"])
def test_pipes_are_not_read(folder: Path, file: str) -> None:
    (folder / file).unlink()
    os.mkfifo(folder / file)
    with _one_line(f"{file} .*not a regular file"):
        Explainer.from_pretrained(folder)
    (folder / file).unlink()
    (folder / file).mkdir()
    with _one_line(f"{file} .*not a regular file"):
        Explainer.from_pretrained(folder)


def test_files_may_be_links(folder: Path, tmp_path: Path) -> None:
    """As in the hub's cache."""
    (folder / "explainer.safetensors").rename(tmp_path / "elsewhere")
    (folder / "explainer.safetensors").symlink_to(tmp_path / "elsewhere")
    assert torch.equal(_values(Explainer.from_pretrained(folder)), _values(_explainer()))


def test_a_file_that_training_began_from_is_not_read(folder: Path) -> None:
    _edit(folder, lambda config: config["explainer"]["config"].update(init="/nowhere/trunk.safetensors"))
    loaded = Explainer.from_pretrained(folder)
    assert torch.equal(_values(loaded), _values(_explainer()))
    again = loaded.save_pretrained(folder.parent / "again")
    assert bundle.read(again)["explainer"]["config"]["init"] == "trunk.safetensors", "no paths of this machine"


def test_a_library_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _explainer("timm ViT").save_pretrained(tmp_path / "explainer")
    monkeypatch.setitem(sys.modules, "timm", None)  # what the import system takes for "not there"
    with _one_line(r'of timm, which cannot be imported .* pip install "vitshap\[timm\]"'):
        Explainer.from_pretrained(tmp_path / "explainer")


def test_the_classifier_must_be_the_right_one(tmp_path: Path) -> None:
    explainer = _explainer()
    classifier = wrap(nets.build("transformers ViT", seed=5), check=False)
    explainer.classifier_fingerprint = classifier.fingerprint()
    explainer.save_pretrained(tmp_path / "explainer")
    for right in (classifier, classifier.net, nn.DataParallel(classifier.net), explainer.surrogate):
        loaded = Explainer.from_pretrained(tmp_path / "explainer", classifier=right)
    assert loaded.classifier_fingerprint == classifier.fingerprint()
    with _one_line("made for another model"):
        Explainer.from_pretrained(tmp_path / "explainer", classifier=nets.build("transformers ViT", seed=6))
    with _one_line("holds no classifier"):
        bundle.load_classifier(tmp_path / "explainer")
    other = wrap(nets.build("timm ViT"), check=False)
    with _one_line("not the model that this explainer was made for"):
        explainer.save_pretrained(tmp_path / "other", include_classifier=other)


def test_the_classifier_can_be_stored_too(tmp_path: Path) -> None:
    classifier = wrap(nets.build("timm ViT", seed=5), check=False, class_names=NAMES)
    _explainer().save_pretrained(tmp_path / "explainer", include_classifier=classifier)
    loaded = bundle.load_classifier(tmp_path / "explainer")
    assert isinstance(loaded, MaskedModel)
    assert loaded.fingerprint() == classifier.fingerprint()
    assert torch.equal(loaded(nets.images("timm ViT")), classifier(nets.images("timm ViT")))
    Explainer.from_pretrained(tmp_path / "explainer", classifier=classifier)


def test_what_was_measured_goes_with_a_loaded_explainer(tmp_path: Path) -> None:
    _explainer().save_pretrained(tmp_path / "first", quality={"unknown_threshold": 0.9})
    loaded = Explainer.from_pretrained(tmp_path / "first")
    assert loaded.quality == {"unknown_threshold": 0.9}
    loaded.save_pretrained(tmp_path / "copy")
    assert bundle.read(tmp_path / "copy")["quality"] == {"unknown_threshold": 0.9}
    loaded.save_pretrained(tmp_path / "anew", quality={"unknown_threshold": 0.5})
    assert bundle.read(tmp_path / "anew")["quality"] == {"unknown_threshold": 0.5}


def test_a_classifier_that_nobody_named_cannot_be_stored_nor_compared(tmp_path: Path) -> None:
    explainer = _explainer()
    with _one_line("the explained model is not known"):
        explainer.save_pretrained(tmp_path / "explainer", include_classifier=True)
    assert not (tmp_path / "explainer").exists()
    explainer.save_pretrained(tmp_path / "explainer")
    with _one_line("expected unknown: it was not stored"):
        Explainer.from_pretrained(tmp_path / "explainer", classifier=nets.build("timm ViT"))
    Explainer.from_pretrained(tmp_path / "explainer", classifier=explainer.surrogate)


def test_an_existing_folder_is_replaced_only_on_demand(folder: Path, tmp_path: Path) -> None:
    explainer = _explainer("timm ViT")
    before = (folder / "config.json").read_bytes()
    with _one_line("overwrite=True"):
        explainer.save_pretrained(folder)
    assert (folder / "config.json").read_bytes() == before
    explainer.save_pretrained(folder, overwrite=True)
    assert torch.equal(_values(Explainer.from_pretrained(folder)), _values(explainer))
    thesis = tmp_path / "documents" / "thesis.txt"
    thesis.parent.mkdir()
    thesis.write_text("years of work")
    with _one_line("holds no bundle"):
        explainer.save_pretrained(thesis.parent, overwrite=True)
    assert thesis.exists(), "nothing but an explainer is replaced"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "documents"], "nothing temporary is left"


@pytest.mark.parametrize("share", [0.1, 1.2], ids=["first file", "second file"])
def test_a_full_disk_leaves_the_old_folder_whole(folder: Path, share: float) -> None:
    free = int(share * (folder / "surrogate.safetensors").stat().st_size)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(OSError, match=r"could not be written .* what was there is unchanged"), full_disk(free):
        _explainer("timm ViT").save_pretrained(folder, overwrite=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["copy"]


def test_a_failing_rename_puts_the_old_folder_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    replace = os.replace

    def failing(source: Path, target: Path) -> None:
        if str(source).endswith(".partial"):
            raise OSError("no space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="no space left"):
        _explainer("timm ViT").save_pretrained(folder, overwrite=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["copy"]


def test_shipped_ones_are_found_by_name(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(saved, tmp_path / "bundles" / "insects")
    monkeypatch.setattr(stored, "files", lambda package: tmp_path)
    assert bundle.shipped() == ["insects"]
    assert torch.equal(_values(Explainer.from_pretrained("insects")), _values(_explainer()))
    with _one_line(r"'birds' is neither a folder here nor a shipped bundle \(insects\)"):
        Explainer.from_pretrained("birds")


def test_the_hub(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's own client, offline: with nothing in its cache, and with a repository that was fetched before."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with _one_line("'owner/name' is neither a folder here .* cannot be fetched from the Hugging Face hub"):
        Explainer.from_pretrained("owner/name")
    repository = tmp_path / "models--owner--name"
    shutil.copytree(saved, repository / "snapshots" / ("0" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    assert torch.equal(_values(Explainer.from_pretrained("owner/name")), _values(_explainer()))
