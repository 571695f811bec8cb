"""How a training went: from the loop's own records, with the best epoch where the loop has it."""

import json

import numpy as np
import pytest

from tests.plots.legible import LONG, assert_legible
from vitshap import plots


def records(epochs=40, **series):
    made = []
    for epoch in range(epochs):
        line = {"epoch": epoch, "step": 9 * epoch + 9, "train_loss": 2 * 0.98**epoch, "loss": 2 * 0.99**epoch}
        made.append({**line, **{name: float(values[epoch]) for name, values in series.items()}})
    return made


def drawn(axes):
    return {tuple(line.get_ydata()): line for line in axes.get_lines()}


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_losses_are_drawn_with_the_uniform_one_dashed_and_the_best_epoch_marked():
    log = records(uniform_loss=[1.5] * 40)
    (axes,) = plots.training_curves(log).axes
    lines = drawn(axes)
    training, validation, uniform = (
        lines[tuple(line[name] for line in log)] for name in ("train_loss", "loss", "uniform_loss")
    )
    assert [line.get_linestyle() for line in (training, validation, uniform)] == ["-", "-", "--"]
    np.testing.assert_array_equal(training.get_xdata(), np.arange(40))
    names = legend(axes)
    assert names[:3] == ["training", "validation", "every player the same value (validation)"]
    assert names[3] == f"epoch 39, the best by validation loss: {2 * 0.99**39:.4g}"
    (mark,) = (line for line in axes.get_lines() if line.get_marker() == "o")
    assert (mark.get_xdata()[0], mark.get_ydata()[0]) == (39, 2 * 0.99**39)
    assert axes.get_xlabel() == "epoch"
    assert axes.get_ylabel() == "loss"


def test_accuracy_chooses_the_first_of_equal_epochs_as_the_loop_does():
    accuracy = [0.1, 0.8, 0.8, 0.3]
    losses, scores = plots.training_curves(records(4, accuracy=accuracy, kappa=[0, 0.1, 0.2, 0.9])).axes
    assert legend(scores) == ["accuracy", "kappa", "epoch 1, the best by accuracy: 0.8"]
    assert legend(losses)[-1] == "epoch 1, the best by accuracy: 0.8"
    losses, scores = plots.training_curves(records(4, accuracy=accuracy, kappa=[0, 0.1, 0.2, 0.9]), select="kappa").axes
    assert legend(scores)[-1] == "epoch 3, the best by kappa: 0.9"


def test_a_loss_of_another_kind_has_a_chart_of_its_own():
    log = records(4, weighted_loss=[3.0, 1.0, 2.0, 4.0], seconds=[9.0] * 4)
    losses, weighted = plots.training_curves(log, select="weighted_loss").axes
    assert legend(weighted) == ["weighted_loss", "epoch 1, the best by weighted_loss: 1"]
    assert weighted.get_ylabel() == "weighted_loss"
    assert len(legend(losses)) == 3  # and no seconds anywhere


@pytest.mark.parametrize(("low", "scale"), [(0.2, "linear"), (0.01, "log"), (-0.01, "linear"), (0.0, "linear")])
def test_the_scale_is_logarithmic_where_the_range_asks_for_it(low, scale):
    (axes,) = plots.training_curves([{"loss": 1.0}, {"loss": low}]).axes
    assert axes.get_yscale() == scale


def test_numbers_on_a_logarithmic_scale_are_plain():
    figure = plots.training_curves([{"loss": 1.0}, {"loss": 0.01}])
    figure.draw_without_rendering()
    labels = {label.get_text() for label in figure.axes[0].get_yticklabels()}
    assert {"1", "0.5", "0.1", "0.01"} <= labels


@pytest.mark.parametrize("where", ["path", "text", "folder"])
def test_the_loops_file_is_read(tmp_path, where):
    log = records(3, accuracy=[0.1, 0.2, float("nan")])
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in log))
    figure = plots.training_curves({"path": path, "text": str(path), "folder": tmp_path}[where])
    for one, other in zip(figure.axes, plots.training_curves(log).axes, strict=True):
        assert legend(one) == legend(other)
        for here, there in zip(one.get_lines(), other.get_lines(), strict=True):
            np.testing.assert_array_equal(here.get_xydata(), there.get_xydata())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"loss": 1}\n{"lo', r"line 2 of .*log.jsonl is not the JSON record of an epoch: '\{\"lo'"),
        ("[1, 2]\n", "line 1 of .* is not the JSON record"),
        ("\n", "no loss and no accuracy or kappa"),
        ('{"epoch": 0, "step": 3, "seconds": 2}\n', "no loss and no accuracy or kappa, only seconds"),
        ('{"epoch": 0}\n', "only epochs"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path, text, message):
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        plots.training_curves(path)


def test_an_unknown_metric_is_refused_and_a_missing_file_named(tmp_path):
    with pytest.raises(KeyError, match="f1"):
        plots.training_curves(records(2), select="f1")
    with pytest.raises(FileNotFoundError, match=r"nowhere\.jsonl"):
        plots.training_curves(tmp_path / "nowhere.jsonl")


def test_gaps_and_values_that_are_not_finite_are_left_out():
    log = [{"loss": 2.0}, {"train_loss": 1.0}, {"loss": float("nan")}, {"loss": float("inf")}, {"loss": 1.5}]
    (axes,) = plots.training_curves(log).axes
    assert legend(axes)[-1] == "epoch 4, the best by validation loss: 1.5"
    (axes,) = plots.training_curves([{"loss": float("nan"), "train_loss": 1.0}]).axes
    assert legend(axes) == ["training", "validation"]  # nothing is best


@pytest.mark.parametrize(("epochs", "factor"), [(1, 1e-8), (2, 1.0), (40, 1e8), (300, 1e-8)])
def test_trainings_are_legible(epochs, factor):
    rng = np.random.default_rng(0)
    extra = {name: rng.random(epochs) for name in ("accuracy", "kappa", "weighted_loss", "another_loss")}
    log = [
        {**line, "loss": line["loss"] * factor, "train_loss": line["train_loss"] * factor, "uniform_loss": factor}
        for line in records(epochs, **extra)
    ]
    assert_legible(plots.training_curves(log, title=LONG))
    assert_legible(plots.training_curves([{"loss": line["loss"]} for line in log]))
