"""The registry, reading targets, and what every method shares."""

import gc
from dataclasses import dataclass

import pytest
import torch
from PIL import Image

from tests.small_nets import random_images, small_net
from vitshap.analytic import additive
from vitshap.explainers import Explainer
from vitshap.explanation import Explanation
from vitshap.game import Game
from vitshap.methods import (
    Attribution,
    Method,
    SamplingMethod,
    TokenMethod,
    base,
    list_methods,
    method,
    most_classes,
    names_classes,
    register,
    resolve_target,
    take_classes,
    target_from_words,
)
from vitshap.methods.registry import METHODS
from vitshap.models import Prepared, Preprocess

NAMES = ["cat", "dog", "crane", "heron"]
PREDICTION = torch.tensor([[0.1, 0.7, 0.2, 0.0], [0.6, 0.1, 0.2, 0.1]])


@dataclass(frozen=True, eq=False)
class EqualShares(Method):
    """Shares v(all) - v(none) equally: additive by construction."""

    scale: float = 1.0

    name = "equal"
    additive = True

    def compute(self, game: Game, pixels: torch.Tensor, targets: torch.Tensor, /) -> Attribution:
        share = (game.grand - game.null)[:, None, :] / game.num_players * self.scale
        values = take_classes(share.expand(-1, game.num_players, -1), targets)
        return Attribution(values, torch.full_like(values, torch.nan))


@pytest.fixture
def table(monkeypatch):
    """A copy of the registry, so that other tests are not affected."""
    monkeypatch.setattr(METHODS, "table", dict(METHODS.table))


FOR_MODELS = [name for name in list_methods() if name != "explainer"]


def test_the_methods_are_listed():
    assert {"exact", "leave-one-out", "random", "explainer"} <= set(list_methods())


def test_every_listed_method_loads_and_explains():
    model = small_net(class_names=NAMES)
    images = random_images(model, 2)
    explainer = Explainer(model)
    for name in list_methods():
        options = {"references": images} if name == "expected-gradients" else {}
        explanation = method(name, explainer if name == "explainer" else model, **options)(images)
        assert isinstance(explanation, Explanation)
        assert explanation.method == name
        assert explanation.values.shape == (2, 9, 4)
        assert explanation.class_names == tuple(NAMES)
        torch.testing.assert_close(explanation.prediction, model.game(images).grand)


def test_images_are_explained_a_few_at_a_time_with_the_same_result(monkeypatch):
    model = small_net(class_names=NAMES)
    images = random_images(model, 5)
    options = {"expected-gradients": {"references": images[:2]}}
    methods = [method(name, model, **options.get(name, {})) for name in FOR_MODELS]
    found = [one for one in methods if isinstance(one, TokenMethod)]
    assert len(found) > 10
    for explain in found:
        with monkeypatch.context() as patch:
            check_split(explain, images, patch)


def check_split(explain, images, monkeypatch):
    expected = explain(images, target="all")
    monkeypatch.setattr(base, "IMAGES_ON_CPU", 2)
    seen, score = [], type(explain).score_tokens

    def counted(self, pixels, targets):
        seen.append(len(pixels))
        return score(self, pixels, targets)

    monkeypatch.setattr(type(explain), "score_tokens", counted)
    found = explain(images, target="all")
    assert seen == [2, 2, 1]
    torch.testing.assert_close(found.values, expected.values, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.prediction, expected.prediction)


def test_unknown_names_and_options_name_the_nearest():
    model = small_net()
    with pytest.raises(ValueError, match='no method is named "leave-one"; did you mean "leave-one-out"'):
        method("leave-one", model)
    with pytest.raises(ValueError, match=f'no method is named "zzz"; known: {", ".join(list_methods())}$'):
        method("zzz", model)
    with pytest.raises(ValueError, match='no method is named "gradcam"; did you mean "gradcam-ln"'):
        method("gradcam", model)
    with pytest.raises(ValueError, match='no method is named "perm"; did you mean "permutation"'):
        method("perm", model)
    with pytest.raises(TypeError, match='random has no option "sed"; did you mean "seed"'):
        method("random", model, sed=3)
    with pytest.raises(TypeError, match='no option "model"'):
        method("random", model, model=model)


def test_a_network_must_be_wrapped_first():
    model = small_net()
    for name in FOR_MODELS:
        with pytest.raises(TypeError, match=r"got ViTForImageClassification: wrap it first, vitshap\.wrap\(net\)"):
            method(name, model.net)
    with pytest.raises(TypeError, match=r"give explainer\.surrogate"):
        method("kernelshap", Explainer(model))


@pytest.mark.usefixtures("table")
def test_users_register_their_own():
    register("equal", f"{__name__}:EqualShares")
    register("equal", f"{__name__}:EqualShares")  # the same again is no conflict
    assert list_methods()[-1] == "equal"
    model = small_net()
    explanation = method("equal", model, scale=1.0)(random_images(model, 1))
    assert explanation.method == "equal"
    with pytest.raises(ValueError, match='"random" is taken'):
        register("random", f"{__name__}:EqualShares")


def test_an_additive_method_gets_its_endpoints_and_every_evaluation_counts():
    model = small_net()
    images = random_images(model, 3)
    explanation = EqualShares(model)(images)
    game = model.game(images)
    torch.testing.assert_close(explanation.base_values, game.null)
    torch.testing.assert_close(explanation.full_values, game.grand)
    assert float(explanation.efficiency_gap().abs().max()) < 1e-6
    assert explanation.evaluations == 2
    assert 0 < explanation.seconds < 10
    assert explanation.unit == "probability"
    assert explanation.prediction_by == "classifier"
    assert EqualShares(model, prediction_by="surrogate")(images).prediction_by == "surrogate"
    with pytest.raises(ValueError, match="miss full - base"):
        EqualShares(model, scale=1.1)(images)


def test_photos_keep_their_boxes_and_blocks_their_map():
    half_then_crop = Preprocess(size=(8, 8), resize=(10, 10), mean=(0.5,) * 3, std=(0.5,) * 3)
    model = small_net(grid=(4, 4), preprocess=half_then_crop)
    photos = [Image.effect_noise(size, 90).convert("RGB") for size in ((20, 28), (28, 20))]
    explanation = EqualShares(model, players=2)(photos)
    assert explanation.image_box.tolist() == [[2, 6, 18, 22], [6, 2, 22, 18]]
    assert explanation.values.shape == (2, 4, 4)
    assert explanation.players[0, 0].tolist() == [0, 0, 1, 1]


def test_players_absent_from_an_image_are_masked_and_get_zero():
    labels = torch.arange(9).view(1, 3, 3).repeat(2, 1, 1)
    labels[1] = labels[1].clamp(max=4)
    model = small_net()
    explanation = method("random", model, players=labels)(random_images(model, 2))
    assert explanation.player_mask.sum(1).tolist() == [9, 5]
    assert bool((explanation.values[1, 5:] == 0).all())
    assert bool((explanation.values[1, :5] > 0).all())


class Nameless:
    """A model that was not made by ``wrap`` and whose games have no players."""

    class_names = None
    classifier_fingerprint = None
    num_classes = 4
    unit = "probability"

    def prepare(self, images, /) -> Prepared:
        return Prepared(images, None)

    def game(self, images, /, *, players=None) -> Game:
        return additive(torch.ones(len(images), 9, self.num_classes))


def test_a_game_without_players_is_refused():
    with pytest.raises(TypeError, match="needs an attribute players"):
        EqualShares(Nameless())(torch.zeros(1, 3, 6, 6))


@pytest.mark.parametrize(
    ("target", "classes"),
    [
        (None, [[0, 1, 2, 3], [0, 1, 2, 3]]),
        ("predicted", [[1], [0]]),
        (2, [[2], [2]]),
        (torch.tensor(2), [[2], [2]]),
        ([3, 1], [[3, 1], [3, 1]]),
        (range(2), [[0, 1], [0, 1]]),
        ("dog", [[1], [1]]),
        (["heron", 0], [[3, 0], [3, 0]]),
        (torch.tensor([3, 0]), [[3], [0]]),
        (torch.tensor([[3, 0], [1, 2]], dtype=torch.int32), [[3, 0], [1, 2]]),
        (lambda prediction: prediction.argmin(1), [[3], [1]]),
        ("all", [[0, 1, 2, 3], [0, 1, 2, 3]]),
        ("top-2", [[1, 2], [0, 2]]),
        ("top-9", [[1, 2, 0, 3], [0, 2, 1, 3]]),
        (["predicted", "top-2", "crane", 2], [[1, 2, 2], [0, 2, 2]]),
        (["dog", 1, "predicted"], [[1, 1], [1, 0]]),
        ([3, "all"], [[0, 1, 2, 3], [0, 1, 2, 3]]),
        (lambda prediction: "top-1", [[1], [0]]),
    ],
)
def test_targets_are_read(target, classes):
    resolved = resolve_target(target, PREDICTION, NAMES)
    assert resolved.dtype == torch.int64
    assert resolved.tolist() == classes


@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        (4, ValueError, "0 to 3, got 4"),
        (True, TypeError, "got bool"),
        (1.5, TypeError, "target is a class"),
        (torch.tensor(1.5), TypeError, "target is a class"),
        ({1}, TypeError, "target is a class"),
        ([], ValueError, "empty list"),
        ([1, 9], ValueError, "got 9"),
        ("hero", ValueError, 'did you mean "heron"'),
        (torch.tensor([1, 2, 3]), ValueError, r"\[2\] or \[2, T\]; got torch.int64 \[3\]"),
        (torch.tensor([1.0, 2.0]), ValueError, "holds integers.*got torch.float32"),
        (torch.tensor([1, -1]), ValueError, "0 to 3"),
        (torch.zeros(2, 0, dtype=torch.int64), ValueError, r"\[2, 0\]"),
    ],
)
def test_invalid_targets_are_refused(target, error, message):
    with pytest.raises(error, match=message):
        resolve_target(target, PREDICTION, NAMES)


@pytest.mark.parametrize("name", ["exact", "leave-one-out", "random"])
def test_a_target_gives_the_same_values_as_all_classes(name):
    model = small_net()
    images = random_images(model, 2)
    everything = method(name, model)(images)
    some = method(name, model)(images, target=torch.tensor([[2, 0], [1, 3]]))
    assert some.classes.tolist() == [[2, 0], [1, 3]]
    assert torch.equal(some.values, take_classes(everything.values, some.classes))


@pytest.mark.parametrize(
    ("words", "target", "most", "named"),
    [
        ([], "top-5", 4, False),
        (["dog", "2", "dog"], [1, 2], 2, True),
        (["predicted", "heron"], ["predicted", 3], 2, True),
        (["top-2", "heron"], ["top-2", 3], 3, False),
        (["all"], ["top-4"], 4, False),
        (["dog", "all"], [1, "top-4"], 4, False),
    ],
)
def test_words_of_a_command_line_are_read(words, target, most, named):
    read = target_from_words(words, NAMES, 4, default="top-5")
    assert read == target
    assert most_classes(read, 4) == most
    assert names_classes(read) == named


def test_a_number_is_a_class_unless_a_class_has_it_as_its_name():
    assert target_from_words(["0", "2"], ["2", "1", "0"], 3) == [2, 0]
    assert target_from_words(["2"], None, 3) == [2]
    with pytest.raises(ValueError, match='did you mean "heron"'):
        target_from_words(["hero"], NAMES, 4)
    with pytest.raises(ValueError, match="0 to 3, got 4"):
        target_from_words(["4"], NAMES, 4)


@pytest.mark.parametrize(
    ("target", "most", "named"),
    [
        (None, 4, False),
        (2, 1, True),
        ("dog", 1, True),
        (torch.tensor([1, 2]), 1, True),
        (torch.tensor([[1, 2]]), 2, True),
        (lambda prediction: prediction.argmin(1), 4, False),
    ],
)
def test_the_number_of_classes_of_a_target(target, most, named):
    assert most_classes(target, 4) == most
    assert names_classes(target) == named


def test_an_image_whose_classes_coincide_has_each_once_after_select():
    model = small_net()
    explanation = method("exact", model)(random_images(model, 3), target=["predicted", 1, "top-2"])
    assert explanation.classes.shape == (3, 3)
    for image in explanation:
        distinct = list(dict.fromkeys(image.classes[0].tolist()))
        once = image.select(distinct)
        assert once.classes[0].tolist() == distinct
        for column, number in enumerate(distinct):
            place = image.classes[0].tolist().index(number)
            assert torch.equal(once.values[..., column], image.values[..., place])
    with pytest.raises(ValueError, match="was not explained for image 0"):
        explanation[0].select([0, 1, 2, 3])


def test_choosing_the_most_probable_classes_costs_no_evaluation():
    model = small_net()
    images = random_images(model, 2)
    assert method("leave-one-out", model)(images, target="top-2").evaluations == 9 + 1


def test_an_explainer_is_a_method_like_any_other(tmp_path):
    model = small_net()
    explainer = Explainer(model)
    images = random_images(model, 2)
    made = method("explainer", explainer)
    assert (made.name, made.samples) == ("explainer", False)
    assert torch.equal(made(images, "top-2").values, explainer(images, "top-2").values)
    folder = explainer.save_pretrained(tmp_path / "bundle")
    stored = method("explainer", folder, device="cpu")(images)
    torch.testing.assert_close(stored.values, explainer(images).values)
    with pytest.raises(TypeError, match="needs an Explainer, or the name or folder of a bundle; got MaskedModel"):
        method("explainer", model)


def test_sampling_methods_are_marked_and_take_a_budget():
    model = small_net()
    made = {name: method(name, model) for name in FOR_MODELS}
    assert {name for name, one in made.items() if one.samples} == {
        "kernelshap",
        "kernelshap-original",
        "refine",
        "permutation",
    }
    for one in made.values():
        assert one.samples == isinstance(one, SamplingMethod)
    seen = []
    sampled = made["kernelshap"].with_budget(64).with_progress(seen.append)
    assert sampled(random_images(model, 1)).evaluations <= 64
    assert seen


@dataclass(frozen=True, eq=False)
class TokenNorm(TokenMethod):
    """Scores a token by the length of its embedding, the same for every class."""

    name = "token-norm"
    class_specific = False

    def score_tokens(self, pixels: torch.Tensor, targets: torch.Tensor, /) -> torch.Tensor:
        adapter = self.model.adapter
        norms = adapter.embed(pixels)[:, adapter.prefix :].norm(dim=-1)
        return norms[..., None].expand(-1, -1, targets.shape[1])


class Hungry(TokenNorm):
    """Has memory for two images."""

    def score_tokens(self, pixels: torch.Tensor, targets: torch.Tensor, /) -> torch.Tensor:
        if len(pixels) > 2:
            raise torch.OutOfMemoryError("no memory left")
        return super().score_tokens(pixels, targets)


def test_fewer_images_are_explained_at_a_time_where_memory_ends():
    model = small_net()
    images = random_images(model, 5)
    found, expected = (made(model)(images, target="all").values for made in (Hungry, TokenNorm))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "name", ["attention-rollout", "attnlrp", "kernelshap", "lrp", "refine", "smoothgrad-embedding"]
)
def test_nothing_of_an_explanation_is_left_in_memory(name: str):
    """The graphs of a batch of images take gigabytes on a GPU, and Python looks for reference cycles rarely."""
    explain = method(name, small_net())
    images = random_images(explain.model, 2)

    def tensors() -> int:
        return sum(isinstance(one, torch.Tensor) for one in gc.get_objects())

    explain(images)  # the first call keeps what later ones use
    gc.collect()
    gc.disable()
    try:
        before = tensors()
        explain(images)
        assert tensors() == before
    finally:
        gc.enable()


def test_scores_of_tokens_are_summed_into_players():
    model = small_net()
    images = random_images(model, 2)
    labels = torch.tensor([[0, 0, 1], [0, 1, 1], [-1, 2, 2]])
    tokens = TokenNorm(model)(images, target=[1, 2])
    assert tokens.unit == "score"
    assert tokens.evaluations == 1
    grouped = TokenNorm(model, players=labels)(images, target=[1, 2])
    for player in range(3):
        own = tokens.values[:, (labels == player).flatten()].sum(1)
        torch.testing.assert_close(grouped.values[:, player], own)
