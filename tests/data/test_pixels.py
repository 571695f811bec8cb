"""Batches of pixels: the geometry of Preprocess, cached and streamed, without unreadable images."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.trees import picture
from vitshap.data import (
    CachedPixels,
    ImageData,
    StreamedPixels,
    cache_bytes,
    cache_pixels,
    centre,
    iterate_pixels,
    load_digits,
    normalised,
    open_pixels,
    require_a_batch,
    require_labels,
    shuffled,
)
from vitshap.data.decode import to_pixels
from vitshap.models.preprocess import Preprocess

PREPROCESS = Preprocess((8, 8), (10, 10), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def _files(folder: Path, n: int, broken: tuple[int, ...] = ()) -> ImageData:
    paths = []
    for i in range(n):
        path = folder / f"{i:03}.jpg"
        picture(i, height=20 + i % 7, width=16 + i % 5).save(path)
        if i in broken:
            path.write_bytes(path.read_bytes()[:-150])
        paths.append(path)
    return ImageData(paths, torch.arange(n) % 2, ("even", "odd"))


def test_cached_pixels_normalised_are_what_preprocess_makes(tmp_path: Path) -> None:
    data = _files(tmp_path, 9)
    done: list[int] = []
    cached = cache_pixels(data, PREPROCESS, workers=2, progress=done.append)
    assert cached.pixels.dtype == torch.uint8
    assert cached.pixels.nbytes == cache_bytes(9, PREPROCESS) == 9 * 3 * 8 * 8
    assert done[-1] == 9
    by_preprocess = torch.stack([PREPROCESS(Image.open(path)) for path in data.images])
    torch.testing.assert_close(normalised(cached.pixels, PREPROCESS.mean, PREPROCESS.std), by_preprocess)


def test_cached_and_streamed_are_the_same(tmp_path: Path) -> None:
    data = _files(tmp_path, 23)
    cached = open_pixels(data, PREPROCESS, workers=2)
    streamed = open_pixels(data, PREPROCESS, memory_limit=23 * 3 * 64 - 1, workers=2)
    assert isinstance(cached, CachedPixels)
    assert isinstance(streamed, StreamedPixels)
    order = shuffled(23, seed=0, epoch=1).split(4)
    pairs = list(zip(cached.batches(order), streamed.batches(order), strict=True))
    assert len(pairs) == 6
    for ours, theirs in pairs:
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a, b)
    assert torch.equal(torch.cat([ours.indices for ours, _ in pairs]), torch.cat(order))


def test_unreadable_images_are_reported_left_out_and_counted(tmp_path: Path) -> None:
    data = _files(tmp_path, 201, broken=(7, 120))
    with pytest.warns(UserWarning, match=r"2 of 201 images cannot be read and were left out: .*007\.jpg.*120\.jpg"):
        cached = cache_pixels(data, PREPROCESS, workers=2)
    assert len(cached) == 199
    assert {7, 120} == set(range(201)) - set(cached.kept.tolist())
    assert torch.equal(cached.labels, cached.kept % 2)
    (batch,) = cached.batches([torch.tensor([6, 7, 198])])
    assert batch.indices.tolist() == [6, 8, 200]  # what is drawn for an image does not move when another is left out
    streamed = StreamedPixels(data, PREPROCESS, device="cpu", workers=2)
    with pytest.warns(UserWarning, match="2 of 201"):
        read = list(streamed.batches(torch.arange(201).split(10)))
    assert torch.equal(torch.cat([batch.indices for batch in read]), cached.kept)
    assert torch.equal(torch.cat([batch.pixels for batch in read]), cached.pixels)
    assert sum(1 for _ in streamed.batches(torch.arange(201).split(10))) == 21  # known by now: no second warning


def test_more_than_one_in_a_hundred_is_an_error(tmp_path: Path) -> None:
    data = _files(tmp_path, 199, broken=(0, 150))
    with pytest.raises(ValueError, match=r"2 of 199 images cannot be read, which is more than 1 %: .*000\.jpg"):
        cache_pixels(data, PREPROCESS)
    with pytest.raises(ValueError, match="more than 1 %"):
        list(StreamedPixels(data, PREPROCESS, device="cpu").batches([torch.arange(199)]))
    with pytest.raises(ValueError, match="more than 1 %"):
        list(iterate_pixels(((path, 0) for path in data.images), PREPROCESS, batch_size=50))


def test_a_data_set_that_opens_its_own_files_is_counted_too(tmp_path: Path) -> None:
    files = _files(tmp_path, 150, broken=(42,))

    class Own:
        """Hands out PIL images that are not loaded yet, as most data sets do."""

        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, index: int) -> tuple[Image.Image, int]:
            return Image.open(files.images[index]), index % 2

    with pytest.warns(UserWarning, match=r"1 of 150 images cannot be read and were left out: item 42: OSError"):
        cached = cache_pixels(Own(), PREPROCESS, workers=2)
    with pytest.warns(UserWarning, match="1 of 150"):
        assert torch.equal(cached.pixels, cache_pixels(files, PREPROCESS, workers=2).pixels)
    with pytest.raises(TypeError, match=r"pairs \(image, label\), item 0 is a dict"):
        cache_pixels([{"image": torch.rand(3, 8, 8)}], PREPROCESS)


class _Damaged(Image.Image):
    """A picture whose file turns out to be damaged when it is read, in a way that Pillow has no error of its own for."""

    def load(self):
        raise KeyError("no such table")


@pytest.mark.parametrize("kind", ["bomb", "header", "data"])
def test_any_error_of_reading_leaves_the_image_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    files = _files(tmp_path, 150)
    broken = files.images[42]
    if kind == "bomb":
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)
        picture(0, height=100, width=100).save(broken)
    elif kind == "header":
        broken.write_bytes(b"II*\0" + b"\xff" * 60)

    class Own:
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, index: int) -> tuple[Image.Image, int]:
            if kind == "data" and index == 42:
                return _Damaged(), 0
            return Image.open(files.images[index]), index % 2

    with pytest.warns(UserWarning, match="1 of 150 images cannot be read and were left out: item 42"):
        assert len(cache_pixels(Own(), PREPROCESS, workers=2)) == 149


def test_squashed_images_are_cached_whole_and_cropped_at_the_centre(tmp_path: Path) -> None:
    how = Preprocess((8, 8), (12, 12), (0.5,) * 3, (0.5,) * 3, "bilinear", squash=True)
    data = _files(tmp_path, 5)
    cached = cache_pixels(data, how)
    assert cached.pixels.shape == (5, 3, 12, 12)
    assert cached.pixels.nbytes == cache_bytes(5, how)
    seen = normalised(centre(cached.pixels, how.size), how.mean, how.std)
    torch.testing.assert_close(seen, torch.stack([how(Image.open(path)) for path in data.images]))
    assert to_pixels(torch.rand(3, 8, 8), how).shape == (3, 8, 8)  # floats are the net's input already


def test_an_iterable_data_set_is_read_once(tmp_path: Path) -> None:
    data = _files(tmp_path, 11)

    def walk() -> Iterator[tuple[Image.Image, int]]:
        for i, path in enumerate(data.images):
            yield Image.open(path), i % 2

    batches = list(iterate_pixels(walk(), PREPROCESS, batch_size=4))
    assert [len(batch.pixels) for batch in batches] == [4, 4, 3]
    cached = cache_pixels(data, PREPROCESS)
    assert torch.equal(torch.cat([batch.pixels for batch in batches]), cached.pixels)
    assert torch.cat([batch.indices for batch in batches]).tolist() == list(range(11))


def test_every_kind_of_image_gives_the_same_pixels(tmp_path: Path) -> None:
    image = picture(1, height=30, width=20)
    image.save(tmp_path / "a.png")
    array = np.array(image)
    kinds = [image, tmp_path / "a.png", str(tmp_path / "a.png"), array, torch.from_numpy(array).permute(2, 0, 1)]
    expected = to_pixels(image, PREPROCESS)
    assert all(torch.equal(to_pixels(kind, PREPROCESS), expected) for kind in kinds)
    already = torch.randn(3, 8, 8)
    assert to_pixels(already, PREPROCESS) is already


def test_bytes_of_the_networks_size_are_unchanged_and_others_are_resized() -> None:
    whole = Preprocess((20, 16), (20, 16), PREPROCESS.mean, PREPROCESS.std)
    image = picture(3, height=20, width=16)
    pixels = torch.from_numpy(np.array(image).transpose(2, 0, 1).copy())
    assert to_pixels(pixels, whole) is pixels
    assert torch.equal(to_pixels(image, whole), pixels)
    assert to_pixels(pixels[:1], whole).shape == (3, 20, 16)  # grey
    assert to_pixels(pixels[:, :10, :8], whole).shape == (3, 20, 16)
    assert to_pixels(pixels, PREPROCESS).shape == (3, 8, 8)


def test_digits_are_cached_unchanged() -> None:
    digits = load_digits().val
    cached = open_pixels(digits, None)
    assert isinstance(cached, CachedPixels)
    assert torch.equal(cached.pixels, digits.images)
    assert torch.equal(cached.labels, digits.labels)


def test_labels_may_be_vectors() -> None:
    data = [(torch.rand(1, 4, 4), torch.tensor([0.0, 1.0, float(i)])) for i in range(5)]
    assert cache_pixels(data, None).labels[:, 2].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: cache_pixels([], PREPROCESS), "no images"),
        (lambda: to_pixels(torch.rand(3, 9, 8), PREPROCESS), "not of size"),
        (lambda: to_pixels(picture(0), None), "training needs wrap"),
        (lambda: to_pixels(torch.zeros(3, 8, 8, dtype=torch.int64), PREPROCESS), "Tensor of torch.int64"),
        (lambda: require_a_batch(5, 64, "pets"), "pets has 5 images, fewer than one batch of 64"),
        (lambda: require_labels(torch.tensor([0, 10]), 10), "labels of 10 classes are 0 to 9, got 0 to 10"),
        (lambda: ImageData(torch.rand(2, 1, 4, 4), torch.tensor([0, -1]), ("a", "b")), "got -1 to 0"),
        (lambda: ImageData(torch.rand(2, 1, 4, 4), torch.tensor([0.0, 1.0]), ("a", "b")), "whole numbers"),
        (
            lambda: ImageData(torch.rand(2, 1, 4, 4), torch.tensor([0, 1]), ("a", "b"), groups=("p",)),
            "and 1 groups",
        ),
    ],
)
def test_bad_input_is_reported(call, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()


def test_pixels_that_are_not_finite_are_reported_and_left_out() -> None:
    images = torch.rand(200, 3, 8, 8)
    images[7, 0, 0, 0] = float("nan")
    with pytest.warns(UserWarning, match="item 7: its pixels are not finite"):
        kept = cache_pixels([(image, 0) for image in images], None).kept
    assert kept.tolist() == [i for i in range(200) if i != 7]
