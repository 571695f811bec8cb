"""Comparisons of small networks on digits, against metrics and methods called one by one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vitshap
from tests.evaluation import two_processes
from tests.evaluation.small import digits_explainer, digits_net, some_digits
from vitshap.estimators import truth
from vitshap.evaluation import Evaluation, _batch, evaluate, prepare
from vitshap.evaluation.columns import Column
from vitshap.evaluation.compare import BATCHES, MOST_VALUES
from vitshap.explanation import Explanation
from vitshap.metrics.base import METRICS, MetricResult
from vitshap.models import MaskedModel

COUNT = 10
CALLS: list[str] = []
METHODS: dict[str, Any] = {
    "rollout": "attention-rollout",
    "loo": ("leave-one-out", {"removal": "pixels"}),
    "random": "random",
}


@pytest.fixture(scope="module")
def surrogate() -> MaskedModel:
    return digits_net()


@pytest.fixture(scope="module")
def classifier() -> MaskedModel:
    return digits_net(1)


@pytest.fixture(scope="module")
def evaluation(surrogate: MaskedModel, classifier: MaskedModel) -> Evaluation:
    methods = {"ours": digits_explainer(surrogate), **METHODS}
    return evaluate(surrogate, some_digits(COUNT), methods=methods, classifier=classifier, classes="all", batch=4)


def test_some_of_the_other_classes(surrogate: MaskedModel, evaluation: Evaluation) -> None:
    """The target's values do not change; the others' are means over the sampled classes, the same for all methods."""
    made = prepare(
        surrogate, some_digits(COUNT), methods={"ours": digits_explainer(surrogate)}, classes="all", others=3, batch=4
    )
    assert made.sampled is not None
    assert made.sampled.shape == (COUNT, 3)
    assert not bool((made.sampled == made.selection.targets[:, None]).any())
    found, pixels = made.run(), some_digits(COUNT).images
    whole = vitshap.metrics.insertion(surrogate, pixels, digits_explainer(surrogate)(pixels)).values  # [B, K]
    torch.testing.assert_close(found.values("ours", "insertion", "others"), whole.gather(1, made.sampled).mean(1))
    targets = whole.gather(1, made.selection.targets[:, None])[:, 0]
    torch.testing.assert_close(found.values("ours", "insertion"), targets)
    points = found.curve("ours", "insertion", "points", "others")
    assert points is not None
    torch.testing.assert_close(points[0].mean(), found.values("ours", "insertion", "others").mean())
    with pytest.raises(ValueError, match="others is a number of classes"):
        prepare(surrogate, some_digits(COUNT), methods=METHODS, others=0)


def test_values_are_those_of_metrics_called_one_by_one(
    evaluation: Evaluation, surrogate: MaskedModel, classifier: MaskedModel
) -> None:
    pixels = some_digits(COUNT).images
    predicted = classifier(pixels).argmax(1)
    assert evaluation.targets.tolist() == predicted.tolist()
    explainer = digits_explainer(surrogate)(pixels)
    loo = vitshap.method("leave-one-out", classifier, removal="pixels")(pixels)
    rollout = vitshap.method("attention-rollout", classifier)(pixels, target=predicted[:, None])
    for name in ("insertion", "deletion"):
        metric = vitshap.metrics.metric(name)
        for row, explanation in (("ours", explainer), ("loo", loo)):
            curve = metric(surrogate, pixels, explanation)
            assert torch.allclose(evaluation.values(row, name), curve.target(predicted).per_image, atol=1e-6)
            assert torch.allclose(evaluation.values(row, name, "others"), curve.others(predicted).per_image, atol=1e-6)
        assert torch.allclose(
            evaluation.values("rollout", name), metric(surrogate, pixels, rollout).per_image, atol=1e-6
        )
        assert evaluation.values("rollout", name, "others") is None
        seeds = [
            metric(surrogate, pixels, vitshap.method("random", classifier, seed=seed)(pixels)) for seed in range(10)
        ]
        mean = torch.stack([one.target(predicted).per_image for one in seeds]).mean(0)
        assert torch.allclose(evaluation.values("random", name), mean, atol=1e-6)


def test_the_table_has_intervals_differences_and_dashes(evaluation: Evaluation, surrogate: MaskedModel) -> None:
    table = evaluation.table()
    assert [(heading.metric, heading.classes) for heading in table.headings] == [
        ("insertion", "target"), ("deletion", "target"), ("insertion", "others"), ("deletion", "others")
    ]  # fmt: skip
    cells = {row.name: cells for row, cells in table.rows}
    assert cells["rollout"][2] is cells["rollout"][3] is None
    assert cells["ours"][0].difference is None
    loo, ours = (evaluation.values(name, "insertion") for name in ("loo", "ours"))
    assert cells["loo"][0].difference.mean == pytest.approx(float((loo - ours).mean()))
    assert cells["loo"][0].measured.mean == pytest.approx(float(loo.mean()))
    assert cells["random"][0].mark == (False, False)
    assert cells["loo"][0].images == COUNT
    assert any("explain the classifier" in note for note in table.notes)
    other = evaluation.table(against="random")
    assert other.headings[0].against == "random"
    with pytest.raises(ValueError, match='no row is named "orus"; did you mean "ours"'):
        evaluation.table(against="orus")
    alone = evaluate(surrogate, some_digits(3), methods=METHODS).table()
    assert "All methods explain the model that the metrics are measured with." in alone.notes
    without = evaluate(surrogate, some_digits(3), methods={"ours": digits_explainer(surrogate), **METHODS}).table()
    assert any("No classifier was given" in note for note in without.notes)
    assert alone.headings[0].against in ("rollout", "loo")


def test_a_saved_evaluation_gives_the_same_table(evaluation: Evaluation, tmp_path: Path) -> None:
    evaluation.save(tmp_path)
    again = Evaluation.load(tmp_path)
    assert repr(again.table()) == repr(evaluation.table())
    curve = again.curve("ours", "insertion", "points")
    assert torch.equal(curve[0], evaluation.curve("ours", "insertion", "points")[0])
    (tmp_path / "evaluation.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="cannot be read"):
        Evaluation.load(tmp_path)


def counted(
    surrogate: Any, images: Any, explanation: Explanation, /, *, responses: Tensor, labels: Tensor, scale: float = 1.0
) -> MetricResult:
    """Return the largest value, and note that it was asked for: a metric with coalitions of its own, for tests only."""
    CALLS.append(explanation.method)
    assert len(responses) == len(labels) == len(explanation)
    values = scale * explanation.values.amax(1).double()
    values[labels == 3] = torch.nan
    return MetricResult(
        metric="counted",
        values=values,
        classes=explanation.classes,
        higher_is_better=True,
        class_specific=explanation.class_specific,
    )


def coalition_responses(surrogate: Any, images: Any, name: str, *, players: Any, seed: int = 0) -> Tensor:
    """Note the call; what comes back is given to every method."""
    CALLS.append("responses")
    return torch.zeros(len(images))


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setitem(METRICS.table, "counted", f"{__name__}:counted")
    monkeypatch.setattr("vitshap.metrics.coalition_responses", coalition_responses, raising=False)
    CALLS.clear()
    return CALLS


def test_adding_a_method_computes_only_that_method(surrogate: MaskedModel, tmp_path: Path, counting: list[str]) -> None:
    two = {name: METHODS[name] for name in ("rollout", "loo")}
    how: dict[str, Any] = {"metrics": ["counted", "counted:scale=2"], "folder": tmp_path, "batch": 4, "images": 8}
    data = some_digits(COUNT)
    first = evaluate(surrogate, data, methods=two, **how)
    # for a batch of images the coalitions are evaluated once for each metric, then every method is compared with them
    each = [*["responses", "attention-rollout", "leave-one-out"], *["responses", "attention-rollout", "leave-one-out"]]
    assert counting == each * 2
    counting.clear()
    again = evaluate(surrogate, data, methods=two, **how)
    assert counting == []
    assert repr(again.table()) == repr(first.table())
    more = evaluate(surrogate, data, methods={**two, "gradient": "vanilla-pixel"}, **how)
    assert set(counting) == {"responses", "vanilla-pixel"}
    assert torch.equal(more.values("loo", "counted"), first.values("loo", "counted")) or first.targets.eq(3).any()
    counting.clear()
    assert prepare(surrogate, data, methods=two, **how).estimate() == []
    evaluate(surrogate, data, methods={"loo": ("leave-one-out", {"removal": "embeddings"})}, **how)
    evaluate(digits_net(5), data, methods={"loo": METHODS["loo"]}, **how)
    evaluate(surrogate, data, methods={"loo": METHODS["loo"]}, **{**how, "target": "label"})
    assert counting.count("leave-one-out") == 3 * 4
    counting.clear()
    assert {step.name for step in prepare(surrogate, data, methods={**two, "random": "random"}, **how).estimate()} == {
        "random",
        "evaluations that all methods share",
    }


def test_a_damaged_part_is_found_and_computed_again(
    surrogate: MaskedModel, tmp_path: Path, counting: list[str]
) -> None:
    how: dict[str, Any] = {"metrics": ["counted"], "folder": tmp_path, "methods": {"loo": "leave-one-out"}, "batch": 3}
    whole = evaluate(surrogate, some_digits(6), **how)
    parts = sorted(tmp_path.rglob("*.safetensors"))
    assert len(parts) == 4  # two batches, each with an explanation and a metric
    for path, damage in zip(
        parts, (lambda raw: raw[:-5], lambda raw: raw[:-1] + b"x", lambda raw: b"", None), strict=True
    ):
        if damage is not None:
            path.write_bytes(damage(path.read_bytes()))
    counting.clear()
    comparison = prepare(surrogate, some_digits(6), **how)
    again = comparison.run()
    assert counting
    assert comparison.store.damaged
    assert repr(again.table()) == repr(whole.table())
    counting.clear()
    assert repr(evaluate(surrogate, some_digits(6), **how).table()) == repr(whole.table())
    assert counting == []


def test_no_more_images_than_a_batch_are_in_memory_at_once(surrogate: MaskedModel, counting: list[str]) -> None:
    loaded: list[int] = []
    comparison = prepare(
        surrogate, some_digits(30), methods={"loo": "leave-one-out"}, metrics=["counted"], classes="all", batch=7
    )
    load = comparison.selection.load
    object.__setattr__(comparison.selection, "load", lambda rows: loaded.append(len(rows)) or load(rows))
    comparison.run()
    assert loaded == [7, 7, 7, 7, 2]
    rows = {f"row {i}": "leave-one-out" for i in range(3)}
    most = MOST_VALUES // (3 * 16 * 10)
    assert prepare(surrogate, some_digits(2), methods=rows, classes="all").batch == min(BATCHES["cpu"], most)
    large = digits_net()
    large.adapter.num_classes = 400_000  # the values of so many classes allow fewer images at a time
    assert _batch(large, comparison.rows, comparison.columns, "all") < 7


def test_undefined_values_are_counted_and_left_out(surrogate: MaskedModel, counting: list[str]) -> None:
    found = evaluate(
        surrogate, some_digits(COUNT), methods={"loo": "leave-one-out"}, metrics=["counted"], target="label"
    )
    threes = int((some_digits(COUNT).labels == 3).sum())
    assert threes
    cell = found.table().rows[0][1][0]
    assert (cell.images, cell.undefined) == (COUNT - threes, threes)
    assert any(f"undefined for {threes} of {COUNT} images" in note for note in found.table().notes)


def test_what_no_image_has_is_said(surrogate: MaskedModel) -> None:
    """Equal values have no correlations; accuracies are of an image's own class only."""
    methods = {"flat": Constant(surrogate), "loo": "leave-one-out", "rollout": "attention-rollout"}
    metrics = ["saco", "roar"]
    table = evaluate(surrogate, some_digits(4), methods=methods, metrics=metrics, classes="all").table()
    assert [(one.metric, one.classes) for one in table.headings] == [
        ("saco", "target"), ("roar", "target"), ("saco", "others")
    ]  # fmt: skip
    assert "saco, flat: undefined for 4 of 4 images, which are left out." in table.notes
    assert "A dash for other classes, rollout: the same values for every class." in table.notes
    flat = evaluate(surrogate, some_digits(4), methods={"flat": Constant(surrogate)}, metrics=["saco"]).table()
    assert flat.rows[0][1] == (None,)
    assert "saco: undefined for all images, whatever the method." in flat.notes


class Constant:
    """A method that finds every patch equally important."""

    name, samples = "constant", False

    def __init__(self, model: MaskedModel) -> None:
        self.model = model

    def __call__(self, images: Tensor, /, target: Any = None) -> Explanation:
        found = vitshap.method("random", self.model)(images, target=target)
        return replace(found, values=torch.ones_like(found.values))


def test_constant_attributions_are_reported(surrogate: MaskedModel, tmp_path: Path) -> None:
    found = evaluate(
        surrogate, some_digits(4), methods={"flat": Constant(surrogate)}, metrics=["insertion"], folder=tmp_path
    )
    assert any("flat: the same value for every patch of 4 images" in note for note in found.table().notes)
    assert not list(tmp_path.rglob("*.safetensors"))  # what it depends on is not known: nothing is stored


def test_reference_values_are_a_row_of_their_images(surrogate: MaskedModel, tmp_path: Path) -> None:
    data = some_digits(COUNT)
    pixels = data.images[[0, 4, 9]]
    known = truth.of_images(tmp_path / "truth", surrogate, pixels, budget=300)
    how: dict[str, Any] = {"methods": {"random": "random"}, "classes": "all"}
    found = evaluate(surrogate, data, truth=known, **how)
    best, random = (evaluation_cell(found, row) for row in ("truth", "random"))
    assert (best.images, random.images) == (3, COUNT)
    assert best.undefined == 0
    assert best.measured.mean > random.measured.mean
    few = evaluate(surrogate, data, truth=known, images=4, **how)
    assert {"image 0", "image 4", "image 9"} <= set(few.images)
    with pytest.raises(ValueError, match="other images"):
        evaluate(surrogate, data, truth=(known, [1, 2, 3]), **how)
    with pytest.raises(ValueError, match="another surrogate"):
        evaluate(digits_net(3), data, truth=known, **how)


def evaluation_cell(found: Evaluation, row: str) -> Any:
    return next(cells[0] for info, cells in found.table().rows if info.name == row)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metrics": ["insertoin"]}, 'no metric is named "insertoin"; did you mean "insertion"'),
        ({"metrics": []}, "nothing to measure"),
        ({"methods": {}}, "nothing to compare"),
        ({"methods": {"x": "rollout-attention"}}, "no method is named"),
        ({"methods": {"x": "explainer"}}, "give the Explainer itself"),
        ({"images": [0, 99]}, "image 99 is not in the data"),
        ({"images": ["cat.png"]}, 'no image is named "cat.png"'),
        ({"images": 0}, "at least one image"),
        ({"target": "11"}, "classes are 0 to 9, got 11"),
        ({"target": "cat"}, 'no class is named "cat"'),
        ({"where": "red"}, "predicted=CLASS or label=CLASS"),
        ({"where": "label=12"}, "classes are 0 to 9, got 12"),
        ({"classifier": digits_net(classes=4)}, "the classifier has"),
    ],
)
def test_bad_input_is_named(surrogate: MaskedModel, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(surrogate, some_digits(3), **{"methods": METHODS, **change})


def test_explanations_of_another_shape_are_refused(surrogate: MaskedModel) -> None:
    other = digits_net(classes=4)
    with pytest.raises(ValueError, match="4 classes, but the surrogate has a grid of 4 x 4 and 10 classes"):
        evaluate(surrogate, some_digits(3), methods={"x": digits_explainer(other)})
    with pytest.raises(ValueError, match="x explains a grid of 4 x 4 and 4 classes"):
        evaluate(surrogate, some_digits(3), methods={"x": vitshap.method("random", other)}, target=1)


def test_images_are_chosen_by_number_name_and_condition(surrogate: MaskedModel) -> None:
    data = some_digits(30)
    methods = {"random": ("random", {"seed": 3})}

    def chosen(**how: Any) -> Evaluation:
        return evaluate(surrogate, data, methods=methods, metrics=["insertion"], **how)

    assert chosen(images=3).images == ("image 0", "image 14", "image 29")
    assert chosen(images=[7, 2]).images == ("image 7", "image 2")
    assert chosen(images=["image 5"]).images == ("image 5",)
    fives = chosen(where="label=5", target="label")
    assert fives.labels.eq(5).all()
    assert len(fives.images) == int(data.labels.eq(5).sum())
    predicted = surrogate(data.images).argmax(1)
    most = int(predicted.mode().values)
    some = chosen(where=f"predicted={most}", images=100)
    assert some.targets.eq(most).all()
    assert len(some.images) == int(predicted.eq(most).sum())
    assert (
        some.table()
        .notes[0]
        .startswith(f"{len(some.images)} images (at most 100 are taken): the data has no more with ")
    )
    one_output = digits_net(classes=1)
    positive = one_output(data.images)[:, 0] >= 0.5
    found = evaluate(one_output, data, methods=methods, metrics=["insertion"], where=f"predicted={int(positive[0])}")
    assert len(found.images) == int(positive.eq(positive[0]).sum())
    assert found.targets.eq(0).all()


@pytest.mark.parametrize(("own", "negative"), [("cats", "dogs"), ("dogs", "cats"), ("birds", "cats")])
def test_the_class_of_one_output_is_predicted_by_its_name(own: str, negative: str) -> None:
    """Even where the data has its folder first, or has no such folder; then the second folder counts as 1 too."""
    data = replace(some_digits(30), labels=torch.arange(30) % 2, class_names=("cats", "dogs"))
    model = vitshap.wrap(digits_net(classes=1).net, class_names=[own], output="sigmoid")
    logits = model.logits(data.images).detach()
    with torch.no_grad():
        model.net.classifier.bias -= logits.mean()
    positive = [f"image {i}" for i in (logits > logits.mean()).flatten().nonzero()[:, 0].tolist()]

    def predicted(name: str) -> list[str]:
        one = {"random": ("random", {"seed": 3})}
        return list(evaluate(model, data, methods=one, metrics=["insertion"], where=f"predicted={name}").images)

    assert predicted(own) == positive
    assert len(predicted(negative)) == 30 - len(positive)
    assert predicted("1") == positive
    with pytest.raises(ValueError, match='no class is named "fish"'):
        predicted("fish")


def test_columns_are_read_with_their_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Column.parse("insertion:seed=3").options == {"seed": 3}
    with pytest.raises(TypeError, match='insertion has no option "definition"'):
        Column.parse("insertion:authors")


def test_two_processes_give_the_table_of_one(tmp_path: Path) -> None:
    program = [sys.executable, str(Path(__file__).parent / "two_processes.py")]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    kept |= {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    together = {**kept, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = [
        subprocess.Popen(
            [*program, str(tmp_path / "two")],
            env={**together, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in started:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
    two_processes.compare(tmp_path / "one")
    one, first, second = (
        json.loads((tmp_path / name).read_text()) for name in ("one/0.json", "two/0.json", "two/1.json")
    )
    assert one == first == second
