"""What goes wrong with people's data, nets and disks: named in a sentence, and nothing that was trained is lost."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset
from transformers import ViTConfig, ViTForImageClassification
from typer.testing import CliRunner

from tests.data import trees
from tests.full_disk import full_disk
from vitshap.cli import app
from vitshap.data import StreamedPixels
from vitshap.explainers import Explainer
from vitshap.models import MaskedModel, wrap
from vitshap.training import checkpoints, files
from vitshap.training.batches import Images
from vitshap.training.configs import ClassifierTraining, ExplainerTraining, SurrogateTraining, ValuesConfig
from vitshap.training.explainer import fit_explainer, make_store
from vitshap.training.fit import fit_classifier, fit_surrogate
from vitshap.training.held_out import FILE
from vitshap.training.loop import BEST, LoopConfig
from vitshap.training.values import Evaluator

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


def test_normalised_tensors_are_not_varied_behind_anyones_back() -> None:
    data = TensorDataset(torch.randn(8, 3, 8, 8), torch.arange(8) % 3)
    with pytest.raises(
        ValueError, match=r"between 0 and 1, these reach from -\d.*preprocess=Preprocess.*augmentation="
    ):
        fit_classifier(_model(), data, data, None, ClassifierTraining(LOOP))
    streamed = StreamedPixels(data, None, device="cpu")
    with pytest.raises(ValueError, match="between 0 and 1"):
        fit_classifier(_model(), streamed, data, None, ClassifierTraining(LOOP))
    fit_classifier(_model(), data, data, None, ClassifierTraining(LOOP, None))  # as they are


@pytest.mark.parametrize(
    ("labels", "said"),
    [(3, "labels of 3 classes are 0 to 2, got 3 to 3"), (None, "some of these images have no label"), (1.0, "whole")],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_labels_that_cannot_be_learned(labels: Any, said: str, streamed: bool) -> None:
    data: Any = [(image, labels) for image, _ in _images()]
    source = StreamedPixels(data, None, device="cpu") if streamed else data
    with pytest.raises(ValueError, match=said):
        fit_classifier(_model(), source, _images(), None, ClassifierTraining(LOOP, None))


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


def test_a_batch_of_images_that_cannot_be_read_takes_the_next_one(tmp_path: Path) -> None:
    trees.write(tmp_path, *(f"{i:03}.png" for i in range(200)))
    (tmp_path / "000.png").write_bytes(b"no image")
    data = [(tmp_path / f"{i:03}.png", i % 3) for i in range(200)]
    from vitshap.models import Preprocess

    model = _model(preprocess=Preprocess((8, 8), (8, 8), (0.5,) * 3, (0.5,) * 3))
    streamed = StreamedPixels(data, model.preprocess, device="cpu")
    with pytest.warns(UserWarning, match=r"1 of 200 images cannot be read.*000\.png"):
        batches = list(streamed.batches([torch.tensor([0]), torch.tensor([0, 5])]))
    assert [batch.indices.tolist() for batch in batches] == [[1], [5]]
    store = make_store(Evaluator(model), Images(model, streamed, None, seed=0), ValuesConfig(views=1, coalitions=4))
    assert store.streamed


def test_class_weights_are_one_per_class() -> None:
    config = ClassifierTraining(LOOP, None, class_weights=(1.0, 2.0))
    with pytest.raises(ValueError, match="class_weights are 3 numbers, one per class; got 2"):
        fit_classifier(_model(), _images(), _images(), None, config)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"clip": -1.0}, "clip must be positive"),
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
    def held_out(model: MaskedModel, place: Path, seed: int = 0) -> dict[str, torch.Tensor]:
        loop = LoopConfig(epochs=1, batch_size=4, seed=seed)
        fit_explainer(
            model, _images(), _images(), place, ExplainerTraining("paper", loop, None, validation_coalitions=2)
        )
        return files.read_tensors(place / FILE)

    first = held_out(_model(1), tmp_path / "first")
    for number, (model, seed) in enumerate([(_model(2), 0), (_model(1), 5)]):
        place = tmp_path / str(number)
        place.mkdir()
        (place / FILE).write_bytes((tmp_path / "first" / FILE).read_bytes())
        fresh = held_out(model, tmp_path / f"fresh {number}", seed)
        assert torch.equal(held_out(model, place, seed)["worth"], fresh["worth"])
        assert not torch.equal(fresh["worth"], first["worth"])
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / FILE).write_bytes((tmp_path / "first" / FILE).read_bytes()[:50])
    assert torch.equal(held_out(_model(1), damaged)["worth"], first["worth"])


def test_a_full_disk_is_told_and_leaves_what_was_there(tmp_path: Path) -> None:
    files.write_tensors(tmp_path / BEST, {"a": torch.ones(3)})
    with full_disk(200), pytest.raises(OSError, match=r"best\.safetensors could not be written .* untouched"):
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
    with pytest.raises(ValueError, match=r"step-00000002 holds the weights of another net: \d+ tensors"):
        fit_surrogate(_model(), _images(), _images(), tmp_path, SurrogateTraining(LOOP, augmentation=None), resume=True)


# The command

SMALL = ["model.image_size=8", "model.patch_size=4", "model.hidden_size=16", "model.layers=1", "model.heads=2"]
FEW = [f"{s}.loop.{key}" for s in ("classifier", "surrogate", "explainer") for key in ("epochs=1", "batch_size=8")]
FEW += ["explainer.values.views=1", "explainer.values.coalitions=4", "explainer.validation_coalitions=4"]


def _train(images: Path, out: Path, *options: str, model: str | Path = "vit", settings: list[str] = SMALL) -> Any:
    sets = [part for setting in [*settings, *FEW] for part in ("--set", setting)]
    words = ["train", "folder", "--data", images, "--model", model, "--out", out, "--device", "cpu"]
    return CliRunner().invoke(app, [*map(str, words), *sets, *options])


@pytest.mark.filterwarnings("ignore:.*cannot be read")
def test_one_bad_image_is_no_reason_to_stop_wherever_it_is(tmp_path: Path) -> None:
    from vitshap.data import load_data

    images = trees.class_folders(tmp_path / "images", {"cats": 70, "dogs": 50})
    splits = load_data(images)
    (images / splits.test.images[1].relative_to(images)).write_bytes(b"no image")  # 1 of 120, but of 12 in its part
    result = _train(images, tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "11 test images" in result.output
    for i in (2, 3):
        (images / splits.train.images[i].relative_to(images)).write_bytes(b"no image")
    result = _train(images, tmp_path / "other")
    assert result.exit_code == 2
    assert "of 120 images cannot be read, which is more than 1 %" in result.output
    assert not (tmp_path / "other" / "classifier").exists(), "told before anything is trained"


def test_what_has_not_begun_may_change(tmp_path: Path) -> None:
    images = trees.class_folders(tmp_path / "images", {"cats": 24, "dogs": 20})
    out = tmp_path / "out"
    assert _train(images, out, "--set", "explainer.network.extra_block=false").exit_code == 0
    shutil.rmtree(out / "explainer")
    refused = _train(images, out, "--resume", "--set", "surrogate.coalitions=3")
    assert refused.exit_code == 2
    assert "surrogate.coalitions: 1 / 3" in refused.output
    assert "explainer" not in refused.output
    resumed = _train(images, out, "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert "surrogate: done before" in resumed.output
    best = out / "surrogate" / BEST
    best.write_bytes(best.read_bytes()[:100])
    damaged = _train(images, out, "--resume")
    assert damaged.exit_code == 2
    assert f"{best.name} is damaged or missing" in damaged.output


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Images, and a net whose classes are theirs in another order."""
    root = tmp_path_factory.mktemp("zoo")
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    names = {0: "zebra", 1: "ant", 2: "monkey"}
    config = ViTConfig(image_size=8, patch_size=4, id2label=names, label2id={v: k for k, v in names.items()}, **size)
    ViTForImageClassification(config).save_pretrained(root / "net")
    (root / "net" / "preprocessor_config.json").write_text(json.dumps({"image_mean": 0.5, "image_std": 0.5}))
    return trees.class_folders(root / "images", dict.fromkeys(("ant", "monkey", "zebra"), 16)), root / "net"


def test_a_net_that_is_not_trained_keeps_its_own_names(zoo: tuple[Path, Path], tmp_path: Path) -> None:
    images, net = zoo
    none = [setting for setting in FEW if not setting.startswith("classifier")]
    sets = [part for setting in ["classifier=null", *none] for part in ("--set", setting)]
    words = ["train", "folder", "--data", images, "--model", net, "--out", tmp_path / "out", "--device", "cpu"]
    result = CliRunner().invoke(app, [*map(str, words), *sets])
    assert result.exit_code == 0, result.output
    assert Explainer.from_pretrained(tmp_path / "out" / "bundle").surrogate.class_names == ["zebra", "ant", "monkey"]
    assert "accuracy" not in result.output, "its classes are not in the order of the folders"
    trained = _train(images, tmp_path / "trained", model=net, settings=[])
    assert trained.exit_code == 0, trained.output
    assert Explainer.from_pretrained(tmp_path / "trained" / "bundle").surrogate.class_names == [
        "ant",
        "monkey",
        "zebra",
    ]


def test_weights_that_do_not_fit_are_not_drawn_instead(zoo: tuple[Path, Path], tmp_path: Path) -> None:
    images, net = zoo
    for spoiled in ("wide", "short"):
        folder = tmp_path / spoiled
        folder.mkdir()
        for file in net.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "wide" / "config.json").read_text())
    (tmp_path / "wide" / "config.json").write_text(json.dumps({**config, "intermediate_size": 24}))
    weights = tmp_path / "short" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    for spoiled, said in (("wide", "do not fit its configuration"), ("short", "cannot be loaded with transformers")):
        result = _train(images, tmp_path / "out", model=tmp_path / spoiled, settings=[])
        assert result.exit_code == 2, result.output
        assert said in " ".join(result.output.split())


def test_parts_by_other_names_are_parts(tmp_path: Path) -> None:
    from vitshap.data import load_data

    for part in ("training_set", "test_set"):
        trees.class_folders(tmp_path / "both", {"cats": 6, "dogs": 6}, prefix=f"{part}/")
    splits = load_data(tmp_path / "both")
    assert splits.train.class_names == ("cats", "dogs")
    assert len(splits.test) == 12
    trees.class_folders(tmp_path / "half", {"cats": 6, "dogs": 6}, prefix="test/")
    trees.class_folders(tmp_path / "half", {"cats": 6, "dogs": 6}, prefix="val/")
    with pytest.raises(ValueError, match="none to train on"):
        load_data(tmp_path / "half")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("model.patch_size=0", "model.patch_size must be at least 1"),
        ("model.hidden_size=-4", "model.hidden_size must be at least 1"),
        ("model.patch_size=8", "the image is one patch"),
        ("explainer.loop.clip=-1", "explainer.loop.clip must be positive"),
        ("classifier.class_weights=[1,2,3]", "class_weights are 2 numbers"),
    ],
)
def test_settings_that_cannot_work(setting: str, said: str, tmp_path: Path) -> None:
    images = trees.class_folders(tmp_path / "images", {"cats": 24, "dogs": 20})
    result = _train(images, tmp_path / "out", "--set", setting)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.output.split())
