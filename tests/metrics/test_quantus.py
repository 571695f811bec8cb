"""Where the definitions coincide, the numbers are those of Quantus: one pixel is one patch of a vision transformer."""

import numpy as np
import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification

from vitshap.bench.metrics import quantus_deletion, quantus_sensitivity
from vitshap.methods import method
from vitshap.metrics import CoalitionResponses, deletion, sensitivity_n
from vitshap.models import wrap

pytestmark = pytest.mark.filterwarnings("ignore")  # Quantus warns about every parameter it is given
SIDE, IMAGES = 4, 5


@pytest.fixture(scope="module")
def setting():
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = ViTConfig(image_size=SIDE, patch_size=1, num_channels=1, num_labels=3, initializer_range=0.5, **size)
    model = wrap(ViTForImageClassification(config).eval(), removal="pixels")
    images = torch.randn(IMAGES, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    return model, images, method("leave-one-out", model)(images, target=torch.tensor([0, 2, 1, 1, 0]))


@pytest.mark.parametrize("step", [1, 2, 4])
def test_deletion_is_pixel_flipping(setting, step):
    model, images, explanation = setting
    found = deletion(model, images, explanation, step=step)
    theirs = quantus_deletion(model.net, images, explanation, step)
    np.testing.assert_allclose(found.points[:, 0, 1:].numpy(), theirs, atol=1e-6)


def test_sensitivity_is_faithfulness_correlation_on_the_same_subsets(setting):
    model, images, explanation = setting
    d, runs, size = SIDE * SIDE, 25, 6
    np.random.seed(3)  # noqa: NPY002 (what Quantus draws from)
    theirs = quantus_sensitivity(model.net, images, explanation, size, runs)
    np.random.seed(3)  # noqa: NPY002
    kept = torch.ones(IMAGES, runs, d, dtype=torch.bool)
    for run in range(runs):
        for image in range(IMAGES):
            kept[image, run, np.random.choice(d, size, replace=False)] = False  # noqa: NPY002
    game = model.game(images)
    responses = CoalitionResponses("sensitivity-n", kept, game(kept), game.grand)
    found = sensitivity_n(model, images, explanation, responses=responses)
    assert found.sizes.tolist() == [size]
    np.testing.assert_allclose(found.values[:, 0].numpy(), theirs, atol=1e-5)


def test_what_is_timed_beside_quantus_is_the_same_curve():
    """The benchmark's own setting, smaller: patches of several pixels, blanked a whole patch at a time."""
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = ViTConfig(image_size=16, patch_size=4, num_labels=3, initializer_range=0.5, **size)
    model = wrap(ViTForImageClassification(config).eval(), removal="pixels")
    images = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    explanation = method("random", model)(images, target=0)
    theirs = quantus_deletion(model.net, images, explanation, step=2)
    found = deletion(model, images, explanation, step=2)
    np.testing.assert_allclose(found.points[:, 0, 1:].numpy(), theirs, atol=1e-6)
