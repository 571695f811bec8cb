"""What goes wrong with people's data, nets and disks: named in a sentence, and nothing that was trained is lost."""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset
from transformers import ViTConfig, ViTForImageClassification

from tests.data import trees
from tests.full_disk import full_disk
from vitshap import files
from vitshap.data import StreamedPixels
from vitshap.explainers import Explainer
from vitshap.models import MaskedModel, Preprocess, wrap
from vitshap.training import checkpoints
from vitshap.training.batches import Images
from vitshap.training.configs import ClassifierTraining, ExplainerTraining, LoopConfig, SurrogateTraining, ValuesConfig
from vitshap.training.explainer import fit_explainer, make_store
from vitshap.training.fit import fit_classifier, fit_surrogate
from vitshap.training.loop import BEST, Task, TrainingDiverged, train
from vitshap.training.values.store import Evaluator
from vitshap.training.values.validation import FILE, ValidationSet

LOOP = LoopConfig(epochs=1, batch_size=4)
PAPER = ExplainerTraining("paper", LOOP, None, coalitions=2, validation_coalitions=2)


def _model(seed: int = 0, **options: Any) -> MaskedModel:
    torch.manual_seed(seed)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = ViTConfig(image_size=8, patch_size=4, num_labels=3, initializer_range=0.5, **size)
    return wrap(ViTForImageClassification(config).eval(), **options)


def _images(n: int = 8, labels: Any = None) -> list[tuple[torch.Tensor, Any]]:
    pixels = torch.rand(n, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return [(image, i % 3 if labels is None else labels) for i, image in enumerate(pixels)]


# Images and labels of Python's users


def test_normalised_tensors_are_not_augmented() -> None:
    data = TensorDataset(torch.randn(8, 3, 8, 8), torch.arange(8) % 3)
    with pytest.raises(
        ValueError, match=r"between 0 and 1, these are between -\d.*preprocess=Preprocess.*augmentation="
    ):
        fit_classifier(_model(), data, data, None, ClassifierTraining(LOOP))
    streamed = StreamedPixels(data, None, device="cpu")
    with pytest.raises(ValueError, match="between 0 and 1"):
        fit_classifier(_model(), streamed, data, None, ClassifierTraining(LOOP))
    fit_classifier(_model(), data, data, None, ClassifierTraining(LOOP, None))  # as they are


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (3, "labels of 3 classes are 0 to 2, got 3 to 3"),
        (None, "some of these images have no label"),
        (1.0, "integers"),
        ([0.0, 1.0, 0.0], r"one label, its class; these have the shape \[3\]"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_labels_that_cannot_be_learned(labels: Any, said: str, streamed: bool) -> None:
    data: Any = [(image, labels) for image, _ in _images()]
    source = StreamedPixels(data, None, device="cpu") if streamed else data
    for parts in ((source, _images()), (_images(), source)):
        with pytest.raises(ValueError, match=said):
            fit_classifier(_model(), *parts, None, ClassifierTraining(LOOP, None))


@pytest.mark.parametrize("output", ["sigmoid", "identity"])
def test_every_output_but_those_of_softmax_needs_a_label(output: str) -> None:
    one, three = _images(labels=1.0), _images(labels=[0.0, 1.0, 1.0])
    with pytest.raises(ValueError, match=f"each of the 3 {output} outputs, got 1"):
        fit_classifier(_model(output=output), one, three, None, ClassifierTraining(LOOP, None))
    fit_classifier(_model(output=output), three, three, None, ClassifierTraining(LOOP, None))


def test_kappa_does_not_select_among_several_labels() -> None:
    data = _images(labels=[0.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="kappa needs one label per image, the model has 3 sigmoid outputs"):
        fit_classifier(
            _model(output="sigmoid"), data, data, None, ClassifierTraining(LOOP, None, selection_metric="kappa")
        )


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool])
def test_class_labels_may_be_any_whole_numbers(dtype: torch.dtype) -> None:
    data = [(image, label % 2) for image, label in _images()]
    some = [(image, torch.tensor(label, dtype=dtype)) for image, label in data]
    weighted = ClassifierTraining(LOOP, None, class_weights=(1.0, 2.0, 3.0))
    trained = [fit_classifier(_model(), part, part, None, weighted) for part in (data, some)]
    assert trained[0].fingerprint() == trained[1].fingerprint()


@pytest.mark.filterwarnings("ignore:.*the drive does not answer")
def test_validation_images_that_fail_for_a_while_do_not_shift_the_others() -> None:
    pixels, failing = torch.stack([image for image, _ in _images(200)]), set[int]()

    class Drive:
        def __len__(self) -> int:
            return len(pixels)

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            if index in failing:
                raise OSError("the drive does not answer")
            return pixels[index], 0

    model = _model()
    explainer = Explainer(model).eval()
    images = Images(model, StreamedPixels(Drive(), None, device="cpu"), None, seed=0)
    whole = ValidationSet(None, Evaluator(model), images, pairs=2)
    every = whole.losses(explainer, 20)["loss"]
    failing.add(3)
    without = whole.losses(explainer, 20)["loss"]
    part = ValidationSet(None, Evaluator(model), images, pairs=2)
    assert part.losses(explainer, 20)["loss"] == pytest.approx(without, rel=1e-5)
    failing.clear()
    assert part.losses(explainer, 20)["loss"] == pytest.approx(without, rel=1e-5)
    assert whole.losses(explainer, 20)["loss"] == every
    assert without != every


def test_a_surrogate_and_an_explainer_need_no_labels() -> None:
    alone = [image for image, _ in _images()]
    fit_surrogate(_model(), alone, alone, None, SurrogateTraining(LOOP, augmentation=None))
    fit_explainer(_model(), alone, [(image, None) for image in alone], None, PAPER)
    with pytest.raises(ValueError, match="labels are numbers, item 0 has 'cat'"):
        fit_surrogate(_model(), _images(labels="cat"), alone, None, SurrogateTraining(LOOP, augmentation=None))


def test_a_stream_that_knows_its_length_is_walked_through() -> None:
    class Stream(IterableDataset):
        def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
            return iter(_images())

        def __len__(self) -> int:
            return 8

    fit_classifier(_model(), Stream(), Stream(), None, ClassifierTraining(LOOP, None))


def _streamed(folder: Path, count: int, *, bad: int) -> tuple[MaskedModel, StreamedPixels]:
    """Files that are decoded anew each time, one of them no image, and a net for them."""
    names = [f"{i:03}.png" for i in range(count)]
    trees.write(folder, *names)
    (folder / names[bad]).write_bytes(b"no image")
    model = _model(preprocess=Preprocess((8, 8), (8, 8), (0.5,) * 3, (0.5,) * 3))
    return model, StreamedPixels(
        [(folder / name, i % 3) for i, name in enumerate(names)], model.preprocess, device="cpu"
    )


def test_a_batch_of_images_that_cannot_be_read_takes_the_next_one(tmp_path: Path) -> None:
    model, streamed = _streamed(tmp_path, 200, bad=0)
    with pytest.warns(UserWarning, match=r"1 of 200 images cannot be read.*000\.png"):
        batches = list(streamed.batches([torch.tensor([0]), torch.tensor([0, 5])], fill=True))
    assert [batch.indices.tolist() for batch in batches] == [[1], [5]]
    assert [batch.indices.tolist() for batch in streamed.batches([torch.tensor([0]), torch.tensor([0, 5])])] == [[5]]
    store = make_store(Evaluator(model), Images(model, streamed, None, seed=0), ValuesConfig(views=1, coalitions=4))
    assert store.streamed


@pytest.mark.filterwarnings("ignore:.*cannot be read")
def test_validation_goes_on_where_a_whole_batch_cannot_be_read(tmp_path: Path) -> None:
    model, streamed = _streamed(tmp_path, 121, bad=120)
    values = ValuesConfig(views=1, coalitions=4, low_confidence_oversampling=2)
    config = ExplainerTraining("values", LOOP, None, values=values, validation_coalitions=2, validation_batch_size=120)
    fit_explainer(model, streamed, streamed, tmp_path / "run", config)
    assert math.isfinite(json.loads((tmp_path / "run" / "log.jsonl").read_text())["loss"])


def test_a_validation_that_is_not_a_number_ends_the_training(tmp_path: Path) -> None:
    step = _Squared()
    ones = lambda order, epoch: ((torch.ones(1, 1),) for _ in order)  # noqa: E731
    task = Task(step, step, ones, 8, lambda: {"loss": math.nan})
    with pytest.raises(TrainingDiverged, match="the validation loss is nan after epoch 0"):
        train(task, LOOP, tmp_path)


class _Squared(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).square().mean()


@pytest.mark.parametrize("weights", [(1.0, -1.0, 1.0), (0.0, 0.0, 0.0), ()])
def test_class_weights_that_reward_mistakes_or_nothing_are_refused(weights: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="class_weights must be 0 or more, and not all 0"):
        ClassifierTraining(class_weights=weights)


def test_class_weights_are_one_per_class() -> None:
    config = ClassifierTraining(LOOP, None, class_weights=(1.0, 2.0))
    with pytest.raises(ValueError, match="class_weights must be 3 numbers, one per class, got 2"):
        fit_classifier(_model(), _images(), _images(), None, config)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"patience": 0}, "patience must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"max_grad_norm": -1.0}, "max_grad_norm must be positive"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive"),
        ({"seed": -1}, "seed must be 0 or more"),
    ],
)
def test_loops_that_make_no_sense(setting: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        LoopConfig(**setting)


def test_a_date_is_a_seed() -> None:
    config = ClassifierTraining(LoopConfig(epochs=1, batch_size=4, seed=20250101123456), None)
    fit_classifier(_model(), _images(), _images(), None, config)


def test_an_odd_number_of_coalitions_makes_whole_pairs() -> None:
    config = ValuesConfig(views=1, coalitions=5, allocation="shapley")
    images = Images(_model(), _images(), None, seed=0)
    assert make_store(Evaluator(_model()), images, config).coalitions == 6
    fit_explainer(_model(), _images(), _images(), None, ExplainerTraining("values", LOOP, None, values=config))


# Files of a run


def test_held_out_values_of_another_surrogate_are_computed_anew(tmp_path: Path) -> None:
    def held_out(model: MaskedModel, place: Path, seed: int = 0, turned: bool = False) -> dict[str, torch.Tensor]:
        loop = LoopConfig(epochs=1, batch_size=4, seed=seed)
        unseen = _images()[::-1] if turned else _images()
        fit_explainer(model, _images(), unseen, place, ExplainerTraining("paper", loop, None, validation_coalitions=2))
        return files.read_tensors(place / FILE)

    first = held_out(_model(1), tmp_path / "first")
    for number, (model, *other) in enumerate([(_model(2),), (_model(1), 5), (_model(1), 0, True)]):
        place = tmp_path / str(number)
        place.mkdir()
        (place / FILE).write_bytes((tmp_path / "first" / FILE).read_bytes())
        fresh = held_out(model, tmp_path / f"fresh {number}", *other)
        assert torch.equal(held_out(model, place, *other)["values"], fresh["values"])
        assert not torch.equal(fresh["values"], first["values"])
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / FILE).write_bytes((tmp_path / "first" / FILE).read_bytes()[:50])
    assert torch.equal(held_out(_model(1), damaged)["values"], first["values"])


def test_a_full_disk_is_reported_and_leaves_earlier_files(tmp_path: Path) -> None:
    files.write_tensors(tmp_path / BEST, {"a": torch.ones(3)})
    with full_disk(200), pytest.raises(OSError, match=r"best\.safetensors could not be written .* unchanged"):
        files.write_tensors(tmp_path / BEST, {"a": torch.ones(1000)})
    assert files.read_tensors(tmp_path / BEST)["a"].tolist() == [1, 1, 1]
    assert [path.name for path in tmp_path.iterdir()] == [BEST]


def test_a_killed_process_leaves_nothing_in_the_way_of_the_next(tmp_path: Path) -> None:
    for pid in (os.getpid(), 1):
        (tmp_path / f".step-00000002.{pid}.partial").mkdir(parents=True)
    checkpoints.save(tmp_path, 2, {"a": torch.ones(2)}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]


def test_checkpoints_of_another_net_are_refused(tmp_path: Path) -> None:
    fit_explainer(_model(), _images(), _images(), tmp_path, PAPER)
    with pytest.raises(ValueError, match=r"step-00000002 holds the weights of another network: \d+ tensors"):
        fit_surrogate(_model(), _images(), _images(), tmp_path, SurrogateTraining(LOOP, augmentation=None), resume=True)


# Games of other outputs, players and removals


@pytest.mark.parametrize("procedure", ["paper", "values"])
def test_outputs_of_any_magnitude_count_the_same_in_training_and_selection(procedure: str, tmp_path: Path) -> None:
    logs = []
    for name, unit in (("one", 1.0), ("thousand", 1024.0)):
        model = _model(output="identity")
        with torch.no_grad():
            model.net.classifier.weight[0] *= unit
            model.net.classifier.bias[0] *= unit
        values = ValuesConfig(views=2, coalitions=6, noise_weight_power=0.0)
        loop = LoopConfig(epochs=2, batch_size=4, learning_rate=1e-2)
        config = ExplainerTraining(procedure, loop, None, coalitions=4, values=values, validation_coalitions=4)
        fit_explainer(model, _images(), _images(), tmp_path / name, config)
        logs.append([json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()])
    for one, thousand in zip(*logs, strict=True):
        assert thousand == pytest.approx(one, rel=1e-3)


def test_the_authors_sampler_and_one_pair_per_validation_image(tmp_path: Path) -> None:
    losses = []
    for sampler in ("shapley", "authors"):
        config = ExplainerTraining("paper", LOOP, None, coalitions=8, sampler=sampler, validation_coalitions=2)
        fit_explainer(_model(), _images(), _images(), tmp_path / sampler, config)
        losses.append(json.loads((tmp_path / sampler / "log.jsonl").read_text()))
        assert files.read_tensors(tmp_path / sampler / FILE)["values"].shape == (8, 2, 3)
    assert losses[0]["train_loss"] != losses[1]["train_loss"]
    assert losses[0]["uniform_loss"] != losses[1]["uniform_loss"]
