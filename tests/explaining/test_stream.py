"""What comes out of the stream is what the explainer says of each photo, in order, whatever is among them."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.explaining import made
from vitshap.explainers import Explainer
from vitshap.explaining import CannotExplain, Explained, Failed, Source, explain_photos, open_bundle
from vitshap.explaining.stream import Prepared, explain_or_fail, model_batch, prepare_photo
from vitshap.game import Game
from vitshap.methods import Attribution, Method, method, target_from_words


@pytest.fixture(scope="module")
def source(bundle: Path) -> Source:
    return open_bundle(str(bundle))


@pytest.mark.parametrize("batch", [1, 3, 16])
def test_values_are_the_explainers_own(source: Source, tmp_path: Path, batch: int) -> None:
    paths = made.photos(tmp_path, 7)
    entries = list(explain_photos(paths, source, batch=batch))
    assert [entry.path for entry in entries] == paths
    assert isinstance(source.method, Explainer)
    for path, entry in zip(paths, entries, strict=True):
        assert isinstance(entry, Explained)
        expected = source.method(path)
        order = expected.prediction[0].argsort(descending=True).tolist()
        assert entry.classes == order
        assert entry.explanation.image_box is not None
        assert torch.equal(entry.explanation.image_box, expected.image_box)
        torch.testing.assert_close(entry.explanation.values, expected.values[..., order], rtol=0, atol=1e-6)
        assert expected.values.std() > 1e-3, "values that are all alike prove nothing"


def test_failures_stand_in_their_place_and_the_rest_is_explained(source: Source, tmp_path: Path) -> None:
    paths = made.photos(tmp_path, 4)
    for i, (name, (content, _)) in enumerate(made.UNSOUND.items()):
        (tmp_path / name).write_bytes(content)
        paths.insert(2 * i, tmp_path / name)
    entries = list(explain_photos(paths, source, batch=3))
    assert [entry.path for entry in entries] == paths
    assert [isinstance(entry, Failed) for entry in entries] == [path.name in made.UNSOUND for path in paths]


def test_every_kind_of_sound_file(source: Source, tmp_path: Path) -> None:
    picture = made.picture(0)
    exif = Image.Exif()
    exif[0x0112] = 8
    picture.save(tmp_path / "turned.png", exif=exif)
    picture.convert("CMYK").save(tmp_path / "print.tif")
    picture.convert("RGBA").save(tmp_path / "clear.webp")
    picture.convert("I;16").save(tmp_path / "deep.png")
    picture.save(tmp_path / "moves.gif", save_all=True, append_images=[made.picture(1)])
    for entry in explain_photos(sorted(tmp_path.iterdir()), source):
        assert isinstance(entry, Explained), entry
        assert entry.size == ((40, 60) if entry.name.endswith("turned.png") else (60, 40))
        left, top, right, bottom = entry.box
        assert 0 <= left < right <= entry.size[0]
        assert 0 <= top < bottom <= entry.size[1]


def test_classes_by_name_number_and_prediction(source: Source, tmp_path: Path) -> None:
    paths = made.photos(tmp_path, 6)

    def explained(*targets: str) -> list[list[int]]:
        target = target_from_words(targets, made.NAMES, len(made.NAMES), default="top-2")
        return [entry.classes for entry in explain_photos(paths, source, target=target) if isinstance(entry, Explained)]

    predicted = [classes[0] for classes in explained()]
    assert all(len(classes) == 2 for classes in explained())
    assert explained("predicted") == [[one] for one in predicted]
    assert explained("crane", "0", "crane") == [[2, 0]] * 6
    assert [classes[0] for classes in explained("all")] == predicted
    assert all(sorted(classes) == [0, 1, 2, 3, 4] for classes in explained("all"))
    assert explained("bee", "predicted") == [[1] if one == 1 else [1, one] for one in predicted]
    assert len(set(predicted)) > 1, "one class for all photos would prove nothing"
    for target, message in (
        ("cranes", 'did you mean "crane"'),
        ("5", "classes are 0 to 4"),
        ("-1", 'no class is named "-1"'),
    ):
        with pytest.raises(ValueError, match=message):
            target_from_words([target], made.NAMES, len(made.NAMES))


def test_a_class_whose_name_is_a_number() -> None:
    assert target_from_words(["0", "2"], ["7", "8", "9", "0", "1"], 5) == [3, 2]


def test_select_keeps_what_belongs_to_the_classes() -> None:
    model = made.model()
    photo = made.picture(0)
    whole = method("kernelshap", model, budget=200)(photo)
    part, direct = whole.select([3, 1]), method("kernelshap", model, budget=200)(photo, target=[3, 1])
    for name in ("values", "classes", "base_values", "full_values"):
        torch.testing.assert_close(getattr(part, name), getattr(direct, name), rtol=0, atol=1e-6)
    assert part.stderr is not None
    assert part.stderr.shape == part.values.shape


def test_a_method_explains_the_most_probable_classes(tmp_path: Path) -> None:
    model = made.model()
    source = Source(model, method("exact", model), "a model")
    (path,) = made.photos(tmp_path, 1)
    (entry,) = explain_photos([path], source, target="top-2")
    assert isinstance(entry, Explained)
    best = model(path)[0].topk(2).indices.tolist()
    expected = method("exact", model)(path, target=best)
    torch.testing.assert_close(entry.explanation.values, expected.values, rtol=0, atol=1e-6)


@dataclass(frozen=True, eq=False)
class AfraidOfTheDark(Method):
    """Fails for dark images, as a method may for one image of many."""

    name = "afraid"

    def compute(self, game: Game, pixels: Tensor, targets: Tensor, /) -> Attribution:
        if bool((pixels.mean((1, 2, 3)) < -0.9).any()):
            raise RuntimeError("too\ndark")
        return Attribution(torch.ones(len(pixels), game.num_players, targets.shape[1]))


def test_an_image_that_cannot_be_explained_does_not_take_others_with_it(tmp_path: Path) -> None:
    model = made.model()
    paths = made.photos(tmp_path, 6)
    Image.new("RGB", (40, 40)).save(paths[4])
    source = Source(model, AfraidOfTheDark(model), "a model")
    entries = list(explain_photos(paths, source, batch=6))
    assert [isinstance(entry, Failed) for entry in entries] == [i == 4 for i in range(6)]
    assert isinstance(entries[4], Failed)
    assert entries[4].reason == "not explained: too dark"
    with pytest.raises(CannotExplain, match="too dark"):
        list(explain_photos([paths[4]], source))


def test_of_a_batch_that_does_not_fit_nothing_is_kept_while_its_halves_are_explained(
    source: Source, tmp_path: Path
) -> None:
    prepared = [prepare_photo(path, source.model) for path in made.photos(tmp_path, 4)]
    ready = [one for one in prepared if isinstance(one, Prepared)]
    refused: list[weakref.ref[Tensor]] = []

    def explain(photos: Sequence[Prepared]) -> list[int]:
        assert all(one() is None for one in refused), "tensors of a batch that failed take the room of the next"
        pixels = model_batch(photos, source)
        if len(photos) > 1:
            refused.append(weakref.ref(pixels))
            raise torch.OutOfMemoryError("no memory left")
        return [len(pixels)]

    assert explain_or_fail(ready, explain, False) == [1, 1, 1, 1]
    assert len(refused) == 3


def test_photos_are_taken_as_they_are_needed(source: Source, tmp_path: Path) -> None:
    paths = made.photos(tmp_path, 3)
    taken = 0

    def endless() -> object:
        nonlocal taken
        while True:
            taken += 1
            yield paths[taken % 3]

    stream = explain_photos(endless(), source, batch=4)  # type: ignore[arg-type]
    for _ in range(9):
        next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert taken <= 9 + 4 * 4, "a stream without end must not be read to its end"
