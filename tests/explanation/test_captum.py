"""captum's NoiseTunnel and metrics work with vitshap's methods, and no value is lost."""

import pytest
import torch
from captum.attr import NoiseTunnel
from captum.metrics import infidelity, sensitivity_max

from tests.explanation.small_vit import GRID, SIZE, SUPERPIXELS, patch_sums, random_images, small_vit
from vitshap.analytic import AnalyticGame, additive
from vitshap.explainers.explainer import Explainer
from vitshap.explanation.export import pixel_owners
from vitshap.methods import list_methods, method
from vitshap.models import Prepared
from vitshap.players import resolve


@pytest.fixture(scope="module")
def model():
    return small_vit()


@pytest.fixture(scope="module")
def explainer(model):
    torch.manual_seed(1)
    return Explainer(model)


@pytest.mark.parametrize("name", [name for name in list_methods() if name != "explainer"])
def test_patches_of_every_method_add_up_to_their_values(model, name):
    images = random_images(2)
    explain = method(name, model, **({"references": images} if name == "expected-gradients" else {}))
    attributions = explain.attribute(images, target=2)
    assert attributions.shape == images.shape
    assert attributions.dtype == images.dtype
    values = explain(images, target=2).values[..., 0]
    torch.testing.assert_close(patch_sums(attributions), values.double(), rtol=1e-6, atol=1e-6)
    assert torch.equal(attributions[:, 0], attributions[:, 2])


def test_patches_of_an_explainer_add_up_to_its_values(explainer):
    images = random_images(3)
    attributions = explainer.attribute(images, target=1)
    explanation = explainer(images, target=1)
    torch.testing.assert_close(patch_sums(attributions), explanation.values[..., 0].double(), rtol=1e-6, atol=1e-6)
    whole = explanation.full_values[:, 0] - explanation.base_values[:, 0]
    torch.testing.assert_close(attributions.double().sum((1, 2, 3)).float(), whole)


def test_superpixels_and_tokens_of_no_player(model):
    images = random_images(2)
    explain = method("exact", model, players=SUPERPIXELS)
    attributions = explain.attribute(images, target=0).double().sum(1)  # [B, H, W]
    values = explain(images, target=0).values[..., 0].double()
    owner = pixel_owners(SUPERPIXELS[None], SIZE)[0]
    for player in range(3):
        torch.testing.assert_close(attributions[:, owner == player].sum(1), values[:, player], rtol=1e-6, atol=1e-6)
    assert not attributions[:, owner == -1].any()
    assert int((owner == -1).sum()) == 64


def test_players_of_each_image(model):
    maps = torch.stack([SUPERPIXELS, torch.arange(6).view(GRID)])
    images = random_images(2)
    explain = method("leave-one-out", model, players=maps)
    attributions = explain.attribute(images, target=3).double().sum(1)
    values = explain(images, target=3).values[..., 0].double()
    for i, owner in enumerate(pixel_owners(maps, SIZE)):
        for player in range(3 if i == 0 else 6):
            torch.testing.assert_close(attributions[i, owner == player].sum(), values[i, player], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("target", "classes"),
    [
        (None, "predicted"),
        (2, 2),
        ("crane", 2),
        ((2,), 2),
        (torch.tensor(2), 2),
        (torch.tensor([2]), 2),
        ([2, 0, 1], torch.tensor([2, 0, 1])),  # captum's list: a class per image
        ([(2,), (0,), (1,)], torch.tensor([2, 0, 1])),
        (torch.tensor([2, 0, 1]), torch.tensor([2, 0, 1])),
    ],
)
def test_targets_are_read_as_captum_reads_them(explainer, target, classes):
    images = random_images(3)
    values = explainer(images, target=classes).values[..., 0]
    torch.testing.assert_close(patch_sums(explainer.attribute(images, target)), values.double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        ([1, 2], ValueError, r"one target per image is expected, \[3\]; got \[2\]"),
        (torch.zeros(3, 2).long(), ValueError, r"got \[3, 2\]"),
        ((1, 2), ValueError, "too many values"),
        ([(1, 2)] * 3, ValueError, r"got \[3, 2\]"),
        (4, ValueError, "classes are 0 to 3, got 4"),
        (True, TypeError, "got bool"),
    ],
)
def test_invalid_targets_are_refused(explainer, target, error, message):
    with pytest.raises(error, match=message):
        explainer.attribute(random_images(3), target)


def test_a_model_with_one_output_needs_no_target():
    model = small_vit(channels=1, classes=1, output="sigmoid")
    images = random_images(2, channels=1)
    explain = method("exact", model)
    torch.testing.assert_close(
        patch_sums(explain.attribute(images)), explain(images).values[..., 0].double(), rtol=1e-6, atol=1e-6
    )


def test_an_image_without_a_batch_is_refused(explainer):
    size = explainer.surrogate.image_size
    with pytest.raises(ValueError, match=r"inputs are a tensor \[B, C, H, W\].*; got \[3, "):
        explainer.attribute(torch.zeros(3, *size))


def test_inputs_that_require_gradients_stay_as_they_are(explainer):
    images = random_images(2).requires_grad_()
    before = images.detach().clone()
    attributions = explainer.attribute(images, 1)
    assert not attributions.requires_grad
    assert images.grad is None
    assert torch.equal(images.detach(), before)
    assert torch.equal(attributions, explainer.attribute(before, 1))


def test_a_tuple_gives_a_tuple_as_in_captum(explainer):
    images = random_images(2)
    (attributions,) = explainer.attribute((images,), 1)
    assert torch.equal(attributions, explainer.attribute(images, 1))
    with pytest.raises(ValueError, match="too many values"):
        explainer.attribute((images, images), 1)
    with pytest.raises(ValueError, match=r"a tensor \[B, C, H, W\].*got list"):
        explainer.attribute([images], 1)


def test_double_precision_stays_double():
    model = small_vit()
    model.net.double()
    images = random_images(2).double()
    attributions = method("exact", model).attribute(images, 0)
    assert attributions.dtype == torch.float64


@pytest.mark.parametrize("at_once", [None, 2])
@pytest.mark.parametrize("kind", ["explainer", "exact", "random"])
def test_noise_tunnel_is_the_mean_over_noisy_images(model, explainer, kind, at_once):
    explain = explainer if kind == "explainer" else method(kind, model)
    images, target = random_images(2), torch.tensor([3, 1])
    torch.manual_seed(5)
    smooth = NoiseTunnel(explain).attribute(
        images, nt_samples=5, nt_samples_batch_size=at_once, stdevs=0.3, target=target
    )
    torch.manual_seed(5)
    sums = torch.zeros_like(images)
    for samples in [5] if at_once is None else [2, 2, 1]:
        noise = torch.normal(0, torch.full((2 * samples, *images.shape[1:]), 0.3)).view(2, samples, *images.shape[1:])
        for i in range(2):
            for j in range(samples):
                sums[i] += explain.attribute((images[i] + noise[i, j])[None], int(target[i]))[0]
    torch.testing.assert_close(smooth, sums / 5, rtol=1e-4, atol=1e-7)
    assert float((smooth - explain.attribute(images, target)).abs().max()) > 1e-6  # the noise did something


@pytest.mark.parametrize("kind", ["vargrad", "smoothgrad_sq"])
def test_the_other_tunnels(explainer, kind):
    spread = NoiseTunnel(explainer).attribute(random_images(2), nt_type=kind, nt_samples=4, stdevs=0.5, target=[0, 1])
    assert spread.shape == (2, 3, *SIZE)
    assert float(spread.min()) >= -1e-12
    assert float(spread.max()) > 0


def test_infidelity_distinguishes_exact_values_from_random_ones(model):
    """Perturbed as the values are defined, by patches that fall away, so that fidelity can be expected."""
    images, target = random_images(2), torch.tensor([2, 0])

    def blank_patches(inputs):
        gone = (torch.rand(len(inputs), 1, *GRID) < 0.3).repeat_interleave(8, 2).repeat_interleave(8, 3)
        return gone.expand_as(inputs).to(inputs.dtype), inputs.masked_fill(gone, 0.0)

    blanked = small_vit(removal="pixels")  # withholding by blanking: the same way as the perturbation
    scores = {}
    for name in ("exact", "random"):
        torch.manual_seed(0)
        attributions = method(name, blanked).attribute(images, target)
        scores[name] = infidelity(blanked, blank_patches, images, attributions, target=target, n_perturb_samples=40)
        assert scores[name].shape == (2,)
        assert bool(torch.isfinite(scores[name]).all())
    assert bool((scores["exact"] < 0.5 * scores["random"]).all())


@pytest.mark.parametrize("target", [1, torch.tensor([2, 0]), [2, 0]])
def test_sensitivity_max_grows_with_the_radius(explainer, target):
    scores = []
    for radius in (0.001, 0.3):
        torch.manual_seed(0)
        scores.append(
            sensitivity_max(
                explainer.attribute, random_images(2), perturb_radius=radius, n_perturb_samples=4, target=target
            )
        )
        assert scores[-1].shape == (2,)
        assert bool(torch.isfinite(scores[-1]).all())
    assert bool((scores[0] < scores[1]).all())


def test_label_maps_per_image_do_not_fit_a_repeated_batch(model):
    explain = method("leave-one-out", model, players=torch.stack([SUPERPIXELS] * 2))
    with pytest.raises(ValueError, match="players are given for 2 images, but there are 6"):
        NoiseTunnel(explain).attribute(random_images(2), nt_samples=3, stdevs=0.1, target=1)
    one = method("leave-one-out", model, players=SUPERPIXELS[None])  # one map serves any number
    assert bool(torch.isfinite(NoiseTunnel(one).attribute(random_images(2), nt_samples=3, stdevs=0.1, target=1)).all())


class PatchSums:
    """A model that was not made by ``wrap``: the sum of all kept pixels, and three times that."""

    classifier_fingerprint = None
    class_names = None
    num_classes = 2
    unit = "output"

    def prepare(self, images, /) -> Prepared:
        return Prepared(images, None)

    def game(self, images, /, *, players=None) -> AnalyticGame:
        sums = patch_sums(images)[..., None]  # [B, tokens, 1]
        game = additive(torch.cat([sums, 3 * sums], dim=2))
        game.players = resolve("patch" if players is None else players, GRID)
        return game


def test_a_model_that_was_not_made_by_wrap():
    model = PatchSums()
    images = random_images(2)
    explain = method("exact", model)
    attributions = explain.attribute(images, 1)
    values = explain(images, target=1).values[..., 0]
    torch.testing.assert_close(patch_sums(attributions), values.double(), rtol=1e-6, atol=1e-6)
    # the sums are additive, so that they are their own Shapley values
    torch.testing.assert_close(patch_sums(attributions), 3 * patch_sums(images), rtol=1e-6, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_attributions_stay_on_the_gpu(dtype):
    model = small_vit()
    model.net.to("cuda", dtype)
    images = random_images(2).to("cuda", dtype)
    explain = method("exact", model)
    attributions = explain.attribute(images, 1)
    assert attributions.device == images.device
    assert attributions.dtype == dtype
    values = explain(images, target=1).values[..., 0].double()
    torch.testing.assert_close(
        patch_sums(attributions.cpu()), values, rtol=1e-2 if dtype == torch.float16 else 1e-5, atol=1e-4
    )
