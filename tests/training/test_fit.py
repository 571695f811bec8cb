"""From images to an explainer, end to end, on digits where all values can be known."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification

import vitshap
from vitshap.coalitions import uniform_size
from vitshap.data import Augmentation, Splits, load_digits, sample_coalitions
from vitshap.estimators.estimate import correlation
from vitshap.estimators.exact import exact
from vitshap.explainers import Explainer, ExplainerConfig, bundle
from vitshap.models import MaskedModel, wrap
from vitshap.training.configs import (
    ClassifierTraining,
    ExplainerTraining,
    LoopConfig,
    SurrogateTraining,
    ValuesConfig,
    resolve_auto,
)
from vitshap.training.explainer import fit_explainer
from vitshap.training.fit import fit_classifier, fit_masked_classifier, fit_surrogate
from vitshap.training.recipes import load_recipe
from vitshap.training.recipes.run import build_model


def _loop(epochs: int, rate: float) -> LoopConfig:
    return LoopConfig(epochs=epochs, batch_size=100, learning_rate=rate)


def _paper(epochs: int, rate: float, **options) -> ExplainerTraining:
    return ExplainerTraining("paper", _loop(epochs, rate), None, coalitions=8, validation_coalitions=8, **options)


def _values(epochs: int, rate: float, **options) -> ExplainerTraining:
    values = ValuesConfig(views=epochs, coalitions=8, **options)
    return ExplainerTraining("values", _loop(epochs, rate), None, values=values, validation_coalitions=8)


@pytest.fixture(scope="module")
def digits() -> Splits:
    whole = load_digits()
    return Splits(whole.train.subset(range(500)), whole.val.subset(range(100)), whole.test.subset(range(20)))


@pytest.fixture(scope="module")
def classifier(digits: Splits, tmp_path_factory: pytest.TempPathFactory) -> MaskedModel:
    torch.manual_seed(0)
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    net = ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, num_channels=1, num_labels=10, **size))
    folder = tmp_path_factory.mktemp("classifier")
    config = ClassifierTraining(_loop(25, 5e-3), None)
    original = wrap(net)
    before = original.fingerprint()
    trained = fit_masked_classifier(original, digits.train, digits.val, folder, config)
    assert original.fingerprint() == before, "what is given is not trained"
    return trained


def _accuracy(model: MaskedModel, digits: Splits) -> float:
    pixels = torch.stack([pixels for pixels, _ in digits.val])
    return float((model(pixels).argmax(1) == digits.val.labels).float().mean())


def test_the_classifier_learns(classifier: MaskedModel, digits: Splits) -> None:
    assert _accuracy(classifier, digits) > 0.7


def test_a_masked_classifier_is_judged_by_its_answers_with_missing_patches(
    classifier: MaskedModel, digits: Splits, tmp_path: Path
) -> None:
    config = ClassifierTraining(_loop(1, 1e-3), None, validation_coalitions=3)
    trained = fit_masked_classifier(classifier, digits.train, digits.val, tmp_path, config)
    (line,) = (json.loads(text) for text in (tmp_path / "log.jsonl").read_text().splitlines())
    pixels = torch.stack([pixels for pixels, _ in digits.val])
    fixed = sample_coalitions(uniform_size(4), torch.arange(100), seed=0, epoch=0, n=3, purpose="validation")
    answers = trained(pixels, fixed).detach()  # [100, 3, 10]
    right = answers.argmax(-1) == digits.val.labels[:, None]
    assert line["accuracy"] == pytest.approx(float(right.float().mean()), abs=1e-6)
    own = answers.gather(2, digits.val.labels[:, None, None].expand(-1, 3, 1))
    assert line["loss"] == pytest.approx(float(-own.log().mean()), abs=1e-5)


def test_a_bundle_knows_the_net_that_was_explained(classifier: MaskedModel, digits: Splits, tmp_path: Path) -> None:
    surrogate = fit_surrogate(classifier, digits.train, digits.val, None, SurrogateTraining(_loop(1, 1e-3), None))
    explainer = fit_explainer(surrogate, digits.train, digits.val, None, _paper(1, 1e-3))
    explainer.save_pretrained(tmp_path / "by its surrogate")
    loaded = Explainer.from_pretrained(tmp_path / "by its surrogate", classifier=classifier)
    pixels = torch.stack([pixels for pixels, _ in digits.test])
    for model, kind in ((classifier, "classifier"), (surrogate, "surrogate"), (loaded.surrogate, "surrogate")):
        assert vitshap.method("random", model)(pixels).prediction_by == kind
    explainer = fit_explainer(surrogate, digits.train, digits.val, None, _paper(1, 1e-3), classifier=classifier)
    explainer.save_pretrained(tmp_path / "whole", half=True, include_classifier=True)
    loaded = Explainer.from_pretrained(tmp_path / "whole", classifier=classifier)
    rounded = bundle.load_classifier(tmp_path / "whole")  # not the same weights any more
    assert rounded.fingerprint() != classifier.fingerprint()
    for stored in (rounded, loaded.surrogate):
        Explainer.from_pretrained(tmp_path / "whole", classifier=stored)
    loaded.save_pretrained(tmp_path / "again", include_classifier=rounded)
    Explainer.from_pretrained(tmp_path / "again", classifier=classifier)
    other = fit_classifier(surrogate, digits.train, digits.val, None, ClassifierTraining(_loop(1, 1e-3), None))
    assert other.classifier_fingerprint is None


def test_the_surrogate_comes_nearer_to_the_classifier(classifier: MaskedModel, digits: Splits, tmp_path: Path) -> None:
    before = classifier.fingerprint()
    config = SurrogateTraining(_loop(6, 2e-3), None, coalitions=2)
    surrogate = fit_surrogate(classifier, digits.train, digits.val, tmp_path, config)
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert len(lines) == 6
    assert classifier.fingerprint() == before
    assert surrogate.fingerprint() != before
    pixels = torch.stack([pixels for pixels, _ in digits.test])
    some = torch.rand(20, 8, 4, generator=torch.Generator().manual_seed(0)) < 0.5
    wanted = classifier(pixels)[:, None]
    distance = [(model.game(pixels)(some) - wanted).square().mean() for model in (classifier, surrogate)]
    assert distance[1] < distance[0]


LEARNING = {
    "paper": _paper(12, 3e-3),
    "values": _values(12, 3e-3),
    "labels, pairs": _values(
        12, 3e-3, loss="labels", allocation="shapley", remove_size_effect=False, noise_weight_power=0.0
    ),
}


@pytest.mark.parametrize("procedure", LEARNING)
def test_the_explainer_finds_the_shapley_values(
    procedure: str, classifier: MaskedModel, digits: Splits, tmp_path: Path
) -> None:
    config = LEARNING[procedure]
    explainer = fit_explainer(classifier, digits.train, digits.val, tmp_path, config)
    pixels = torch.stack([pixels for pixels, _ in digits.test])
    explanation = explainer(pixels, target=None)
    assert explanation.efficiency_gap().abs().max() < 1e-5
    assert explanation.method == "explainer"
    truth = exact(classifier.game(pixels)).values
    still = replace(config, loop=_loop(1, 1e-9))
    untrained = fit_explainer(classifier, digits.train, digits.val, None, still)
    learned = correlation(explanation.values.double(), truth).mean()
    assert learned > 0.6
    assert learned > correlation(untrained(pixels).values.double(), truth).mean() + 0.2
    torch.testing.assert_close(
        explainer(pixels[3:5], target=2).values, explanation.values[3:5, :, 2:3], atol=1e-6, rtol=0
    )


def test_an_explainer_that_learns_nothing_says_so(classifier: MaskedModel, digits: Splits, tmp_path: Path) -> None:
    from rich.console import Console

    console = Console(record=True, quiet=False, file=(tmp_path / "out.txt").open("w"))
    stubborn = ExplainerConfig(output_scale=100.0)
    config = _paper(1, 1e-9, network=stubborn)
    fit_explainer(classifier, digits.train, digits.val, tmp_path / "run", config, console=console)
    assert "learned nothing" in " ".join(console.export_text().split())


def test_profiles_that_nothing_would_train_are_refused() -> None:
    profiles = ExplainerConfig(profiles=True)
    assert ExplainerTraining(network=profiles).uses_control_variate
    with pytest.raises(ValueError, match="profiles"):
        ExplainerTraining("paper", network=profiles)
    with pytest.raises(ValueError, match="profiles"):
        ExplainerTraining(network=profiles, values=ValuesConfig(loss="labels"))


def test_one_validation_image_does_not_tell_the_unit_of_a_regression(classifier: MaskedModel, digits: Splits) -> None:
    surrogate = wrap(classifier.net, output="identity")
    with pytest.raises(ValueError, match="validation images: give two or more"):
        fit_explainer(surrogate, digits.train, digits.val.subset([0]), config=_paper(1, 1e-3))


def test_a_classifier_refuses_pasted_images(classifier: MaskedModel, digits: Splits) -> None:
    config = ClassifierTraining(_loop(1, 1e-3), Augmentation(paste=0.5))
    with pytest.raises(ValueError, match="pasted"):
        fit_classifier(classifier, digits.train, digits.val, None, config)


def test_augmented_training_runs(classifier: MaskedModel, digits: Splits, tmp_path: Path) -> None:
    augmentation = Augmentation(horizontal_flip=0, vertical_flip=0, jitter=0)
    config = SurrogateTraining(LoopConfig(epochs=1, batch_size=100), augmentation)
    fit_surrogate(classifier, digits.train, digits.val, tmp_path, config)


@pytest.mark.filterwarnings("error:.*players:UserWarning")
def test_a_surrogate_of_few_players_on_many_patches_warns_of_nothing() -> None:
    net = ViTConfig(
        image_size=42, patch_size=2, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, num_labels=3
    )
    model = wrap(ViTForImageClassification(net), players=3)
    loop = LoopConfig(epochs=1, batch_size=4, learning_rate=1e-3)
    images = torch.rand(4, 3, 42, 42, generator=torch.Generator().manual_seed(0))
    surrogate = fit_surrogate(model, images, images, config=SurrogateTraining(loop, None))
    assert surrogate.num_players == 49


def test_a_data_set_that_can_only_be_walked_through(classifier: MaskedModel, digits: Splits) -> None:
    config = SurrogateTraining(_loop(1, 1e-3), None)
    walked = fit_surrogate(classifier, (item for item in digits.train), (item for item in digits.val), config=config)
    mapped = fit_surrogate(classifier, digits.train, digits.val, config=config)
    assert walked.fingerprint() == mapped.fingerprint()


def test_weights_and_kappa(digits: Splits, classifier: MaskedModel, tmp_path: Path) -> None:
    config = ClassifierTraining(_loop(2, 1e-3), None, class_weights="balanced", selection_metric="kappa")
    fit_classifier(classifier, digits.train, digits.val, tmp_path, config)
    assert '"kappa"' in (tmp_path / "log.jsonl").read_text()


def test_random_numbers_and_accelerators_of_the_user_are_left_alone(classifier: MaskedModel, digits: Splits) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    config = SurrogateTraining(_loop(1, 1e-3), None)
    alone = fit_surrogate(classifier, digits.train, digits.val, config=config).fingerprint()
    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        accelerator = Accelerator(cpu=True, mixed_precision="bf16")
        torch.manual_seed(7)
        expected = torch.rand(3)
        torch.manual_seed(7)
        trained = fit_surrogate(classifier, digits.train, digits.val, config=config)
        fit_explainer(trained, digits.train, digits.val, config=_paper(1, 1e-3))
        fit_classifier(trained, digits.train, digits.val, config=ClassifierTraining(_loop(1, 1e-3), None))
        build_model(load_recipe("digits").model, digits.train)
        assert torch.equal(torch.rand(3), expected)
        assert trained.fingerprint() == alone, "a CPU trains in float32 whatever the accelerator's precision"
        assert accelerator.mixed_precision == "bf16"
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    Accelerator(cpu=True, mixed_precision="bf16")
    AcceleratorState._reset_state(reset_partial_state=True)


def test_auto_is_chosen_by_device_net_and_number_of_images(
    classifier: MaskedModel, digits: Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = LoopConfig(epochs=50, batch_size="auto", learning_rate="auto")
    surrogate = SurrogateTraining(loop)
    assert resolve_auto(surrogate, classifier, 10_000).loop.numbers() == (50, 64, 1e-5)
    assert resolve_auto(surrogate, classifier, 40).loop.numbers() == (50, 32, 1e-5), "no more than there are"
    assert resolve_auto(ExplainerTraining(loop=loop), classifier, 10_000).loop.numbers() == (50, 64, 1e-4)
    given = SurrogateTraining(LoopConfig(batch_size=7, learning_rate=0.5))
    assert resolve_auto(given, classifier, 10_000) == given
    auto = ExplainerTraining(loop=replace(loop, epochs="auto"), values=ValuesConfig(views="auto", coalitions="auto"))
    chosen = resolve_auto(auto, classifier, 10_000)
    assert (chosen.loop.epochs, chosen.values.views, chosen.values.coalitions) == (100, 50, 48)
    assert (
        resolve_auto(SurrogateTraining(replace(loop, epochs="auto"), coalitions="auto"), classifier, 9).coalitions == 1
    )
    trained = fit_surrogate(
        classifier, digits.train, digits.val, config=SurrogateTraining(replace(loop, epochs=1), None)
    )
    usual = LoopConfig(epochs=1, batch_size=64, learning_rate=1e-5)
    same = fit_surrogate(classifier, digits.train, digits.val, config=SurrogateTraining(usual, None))
    assert trained.fingerprint() == same.fingerprint()
    # What a GPU gets, by a net that says it is on one
    monkeypatch.setattr(MaskedModel, "device", torch.device("cuda"))
    monkeypatch.setattr("vitshap.training.configs.free_bytes", lambda device: 2**36)
    assert resolve_auto(surrogate, classifier, 10_000).loop.numbers() == (50, 512, 1.4e-4)
    assert resolve_auto(surrogate, classifier, 3_600).loop.numbers() == (50, 256, pytest.approx(1.4e-4 / 2**0.5))
    assert resolve_auto(surrogate, classifier, 100).loop.numbers() == (50, 64, pytest.approx(1.4e-4 / 8**0.5))
    assert resolve_auto(ClassifierTraining(loop), classifier, 10_000).loop.numbers() == (50, 128, 2e-5)
    assert resolve_auto(ExplainerTraining(loop=loop), classifier, 10_000).loop.numbers() == (50, 256, 3e-4)
    for images, views in (
        (1_000_000, 50),
        (10_000, 77),
        (1_000, 400),
    ):  # 100 million evaluations where that is sensible
        chosen = resolve_auto(auto, classifier, images)
        assert (chosen.loop.epochs, chosen.values.views, chosen.values.coalitions) == (max(100, views), views, 128)
    assert (
        resolve_auto(SurrogateTraining(replace(loop, epochs="auto"), coalitions="auto"), classifier, 9).coalitions == 2
    )
    monkeypatch.setattr("vitshap.training.configs.free_bytes", lambda device: 6 * 2**30)
    assert resolve_auto(surrogate, classifier, 10_000).loop.numbers() == (50, 128, pytest.approx(0.7e-4))
    monkeypatch.setattr("vitshap.training.configs.SMALL_NET", 1000)  # as for a net with a hundred times as many weights
    assert resolve_auto(surrogate, classifier, 10_000).loop.numbers()[1] == 64
