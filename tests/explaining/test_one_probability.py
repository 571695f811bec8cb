"""A model whose only output is a probability: what is said of it never claims more than the probability."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification
from typer.testing import CliRunner

from tests import chromium
from tests.explaining import made
from tests.explaining.test_report import SUMMARY, explained
from vitshap.cli import app
from vitshap.explainers import Explainer
from vitshap.explaining import DataSet, Explained, ReportWriter, disagreements, html, sinks, terminal, text
from vitshap.explaining.curves import RemovalCurve
from vitshap.explaining.source import open_bundle
from vitshap.models import wrap

VALUES = torch.tensor([-0.05, 0.01, 0, 0, 0.02, 0, 0, 0, 0, 0, 0, -0.11])


def one_probability(probability: float = 0.368, values: torch.Tensor = VALUES, name: str = "photo.png") -> Explained:
    """An image of 3 x 4 patches, and the probability that it shows a sick patient."""
    base = explained(name)
    shown = replace(
        base.explanation,
        values=values[None, :, None],
        classes=torch.tensor([[0]]),
        prediction=torch.tensor([[probability]]),
        base_values=torch.tensor([[probability]]) - values.sum(),
        full_values=torch.tensor([[probability]]),
        class_names=("b_sick",),
    )
    return replace(base, explanation=shown)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An explainer of a net with one logit, which gives every photo less than a half."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    net = ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, num_labels=1, **sizes)).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        net.classifier.weight.mul_(0.2)
        net.classifier.bias.fill_(-0.5)
    model = wrap(net, preprocess=made.PREPROCESS, class_names=["b_sick"], output="sigmoid", check=False)
    explainer = Explainer(model).eval()
    with torch.no_grad():
        for parameter in explainer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return explainer.save_pretrained(tmp_path_factory.mktemp("one") / "sick")


def test_the_first_line_is_about_the_side_of_a_half() -> None:
    assert text.headline(one_probability(), "probability") == (
        "The model gives b_sick a probability of 36.8 % (below 50 %). What lowers it is mostly at the lower right: "
        "1 of 12 patches makes up half of that, \N{MINUS SIGN}11.0 percentage points."
    )
    assert text.headline(one_probability(0.5), "probability") == (
        "The model gives b_sick a probability of 50.0 % (at or above 50 %). What raises it is mostly at the left side: "
        "1 of 12 patches makes up half of that, +2.0 percentage points."
    )
    assert text.headline(one_probability(0.2, VALUES.clamp(min=0)), "probability").endswith(
        "No patch of the photo lowers it."
    )
    assert text.headline(one_probability(0.9, -VALUES.abs()), "probability").endswith(
        "No patch of the photo raises it."
    )
    for without, said in (
        (0.47, "it would be 47.0 %"),
        (0.5, "it would still be 50.0 %"),
    ):  # on the same side of a half
        outputs = torch.tensor([[0.511], [without], [0.4]])
        known = RemovalCurve("explainer", 0, [*range(12)], [0, 1, 12], outputs, outputs.flip(0), torch.zeros(3, 3))
        assert said in text.headline(replace(one_probability(0.511), curves=(known,)), "probability")
    for without, said in ((-1.3, "its output would still be"), (-1.6, "its output would be")):  # of a negative number
        outputs = torch.tensor([[-1.25], [without], [-2.0]])
        known = RemovalCurve("explainer", 0, [*range(12)], [0, 1, 12], outputs, outputs.flip(0), torch.zeros(3, 3))
        number = replace(one_probability(-1.25), outputs="output", curves=(known,))
        assert said in text.headline(number, "output")
    regression = replace(one_probability(), outputs="output")
    assert text.headline(regression, "output").startswith("The model's output is 0.368. It ")


def test_lists_hold_only_patches_that_do_what_their_heading_says() -> None:
    minus = "patches that lower the probability of b_sick most"
    plus = "patches that raise the probability of b_sick most"
    found = [(heading, [p.player for p in one]) for heading, one in text.important_patches(one_probability(), 5, 0)]
    assert found == [(minus, [11, 0]), (plus, [4, 1])]
    (first, _), (second, none) = text.important_patches(one_probability(0.7, VALUES.clamp(min=0)), 5, 0)
    assert (first, second, none) == (plus, "no patch lowers the probability of b_sick", [])
    page = html.card(one_probability(0.7, VALUES.clamp(min=0)), 1, SUMMARY, k=5)
    assert "<h3>Patches that raise the probability of b_sick most</h3>" in page
    assert "<h3>No patch lowers the probability of b_sick</h3>" in page
    assert not re.search("predicts|[Pp]rediction|support", page.partition("<noscript>")[2].partition("</noscript>")[0])


def test_the_terminal_says_with_a_list_how_to_read_it(bundle: Path) -> None:
    lines = list(terminal.entry_lines(one_probability(0.3, VALUES.clamp(min=0)), open_bundle(str(bundle)), k=5))
    first = lines.index("  no patch lowers the probability of b_sick")
    assert lines[first + 1].startswith(
        "  patches that raise the probability of b_sick most (27.0 % with no patch, 30.0 % with"
    )
    assert lines[first + 1].endswith("rows and columns counted from 1:")


def test_a_data_set_counts_the_images_at_or_above_a_half(tmp_path: Path) -> None:
    entries = [one_probability(p, name=f"{i}.png") for i, p in enumerate((0.368, 0.5, 0.2))]
    dataset = DataSet()
    for number, entry in enumerate(entries, 1):
        dataset.add(entry, number)
    found = dataset.summary()
    dataset.close()
    assert found is not None
    page = html.dataset_html(found, str)
    assert "1 of 3 images at or above 50 % b_sick." in page
    assert "predicted" not in page
    assert "their class" not in page
    for name, shown in (("first", entries), ("second", [one_probability(0.9, name=f"{i}.png") for i in range(3)])):
        with sinks.JsonLines(str(tmp_path / name)) as sink:
            for entry in shown:
                sink.add(entry)
    pairs = disagreements(tmp_path / "first", tmp_path / "second")
    assert [one.labels for one in pairs] == [
        ("below 50 % b_sick", "at or above 50 % b_sick"),
        ("below 50 % b_sick", "at or above 50 % b_sick"),
        ("at or above 50 % b_sick",) * 2,
    ]
    assert [one.correlation for one in pairs] == pytest.approx([1.0] * 3)
    before = (tmp_path / "first").read_text()
    (tmp_path / "first").write_text(re.sub(r', "at_least_half": \w+', "", before))  # by an earlier version
    assert (tmp_path / "first").read_text() != before
    assert disagreements(tmp_path / "first", tmp_path / "second") == pairs


@pytest.mark.parametrize("first_is_one", [True, False])
def test_less_than_a_half_agrees_with_the_prediction_of_another_class(first_is_one: bool, tmp_path: Path) -> None:
    """A model of one probability beside one of two classes."""
    runs: dict[str, list[Explained]] = {"one": [], "two": []}
    for probability, predicted in ((0.2, "healthy"), (0.2, "b_sick"), (0.9, "healthy"), (0.9, "b_sick")):
        name = f"{probability} {predicted}"
        runs["one"].append(one_probability(probability, name=name))
        two = explained(name, names=("healthy", "b_sick"))
        prediction = torch.tensor([[0.8, 0.2]] if predicted == "healthy" else [[0.2, 0.8]])
        loose = replace(two.explanation, prediction=prediction, additive=False, base_values=None, full_values=None)
        runs["two"].append(replace(two, explanation=loose))
    for key, entries in runs.items():
        with sinks.JsonLines(str(tmp_path / key)) as sink:
            for entry in entries:
                sink.add(entry)
    first, second = ("one", "two") if first_is_one else ("two", "one")
    found = disagreements(tmp_path / first, tmp_path / second)
    assert {one.name: one.agree for one in found} == {
        "0.2 healthy": True, "0.2 b_sick": False, "0.9 healthy": False, "0.9 b_sick": True
    }  # fmt: skip
    assert [one.agree for one in found] == [False, False, True, True], "what disagrees comes first"


def test_of_healthy_photos_the_command_claims_no_prediction(tmp_path: Path, bundle: Path) -> None:
    photos, out = made.photos(tmp_path / "photos", 3), tmp_path / "out"
    arguments = ["explain", *map(str, photos), "--bundle", str(bundle), "--out", str(out)]
    result = CliRunner().invoke(app, [*arguments, "--json", str(tmp_path / "a.jsonl")])
    assert result.exit_code == 0, result.output
    assert not re.search("predict|support", result.stdout)
    assert re.findall(r"  probability of b_sick: [\d.]+ % \((.*)\)", result.stdout) == ["below 50 %"] * 3
    lists = re.split(r"  patches that (raise|lower) the probability of b_sick most.*:\n", result.stdout)
    assert lists[1::2] == ["lower", "raise"] * 3
    for verb, lines in zip(lists[1::2], lists[2::2], strict=True):
        assert set(re.findall(r"\d\. (.)\d", lines)) == {"+" if verb == "raise" else "\N{MINUS SIGN}"}
    for line in (tmp_path / "a.jsonl").read_text().splitlines():
        (predicted,) = json.loads(line)["predicted"]
        assert set(predicted) == {"class", "name", "output", "at_least_half"}
        assert (predicted["name"], predicted["at_least_half"]) == ("b_sick", False)
        assert predicted["output"] < 0.5
    page = re.sub(r"<script>.*?</script>", "", (out / "report.html").read_text(), flags=re.DOTALL)
    assert page.count("(below 50&nbsp;%)") == 3
    assert "0 of 3 images at or above 50 % b_sick" in page
    assert not re.search("The model predicts|most often predicted|support b_sick|supports b_sick", page)


@chromium.needs_browser
@pytest.mark.parametrize(
    ("probability", "title", "signs"),
    [
        (0.368, "The 2 patches that lower the probability of b_sick most", {"\N{MINUS SIGN}"}),
        (0.7, "The 2 patches that raise the probability of b_sick most", {"+"}),
    ],
)
def test_the_report_lists_the_patches_of_that_side(
    browser: Any, tmp_path: Path, probability: float, title: str, signs: set[str]
) -> None:
    with ReportWriter(tmp_path, SUMMARY) as report:
        report.add(one_probability(probability))
    with chromium.tab(browser, report.path) as opened:
        opened.page.locator(".view").first.scroll_into_view_if_needed()
        opened.until("document.querySelector('.view')?.viewer !== undefined")
        assert opened.page.locator(".best summary").inner_text() == title
        cells = opened.page.locator(".best tbody td.n").all_text_contents()
        assert {cell[0] for cell in cells} == signs
        assert opened.complaints == []
