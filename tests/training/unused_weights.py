"""A process of a training without a folder, of a net with weights that no loss has (DINOv2's mask token); and what one
process reads, in all of them."""

import torch

from vitshap import wrap
from vitshap.training import fit_explainer, fit_surrogate, processes
from vitshap.training.configs import ExplainerTraining, LoopConfig, SurrogateTraining, ValuesConfig

READ = {
    "half": torch.arange(6).view(2, 3).bfloat16(),
    "flags": torch.tensor([True, False, True]),
    "number": torch.tensor(7),
    "none": torch.empty(0, 4),
}


def _read() -> tuple[dict[str, torch.Tensor], object]:
    assert processes.rank() == 0
    return READ, {"step": 3, "losses": [0.1, None], "name": "ä"}


def _fails() -> object:
    assert processes.rank() == 0
    raise FileNotFoundError("it is not there")


def _check_what_is_sent() -> None:
    tensors, plain = processes.tensors_from_main(_read)
    assert plain == {"step": 3, "losses": [0.1, None], "name": "ä"}
    assert list(tensors) == list(READ)
    for name, tensor in READ.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)
    try:
        processes.from_main(_fails)
    except OSError as error:
        assert str(error) == "it is not there"  # noqa: PT017
    else:
        raise AssertionError("an error of the main process is an error of all")


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
    print(f"weights {surrogate.fingerprint()}\n", end="", flush=True)  # in one piece: two processes write at once
    _check_what_is_sent()
