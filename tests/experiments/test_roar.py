"""Masked retraining: what the classifier sees, what it can learn from it, and that an interrupted run continues."""

import json
from copy import deepcopy
from dataclasses import replace

import pytest
import timm
import torch
from torch import Tensor
from transformers import ViTConfig, ViTForImageClassification

from vitshap.data import ImageData
from vitshap.experiments import roar
from vitshap.explainers import Explainer
from vitshap.methods import method
from vitshap.models import MaskedModel, Preprocess, wrap
from vitshap.training import ClassifierTraining, LoopConfig
from vitshap.training.batches import Images

MEAN, STD = (0.4,), (0.2,)
CONFIG = ClassifierTraining(loop=LoopConfig(epochs=5, batch_size=16, learning_rate=1e-2))


def net(num_classes: int = 2, **options: object) -> MaskedModel:
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=num_classes, **size)
    preprocess = Preprocess(size=(8, 8), resize=(8, 8), mean=MEAN, std=STD)
    return wrap(ViTForImageClassification(config).eval(), preprocess=preprocess, **options)


def spots(count: int, seed: int) -> ImageData:
    """Grey images with one bright (class 1) or dark (class 0) patch among 16, at a random place."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (count,), generator=generator)
    images = torch.full((count, 1, 8, 8), 0.5) + 0.02 * torch.rand(count, 1, 8, 8, generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        y, x = (2 * torch.randint(4, (2,), generator=generator)).tolist()
        image[0, y : y + 2, x : x + 2] = 1.0 if label else 0.0
    return ImageData(images, labels, ("dark", "bright"), channels=1)


class Brightness:
    """A method that knows where the spot is: the distance from grey, whatever the class."""

    name = "brightness"

    def __init__(self, model: MaskedModel) -> None:
        self.model, self.calls = model, 0

    def __call__(self, pixels: Tensor, target: Tensor):
        self.calls += 1
        values = torch.nn.functional.avg_pool2d((pixels * STD[0] + MEAN[0] - 0.5).abs(), 2).flatten(1)
        made = method("random", self.model)(pixels, target=target)
        return replace(made, values=values.float()[..., None], class_specific=True)


@pytest.fixture(scope="module")
def splits():
    return spots(96, 0), spots(32, 1), spots(40, 2)


@pytest.mark.parametrize("direction", ["insertion", "deletion"])
def test_hidden_pixels_are_zero_in_the_input_and_the_others_as_they_were(direction, splits):
    model = net()
    images = Images(model, splits[0], None, seed=0)
    order = torch.stack([torch.randperm(16, generator=torch.Generator().manual_seed(i)) for i in range(96)])
    source = roar.masked_source(images, model, order, 5, direction)
    whole = torch.cat([pixels for pixels, _ in images.in_order(20)])
    seen = torch.cat([pixels for pixels, _ in Images(model, source, None, seed=0).in_order(20)])
    kept = order < 5 if direction == "insertion" else order >= 5
    patch = torch.nn.functional.unfold(seen, 2, stride=2).transpose(1, 2)  # [n, 16, 4]
    assert bool((patch[~kept] == 0).all())
    assert torch.equal(patch[kept], torch.nn.functional.unfold(whole, 2, stride=2).transpose(1, 2)[kept])


def test_the_spot_alone_is_learnt_and_without_it_nothing_is(splits, tmp_path):
    model = net()
    explain = Brightness(model)
    found = roar.retrain(model, splits, explain, tmp_path, config=CONFIG, counts=[1])
    by = {one.direction: one for one in found}
    assert by["insertion"].accuracy > 0.9
    assert by["deletion"].accuracy < 0.75
    assert len(by["insertion"].correct) == 40
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".json") == [
        *("deletion-1.json", "insertion-1.json", "settings.json")
    ]
    assert not any(path.is_dir() for path in tmp_path.iterdir())
    table = roar.results_table("spots", found)
    assert table.values("accuracy") == [one.accuracy for one in found]
    calls, stored = explain.calls, (tmp_path / "deletion-1.json").read_text()
    again = roar.retrain(model, splits, explain, tmp_path, config=CONFIG, counts=[1])
    assert again == found
    assert explain.calls == calls  # neither explained nor trained again
    (tmp_path / "deletion-1.json").unlink()
    assert roar.retrain(model, splits, explain, tmp_path, config=CONFIG, counts=[1]) == found
    assert json.loads((tmp_path / "deletion-1.json").read_text()) == json.loads(stored)
    other = replace(CONFIG, selection_metric="loss")
    with pytest.raises(ValueError, match="holds results with other config: choose another folder"):
        roar.retrain(model, splits, explain, tmp_path, config=other, counts=[1])


def test_a_folder_belongs_to_one_explanation_and_data_set(splits, tmp_path):
    model, config = net(), replace(CONFIG, loop=replace(CONFIG.loop, epochs=1))
    few = {"config": config, "counts": [1], "directions": ["insertion"]}
    torch.manual_seed(1)
    explainer = Explainer(model).eval()
    options = {"budget": 30, "seed": 0, "prior": explainer}
    made = {"explainer": explainer, "refine": method("refine", model, **options)}
    for name, explain in made.items():
        roar.retrain(model, splits, explain, tmp_path / name, **few)
        again = [path.stat().st_mtime_ns for path in (tmp_path / name).iterdir()]
        roar.retrain(model, splits, explain, tmp_path / name, **few)
        assert [path.stat().st_mtime_ns for path in (tmp_path / name).iterdir()] == again

    def refused(name, explain, what, data=splits):
        with pytest.raises(ValueError, match=f"holds results with other {what}: choose another folder"):
            roar.retrain(model, data, explain, tmp_path / name, **few)

    torch.manual_seed(2)
    other = Explainer(model).eval()
    refused("explainer", other, "explainer")
    refused("explainer", made["explainer"], "data", (splits[0], splits[1], spots(40, 3)))
    labels = replace(splits[0], labels=1 - splits[0].labels)
    refused("explainer", made["explainer"], "data", (labels, *splits[1:]))
    refused("refine", method("refine", model, **{**options, "seed": 1}), "options")
    refused("refine", method("refine", model, **{**options, "prior": other}), "options")
    refused("refine", method("refine", model.with_removal("pixels"), **options), "explained model")
    changed = deepcopy(model)
    with torch.no_grad():
        next(changed.net.parameters()).add_(0.1)
    refused("refine", method("refine", changed, **{**options, "prior": "tokens"}), "explained model, options")


def test_an_interrupted_run_continues(splits, tmp_path, monkeypatch):
    model, config = net(), replace(CONFIG, loop=replace(CONFIG.loop, epochs=2))
    explain = Brightness(model)
    whole = roar.retrain(model, splits, explain, tmp_path / "whole", config=config, counts=[1, 4])
    trained = []

    def interrupted(*arguments, **options):
        if len(trained) == 1:
            raise KeyboardInterrupt
        trained.append(arguments)
        return roar_fit(*arguments, **options)

    roar_fit = roar.fit_classifier
    monkeypatch.setattr(roar, "fit_classifier", interrupted)
    with pytest.raises(KeyboardInterrupt):
        roar.retrain(model, splits, explain, tmp_path / "parts", config=config, counts=[1, 4])
    assert (tmp_path / "parts" / "insertion-1.json").exists()
    monkeypatch.setattr(roar, "fit_classifier", roar_fit)
    assert roar.retrain(model, splits, explain, tmp_path / "parts", config=config, counts=[1, 4]) == whole


def test_one_logit_reverses_the_order_of_the_negative_class(splits):
    model = net(num_classes=1)
    pixels, batch = next(iter(Images(model, splits[0], None, seed=0).in_order(12)))
    explain = method("leave-one-out", model)
    ranks = roar.true_class_ranks(model, explain, pixels, batch.labels)
    values = explain(pixels, target=0).values[..., 0]
    for i, label in enumerate(batch.labels.tolist()):
        expected = values[i].argsort(descending=bool(label)).argsort()
        assert torch.equal(ranks[i].long(), expected)


def test_without_positions_the_patches_may_be_anywhere(splits, tmp_path):
    model = net()
    with torch.no_grad():
        for parameter in model.net.parameters():
            parameter.normal_(std=0.5)
    made = roar.without_positions(model)
    images = torch.randn(3, 1, 8, 8)
    moved = images.roll((2, 4), (2, 3))
    torch.testing.assert_close(made.logits(images), made.logits(moved), atol=1e-5, rtol=0)
    assert not torch.allclose(model.logits(images), model.logits(moved), atol=1e-3)
    frozen = [parameter for name, parameter in made.net.named_parameters() if "position" in name]
    assert frozen
    assert not any(parameter.requires_grad for parameter in frozen)
    config = replace(CONFIG, loop=replace(CONFIG.loop, epochs=1))
    found = roar.retrain(
        model, splits, Brightness(model), tmp_path, config=config, counts=[1], directions=["insertion"], positions=False
    )
    assert len(found) == 1
    assert json.loads((tmp_path / "settings.json").read_text())["positions"] is False


def test_nets_with_other_positions_and_outputs_are_refused(splits, tmp_path):
    rotary = timm.create_model("eva02_tiny_patch14_224", img_size=28, depth=1, num_classes=2)
    with pytest.raises(ValueError, match="only absolute positional embeddings can be removed, but it has rope"):
        roar.without_positions(wrap(rotary))
    with pytest.raises(ValueError, match="cannot be used with a regression"):
        roar.retrain(net(output="identity"), splits, Brightness(net()), tmp_path)
    with pytest.raises(ValueError, match="cannot be used with several labels per image"):
        roar.retrain(net(output="sigmoid"), splits, Brightness(net()), tmp_path)
    with pytest.raises(ValueError, match=r"counts of 16 players are 1 to 16, got \[17\]"):
        roar.retrain(net(), splits, Brightness(net()), tmp_path, counts=[17])
