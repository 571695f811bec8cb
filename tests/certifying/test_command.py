"""``vitshap certify`` on digits: three verdicts, the files, and the bundle's card."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser
from typer.testing import CliRunner, Result

from tests import chromium
from tests.certifying.small import trained, untrained
from tests.evaluation.small import digits_explainer, digits_net
from vitshap.cli import app
from vitshap.explainers import bundle
from vitshap.models import wrap

FEW = ("--images", 60, "--truth-images", 12, "--drift-images", 3, "--budget", 100, "--coalitions", 8)


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["certify", *map(str, words), "--device", "cpu"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles of a trained explainer and of one with a new head, and overexposed pictures, which show no digits."""
    made = tmp_path_factory.mktemp("certify")
    trained().save_pretrained(made / "trained", quality={"accuracy": 0.5, "raw_target": 0.1})
    untrained().save_pretrained(made / "untrained")
    random = np.random.default_rng(0)
    for name in ("one", "two"):
        (made / "strange" / name).mkdir(parents=True)
        for i in range(30):
            picture = Image.fromarray(random.integers(230, 256, (8, 8), dtype=np.uint8))
            picture.save(made / "strange" / name / f"{i}.png")
    return made


@pytest.fixture(scope="module")
def certified(folder: Path) -> tuple[dict, Path]:
    """The certificate of the trained explainer."""
    options = ("--others", folder / "strange", "--corruptions", "noise", "--out", folder / "out")
    done = run(folder / "trained", "--data", "digits", *FEW, *options, "--record")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("RELIABLE. ")
    return json.loads((folder / "out" / "certificate.json").read_text(), parse_constant=pytest.fail), folder / "out"


def test_three_verdicts_by_the_rules(certified: tuple[dict, Path], folder: Path) -> None:
    good, out = certified
    assert good["verdict"]["level"] == "reliable"
    assert good["test"]["converged"]["pearson_target"]["mean"] >= 0.9
    strange = good["drift"][1]
    assert strange["name"] == "strange"
    assert strange["images"] == 60  # all of them: none was trained on
    assert strange["below_threshold"]["mean"] > 0.2
    assert strange["verdict"]["level"] == "other images"
    assert strange["accuracy"] is None  # its classes are not the model's
    done = run(folder / "untrained", "--data", "digits", *FEW, "--corruptions", "none", "--metrics", "none",
               "--truth", out / "truth", "--out", folder / "bad")  # fmt: skip
    assert done.exit_code == 0, done.output
    bad = json.loads((folder / "bad" / "certificate.json").read_text())
    assert bad["verdict"]["level"] == "not usable"
    assert bad["test"]["converged"]["pearson_target"]["mean"] < 0.5
    assert bad["drift"] == []
    assert bad["metrics"] == []
    assert not (folder / "bad" / "truth").exists()  # the same surrogate and images: nothing is computed again


def test_what_the_json_holds(certified: tuple[dict, Path]) -> None:
    found, _ = certified
    assert found["test"]["images"] == 60
    assert len(found["images"]) == 12
    assert found["validation"]["loss"]["mean"] < found["validation"]["uniform_loss"]["mean"]
    assert (
        found["bound"]["distance"]["mean"] <= found["bound"]["estimated"]["bound"] <= found["bound"]["valid"]["bound"]
    )
    for name in ("valid", "estimated"):
        assert found["bound"][name]["bound"] < found["bound"][name]["chebyshev"]
        assert found["bound"][name]["bound"] < found["bound"][name]["hoeffding"]
    assert "loose" in found["bound"]["note"]
    assert {(one["metric"], one["method"]) for one in found["metrics"]} == {
        (metric, method) for metric in ("insertion", "deletion") for method in ("explainer", "random")
    }
    assert not any("too few for converged values" in note for note in found["notes"])
    assert [rule["asks_for"] for rule in found["verdict"]["rules"]] == ["reliable", "reliable", "reliable", None]


def test_the_card_has_figures_but_no_images(certified: tuple[dict, Path], folder: Path) -> None:
    found, _ = certified
    recorded = bundle.read(folder / "trained")["quality"]
    assert recorded["accuracy"] == 0.5  # others are kept
    assert "raw_target" not in recorded  # figures of earlier versions are replaced
    assert recorded["unknown_threshold"] == found["threshold"]
    figures = recorded["certificate"]
    assert figures["verdict"] == "reliable"
    assert figures["strange: verdict"] == "other images"
    assert figures["correlation with converged values, predicted class"] == pytest.approx(
        found["test"]["converged"]["pearson_target"]["mean"], abs=1e-4
    )
    card = (folder / "trained" / "README.md").read_text()
    assert "| certificate, verdict | reliable |" in card
    for text in (card, (folder / "trained" / "config.json").read_text()):
        assert not any(one["image"] in text for one in found["images"])
        assert "data:image" not in text
    assert sorted(path.name for path in (folder / "trained").iterdir()) == [
        "README.md", "config.json", "explainer.safetensors", "surrogate.safetensors"
    ]  # fmt: skip
    bundle.load(folder / "trained")


def test_a_single_output_has_no_other_classes(tmp_path: Path) -> None:
    digits_explainer(digits_net(classes=1)).save_pretrained(tmp_path / "one")
    few = ("--images", 8, "--truth-images", 4, "--drift-images", 2, "--budget", 200, "--corruptions", "dark")
    done = run(tmp_path / "one", "--data", "digits", *few, "--out", tmp_path / "out", "--record")
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "out" / "certificate.json").read_text(), parse_constant=pytest.fail)
    assert found["test"]["converged"]["pearson_others"] is None
    assert found["test"]["below_threshold"] is None
    assert found["test"]["accuracy"] is None
    assert found["threshold"] is None
    assert found["verdict"]["rules"][0]["asks_for"] is None
    assert "unknown_threshold" not in bundle.read(tmp_path / "one")["quality"]
    assert "Values of the only class have a correlation of" in done.stdout
    assert found["test"]["converged"]["target"] == "only class"
    assert all(one["at_least_half"] == (one["output"] >= 0.5) for one in found["images"])
    page = (tmp_path / "out" / "certificate.html").read_text()
    assert "predicted" not in page[page.index("<body") :]
    assert page.count(", probability of ") == len(page.split('class="trio"')) - 1 > 0
    assert "Shapley value estimation error, only class" in page
    card = (tmp_path / "one" / "README.md").read_text()
    assert "correlation with converged values, only class" in card
    assert "predicted class" not in card


def test_a_regression_has_no_predicted_class(tmp_path: Path) -> None:
    numbers = wrap(digits_net(classes=3).net, output="identity", class_names=["age", "height", "weight"])
    digits_explainer(numbers).save_pretrained(tmp_path / "numbers")
    few = ("--images", 8, "--truth-images", 4, "--budget", 200, "--corruptions", "none", "--metrics", "none")
    (tmp_path / "data").mkdir()
    for name in ("train", "val", "test"):
        for kind in "abc":
            (tmp_path / "data" / name / kind).mkdir(parents=True)
            for i in range(4):
                random = np.random.default_rng([i, ord(kind), len(name)]).integers(0, 256, (8, 8), dtype=np.uint8)
                Image.fromarray(random).save(tmp_path / "data" / name / kind / f"{i}.png")
    done = run(tmp_path / "numbers", "--data", tmp_path / "data", *few, "--out", tmp_path / "out", "--record")
    assert done.exit_code == 0, done.output
    assert "Values of all outputs have a correlation of" in done.stdout
    written = [(tmp_path / "out" / name).read_text() for name in ("certificate.json", "certificate.html")]
    written.append((tmp_path / "numbers" / "README.md").read_text())
    for text in written:
        assert "all outputs" in text
        assert "predicted class" not in text
    assert "the explainer's unit of each output" in written[1]
    found = json.loads(written[0], parse_constant=pytest.fail)
    assert found["test"]["converged"]["target"] == "all outputs"
    assert len(found["images"][0]["outputs"]) == 3


def test_a_dry_run_computes_nothing(folder: Path, tmp_path: Path) -> None:
    done = run(
        folder / "trained", "--data", "digits", *FEW, "--corruptions", "blur", "--out", tmp_path / "o", "--dry-run"
    )
    assert done.exit_code == 0, done.output
    assert "about " in done.stderr
    assert f"test images: {60 * 9 + 12 * 100:,} evaluations" in done.stderr
    assert f"test images, blur: {60 * 9 + 3 * 100:,} evaluations" in done.stderr
    assert "insertion, deletion: " in done.stderr
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("BUNDLE",), "--data"),
        (("nowhere", "--data", "digits"), "nowhere"),
        (("imagenette-deit-tiny", "--data", "digits", "--record"), "holds no bundle"),
        (("BUNDLE", "--data", "digits", "--coalitions", "3"), "coalitions come in pairs: give an even number, got 3"),
        (("BUNDLE", "--data", "digits", "--corruptions", "nois"), 'did you mean "noise"'),
        (("BUNDLE", "--data", "digits", "--metrics", "insert"), "insert"),
        (("BUNDLE", "--data", "digits", "--warned", "2"), "between 0 and 1, got 2"),
        (("BUNDLE", "--data", "digits", "--split", "ours"), "own or authors"),
        (("BUNDLE", "--data", "digits", "--others", "nowhere"), "nowhere is neither a folder of images nor an archive"),
        (("BUNDLE", "--data", "digits", "--others", "EMPTY"), "holds no images"),
        (("BUNDLE", "--data", "STRANGE"), "the data has the classes"),
    ],
)
def test_bad_input_ends_with_one_line(
    folder: Path, tmp_path: Path, words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    places = {"BUNDLE": str(folder / "untrained"), "STRANGE": str(folder / "strange"), "EMPTY": str(tmp_path)}
    done = run(*(places.get(word, word) for word in words), "--out", tmp_path / "out")
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("error:")]) == 1


@chromium.needs_browser
@pytest.mark.parametrize("size", [chromium.DESKTOP, chromium.PHONE, chromium.NARROW])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_in_a_browser(
    browser: Browser, certified: tuple[dict, Path], size: tuple[int, int], dark: bool
) -> None:
    found, out = certified
    with chromium.tab(browser, out / "certificate.html", size=size, dark=dark) as tab:
        assert tab.complaints == []
        assert len(tab.requests) == 1
        assert tab.page.inner_text(".verdict h2").lower() == "reliable"
        assert tab.page.locator(".rules li").count() == 4
        assert tab.page.locator(".worst li").count() == 6
        assert tab.page.locator(".worst img").count() == 18
        worst = min(found["images"], key=lambda one: one["correlation"])["image"]
        assert worst in tab.page.inner_text(".worst li >> nth=0")
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= size[0]
        for script in (chromium.FAINT, chromium.UNNAMED):
            assert tab.page.evaluate(script) == []
        assert tab.page.evaluate(chromium.CUT_OFF, size[0]) == []
