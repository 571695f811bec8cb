"""Values of views: the same whatever is kept, and a held-out loss that tells better explanations from worse."""

import copy
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import ViTConfig, ViTForImageClassification

from vitshap.data import Augmentation, Batch, CachedPixels, StreamedPixels, load_digits, open_pixels
from vitshap.estimators.exact import exact
from vitshap.explainers import Explainer
from vitshap.models import MaskedModel, wrap
from vitshap.training import processes
from vitshap.training.batches import Images
from vitshap.training.configs import ExplainerTraining, ValuesConfig
from vitshap.training.explainer import ValuesStep, make_store, training_images
from vitshap.training.values import store as values_store
from vitshap.training.values.labels import NoiseWeighting, Plan
from vitshap.training.values.pilot import default_plan, plan_evaluations
from vitshap.training.values.store import LOW_CONFIDENCE, Evaluator, ValueStore
from vitshap.training.values.validation import FILE, ValidationSet

AUGMENTATION = Augmentation(horizontal_flip=0, vertical_flip=0, jitter=0)


@pytest.fixture(scope="module")
def model() -> MaskedModel:
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = ViTConfig(image_size=8, patch_size=4, num_channels=1, num_labels=3, initializer_range=0.5, **size)
    return wrap(ViTForImageClassification(config).eval())


def _store(
    model: MaskedModel,
    *,
    memory_gib: float | None = None,
    streamed: bool = False,
    views: int = 3,
    augmentation: Augmentation = AUGMENTATION,
) -> ValueStore:
    data = load_digits().train.subset(range(40))
    source = StreamedPixels(data, None, device="cpu") if streamed else data
    images = Images(model, source, augmentation, seed=0)
    config = ValuesConfig(views=views, coalitions=6, memory_gib=memory_gib)
    return make_store(Evaluator(model), images, config)


@pytest.mark.parametrize("paste", [0.0, 0.7])
def test_memory_does_not_decide_what_values_are(model: MaskedModel, paste: float) -> None:
    store_of = partial(_store, model, augmentation=replace(AUGMENTATION, paste=paste))
    all_kept, one_kept = store_of(), store_of(memory_gib=40 * 7 * 3 * 4 * 1.5 / 2**30)
    nothing_kept, streamed = store_of(memory_gib=0.0), store_of(streamed=True)
    assert all_kept.keeps_all
    assert not one_kept.keeps_all
    assert not one_kept.streamed
    assert nothing_kept.streamed
    assert streamed.streamed
    for order in ([torch.tensor([3, 1, 39]), torch.tensor([0, 2])], [torch.arange(40)]):
        for view in (2, 0, 2):
            expected = list(all_kept.batches(order, view))
            for store in (one_kept, nothing_kept, streamed):
                for one, two in zip(expected, store.batches(order, view), strict=True):
                    assert torch.equal(one.pixels, two.pixels)
                    assert torch.equal(one.coalitions, two.coalitions)
                    torch.testing.assert_close(one.values, two.values, atol=1e-6, rtol=0)
                    torch.testing.assert_close(one.full, two.full, atol=1e-6, rtol=0)


def test_the_last_views_are_weakly_augmented(model: MaskedModel) -> None:
    hard = replace(AUGMENTATION, crop_scale=(0.2, 0.5), paste=0.9)
    data, values = load_digits().train.subset(range(30)), ValuesConfig(views=8, weak_augmentation_fraction=0.25)
    images = training_images(model, data, ExplainerTraining(augmentation=hard, values=values))
    order = [torch.arange(30)]
    for view in range(8):
        expected = Images(model, data, hard.weak() if view >= 6 else hard, seed=0)
        assert torch.equal(next(images.views(order, view))[0], next(expected.views(order, view))[0])


class _Torn:
    """Digits of which one cannot be read."""

    def __init__(self, torn: int) -> None:
        self.digits, self.torn = load_digits().train.subset(range(150)), torn

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == self.torn:
            raise OSError("torn")
        pixels, label = self.digits[index]
        return pixels, label


@pytest.mark.filterwarnings("ignore:1 of 150 images")
def test_a_partner_that_cannot_be_read_leaves_the_image_as_it_is(model: MaskedModel) -> None:
    still = Augmentation(
        crop_scale=(1, 1), crop_ratio=(1, 1), horizontal_flip=0, vertical_flip=0, jitter=0, paste=1, paste_area=(1, 1)
    )
    whole = Images(model, load_digits().train.subset(range(150)), still, seed=0)
    partners = still.partners(torch.arange(150), 150, seed=0, epoch=0)
    torn = int(partners[20])  # pasted into sample 20, and maybe others
    images = Images(model, StreamedPixels(_Torn(torn), None, device="cpu"), still, seed=0)
    order = list(torch.arange(150).split(40))
    found = {
        int(i): one for pixels, batch in images.views(order, 0) for i, one in zip(batch.indices, pixels, strict=True)
    }
    assert set(range(150)) - set(found) == {torn}
    for pixels, batch in whole.views(order, 0):
        for i, expected in zip(batch.indices.tolist(), pixels, strict=True):
            if i in found and int(partners[i]) != torn:
                assert torch.equal(found[i], expected)
    assert torch.equal(found[20], load_digits().train[20][0])


def test_values_are_those_of_the_model(model: MaskedModel) -> None:
    batch = next(iter(_store(model).batches([torch.tensor([5, 6])], 1)))
    with torch.no_grad():
        torch.testing.assert_close(batch.values, model(batch.pixels, batch.coalitions), atol=1e-6, rtol=0)
        torch.testing.assert_close(batch.full, model(batch.pixels), atol=1e-6, rtol=0)


def test_few_samples_are_held_at_once_however_few_coalitions_they_have(
    model: MaskedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = next(iter(_store(model).batches([torch.arange(40)], 0)))
    monkeypatch.setattr(values_store, "SAMPLES", 7)
    store, sizes = _store(model), []
    compute = store.evaluate.unchecked
    monkeypatch.setattr(
        store.evaluate, "unchecked", lambda pixels, drawn: (sizes.append(len(pixels)), compute(pixels, drawn))[1]
    )
    found = next(iter(store.batches([torch.arange(40)], 0)))
    assert sizes == [7, 7, 7, 7, 7, 5]
    assert torch.equal(found.pixels, expected.pixels)
    torch.testing.assert_close(found.values, expected.values, atol=1e-6, rtol=0)


def test_views_differ_and_the_description_counts(model: MaskedModel) -> None:
    store = _store(model)
    first, second = (next(iter(store.batches([torch.arange(4)], view))) for view in (0, 1))
    assert not torch.equal(first.pixels, second.pixels)
    assert not torch.equal(first.coalitions, second.coalitions)
    assert store.describe().startswith("840 evaluations: 3 views of 40 samples, 6 coalitions each")


def test_every_process_draws_the_coalitions_of_the_main_one(
    model: MaskedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU that evaluates fewer coalitions at once, for lack of memory, rounds otherwise; here it is the precision."""
    images, config = Images(model, load_digits().train.subset(range(32)), None, seed=0), ValuesConfig(2, 8)

    def plan(dtype: torch.dtype) -> Plan:
        evaluate = Evaluator(model)
        evaluate._convert(dtype)
        return plan_evaluations(evaluate, images, config)

    main, own = plan(torch.float32), plan(torch.float16)
    assert not torch.equal(own.law.size_probabilities, main.law.size_probabilities)
    tensors = {"law": main.law.size_probabilities, "curve": main.curve, "class_noise": main.class_noise}
    about = [main.paired, main.typical_noise, main.relative_noise]
    monkeypatch.setattr(processes, "tensors_from_main", lambda read: (tensors, about))
    got = plan(torch.float16)
    for name, tensor in tensors.items():
        assert torch.equal(got.law.size_probabilities if name == "law" else getattr(got, name), tensor)
    assert [got.paired, got.typical_noise, got.relative_noise] == about


@pytest.mark.parametrize("planned", [False, True])
def test_exact_values_have_the_least_held_out_loss(model: MaskedModel, tmp_path: Path, planned: bool) -> None:
    unseen = Images(model, load_digits().val.subset(range(60)), None, seed=0)
    evaluate, explainer = Evaluator(model), Explainer(model)
    plan = _store(model).plan if planned else None

    def opened() -> ValidationSet:
        how = {"pairs": 16, "plan": plan, "planned": 24, "weighting": NoiseWeighting(0.5)}
        return ValidationSet(tmp_path, evaluate, unseen, **how)

    held_out = opened()
    pixels = torch.cat([pixels for pixels, _ in unseen.in_order(60)])
    shapley = exact(model.game(pixels)).values.float()

    class Given(torch.nn.Module):
        def __init__(self, noise: float) -> None:
            super().__init__()
            noise_of = torch.randn(shapley.shape, generator=torch.Generator().manual_seed(0)) * shapley.std()
            self.scale = torch.ones(shapley.shape[2])
            self.given = shapley + noise * (noise_of - noise_of.mean(1, keepdim=True))

        def base_values(self, pixels: torch.Tensor) -> torch.Tensor:
            return explainer.base_values(pixels)

        def values(self, pixels: torch.Tensor, full: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
            return self.given

    losses = [held_out.losses(Given(noise), 60)[held_out.selection_metric] for noise in (0.0, 0.3, 1.0)]
    assert losses == sorted(losses)
    assert losses[0] < losses[1] < losses[2]
    written = (tmp_path / FILE).read_bytes()
    assert opened().losses(explainer, 32) == held_out.losses(explainer, 32)
    assert (tmp_path / FILE).read_bytes() == written


def test_where_v0_differs_between_images_it_is_as_exact_as_the_values(
    model: MaskedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU trains in bfloat16, but evaluates coalitions in float16."""
    surrogate = model.with_removal("softmax")
    explainer, digits = Explainer(surrogate), load_digits()
    images = Images(surrogate, digits.train.subset(range(8)), None, seed=0)
    store = ValueStore(Evaluator(surrogate), images, default_plan(surrogate), views=1, coalitions=4)
    validation = ValidationSet(None, store.evaluate, images, pairs=2)
    base_values, half = Explainer.base_values, []

    def recorded(self: Explainer, pixels: Tensor) -> Tensor:
        half.append(torch.is_autocast_enabled("cpu"))
        return base_values(self, pixels)

    def nothing(images: Tensor) -> tuple[Tensor, None]:
        return torch.zeros(len(images), surrogate.num_players, surrogate.num_classes), None

    monkeypatch.setattr(Explainer, "base_values", recorded)
    monkeypatch.setattr(explainer.network, "outputs", nothing)  # bfloat16 ends the process on some CPUs
    (batch,) = store.batches([torch.arange(8)], 0)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        ValuesStep(explainer, store.plan, ValuesConfig(), compiled=False)(*batch)
        validation.losses(explainer, 8)
    assert half == [False, False]


def test_a_surrogate_without_finite_values_is_refused(model: MaskedModel) -> None:
    broken = copy.deepcopy(model)
    torch.nn.init.constant_(next(iter(broken.net.parameters())), float("nan"))
    with pytest.raises(ValueError, match="not finite"):
        _store(broken)


def test_an_evaluation_is_the_game(model: MaskedModel) -> None:
    pixels = torch.stack([load_digits().train[i][0] for i in range(5)])
    coalitions = torch.rand(5, 7, 4, generator=torch.Generator().manual_seed(0)) < 0.5
    full, values = Evaluator(model)(pixels, coalitions)
    game = model.game(pixels)
    assert (full - game.grand).abs().max() <= 1e-6
    assert (values - game(coalitions)).abs().max() <= 1e-6


@pytest.mark.parametrize("streamed", [False, True])
def test_images_of_low_confidence_are_oversampled(model: MaskedModel, streamed: bool) -> None:
    digits = load_digits().train.subset(range(60))
    pixels = torch.stack([digits[i][0] for i in range(60)])
    model = copy.deepcopy(model)
    with torch.no_grad():
        model.net.classifier.weight.mul_(4)  # sure of some of them
        largest = model(pixels).amax(1)
    doubtful = (largest < LOW_CONFIDENCE).nonzero()[:, 0].tolist()
    assert 0 < len(doubtful) < 60
    source = StreamedPixels(digits, None, device="cpu") if streamed else digits
    config = ExplainerTraining(augmentation=None, values=ValuesConfig(low_confidence_oversampling=3))
    images = training_images(model, source, config)
    assert len(images) == 60 + 2 * len(doubtful)
    found = torch.cat([pixels for pixels, _ in images.in_order(50)])
    assert torch.equal(found, pixels[[*range(60), *doubtful, *doubtful]])
    # A repeated image is asked about its own coalitions, and each of its places has values of its own.
    store = make_store(Evaluator(model), images, replace(config.values, views=1, coalitions=12))
    twice = torch.tensor([60, 60 + len(doubtful)])
    ((same, coalitions, _, _),) = store.batches([twice], 0)
    assert torch.equal(same[0], same[1])
    assert not torch.equal(coalitions[0], coalitions[1])


def test_memory_does_not_decide_what_is_seen_where_an_image_cannot_be_read(model: MaskedModel) -> None:
    digits = load_digits().train.subset(range(120))

    class Data:
        """Its first image is missing."""

        def __len__(self) -> int:
            return 120

        def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
            if i == 0:
                raise OSError("no such file")
            return digits[i]

    config = ExplainerTraining(augmentation=Augmentation(paste=0.7), values=ValuesConfig(low_confidence_oversampling=2))

    def seen(limit: int | None) -> list[tuple[torch.Tensor, Batch]]:
        opened = open_pixels(Data(), None, memory_limit=limit)
        images = training_images(model, opened, config)
        if isinstance(opened, CachedPixels):
            assert images.source.pixels is opened.pixels, "pixels are not copied"
        return list(images.views(torch.arange(len(images)).split(40), 3))

    found = []
    for limit in (None, 0):
        with pytest.warns(UserWarning, match="1 of 120 images cannot be read"):
            views = seen(limit)
        pixels, indices = torch.cat([p for p, _ in views]), torch.cat([batch.indices for _, batch in views])
        found.append({i: pixels[at] for at, i in enumerate(indices.tolist())})
    assert found[0].keys() == found[1].keys()
    assert max(found[0]) >= 120
    assert all(torch.equal(pixels, found[1][i]) for i, pixels in found[0].items())


def test_oversampling_by_confidence_needs_softmax() -> None:
    net = ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, num_channels=1, hidden_size=16))
    config = ExplainerTraining(values=ValuesConfig(low_confidence_oversampling=2))
    with pytest.raises(ValueError, match=r"needs output .softmax., not .sigmoid."):
        training_images(wrap(net, output="sigmoid"), load_digits().train, config)
    with pytest.raises(ValueError, match="at least 1"):
        ValuesConfig(low_confidence_oversampling=0)
