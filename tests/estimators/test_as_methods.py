"""Estimators on a real net, through the call that every method answers."""

import pytest
import torch

from tests.models import nets
from vitshap import MaskedModel, method, truth, wrap
from vitshap.estimators.estimate import progress_bar
from vitshap.estimators.exact import exact
from vitshap.players import from_labels

NAME = "timm ViT, wide grid"  # 15 patches


@pytest.fixture(scope="module")
def model():
    return wrap(nets.build(NAME))


@pytest.fixture(scope="module")
def exact_values(model):
    return method("exact", model)(nets.images(NAME))


@pytest.mark.parametrize(("name", "tolerance"), [("kernelshap", 0.02), ("permutation", 0.25)])
def test_sampled_values_near_the_exact_ones(model, exact_values, name: str, tolerance: float) -> None:
    explanation = method(name, model, budget=4000)(nets.images(NAME))
    assert explanation.evaluations <= 4000
    error = (explanation.values - exact_values.values).square().mean().sqrt()
    assert error < tolerance * exact_values.values.std()
    assert explanation.efficiency_gap().abs().max() < 1e-6
    inside = (explanation.values - exact_values.values).abs() <= 3 * explanation.stderr + 1e-6
    assert inside.float().mean() > 0.97


def test_a_target_limits_the_computation(model) -> None:
    everything = method("kernelshap", model, budget=600)(nets.images(NAME))
    one = method("kernelshap", model, budget=600)(nets.images(NAME), target=2)
    torch.testing.assert_close(one.values[..., 0], everything.values[..., 2], rtol=0, atol=1e-6)
    assert one.values.shape == (2, 15, 1)


def test_the_threshold_is_reached_or_flagged(model) -> None:
    seen = []
    easy = method("kernelshap", model, budget=8000, threshold=0.2, progress=seen.append)(nets.images(NAME), target=0)
    assert easy.converged.tolist() == [True, True]
    assert easy.evaluations < 8000
    assert len(seen) >= 1
    hard = method("kernelshap", model, budget=200, threshold=1e-6)(nets.images(NAME), target=0)
    assert hard.converged.tolist() == [False, False]
    assert method("kernelshap", model, budget=200)(nets.images(NAME), target=0).converged is None


def test_the_progress_bar_watches_a_method(model, capsys) -> None:
    with progress_bar(1000, 0.01) as watch:
        method("kernelshap", model, budget=1000, threshold=0.01, progress=watch)(nets.images(NAME), target=0)
    assert "error/range" in capsys.readouterr().out


def test_unequal_numbers_of_players(model) -> None:
    labels = torch.stack([torch.arange(15).view(3, 5) % 6, torch.arange(15).view(3, 5) % 4])
    explanation = method("kernelshap", model, players=labels, budget=64)(nets.images(NAME), target=0)
    expected = exact(model.game(nets.images(NAME), players=labels)).values[..., :1].float()
    torch.testing.assert_close(explanation.values, expected, rtol=0, atol=1e-4)
    assert explanation.values[1, 4:].abs().max() == 0


def test_players_absent_from_one_image(model) -> None:
    labels = torch.stack([torch.arange(15).view(3, 5) % 6, torch.arange(15).view(3, 5) % 4])
    one = from_labels(labels, (3, 5))[1:2]  # players 4 and 5 are of the other image
    assert model.game(nets.images(NAME)[1:], players=one).player_mask.tolist() == [[True] * 4 + [False] * 2]
    for budget in (20, 30):  # fewer than all coalitions: noise must not go to players that are not there
        explanation = method("kernelshap", model, players=one, budget=budget)(nets.images(NAME)[1:], target=0)
        assert explanation.player_mask.tolist() == [[True] * 4 + [False] * 2]
        assert explanation.efficiency_gap().abs().max() < 1e-6
    both = method("exact", model, players=labels)(nets.images(NAME), target=0)
    shared = method("exact", model, players=one)(nets.images(NAME), target=0)  # one map for both images
    assert shared.values[:, 4:].abs().max() == 0
    torch.testing.assert_close(shared.values[1:], both.values[1:], rtol=0, atol=1e-6)


def test_every_evaluation_is_done_once_and_counted(model, monkeypatch) -> None:
    run, asked = MaskedModel.run_session, []
    monkeypatch.setattr(
        MaskedModel, "run_session", lambda self, session, s, who: asked.append(s.shape[1]) or run(self, session, s, who)
    )
    for name in ("kernelshap", "kernelshap-original", "permutation"):
        made = method(name, model, budget=200)
        asked.clear()
        explanation = made(nets.images(NAME), target="top-2")  # the prediction chooses the classes
        assert explanation.classes.tolist() == explanation.prediction.topk(2, 1).indices.tolist()
        assert explanation.evaluations == sum(asked) <= 200


def test_a_threshold_for_all_classes_of_a_net_is_for_the_predicted_one() -> None:
    torch.manual_seed(0)
    net = nets.build(NAME)
    net.reset_classifier(40)
    torch.nn.init.normal_(net.head.weight, std=0.5)
    model, images = wrap(net.eval()), nets.images(NAME)[:1]
    options = {"budget": 4000, "threshold": 0.03}
    one = method("kernelshap", model, **options)(images, target="predicted")
    everything = method("kernelshap", model, **options)(images)
    strict = method("kernelshap", model, threshold_for="explained", **options)(images)
    assert everything.values.shape[2] == 40
    assert one.evaluations <= everything.evaluations < strict.evaluations
    assert everything.converged.tolist() == [True]
    named = method("kernelshap", model, **options)(images, target=[*range(39)])  # named: every one of them counts
    assert named.evaluations > everything.evaluations
    with pytest.raises(ValueError, match="threshold_for is one of auto, explained, predicted"):
        method("kernelshap", model, threshold_for="all", **options)(images)


def test_reference_values_belong_to_the_weights(model, exact_values, tmp_path) -> None:
    stored = truth.of_images(tmp_path, model, nets.images(NAME), budget=8000, batch=1)
    assert (stored.values - exact_values.values).square().mean().sqrt() < 0.02 * exact_values.values.std()
    assert stored.reliability.min() > 0.99
    assert truth.load(tmp_path, surrogate=model.fingerprint()).specification.num_inputs == 2
    other = wrap(nets.build(NAME, seed=1))
    with pytest.raises(ValueError, match="new surrogate"):
        truth.load(tmp_path, surrogate=other.fingerprint())


def test_reference_values_belong_to_the_images(model, tmp_path) -> None:
    images = nets.images(NAME)
    made = truth.of_images(tmp_path, model, images, budget=600)
    assert torch.equal(truth.of_images(tmp_path, model, images, budget=600).values, made.values)
    for other, shown in (
        (model, images.flip(0)),
        (wrap(model.net, players=2), images),
        (model.with_removal("pixels"), images),
        (wrap(model.net, output="identity"), images),
    ):
        with pytest.raises(ValueError, match="reference values of other images, or of other players"):
            truth.of_images(tmp_path, other, shown, budget=600)
    with pytest.raises(ValueError, match="num_inputs 2 there, 1 requested"):
        truth.of_images(tmp_path, model, images[:1], budget=600)
    with pytest.raises(ValueError, match="holds other reference values"):
        truth.of_images(tmp_path, wrap(nets.build(NAME, seed=1)), images, budget=600)


def test_unfinished_reference_values_belong_to_the_images_too(model, tmp_path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    images = nets.images(NAME)
    with pytest.raises(KeyboardInterrupt):
        truth.of_images(tmp_path, model, images, budget=600, batch=1, progress=stop)
    with pytest.raises(ValueError, match="reference values of other images"):
        truth.of_images(tmp_path, model, images.flip(0), budget=600, batch=1)
    assert len(truth.of_images(tmp_path, model, images, budget=600, batch=1).values) == 2


def test_reference_values_in_half_precision_belong_to_the_same_surrogate(tmp_path) -> None:
    model, images = wrap(nets.build(NAME)), nets.images(NAME)
    half = truth.of_images(tmp_path / "a", model, images, budget=600, precision="float16")
    assert half.specification.surrogate == model.fingerprint()
    again = truth.of_images(tmp_path / "a", model, images, budget=600)  # found, not computed again
    assert torch.equal(half.values, again.values)
    own = truth.of_images(tmp_path / "b", model, images, budget=600)
    assert not torch.equal(half.values, own.values)
    torch.testing.assert_close(half.values, own.values, rtol=0, atol=5e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_reference_values_of_a_gpu_are_valid_on_a_cpu(tmp_path) -> None:
    model, images = wrap(nets.build(NAME)), nets.images(NAME)
    name = model.fingerprint()
    made = truth.of_images(tmp_path, model.cuda(), images.cuda(), budget=600)
    assert torch.equal(truth.of_images(tmp_path, model.cpu(), images, budget=600).values, made.values)
    assert truth.load(tmp_path, surrogate=name).specification.surrogate == name


def test_shapiq_takes_an_image_game(model, exact_values) -> None:
    shapiq = pytest.importorskip("shapiq")

    game = model.game(nets.images(NAME)[1:]).as_shapiq(3)
    result = shapiq.KernelSHAP(n=15, random_state=0).approximate(3000, game)
    values = torch.tensor([result[(i,)] for i in range(15)])
    error = (values - exact_values.values[1, :, 3]).square().mean().sqrt()
    assert error < 0.2 * exact_values.values[1, :, 3].std()
