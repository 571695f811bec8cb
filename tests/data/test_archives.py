"""Archives are unpacked once, completely or not at all, never outside of their folder."""

import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.data import trees
from vitshap.data import archives, load_data, read_image
from vitshap.data.archives import unpacked


def _pack(source: Path, target: Path) -> None:
    if target.suffix == ".zip":
        with zipfile.ZipFile(target, "w") as packed:
            for file in sorted(source.rglob("*.png")):
                packed.write(file, file.relative_to(source))
    else:
        with tarfile.open(target, "w:gz" if target.name.endswith(("gz", "tgz")) else "w") as tape:
            tape.add(source, arcname="wrapped")


@pytest.mark.parametrize("name", ["set.tar", "set.tgz", "set.tar.gz", "set.zip"])
def test_an_archive_gives_the_same_data_as_its_folder(tmp_path: Path, name: str) -> None:
    folder = trees.class_folders(tmp_path / "folder", {"a": 10, "b": 20})
    (tmp_path / "packed").mkdir()
    _pack(folder, tmp_path / "packed" / name)
    plain, packed = load_data(folder), load_data(tmp_path / "packed" / name)
    for part, other in zip(plain, packed, strict=True):
        assert [Path(p).parts[-2:] for p in part.images] == [Path(p).parts[-2:] for p in other.images]
    (made,) = (item for item in (tmp_path / "packed").iterdir() if item.is_dir())
    assert made.name.startswith("set.unpacked-")
    before = made.stat().st_mtime_ns
    load_data(tmp_path / "packed" / name)
    assert made.stat().st_mtime_ns == before


def test_archives_in_one_folder_are_one_data_set(tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    parts.mkdir()
    for number, classes in enumerate(({"train/a": 4, "train/b": 4}, {"val/a": 4, "val/b": 4})):
        folder = trees.class_folders(tmp_path / f"piece{number}", classes)
        with tarfile.open(parts / f"part-{number}.tar", "w") as tape:
            tape.add(folder, arcname=".")
    splits = load_data(parts, cache=tmp_path / "cache")
    assert [len(part) for part in splits] == [8, 4, 4]
    assert sorted(item.name for item in parts.iterdir()) == ["part-0.tar", "part-1.tar"]
    inside = load_data(parts)
    assert [len(part) for part in inside] == [8, 4, 4]
    assert [len(part) for part in load_data(parts)] == [8, 4, 4]  # now with the unpacked folder beside the parts
    with tarfile.open(parts / "part-2.tar", "w") as tape:
        tape.add(trees.class_folders(tmp_path / "piece2", {"test/a": 1, "test/b": 1}), arcname=".")
    assert [len(part) for part in load_data(parts)] == [8, 8, 2]


@pytest.mark.parametrize(
    "name", ["../outside.png", "/tmp/outside.png", "a/../../outside.png", "C:\\outside.png", "..\\x.png"]
)
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_names_outside_of_the_folder_are_rejected(tmp_path: Path, name: str, kind: str) -> None:
    archive = tmp_path / "deep" / f"evil.{kind}"
    archive.parent.mkdir()
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as packed:
            packed.writestr("good.png", b"x")
            packed.writestr(name, b"x")
    else:
        with tarfile.open(archive, "w") as tape:
            for member in ("good.png", name):
                info = tarfile.TarInfo(member)
                info.size = 1
                tape.addfile(info, io.BytesIO(b"x"))
    with pytest.raises(ValueError, match="outside of its folder"):
        unpacked(archive)
    assert [item.name for item in archive.parent.iterdir()] == [archive.name]
    assert not (tmp_path / "outside.png").exists()


def test_links_are_not_unpacked(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "linked.tar", "w") as tape:
        link = tarfile.TarInfo("a")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        tape.addfile(link)
        inner = tarfile.TarInfo("a/through.txt")
        inner.size = 1
        tape.addfile(inner, io.BytesIO(b"x"))
    folder = unpacked(tmp_path / "linked.tar")
    assert not (tmp_path / "through.txt").exists()
    assert not (folder / "a").is_symlink()
    assert (folder / "a/through.txt").read_bytes() == b"x"


@pytest.mark.parametrize("name", ["cut.tar", "cut.tgz", "cut.zip"])
def test_a_truncated_archive_leaves_no_files(tmp_path: Path, name: str) -> None:
    _pack(trees.class_folders(tmp_path / "folder", {"a": 10, "b": 10}), tmp_path / name)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2 + 100])
    with pytest.raises(ValueError, match=f"{name} cannot be unpacked"):
        load_data(tmp_path / name)
    assert sorted(item.name for item in tmp_path.iterdir()) == sorted([name, "folder"])


def test_a_tar_that_is_damaged_between_its_files_is_not_taken_for_a_shorter_one(tmp_path: Path) -> None:
    trees.class_folders(tmp_path / "photos", {"a": 10, "b": 10})
    path = tmp_path / "photos.tar"
    with tarfile.open(path, "w") as tape:
        tape.add(tmp_path / "photos", "photos")
    whole = path.read_bytes()
    with tarfile.open(path) as tape:
        header = tape.getmembers()[15].offset
    for damaged in (whole[: header + 100], whole[:header] + b"?" + whole[header + 1 :]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=f"photos.tar cannot be unpacked.*damaged at byte {header:,}"):
            load_data(path)
        assert not list(tmp_path.glob("*unpacked*"))
    path.write_bytes(whole[:header])
    with pytest.warns(UserWarning, match="photos.tar has no end: it may have been cut off"):
        unpacked(path)


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    _pack(trees.class_folders(tmp_path / "folder", {"a": 4, "b": 4}), tmp_path / "set.zip")
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "sealed").mkdir(mode=0o555)
    for cache in (tmp_path / "file" / "cache", tmp_path / "sealed"):
        with pytest.raises(ValueError, match="give a cache folder"):
            load_data(tmp_path / "set.zip", cache=cache)
    assert not list((tmp_path / "sealed").iterdir())


def test_an_archive_replaced_by_another_of_the_same_size_and_date_is_unpacked_again(tmp_path: Path) -> None:
    archive = tmp_path / "set.tar"
    for brightness in (10, 200):
        folder = tmp_path / str(brightness)
        for name in ("a", "b"):
            (folder / name).mkdir(parents=True)
            for i in range(5):  # 10 to 19, 200 to 209
                grey = brightness + i + 5 * (name == "b")
                (folder / name / f"{i}.pgm").write_bytes(b"P5 2 2 255\n" + bytes([grey] * 4))
        with tarfile.open(archive, "w") as tape:
            tape.add(folder, arcname=".", filter=_undated)
        os.utime(archive, ns=(10**18, 10**18))
        (image, *_) = sorted(unpacked(archive).rglob("*.pgm"))
        assert read_image(image, channels=1).getpixel((0, 0)) == brightness


def _undated(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime = 0
    return member


@pytest.mark.parametrize("kind", ["zip", "tgz"])
def test_a_zip_bomb_is_rejected_unless_the_limit_allows_it(tmp_path: Path, kind: str) -> None:
    archive, size = tmp_path / f"bomb.{kind}", archives.MIN_BYTES + 1
    if kind == "zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("a/1.bmp", bytes(size))
    else:
        with tarfile.open(archive, "w:gz") as tape:
            info = tarfile.TarInfo("a/1.bmp")
            info.size = size
            tape.addfile(info, io.BytesIO(bytes(size)))
    with pytest.raises(ValueError, match=r"unpacks to more than 0\.0625 GiB.*--set data\.unpack_limit=GIB"):
        load_data(archive)
    assert [item.name for item in tmp_path.iterdir()] == [archive.name]
    assert (unpacked(archive, limit=2 * size) / "a/1.bmp").stat().st_size == size


def test_empty_files_count_towards_the_limit(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(archives, "MIN_BYTES", 10_000)
    monkeypatch.setattr(archives, "MAX_RATIO", 1)
    archive = tmp_path / "many.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for i in range(100):
            packed.writestr(f"{i}.png", b"")  # 100 files in 11 kB
    with pytest.raises(ValueError, match="unpacks to more than"):
        unpacked(archive)
