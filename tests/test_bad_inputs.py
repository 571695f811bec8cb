"""Hundreds of bad inputs to the real command: no traceback, no hang, one line with the reason, nothing lost.

Each case runs in a forked process with a time limit (``tests/forked.py``); files are made by ``tests/hostile.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import hostile
from tests.explaining import made
from tests.forked import Command, Done

LIMIT = 25.0
"""Time limit of a case in seconds; the slowest takes a few."""
MEMORY = 2000
"""Memory limit of a case in megabytes; imported libraries take 500 of them."""
NET = "model: {name: vit, image_size: 8, patch_size: 4, hidden_size: 16, layers: 1, heads: 2}\n"
LOOP = "loop: {epochs: 1, batch_size: 8}"
REST = f"surrogate: {{{LOOP}}}\nexplainer: {{{LOOP}, values: {{views: 1, coalitions: 4}}}}\n"
CLASSIFIER = f"classifier: {{{LOOP}}}\n"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid bundle, a valid photo and class folders, which no case changes."""
    place = tmp_path_factory.mktemp("shared")
    made.bundle(place / "bundle")
    made.picture(5).save(place / "good.png")
    hostile.tree(place / "images", {"cats": 20, "dogs": 20})
    return place


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    home = tmp_path_factory.mktemp("user") / "home"
    home.mkdir()
    runs = Command(home)
    yield runs
    runs.close()
    assert not list(home.iterdir()), "something was left in the user's home or among temporary files"


class Case:
    """A working folder, and the command run in it."""

    def __init__(self, folder: Path, shared: Path, command: Command) -> None:
        self.folder, self.shared, self.command = folder / "work", shared, command
        self.folder.mkdir()
        self.good = shared / "good.png"

    def run(self, *arguments: object) -> Done:
        """Run the command; nothing but ``results`` may change."""
        places = (self.folder.parent, self.shared)
        before = [_listing(place) for place in places]
        done = self.command(*arguments, cwd=self.folder, limit=LIMIT)
        assert done.code is not None, f"it hung; {done.stderr[-500:]}"
        for word in ("Traceback", "Exception ignored"):
            assert word not in done.stderr + done.stdout, done.stderr[-3000:]
        assert done.code in (0, 1, 2), done
        assert done.peak < MEMORY
        assert [_listing(place) for place in places] == before, (
            "something outside of the folder for results has changed"
        )
        return done

    def explain(self, *photos: object, options: tuple[object, ...] = ("--no-heatmaps",)) -> Done:
        return self.run(
            "explain", *photos, "--bundle", self.shared / "bundle", "--out", "results", "--top", 1, *options
        )

    def rejected(self, *arguments: object) -> Done:
        """Run the command; it must end with one line that gives the reason."""
        done = self.run(*arguments)
        assert done.code == 2, done
        lines = done.stderr.strip().splitlines()
        if not lines[0].startswith("Usage:"):  # the command-line parser rejects an option, in a frame
            assert lines[-1].startswith("error: "), done.stderr
            assert sum(line.startswith("error: ") for line in lines) == 1, done.stderr
            assert len(lines[-1]) < 2000, "the reason is too long"
            assert len(lines) <= 6, "only a few warnings may come before it"
        return done


@pytest.fixture
def case(tmp_path: Path, shared: Path, command: Command) -> Case:
    return Case(tmp_path, shared, command)


def _listing(root: Path) -> dict[str, tuple[int, ...]]:
    """List every file, folder and link outside of the results, without opening any."""
    found = {}
    for here, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name != "results"]
        for name in [*folders, *files]:
            stat = os.lstat(os.path.join(here, name))
            times = () if name in folders else (stat.st_mtime_ns, stat.st_size)
            found[os.path.join(here, name)] = (stat.st_mode, stat.st_ino, *times)
    return found


def _named(done: Done, name: str) -> bool:
    """Return whether a line of standard error starts with the file's name."""
    return any(line.partition(": ")[0].endswith(name) for line in done.stderr.splitlines())


def _in_short(names: Collection[str], longer: Callable[[str], bool]) -> list[Any]:
    """Return parameters; those similar to others are left to the long tests."""
    return [pytest.param(name, marks=pytest.mark.long if longer(name) else ()) for name in names]


def _variants(names: Collection[str]) -> list[Any]:
    """Return parameters; of those with the same first words all but the first are left to the long tests."""
    seen: set[str] = set()
    first = {name for name in names if (words := name.rpartition(" ")[0]) not in seen and not seen.add(words)}
    return _in_short(names, lambda name: name not in first)


# Images: all in one run, and in the long tests each in a run of its own


def _all_and_each(names: Collection[str]) -> list[Any]:
    """All names together, and each of them alone in the long tests."""
    return [
        pytest.param(list(names), id="all"),
        *(pytest.param([name], marks=pytest.mark.long) for name in names),
    ]


def _write(case: Case, contents: dict[str, bytes], names: list[str]) -> None:
    for name in names:
        (case.folder / name).write_bytes(contents[name])


@pytest.mark.parametrize("names", _all_and_each(hostile.UNREADABLE))
def test_files_that_are_not_images_do_not_stop_the_others(case: Case, names: list[str]) -> None:
    _write(case, hostile.UNREADABLE, names)
    done = case.explain(*names, case.good)
    assert done.code == 1, done
    assert not [name for name in names if not _named(done, name)], done.stderr
    assert done.stdout.count("predicted:") == 1
    assert (case.folder / "results" / "report.html").is_file()


@pytest.mark.parametrize("names", _all_and_each(hostile.READABLE))
def test_unusual_images_are_explained(case: Case, names: list[str]) -> None:
    _write(case, hostile.READABLE, names)
    done = case.explain(*names, case.good)
    assert done.code == 0, done
    assert done.stdout.count("predicted:") == len(names) + 1


@pytest.mark.parametrize("names", _all_and_each(hostile.EITHER))
def test_damaged_images_do_not_stop_the_others(case: Case, names: list[str]) -> None:
    _write(case, hostile.EITHER, names)
    done = case.explain(*names, case.good)
    failed = sum(_named(done, name) for name in names)
    assert done.code == bool(failed), done
    assert done.stdout.count("predicted:") == len(names) + 1 - failed


@pytest.mark.parametrize("within", [False, True], ids=["named", "in-a-folder"])
@pytest.mark.parametrize(
    "names", _all_and_each([name for name in hostile.NO_FILES if name != "forbidden.png" or os.geteuid() != 0])
)
def test_what_is_not_a_readable_file_does_not_stop_the_others(case: Case, names: list[str], within: bool) -> None:
    folder = case.folder / "photos"
    folder.mkdir()
    for name in names:
        hostile.NO_FILES[name](folder / name)
    (folder / "good.png").write_bytes(case.good.read_bytes())
    named = [f"photos/{name}" for name in names]
    done = case.explain(*(["photos"] if within else [*named, "photos/good.png"]))
    reported = [name for name in names if _named(done, name)]
    # In a folder, what is not a regular file may be left out without a message.
    assert within or reported == names, done.stderr
    assert done.code == bool(reported), done
    assert done.stdout.count("predicted:") == 1


@pytest.mark.parametrize("names", _all_and_each(hostile.NAMES))
def test_a_photo_may_have_any_name(case: Case, names: list[str]) -> None:
    for name in names:
        (case.folder / name).write_bytes(case.good.read_bytes())
    done = case.explain(*names, options=("--json", "results/values.jsonl", "--heatmaps"))
    assert done.code == 0, done
    assert done.stdout.count("predicted:") == len(names)
    assert "\x1b" not in done.stdout, "a name must not control the terminal"
    assert "<img src=x" not in (case.folder / "results" / "report.html").read_text(errors="surrogateescape")


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/tty", "/proc/self/mem", "/dev/stdin"])
def test_devices_are_not_photos(case: Case, device: str) -> None:
    done = case.rejected("explain", device, "--bundle", case.shared / "bundle", "--out", "results")
    assert device in done.stderr


# Folders and archives


def _empty(folder: Path) -> str:
    (folder / "images").mkdir()
    return "images"


def _only(classes: dict[str, int]) -> Callable[[Path], str]:
    return lambda folder: str(hostile.tree(folder / "images", classes))


def _unlabelled(folder: Path) -> str:
    made.photos(folder / "images", 10)
    return "images"


def _of(content: bytes) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        hostile.tree(folder / "images", {"cats": 6, "dogs": 6})
        for i, path in enumerate((folder / "images").rglob("*.png")):
            path.write_bytes(content + bytes([i]))
        return "images"

    return make


def _all_fifos(folder: Path) -> str:
    for name in ("cats", "dogs"):
        (folder / "images" / name).mkdir(parents=True)
        for i in range(6):
            os.mkfifo(folder / "images" / name / f"{i}.png")
    return "images"


def _loop(folder: Path) -> str:
    (folder / "images" / "cats").mkdir(parents=True)
    (folder / "images" / "cats" / "again").symlink_to("..")
    return "images"


def _file(name: str, content: bytes) -> Callable[[Path], str]:
    return lambda folder: str((folder / name).write_bytes(content) and folder / name)


PNG = hostile.encoded("png")
FOLDERS: dict[str, Callable[[Path], str]] = {
    "nowhere": lambda folder: "nowhere",
    "empty": _empty,
    "one-class": _only({"cats": 12}),
    "an-image-a-class": _only({"cats": 1, "dogs": 1}),
    "empty-classes": _only({"cats": 0, "dogs": 0}),
    "an-empty-class": _only({"cats": 30, "dogs": 0}),
    "no-classes": _unlabelled,
    "all-text": _of(b"words"),
    "all-bombs": _of(made.bomb()),
    "all-fifos": _all_fifos,
    "loop": _loop,
    "a-photo": _file("photo.png", PNG),
    "text.zip": _file("text.zip", b"words"),
    "text.tar.gz": _file("text.tar.gz", b"words"),
    "empty.tar": _file("empty.tar", bytes(10_240)),
    "half.zip": lambda folder: str(_halved(hostile.zipped(folder / "half.zip", *_members("a", "b")))),
    "fifo.zip": lambda folder: str(os.mkfifo(folder / "fifo.zip") or folder / "fifo.zip"),
    "upwards.zip": lambda folder: str(hostile.zipped(folder / "up.zip", *_members("../evil/a", "../evil/b"))),
    "absolute.zip": lambda folder: str(hostile.zipped(folder / "abs.zip", *_members(f"{folder}/evil/a", "b"))),
    "bomb.zip": lambda folder: str(hostile.zip_bomb(folder / "bomb.zip")),
    "links.tar.gz": lambda folder: str(hostile.tarred(folder / "l.tar.gz", ("a/1.png", b"2", "/etc/passwd"))),
    "devices.tar.gz": lambda folder: str(hostile.tarred(folder / "d.tar.gz", ("a/1.png", b"6", ""))),
    "upwards.tar.gz": lambda folder: str(hostile.tarred(folder / "u.tar.gz", ("../../evil.png", b"0", ""))),
}


def _members(*classes: str) -> list[tuple[str, bytes]]:
    return [(f"{name}/{i}.png", PNG) for name in classes for i in range(10)]


def _halved(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:500])
    return path


@pytest.mark.parametrize("name", _in_short(FOLDERS, lambda name: name == "bomb.zip"))
def test_a_folder_that_is_no_data_set_is_rejected(case: Case, name: str) -> None:
    (case.folder / "recipe.yaml").write_text(NET + CLASSIFIER + REST + "data: {cache: results/cache}\n")
    data = FOLDERS[name](case.folder)
    case.rejected("train", "recipe.yaml", "--data", data, "--out", "results/run", "--device", "cpu")
    assert not list(case.folder.parent.rglob("evil*"))


@pytest.mark.parametrize("name", ["empty", "all-text", "all-bombs", "all-fifos", "loop"])
def test_a_folder_without_photos_is_rejected(case: Case, name: str) -> None:
    done = case.explain(FOLDERS[name](case.folder))
    assert done.code == 2, done
    assert done.stderr.strip().splitlines()[-1].startswith("error: ")


def test_unreadable_images_do_not_stop_a_training(case: Case) -> None:
    images = hostile.tree(case.folder / "images", {"cats": 300, "dogs": 300})  # up to 1 % may be unreadable
    (images / "cats" / "000.png").write_bytes(made.bomb())
    (images / "cats" / "001.png").write_bytes(b"words")
    (images / "dogs" / "000.png").write_bytes(hostile.READABLE["zero-exif.jpg"])
    (images / "dogs" / "001.png").unlink()
    os.mkfifo(images / "dogs" / "001.png")
    (case.folder / "recipe.yaml").write_text(NET + CLASSIFIER + REST)
    done = case.run("train", "recipe.yaml", "--data", "images", "--out", "results/run", "--device", "cpu")
    assert done.code == 0, done
    assert (case.folder / "results" / "run" / "bundle" / "config.json").is_file()


# Stored explainers and models

SURROGATE, EXPLAINER = "surrogate.safetensors", "explainer.safetensors"
ARGUMENTS, WRAP = "surrogate.net.arguments", "surrogate.wrap"
WRONG: dict[str, list[Any]] = {
    "format": [..., "other", 1, None],
    "version": [..., 0, -1, 99, "1", 1.5, None],
    "surrogate": [..., None, [], "x", {}],
    "surrogate.net": [..., None, {}],
    "surrogate.net.library": [..., "os", "timm", 3],
    "surrogate.net.name": [..., "system", "ViTModel", "../evil", "__class__", 3],
    "surrogate.net.dtype": ["int8", "nonsense", 3],
    ARGUMENTS: [None, [], {"evil": 1}],
    f"{ARGUMENTS}.num_hidden_layers": [10**6, -1, 0, "two", 1e300, None],
    f"{ARGUMENTS}.hidden_size": [0, -32, 10**6, "wide", 33],
    f"{ARGUMENTS}.num_attention_heads": [0, 5, -4],
    f"{ARGUMENTS}.intermediate_size": [10**9, -1],
    f"{ARGUMENTS}.image_size": [10**6, 0, "large", [32]],
    f"{ARGUMENTS}.patch_size": [0, -8, 10**6, 7],
    f"{ARGUMENTS}.hidden_act": ["evil", 3],
    f"{ARGUMENTS}.id2label": [{}, {"0": "a"}, [], {str(i): "x" for i in range(6)}],
    WRAP: [..., None, {}],
    f"{WRAP}.class_names": [["one"], ["x"] * 6, [1, 2, 3, 4, 5], "abcde", [["a"]] * 5, {"a": 1}],
    f"{WRAP}.image_size": [[32], [0, 0], [-32, -32], [10**6, 10**6], "32", None],
    f"{WRAP}.players": ["evil", [], [[99]], [[0.5] * 4] * 4, {"a": 1}, [["x"] * 4] * 4],
    f"{WRAP}.output": ["evil", None, 3],
    f"{WRAP}.removal": ["evil", "random", None],
    f"{WRAP}.preprocess": [[], "x", {}, {"evil": 1}],
    f"{WRAP}.preprocess.size": [[0, 0], [-1, -1], [10**6, 10**6], "x", [33, 33]],
    f"{WRAP}.preprocess.resize": [[0, 0], [-1, -1], "x"],
    f"{WRAP}.preprocess.mean": [[0.5], "x", [None] * 3],
    f"{WRAP}.preprocess.std": [[0, 0, 0], [float("nan")] * 3],
    f"{WRAP}.preprocess.interpolation": ["evil", 3],
    "explainer": [..., None, {}],
    "explainer.config": [..., None, {"evil": 1}],
    "explainer.config.trunk": ["evil", 3],
    "explainer.config.output_scale": ["x", float("nan"), 1e300, None],
    "explainer.left_out": [..., "x", 3, ["../evil"]],
    "classifier": [..., None, "x"],
    "quality": ["x", [1]],
    "quality.unknown_threshold": ["high", float("nan"), [1], -5],
    "sha256": [..., None, "x", {}],
}
DAMAGED: dict[str, Callable[[Path], object]] = {
    "no-config": lambda b: (b / "config.json").unlink(),
    "no-surrogate": lambda b: (b / SURROGATE).unlink(),
    "no-explainer": lambda b: (b / EXPLAINER).unlink(),
    "empty-config": lambda b: hostile.replaced(b, "config.json", b""),
    "list-config": lambda b: hostile.replaced(b, "config.json", b"[1]"),
    "text-config": lambda b: hostile.replaced(b, "config.json", b"words"),
    "binary-config": lambda b: hostile.replaced(b, "config.json", b"\xff\xfe\x00{"),
    "nested-config": lambda b: hostile.replaced(b, "config.json", hostile.nested("[", "]").encode()),
    "nested-keys": lambda b: hostile.replaced(b, "config.json", hostile.nested('{"a":').encode()),
    "long-number": lambda b: hostile.replaced(b, "config.json", b'{"version": ' + b"9" * 100_000 + b"}"),
    "fifo-config": lambda b: hostile.replaced(b, "config.json", os.mkfifo),
    "folder-config": lambda b: hostile.replaced(b, "config.json", Path.mkdir),
    "endless-config": lambda b: hostile.replaced(b, "config.json", lambda path: path.symlink_to("/dev/zero")),
    "fifo-weights": lambda b: hostile.replaced(b, SURROGATE, os.mkfifo),
    "fifo-explainer": lambda b: hostile.replaced(b, EXPLAINER, os.mkfifo),
    "folder-weights": lambda b: hostile.replaced(b, SURROGATE, Path.mkdir),
    "loop-weights": lambda b: hostile.replaced(b, SURROGATE, lambda path: path.symlink_to(path.name)),
    "endless-weights": lambda b: hostile.replaced(b, SURROGATE, lambda path: path.symlink_to("/dev/zero")),
    "empty-weights": lambda b: hostile.replaced(b, SURROGATE, b""),
    "text-weights": lambda b: hostile.replaced(b, SURROGATE, b"words that are no weights"),
    "pickled-weights": lambda b: hostile.replaced(b, SURROGATE, b"\x80\x04cos\nsystem\n(S'touch evil'\ntR."),
    "long-header": lambda b: hostile.replaced(b, SURROGATE, (2**63 - 1).to_bytes(8, "little") + b"{}"),
    "nested-header": lambda b: hostile.replaced(b, SURROGATE, (2 * 10**5).to_bytes(8, "little") + b"[" * 2 * 10**5),
    "half-weights": lambda b: hostile.replaced(b, SURROGATE, (b / SURROGATE).read_bytes()[:5000]),
    "other-weights": lambda b: (b / SURROGATE).write_bytes((b / EXPLAINER).read_bytes()),
    "fewer-weights": lambda b: hostile.reweighted(b, SURROGATE, lambda t: t.popitem()),
    "more-weights": lambda b: hostile.reweighted(b, SURROGATE, lambda t: t.update(evil=torch.zeros(1))),
    "wrong-shape": lambda b: hostile.reweighted(b, SURROGATE, lambda t: t.update({"classifier.bias": torch.zeros(7)})),
    "whole-numbers": lambda b: hostile.reweighted(b, SURROGATE, lambda t: t.update({k: v.int() for k, v in t.items()})),
    "nan-surrogate": lambda b: hostile.reweighted(b, SURROGATE, lambda t: hostile.fill(t, float("nan"))),
    "inf-surrogate": lambda b: hostile.reweighted(b, SURROGATE, lambda t: hostile.fill(t, float("inf"))),
    "nan-explainer": lambda b: hostile.reweighted(b, EXPLAINER, lambda t: hostile.fill(t, float("nan"))),
}


def _bundle(case: Case) -> Path:
    return hostile.copy(case.shared / "bundle", case.folder)


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_bundle_is_rejected(case: Case, name: str) -> None:
    DAMAGED[name](_bundle(case))
    case.rejected("explain", case.good, "--bundle", "bundle", "--out", "results", "--no-heatmaps")


def _each() -> Iterator[Any]:
    """Yield wrong values of every key, all but the first for the long tests."""
    for key, values in WRONG.items():
        for i in range(len(values)):
            yield pytest.param(key, i, marks=pytest.mark.long if i else (), id=f"{key}={values[i]!r:.40}")


@pytest.mark.parametrize(("key", "number"), list(_each()))
def test_a_wrong_configuration_is_rejected(case: Case, key: str, number: int) -> None:
    hostile.changed(_bundle(case), key, WRONG[key][number])
    case.rejected("explain", case.good, "--bundle", "bundle", "--out", "results", "--no-heatmaps")


CLASS_NAMES = ["../../evil", "/tmp/evil", "a\0b", "a" * 5000, "<script>alert(1)</script>"]


def test_class_names_are_not_paths_or_markup(case: Case) -> None:
    hostile.changed(_bundle(case), f"{WRAP}.class_names", CLASS_NAMES)
    done = case.run("explain", case.good, "--bundle", "bundle", "--out", "results", "--heatmaps")
    assert done.code == 0, done
    assert "<script>alert" not in (case.folder / "results" / "report.html").read_text()


def _net(folder: Path) -> Path:
    """Save a transformers model, as for ``--model``."""
    torch.manual_seed(0)
    net = made.model().net
    net.save_pretrained(folder / "net")
    (folder / "net" / "preprocessor_config.json").write_text('{"size": {"height": 32, "width": 32}}')
    return folder / "net"


REMOTE = {
    "auto_map": {"AutoConfig": "code.Config", "AutoModelForImageClassification": "code.Net"},
    "model_type": "evil",
}
NETS: dict[str, Callable[[Path], object]] = {
    "no-config": lambda net: (net / "config.json").unlink(),
    "no-weights": lambda net: (net / "model.safetensors").unlink(),
    "text-config": lambda net: (net / "config.json").write_text("words"),
    "list-config": lambda net: (net / "config.json").write_text("[]"),
    "nested-config": lambda net: (net / "config.json").write_text(hostile.nested("[", "]")),
    "unknown-type": lambda net: hostile.changed(net, "model_type", "evil"),
    "language": lambda net: hostile.changed(net, "model_type", "bert"),
    "code": lambda net: [hostile.changed(net, key, value) for key, value in REMOTE.items()],
    "many-layers": lambda net: hostile.changed(net, "num_hidden_layers", 10**6),
    "no-layers": lambda net: hostile.changed(net, "num_hidden_layers", "two"),
    "negative": lambda net: hostile.changed(net, "hidden_size", -32),
    "wide": lambda net: hostile.changed(net, "hidden_size", 10**6),
    "zero-patches": lambda net: hostile.changed(net, "patch_size", 0),
    "half-weights": lambda net: _halved(net / "model.safetensors"),
    "text-weights": lambda net: (net / "model.safetensors").write_bytes(b"words"),
    "fifo-weights": lambda net: hostile.replaced(net, "model.safetensors", os.mkfifo),
    "fifo-config": lambda net: hostile.replaced(net, "config.json", os.mkfifo),
    "pickle": lambda net: (net / "model.safetensors").rename(net / "pytorch_model.bin"),
    "negative-size": lambda net: (net / "preprocessor_config.json").write_text('{"size": {"height": -1, "width": 0}}'),
    "nested-size": lambda net: (net / "preprocessor_config.json").write_text(hostile.nested("[")),
}


@pytest.mark.parametrize("name", NETS)
def test_a_damaged_model_is_rejected(case: Case, name: str) -> None:
    net = _net(case.folder)
    (net / "code.py").write_text("open('evil', 'w').close()")
    NETS[name](net)
    case.rejected("explain", case.good, "--model", "./net", "--budget", 64, "--out", "results", "--no-heatmaps")


# Recipes and options

HEAD = NET + CLASSIFIER + REST
LAUGHS = "a0: &a0 [x, x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 40))
RECIPES: dict[str, str | bytes] = {
    "a list": "[1, 2]",
    "words": "words",
    "a number": "5",
    "binary": b"\xff\xfe\x00\x01",
    "zeros": bytes(100),
    "a tab": "model:\n\tname: vit\n",
    "two documents": HEAD + "---\n" + HEAD,
    "open bracket": "model: {name: vit",
    "nested lists": "description: " + hostile.nested("[", "]"),
    "nested groups": "description: " + hostile.nested("{a: ", "}"),
    "nested open": hostile.nested("["),
    "nested lines": "\n".join(" " * i + "a:" for i in range(2000)),
    "anchors": LAUGHS,
    "anchors in place": LAUGHS.replace("a39: &a39", "description: &a39"),
    "itself": "model: &a {name: *a}",
    "itself, whole": "&a {model: *a}",
    "python": "!!python/object/apply:os.system [touch evil]",
    "python name": "description: !!python/name:os.system",
    "a key twice": "model: {name: vit, name: vit}",
    "a list as key": "? [1, 2]\n: 3\n",
    "a group as key": "? {a: 1}\n: 3\n",
    "null as key": HEAD + "null: 3\n",
    "unknown key": HEAD + "evil: 3\n",
    "unknown inner key": HEAD + "data: {evil: 3}\n",
    "a date": HEAD + "description: 2020-01-01\n",
    "wrong group": "model: vit\n",
    "null group": "explainer: null\n",
    "a list for text": HEAD + "data: {source: [1]}\n",
    "layout": HEAD + "data: {layout: evil}\n",
    "channels": HEAD + "data: {channels: 7}\n",
    "output": "model: {name: vit, output: evil}\n",
    "crop": NET.replace("}", ", crop: 5}") + CLASSIFIER + REST,
    "nan crop": NET.replace("}", ", crop: .nan}") + CLASSIFIER + REST,
    "image size": "model: {name: vit, image_size: -8}\n",
    "patches": "model: {name: vit, image_size: 8, patch_size: 3}\n",
    "patch too large": "model: {name: vit, image_size: 8, patch_size: 16}\n",
    "heads": "model: {name: vit, image_size: 8, patch_size: 4, hidden_size: 16, heads: 3}\n",
    "wide": "model: {name: vit, image_size: 8, patch_size: 4, hidden_size: 100000000, layers: 1, heads: 1}\n",
    "many layers": "model: {name: vit, image_size: 8, patch_size: 4, hidden_size: 16, layers: 100000000, heads: 1}\n",
    "large images": "model: {name: vit, image_size: 1000000, patch_size: 1, hidden_size: 16, layers: 1, heads: 1}\n",
    "head rows": "model: {name: vit, head_rows: [-1, x]}\n",
    "unknown size": "model: {name: vit, size: gigantic}\n",
    "masked nobody": NET + "masked: true\nclassifier: null\n",
    **{f"epochs {value}": HEAD.replace("epochs: 1", f"epochs: {value}") for value in ("0", "-1", "1.5", "ten", "true")},
    **{f"batch {value}": HEAD.replace("size: 8}", f"size: {value}}}") for value in ("0", "-8", "x", "[8]", "null")},
    **{
        f"learning rate {value}": HEAD.replace("epochs: 1", f"epochs: 1, learning_rate: {value}")
        for value in ("0", "-1", ".nan", ".inf", "fast", "1e400")
    },
    **{
        f"crop scale {value}": NET + f"classifier: {{{LOOP}, augmentation: {{crop_scale: {value}}}}}\n" + REST
        for value in ("[1, 0.2]", "[0, 2]", "[1]", "[.nan, 1]", "x", "[-1, 1]")
    },
    "paste": NET + f"classifier: {{{LOOP}, augmentation: {{paste: 7}}}}\n" + REST,
    **{f"views {value}": HEAD.replace("views: 1", f"views: {value}") for value in ("0", "-1", "many")},
    **{f"coalitions {value}": HEAD.replace("coalitions: 4", f"coalitions: {value}") for value in ("0", "-4")},
    "procedure": NET + CLASSIFIER + f"explainer: {{{LOOP}, procedure: evil}}\n",
}


@pytest.mark.parametrize("name", _variants(RECIPES))
def test_an_invalid_recipe_is_rejected(case: Case, name: str) -> None:
    content = RECIPES[name]
    (case.folder / "recipe.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    images = case.shared / "images"
    case.rejected("train", "recipe.yaml", "--data", images, "--out", "results/run", "--device", "cpu")


@pytest.mark.parametrize("kind", ["fifo", "folder", "endless", "loop", "missing"])
def test_a_recipe_that_is_no_regular_file_is_rejected(case: Case, kind: str) -> None:
    place = case.folder / "recipe.yaml"
    makers: dict[str, Callable[[Path], object]] = {
        "fifo": os.mkfifo,
        "folder": Path.mkdir,
        "endless": lambda path: path.symlink_to("/dev/zero"),
        "loop": lambda path: path.symlink_to(path.name),
        "missing": lambda path: None,
    }
    makers[kind](place)
    case.rejected("train", "recipe.yaml", "--data", case.shared / "images", "--out", "results/run")


EXPLAIN, TRAIN = "explain GOOD --bundle BUNDLE --out results", "train RECIPE --data IMAGES --out results/run"
OPTIONS = [
    "nonsense",
    "explain",
    "explain --bundle BUNDLE",
    "explain nowhere.png --bundle BUNDLE --out results",
    "explain *.png --bundle BUNDLE --out results",
    f"{EXPLAIN} --nonsense",
    *[f"{EXPLAIN} --budget {value}" for value in ("0", "1", "-5", "x", "1.5", "", "9" * 30)],
    *[f"{EXPLAIN} --top {value}" for value in ("0", "-1", "x")],
    *[f"{EXPLAIN} --patches {value}" for value in ("0", "-1", "x")],
    *[f"{EXPLAIN} --batch {value}" for value in ("0", "-1", "x")],
    *[f"{EXPLAIN} --device {value}" for value in ("tpu", "cuda:99", "", "meta")],
    *[f"{EXPLAIN} --method {value}" for value in ("nonsense", "", "../evil", "kernelshap --budget 2")],
    *[f"{EXPLAIN} --target {value}" for value in ("nobody", "99", "-1", "1.5", "nan", "ant --target nobody")],
    *[f"{EXPLAIN} --json {value}" for value in ("GOOD", "FOLDER", "/dev/full/x")],
    *[f"{EXPLAIN} --parquet {value}" for value in ("GOOD", "FOLDER")],
    "explain GOOD --bundle nowhere/nothing --out results",
    "explain GOOD --bundle ../../nowhere --out results",
    "explain GOOD --bundle GOOD --out results",
    "explain GOOD --bundle /dev/zero --out results",
    "explain GOOD --bundle BUNDLE --model nonsense --out results",
    "explain GOOD --bundle BUNDLE --weights GOOD --out results",
    "explain GOOD --model nonsense --out results",
    "explain GOOD --model vit --out results",
    "explain GOOD --model ./nowhere --out results",
    "explain GOOD --model deit_tiny_patch16_224 --weights GOOD --out results",
    "explain GOOD --model deit_tiny_patch16_224 --weights nowhere --out results",
    "explain GOOD --bundle BUNDLE --out GOOD",
    "explain GOOD --bundle BUNDLE --out GOOD/results",
    "explain GOOD --bundle BUNDLE --out /dev/null",
    "explain FOLDER --bundle BUNDLE --out FOLDER",
    "explain GOOD --bundle BUNDLE --out /proc/nothing",
    f"{EXPLAIN} --method kernelshap --method permutation",
    f"{EXPLAIN} --method kernelshap --budget 64 --budget 128",
    f"{EXPLAIN} --bundle BUNDLE",
    "train",
    "train nonsense",
    "train nowhere.yaml",
    "train IMAGES",
    "train RECIPE --data nowhere --out results/run",
    "train RECIPE --out results/run",
    "train RECIPE --data IMAGES --out GOOD",
    "train RECIPE --data IMAGES --out GOOD/run",
    f"{TRAIN} --nonsense",
    f"{TRAIN} --device tpu",
    f"{TRAIN} --model ./nowhere",
    *[
        f"{TRAIN} --set {value}"
        for value in ("x", "=", "evil=1", "model=1", "model.heads=x", "seed=[", "half=1", "a..b=1")
    ],
    f"{TRAIN} --data IMAGES",
    "demo --out GOOD",
    "demo --nonsense",
    "bench nonsense",
    "bench calibrate nowhere nowhere --truth results",
    "evaluate nowhere --data nowhere",
    "evaluate --data digits",
    "evaluate BUNDLE",
    "evaluate BUNDLE --data IMAGES --methods nonsense",
    "evaluate BUNDLE --data IMAGES --metrics nonsense",
    "evaluate BUNDLE --data IMAGES --classes some",
    "evaluate BUNDLE --data IMAGES --where red",
    "certify nowhere --data digits",
    "certify BUNDLE",
    "certify BUNDLE --data nowhere",
    "certify BUNDLE --data IMAGES --split ours",
    "certify BUNDLE --data IMAGES --coalitions 3",
    "certify BUNDLE --data IMAGES --corruptions nonsense",
    "certify BUNDLE --data IMAGES --warned 2",
    "reproduce nonsense",
    "reproduce",
    "reproduce all --profile gigantic",
    "reproduce table-1 --profile small",
    "reproduce --step nonsense",
    "reproduce --step nonsense/truth",
    "reproduce table-1 --data nonsense=nowhere",
    "reproduce table-1 --weights nowhere",
    "convert nowhere nowhere --data pets --out GOOD",
    "convert nowhere nowhere --data nonsense --out GOOD",
    "bench coalitions --arch gigantic",
    "bench explain --bundle nowhere",
]


@pytest.mark.parametrize("line", _variants(OPTIONS), ids=lambda line: line[:80])
def test_invalid_options_are_rejected(case: Case, line: str) -> None:
    (case.folder / "recipe.yaml").write_text(HEAD)
    (case.folder / "folder").mkdir()
    (case.folder / "folder" / "photo.png").write_bytes(case.good.read_bytes())
    shared = case.shared
    names = {"GOOD": shared / "good.png", "BUNDLE": shared / "bundle", "IMAGES": shared / "images"}
    names |= {"FOLDER": case.folder / "folder", "RECIPE": case.folder / "recipe.yaml"}
    for name, path in names.items():
        line = line.replace(name, str(path))
    case.rejected(*line.split(" "))
