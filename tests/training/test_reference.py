"""Images with reference values: measured on them, an explainer whose exact values are known."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification

from tests.data import trees
from vitshap.data import UNLABELLED, SplitRecord, load_data, load_digits
from vitshap.estimators import truth
from vitshap.estimators.exact import exact
from vitshap.experiments import ablation
from vitshap.explainers import Explainer
from vitshap.metrics import agreement
from vitshap.models import precision, wrap
from vitshap.training.recipes import load_recipe
from vitshap.training.values import store
from vitshap.training.values.reference import ReferenceSet, open_data, reference_set, sample_images
from vitshap.training.values.store import Evaluator


@pytest.fixture(scope="module")
def explainer() -> Explainer:
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=10, initializer_range=0.5, **size)
    names = list(load_digits().test.class_names)
    return Explainer(wrap(ViTForImageClassification(config).eval(), class_names=names)).eval()


@pytest.fixture(scope="module")
def reference(explainer: Explainer, tmp_path_factory: pytest.TempPathFactory) -> ReferenceSet:
    evaluate = Evaluator(explainer.surrogate)
    folder = tmp_path_factory.mktemp("truth")
    first = reference_set(folder, evaluate, load_digits().test, count=6, budget=2000)
    again = reference_set(folder, evaluate, load_digits().test, count=6, budget=2000)
    assert torch.equal(first.truth.values, again.truth.values)
    return first


def test_exact_values_agree_and_an_untrained_explainer_does_not(explainer: Explainer, reference: ReferenceSet) -> None:
    right = exact(explainer.surrogate.game(reference.pixels)).values
    found = agreement(right, reference.truth, reference.labels)
    assert found["target"] == pytest.approx(1, abs=0.02)
    assert found["others"] == pytest.approx(1, abs=0.02)
    assert found["raw_target"] <= found["target"]
    untrained = agreement(explainer(reference.pixels).values, reference.truth, reference.labels)
    assert abs(untrained["target"]) < 0.7


def test_reference_values_of_a_half_precision_copy_are_found_again(explainer: Explainer, tmp_path: Path) -> None:
    gpu = Evaluator(explainer.surrogate)
    gpu._convert(torch.float16)  # what a GPU evaluates with
    half = reference_set(tmp_path, gpu, load_digits().test, count=2, budget=300)
    cpu = reference_set(tmp_path, Evaluator(explainer.surrogate), load_digits().test, count=2, budget=300)
    assert torch.equal(half.truth.values, cpu.truth.values)
    assert truth.load(tmp_path, surrogate=explainer.surrogate.fingerprint()).specification.num_inputs == 2


def test_reference_values_of_a_net_too_large_for_float16(
    explainer: Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = copy.deepcopy(explainer.surrogate)
    with torch.no_grad():
        large.net.vit.layernorm.weight.mul_(1e5)
        large.net.classifier.weight.mul_(1e-5)
    # In place of bfloat16, which ends the process on some CPUs
    other = {torch.float16: torch.float16, torch.bfloat16: torch.float32}
    monkeypatch.setattr(store, "converted", lambda model, dtype: precision.converted(model, other[dtype]))
    gpu = Evaluator(large)
    gpu._convert(torch.float16)  # what a GPU evaluates with
    found = reference_set(tmp_path, gpu, load_digits().test, count=2, budget=300)
    assert gpu.dtype == torch.float32
    assert torch.equal(found.truth.full_values.float(), large.game(found.pixels).grand)


def test_unreliable_reference_values_correct_nothing(explainer: Explainer, reference: ReferenceSet) -> None:
    noise = replace(reference.truth, reliability=torch.zeros_like(reference.truth.reliability))
    found = agreement(explainer(reference.pixels).values, noise, reference.labels)
    assert found["target"] is found["others"] is None
    assert found["reliability_target"] == 0


def test_images_are_spread_over_the_split(explainer: Explainer) -> None:
    test = load_digits().test
    pixels, labels = sample_images(explainer.surrogate, test, 3)
    assert labels.tolist() == [int(test.labels[i]) for i in (0, 179, 359)]
    assert torch.equal(pixels[1], test[179][0])


@pytest.mark.filterwarnings("ignore:.*(validation|test) images")
def test_data_with_other_classes_is_rejected(explainer: Explainer, tmp_path: Path) -> None:
    from PIL import Image

    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(4):
            Image.new("L", (8, 8), 40 * i).save(tmp_path / name / f"{i}.png")
    with pytest.raises(ValueError, match=r"cat.*folders must be named as these, in any order"):
        open_data(explainer.surrogate, tmp_path)
    names = ("dog", "cat")  # a data set has them sorted
    config = ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=2, hidden_size=16, num_attention_heads=2)
    surrogate = wrap(ViTForImageClassification(config).eval(), class_names=names)
    for part in open_data(surrogate, tmp_path):
        assert part.class_names == names
        assert [names[label] for label in part.labels.tolist()] == [Path(path).parent.name for path in part.images]


@pytest.mark.filterwarnings("ignore:.*(validation|test) images")
def test_images_of_a_model_that_was_explained_as_it_is_need_no_labels(explainer: Explainer, tmp_path: Path) -> None:
    trees.class_folders(tmp_path / "own", {"cats": 8, "dogs": 8})
    trees.class_folders(tmp_path / "other", {"cats": 9, "dogs": 9})
    own = load_data(tmp_path / "own", channels=1)
    trained_on = SplitRecord.of(own, layout="auto", split="own", seed=0, groups=None).to_json()
    found = open_data(explainer.surrogate, tmp_path / "own", trained_on=trained_on, labels=False)
    for part, expected in zip(found, own, strict=True):
        assert part.class_names == UNLABELLED
        assert list(part.images) == list(expected.images)
    with pytest.raises(ValueError, match="folders must be named as these"):
        open_data(explainer.surrogate, tmp_path / "own", trained_on=trained_on)
    with pytest.raises(ValueError, match="folders must be named as these"), pytest.warns(UserWarning, match="held out"):
        open_data(explainer.surrogate, tmp_path / "other", trained_on=trained_on, labels=False)
    numbers = wrap(explainer.surrogate.net, output="identity", class_names=[f"length {i}" for i in range(10)])
    assert open_data(numbers, tmp_path / "other", labels=False).test.class_names == UNLABELLED


@pytest.mark.filterwarnings("ignore:.*(validation|test) images")
@pytest.mark.filterwarnings("default:the images are of")
def test_the_class_of_a_single_logit_is_label_1(tmp_path: Path) -> None:
    trees.class_folders(tmp_path, {"cats": 8, "dogs": 8})
    config = ViTConfig(image_size=8, patch_size=2, num_labels=1, hidden_size=16, num_attention_heads=2)
    net = ViTForImageClassification(config).eval()
    for own, other in (("cats", "dogs"), ("dogs", "cats")):
        for part in open_data(wrap(net, class_names=[own]), tmp_path):
            assert part.class_names == (other, own)
            assert [part.class_names[label] for label in part.labels.tolist()] == [
                path.parent.name for path in part.images
            ]
    for names, said in ((["birds"], "output is of birds, which is neither"), (None, "output has no name")):
        with pytest.warns(UserWarning, match=f"{said}: dogs counts as 1"):
            found = open_data(wrap(net, class_names=names), tmp_path)
        assert found.test.class_names == ("cats", "dogs")


def test_variants_differ_and_all_together_is_the_recipe() -> None:
    chosen = ablation.variants(views=2, coalitions=32, num_players=16)
    alone = [chosen[f"+ {name}"] for name in ablation.recipe_steps()]
    without = [chosen[f"all but {name}"] for name in ablation.recipe_steps()]
    all_of_them = [*alone, *without, chosen["stored values"], chosen["all together"]]
    assert len(set(map(repr, all_of_them))) == len(all_of_them)
    recipe, together = load_recipe(ablation.RECIPE).explainer, chosen["all together"]
    assert replace(together.values, views=recipe.values.views, coalitions=recipe.values.coalitions) == recipe.values
    assert together.augmentation == recipe.augmentation
    paper = chosen["paper"]
    assert paper.procedure == "paper"
    assert paper.loop.epochs == 2  # of 32 coalitions and the full one
