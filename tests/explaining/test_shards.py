"""Shards: what is read of them, what is written of them, and that every image is explained once whatever happens."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset
from hypothesis import given
from hypothesis import strategies as st

from tests.explaining import made
from tests.explaining.shard_files import (
    encoded,
    explained_files,
    keys_of,
    started,
    tar_shards,
    write_parquet,
    write_tar,
)
from tests.full_disk import full_disk
from vitshap.cli import app
from vitshap.explaining import BatchExplainer, Explained, Failed, explain_photos
from vitshap.explaining.shards import Job, Shard, UnreadableShard, explain_shard, find_shards, read_shard
from vitshap.explaining.shards.command import part
from vitshap.files import locked

Run: TypeAlias = Callable[..., "Done"]


class Done(NamedTuple):
    """How a call ended."""

    code: int
    stdout: str
    stderr: str


@pytest.fixture
def run(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """``vitshap explain`` in a folder of its own, with the small bundle unless another is named."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "10000")

    def call(*arguments: object) -> Done:
        given = [*map(str, arguments)]
        given += [] if "--bundle" in given else ["--bundle", str(bundle)]
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            app(["explain", *given])
        assert isinstance(end.value.code, int)
        return Done(end.value.code, *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def explainer(bundle: Path) -> BatchExplainer:
    return BatchExplainer(str(bundle), target="top-2")


def _names(path: Path, **options: Any) -> list[str]:
    return [str(one.path if isinstance(one, Failed) else one) for one in read_shard(Shard(str(path)), **options)]


def test_items_are_those_of_webdataset(tmp_path: Path) -> None:
    items = [
        {"__key__": "a/b.c/0001", "json": {"a": 1}, "png": encoded(0)},
        {"__key__": "a/0002", "seg.png": encoded(9), "jpg": encoded(1, "jpeg"), "cls": 3},
        {"__key__": "0003", "txt": "no image"},
        {"__key__": "0004", "JPG": encoded(2, "jpeg")},
    ]
    path = write_tar(tmp_path / "x.tar", items)
    theirs = list(webdataset.WebDataset(str(path), shardshuffle=False))
    found = list(read_shard(Shard(str(path))))
    assert [str(one.path if isinstance(one, Failed) else one) for one in found] == [one["__key__"] for one in theirs]
    assert [getattr(one, "content", None) for one in found] == [
        encoded(0),
        encoded(1, "jpeg"),
        None,
        encoded(2, "jpeg"),
    ]
    assert isinstance(found[2], Failed)
    assert found[2].reason == "it has no image, only .txt"
    assert [getattr(one, "content", None) for one in read_shard(Shard(str(path)), image="seg.png")][1] == encoded(9)


def test_parquet_of_any_writer(tmp_path: Path) -> None:
    import datasets

    images = [encoded(seed) for seed in range(12)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    stored = [{"bytes": image, "path": f"{i}.png"} for i, image in enumerate(images)]
    hugging = tmp_path / "hub.parquet"
    datasets.Dataset.from_dict({"image": stored, "label": [0] * 12}, features=features).to_parquet(hugging)
    assert [one.content for one in read_shard(Shard(str(hugging)))] == images  # type: ignore[union-attr]
    assert _names(hugging) == [f"{i}.png" for i in range(12)]
    plain = write_parquet(tmp_path / "plain.parquet", jpg=images, label=[1] * 12)
    assert _names(plain) == [str(i) for i in range(12)], "the number of the row where there is no name"
    assert _names(plain, id="label") == ["1"] * 12
    keyed = write_parquet(tmp_path / "keyed.parquet", id=[*range(12)], photo=[*images[:11], None])
    assert _names(keyed) == [str(i) for i in range(12)]
    assert isinstance(list(read_shard(Shard(str(keyed))))[-1], Failed)
    two = write_parquet(tmp_path / "two.parquet", first=images, second=images)
    with pytest.raises(UnreadableShard, match=r"several columns may hold images \(first, second\).*--image-column"):
        _names(two)
    assert len(_names(two, image="second")) == 12
    with pytest.raises(UnreadableShard, match="no column 'third', only first, second"):
        _names(two, image="third")
    with pytest.raises(UnreadableShard, match="no column holds images, of label"):
        _names(write_parquet(tmp_path / "none.parquet", label=[1]))


def test_the_file_of_a_shard_has_the_values_of_the_stream(explainer: BatchExplainer, tmp_path: Path) -> None:
    [path] = tar_shards(tmp_path / "in", 1, 20)
    result = explain_shard(Job(explainer, str(tmp_path)), Shard(str(path)))
    assert (result.error, result.images, result.failed) == (None, 20, 0)
    rows = pq.read_table(tmp_path / "train-0000.parquet").to_pylist()
    photos = made.photos(tmp_path / "photos", 12)
    entries = list(explain_photos([photos[i % 12] for i in range(20)], explainer.source, target="top-2", batch=7))
    assert len(rows) == 40
    for number, row in enumerate(rows):
        entry = entries[number // 2]
        assert isinstance(entry, Explained)
        assert row["file"] == f"{number // 2:06}"
        assert row["class"] == entry.classes[number % 2]
        assert row["error"] is row["stderr"] is None
        np.testing.assert_allclose(row["values"], entry.explanation.values[0, :, number % 2], atol=1e-6)
        np.testing.assert_allclose(row["box"], entry.box)


def test_the_schema_is_that_of_a_parquet_file_of_photos(run: Run, tmp_path: Path) -> None:
    tar_shards(tmp_path / "in", 1, 2)
    made.photos(tmp_path / "photos", 2)
    shared = ("--top", 2)
    run("photos", *shared, "--parquet", "photos.parquet", "--no-heatmaps", "--no-curves")
    done = run("in/*.tar", *shared, "--out", "out")
    assert done.code == 0, done.stderr
    one, other = pq.read_table(tmp_path / "photos.parquet"), pq.read_table(tmp_path / "out" / "train-0000.parquet")
    assert one.schema.equals(other.schema)
    for name in ("class", "name", "unit", "method", "grid", "warnings"):
        assert one.column(name).to_pylist() == other.column(name).to_pylist()


@given(count=st.integers(0, 40), parts=st.integers(1, 12))
def test_parts_are_all_shards_once(count: int, parts: int) -> None:
    shards = [Shard(f"{i:03}.tar") for i in range(count)]
    shares = [part(shards, f"{i}/{parts}") for i in range(parts)]
    assert sorted(one.path for share in shares for one in share) == [one.path for one in shards]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("which", ["2/2", "1", "a/b", "-1/2", "0/0", "1/2/3", ""])
def test_wrong_parts(which: str) -> None:
    with pytest.raises(ValueError, match="--shard is i/N with i from 0 to N - 1"):
        part([], which)


def test_finished_shards_are_skipped_and_new_ones_explained(run: Run, tmp_path: Path) -> None:
    paths = tar_shards(tmp_path / "in", 3, 4)
    call = ("in", "--shard", "0/1", "--out", "out")
    paths[2].rename(tmp_path / "later.tar")
    done = run(*call)
    assert (done.code, done.stdout.count("4 images, ")) == (0, 2), done.stderr
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.parquet")}
    (tmp_path / "later.tar").rename(paths[2])
    done = run(*call)
    assert done.code == 0
    assert "3 of 3 shards are finished (2 were before), in out; 4 images now" in done.stdout
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.parquet")}
    assert before.items() < after.items()
    assert explained_files(tmp_path / "out") == keys_of(3, 4)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["run.json", *sorted(after)]


def test_unreadable_shards_and_items_without_image(run: Run, tmp_path: Path) -> None:
    sound = tar_shards(tmp_path / "in", 4, 40)
    whole = sound[0].read_bytes()
    sound[0].write_bytes(whole[: len(whole) // 2 - 7])  # within a member
    sound[1].write_bytes(sound[1].read_bytes()[: 3 * 512 * 4])  # between blocks
    sound[2].write_bytes(b"")
    (tmp_path / "in" / "wrong.parquet").write_bytes(b"PAR1 these are words")
    items = [{"__key__": "a", "png": encoded(0)}, {"__key__": "b", "txt": "x"}, {"__key__": "c", "png": b"no image"}]
    write_tar(tmp_path / "in" / "items.tar", items)
    call = ("in/*.tar", "in/*.parquet", "--out", "out")
    done = run(*call)
    assert done.code == 1
    for said in ("train-0000.tar", "train-0001.tar", "train-0002.tar: the file is empty", "wrong.parquet: it cannot"):
        assert f"error: {said}" in done.stderr
    assert done.stderr.count("end is missing") == 2
    assert "items.tar: 3 images, 2 of them not explained" in done.stdout
    assert "4 of 6 shards could not be explained; the same command continues" in done.stderr
    assert {*explained_files(tmp_path / "out")} == {"train-0003", "items"}
    rows = pq.read_table(tmp_path / "out" / "items.parquet").to_pylist()
    assert [(row["file"], row["error"]) for row in rows if row["error"]] == [
        ("b", "it has no image, only .txt"),
        ("c", "it is not an image, or of a kind that Pillow cannot read"),
    ]
    assert all(rows[-1][name] is None for name in rows[-1] if name not in ("file", "error"))
    sound[0].write_bytes(whole)
    done = run(*call)
    assert "train-0000.tar: 40 images, " in done.stdout
    assert "(2 were before)" in done.stdout


def test_names_that_are_no_text(run: Run, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, content in (
            (b"\xe9t\xe9.png", encoded(0)),
            (b"\xff.txt", b"x"),
            ("\N{SNOWMAN}.png".encode(), encoded(1)),
        ):
            member = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    write_parquet(tmp_path / "b.parquet", image=[encoded(0), None], id=[b"0001", b"\xff"])
    done = run("a.tar", "b.parquet", "--out", "out")
    assert done.code == 1, done.stderr
    assert explained_files(tmp_path / "out") == {
        "a": ["\\udce9t\\udce9", "\\udcff", "\N{SNOWMAN}"],
        "b": ["0001", "\\xff"],
    }


def test_a_column_that_is_there_twice(run: Run, tmp_path: Path) -> None:
    twice = pa.table({"image": [encoded(0)]}).append_column("image", pa.array([encoded(1)]))
    pq.write_table(twice, tmp_path / "a.parquet")
    write_parquet(tmp_path / "b.parquet", image=[encoded(0)])
    done = run("a.parquet", "b.parquet", "--out", "out")
    assert done.code == 1
    assert "error: a.parquet: it has 2 columns 'image'" in done.stderr
    assert {*explained_files(tmp_path / "out")} == {"b"}


def test_two_runs_in_one_folder(run: Run, explainer: BatchExplainer, tmp_path: Path) -> None:
    paths = tar_shards(tmp_path / "in", 2, 3)
    call = ("in/*.tar", "--out", "out")
    (tmp_path / "out").mkdir()
    with locked(tmp_path / "out" / ".train-0000.parquet.lock", "held"):  # as a run that explains it
        done = run(*call)
        assert done.code == 1
        assert "another run is explaining train-0000.tar into " in done.stderr
        assert {*explained_files(tmp_path / "out")} == {"train-0001"}
    assert run(*call).code == 0
    done = run(*call, "--target", "bee")
    assert done.code == 2
    assert "holds explanations with other settings (target: ['top-5'] there, [1] here): choose another" in done.stderr
    assert len(pq.read_table(tmp_path / "out" / "train-0000.parquet")) == 15, "nothing has changed"
    other = made.bundle(tmp_path / "other", quality={"unknown_threshold": 0.9})
    done = run("in/*.tar", "--bundle", other, "--out", "out")
    assert done.code == 2
    assert "other settings (source: bundle " in done.stderr
    results: list[Any] = []
    job = Job(explainer, str(tmp_path / "together"))
    (tmp_path / "together").mkdir()
    threads = [threading.Thread(target=lambda: results.append(explain_shard(job, Shard(str(paths[0]))))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(one.images == 3 for one in results) == 1, "explained once"
    assert explained_files(tmp_path / "together")["train-0000"] == ["000000", "000001", "000002"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("in", "--shard", "3/3"), "--shard is i/N with i from 0 to N - 1"),
        (("in/*.tar", "--json", "-"), "--json is for photos"),
        (("in/*.tar", "--engine", "spark"), "--engine is process or ray, got 'spark'"),
        (("in/*.tar", "--engine", "ray", "--shard", "0/2"), "leave --shard away"),
        (("in/*.tar", "--workers", "2"), "--workers is for --engine ray"),
        (("in/*.tar", "--method", "explainer,lrp"), "one method, not by several"),
        (("in/*.tar", "--method", "kernelshap"), "the method kernelshap needs a budget here"),
        (("in/*.tar", "--id-column", "x"), "--id-column is for Parquet shards"),
        (("absent-*.tar",), "absent-*.tar: there is no shard (.tar, .tar.gz, .tgz, .parquet)"),
        (("in/*.tar", "photo.png"), "photo.png: not a shard"),
        (("in/*.tar", "twice/train-0000.tar"), "files of one name"),
        (("in/*.tar", "--out", "photo.png"), "it must be a folder"),
        (("in/*.tar", "--out", "foreign"), "is not of a run over shards"),
        (("foreign/mine.parquet", "--out", "foreign"), "would be replaced by its explanations"),
        (("in/*.tar", "--target", "zebra"), "zebra"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(arguments: tuple[str, ...], said: str, run: Run, tmp_path: Path) -> None:
    tar_shards(tmp_path / "in", 1, 2)
    tar_shards(tmp_path / "twice", 1, 2)
    made.photos(tmp_path, 1)[0].rename(tmp_path / "photo.png")
    write_parquet(tmp_path / "foreign" / "mine.parquet", image=[encoded(0)])
    done = run(*arguments)
    assert done.code == 2
    assert said in done.stderr
    assert done.stderr.count("error:") == 1
    assert [path.name for path in (tmp_path / "foreign").iterdir()] == ["mine.parquet"]


def test_a_full_disk_keeps_finished_shards(explainer: BatchExplainer, tmp_path: Path) -> None:
    first, second = tar_shards(tmp_path / "in", 2, 300)
    job = Job(explainer, str(tmp_path / "out"))
    (tmp_path / "out").mkdir()
    assert explain_shard(job, Shard(str(first))).error is None
    before = (tmp_path / "out" / "train-0000.parquet").read_bytes()
    with full_disk(2000):
        result = explain_shard(job, Shard(str(second)))
    assert result.fatal
    assert result.error is not None
    assert "train-0001.parquet could not be written: " in result.error
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["train-0000.parquet"]
    assert (tmp_path / "out" / "train-0000.parquet").read_bytes() == before
    assert explain_shard(job, Shard(str(second))).images == 300


def _killed_in_turn(folder: Path, bundle: Path, processes: int) -> None:
    """Kill every process in the midst of its work, one after another, each when another shard has been finished."""
    shared = (folder / "in", "--bundle", bundle, "--out", folder / "out", "--batch", 4)
    running = [started(*shared, "--shard", f"{i}/{processes}") for i in range(processes)]
    for process in running:
        assert process.stdout is not None
        assert any("images/s" in line for line in iter(process.stdout.readline, "")), "one shard is finished"
        time.sleep(0.2)  # the next one has begun
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL
        process.stdout.close()


@pytest.mark.parametrize(
    ("processes", "shards", "images"), [(1, 4, 150), pytest.param(3, 20, 250, marks=pytest.mark.long)]
)
def test_killed_processes_leave_nothing_missing_and_nothing_double(
    run: Run, bundle: Path, tmp_path: Path, processes: int, shards: int, images: int
) -> None:
    paths = tar_shards(tmp_path / "in", shards, images)
    _killed_in_turn(tmp_path, bundle, processes)
    assert processes <= len(list((tmp_path / "out").glob("*.parquet"))) < shards
    for i in range(processes):
        done = run("in/*.tar", "--out", "out", "--batch", 4, "--shard", f"{i}/{processes}")
        assert done.code == 0, done.stderr
        assert " were before)" in done.stdout
    assert explained_files(tmp_path / "out") == keys_of(shards, images)
    kept = {path.name for path in (tmp_path / "out").iterdir()}
    assert kept == {"run.json", *(f"train-{shard:04}.parquet" for shard in range(shards))}
    (tmp_path / "whole").mkdir()
    top = BatchExplainer(str(bundle), target="top-5", batch=4)
    explain_shard(Job(top, str(tmp_path / "whole")), Shard(str(paths[1])))
    whole, resumed = (pq.read_table(tmp_path / name / "train-0001.parquet") for name in ("whole", "out"))
    assert whole.schema.equals(resumed.schema)
    assert whole.column("class").equals(resumed.column("class"))
    np.testing.assert_allclose(*(np.stack(one.column("values").to_pylist()) for one in (whole, resumed)), atol=1e-6)


def _resident(process: subprocess.Popen[str]) -> int:
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory of another process is read from /proc")
def test_memory_is_flat(bundle: Path, tmp_path: Path) -> None:
    tar_shards(tmp_path / "in", 40, 250)
    process = started(tmp_path / "in", "--shard", "0/1", "--bundle", bundle, "--out", tmp_path / "out")
    assert process.stdout is not None
    memory = [_resident(process) for line in process.stdout if "images/s" in line and process.poll() is None]
    assert process.wait(60) == 0
    early, late = max(memory[8:16]), max(memory[24:39])
    print(f"\n10,000 images: {early >> 20} MiB, then {late >> 20} MiB")
    assert late - early < 12 << 20


def test_find_shards(tmp_path: Path) -> None:
    tar_shards(tmp_path, 2, 1)
    write_parquet(tmp_path / "b.parquet", image=[encoded(0)])
    (tmp_path / ".hidden.tar").write_bytes(b"")
    (tmp_path / "words.txt").write_text("")
    names = [Path(shard.path).name for shard in find_shards([str(tmp_path), str(tmp_path / "*.tar")])]
    assert names == ["b.parquet", "train-0000.tar", "train-0001.tar"]


def test_explanations_are_not_taken_for_shards(run: Run, tmp_path: Path) -> None:
    write_parquet(tmp_path / "data" / "a.parquet", image=[encoded(0)])
    for _ in range(2):
        done = run("data/**/*.parquet", "--out", "data/explained")
        assert done.code == 0, done.stderr
        assert "1 of 1 shards are finished" in done.stdout
