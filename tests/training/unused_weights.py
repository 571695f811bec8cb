"""A process of a training without a folder, of a net with weights that no loss has (DINOv2's mask token)."""

import torch

from vitshap import wrap
from vitshap.training import fit_explainer, fit_surrogate
from vitshap.training.configs import ExplainerTraining, SurrogateTraining, ValuesConfig
from vitshap.training.loop import LoopConfig

if __name__ == "__main__":
    from transformers import Dinov2Config, Dinov2ForImageClassification

    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = Dinov2ForImageClassification(
        Dinov2Config(
            image_size=16, patch_size=4, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_labels=3
        )
    )
    images = [(torch.rand(3, 16, 16), 0) for _ in range(12)]
    config = SurrogateTraining(LoopConfig(epochs=2, batch_size=4), augmentation=None)
    # First, so that nothing else has made the processes known to each other
    values = ExplainerTraining("values", config.loop, None, values=ValuesConfig(views=2, coalitions=4))
    explainer = fit_explainer(wrap(net), images, images, None, values)
    assert all(bool(torch.isfinite(weight).all()) for weight in explainer.parameters())
    surrogate = fit_surrogate(wrap(net), images, images, None, config)
    print("weights", surrogate.fingerprint(), flush=True)
