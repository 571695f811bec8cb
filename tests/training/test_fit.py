"""From images to an explainer, end to end, on digits where all values can be known."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification

from vitshap.data import Augmentation, Splits, load_digits
from vitshap.estimators.exact import exact
from vitshap.estimators.reliability import correlation
from vitshap.explainers import ExplainerConfig
from vitshap.models import MaskedModel, wrap
from vitshap.training.configs import ClassifierTraining, ExplainerTraining, SurrogateTraining, ValuesConfig
from vitshap.training.explainer import fit_explainer
from vitshap.training.fit import fit_classifier, fit_masked_classifier, fit_surrogate
from vitshap.training.loop import LoopConfig


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
    return fit_masked_classifier(wrap(net), digits.train, digits.val, folder, config)


def _accuracy(model: MaskedModel, digits: Splits) -> float:
    pixels = torch.stack([pixels for pixels, _ in digits.val])
    return float((model(pixels).argmax(1) == digits.val.labels).float().mean())


def test_the_classifier_learns_and_the_original_is_untouched(classifier: MaskedModel, digits: Splits) -> None:
    assert _accuracy(classifier, digits) > 0.7


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
    "labels, pairs": _values(12, 3e-3, loss="labels", allocation="shapley", size_effect=False, noise_weights=0.0),
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
    assert ExplainerTraining(network=profiles).cancels
    with pytest.raises(ValueError, match="profiles"):
        ExplainerTraining("paper", network=profiles)
    with pytest.raises(ValueError, match="profiles"):
        ExplainerTraining(network=profiles, values=ValuesConfig(loss="labels"))


def test_a_classifier_refuses_pasted_images(classifier: MaskedModel, digits: Splits) -> None:
    config = ClassifierTraining(_loop(1, 1e-3), Augmentation(paste=0.5))
    with pytest.raises(ValueError, match="pasted"):
        fit_classifier(classifier, digits.train, digits.val, None, config)


def test_augmented_training_runs(classifier: MaskedModel, digits: Splits, tmp_path: Path) -> None:
    varied = Augmentation(horizontal_flip=0, vertical_flip=0, jitter=0)
    config = SurrogateTraining(LoopConfig(epochs=1, batch_size=100), varied)
    fit_surrogate(classifier, digits.train, digits.val, tmp_path, config)


def test_a_data_set_that_can_only_be_walked_through(classifier: MaskedModel, digits: Splits) -> None:
    config = SurrogateTraining(_loop(1, 1e-3), None)
    walked = fit_surrogate(classifier, (item for item in digits.train), (item for item in digits.val), config=config)
    mapped = fit_surrogate(classifier, digits.train, digits.val, config=config)
    assert walked.fingerprint() == mapped.fingerprint()


def test_weights_and_kappa(digits: Splits, classifier: MaskedModel, tmp_path: Path) -> None:
    config = ClassifierTraining(_loop(2, 1e-3), None, class_weights="balanced", select="kappa")
    fit_classifier(classifier, digits.train, digits.val, tmp_path, config)
    assert '"kappa"' in (tmp_path / "log.jsonl").read_text()
