"""Explanations: checks, tables, heatmaps, indexing, saving and loading."""

import json
import sys
from dataclasses import fields, replace

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vitshap.explanation import Explanation, PlayerValue, class_index
from vitshap.explanation.result import FORMAT

NAMES = ("cat", "dog", "crane", "crane")


def make(images=2, grid=(2, 3), explained=3, additive=True, seed=0, **changes) -> Explanation:
    """A valid explanation with random values for the classes 0 .. explained - 1 of 4."""
    generator = torch.Generator().manual_seed(seed)
    d = grid[0] * grid[1]
    values = torch.randn(images, d, explained, generator=generator)
    base = torch.randn(images, explained, generator=generator)
    everything = {
        "values": values,
        "classes": torch.arange(explained).repeat(images, 1),
        "additive": additive,
        "unit": "probability",
        "prediction": torch.rand(images, 4, generator=generator),
        "prediction_by": "classifier",
        "players": torch.arange(d).view(1, *grid),
        "method": "made up",
        "base_values": base if additive else None,
        "full_values": base + values.sum(1) if additive else None,
        "seconds": 0.1,
        "evaluations": 64,
        "class_names": NAMES,
    }
    return Explanation(**{**everything, **changes})


def ragged(**changes) -> Explanation:
    """Two images with 3 and 2 players on a 1 x 4 grid; the last token of the second belongs to no player."""
    values = torch.tensor([[[1.0], [3.0], [2.0]], [[-1.0], [-2.0], [0.0]]])
    everything = {
        "values": values,
        "classes": torch.zeros(2, 1, dtype=torch.int64),
        "additive": False,
        "unit": "score",
        "prediction": torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        "prediction_by": "surrogate",
        "players": torch.tensor([[[0, 1, 1, 2]], [[1, 0, 0, -1]]]),
        "player_mask": torch.tensor([[True, True, True], [True, True, False]]),
        "method": "made up",
    }
    return Explanation(**{**everything, **changes})


def assert_equal(one: Explanation, other: Explanation) -> None:
    for field in fields(Explanation):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, Tensor):
            assert isinstance(b, Tensor)
            assert a.dtype == b.dtype
            assert torch.equal(a, b), field.name
        else:
            assert a == b, field.name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"values": torch.zeros(2, 6)}, "values must be"),
        ({"values": torch.zeros(2, 6, 3, dtype=torch.float64)}, "values must be finite torch.float32"),
        ({"values": [1.0]}, "values must be.*; got list"),
        ({"values": torch.zeros(2, 6, 3, requires_grad=True)}, "detached"),
        ({"values": torch.zeros(0, 6, 3), "classes": torch.zeros(0, 3).long()}, "must be.*not empty"),
        ({"values": torch.full((2, 6, 3), torch.nan)}, "not finite"),
        (
            {"classes": torch.zeros(2, 2).long()},
            r"classes must be .* \[B, T\].* T = 3; got torch.int64 \[2, 2\]",
        ),
        ({"classes": torch.zeros(2, 3)}, "classes must be torch.int64"),
        ({"classes": torch.full((2, 3), 4)}, "0 to 3"),
        ({"prediction": torch.zeros(3, 4)}, "prediction must be"),
        ({"base_values": None}, "base_values"),
        ({"full_values": torch.zeros(2, 3)}, "miss full - base"),
        ({"additive": False, "base_values": torch.zeros(2, 3)}, "given exactly when additive"),
        ({"unit": "percent"}, "unit is one of probability, logit, output, score; got 'percent'"),
        ({"prediction_by": "explainer"}, "prediction_by is one of"),
        ({"stderr": torch.zeros(2, 6, 2)}, "stderr must be"),
        ({"player_mask": torch.ones(2, 5, dtype=torch.bool)}, "player_mask must be"),
        ({"image_box": torch.zeros(2, 3)}, "image_box must be"),
        ({"players": torch.arange(6).view(2, 3).int()[None]}, "int64"),
        ({"players": torch.arange(6).view(2, 3)[None].repeat(3, 1, 1)}, "label map"),
        ({"players": torch.arange(7).view(1, 1, 7)}, "labels -1 to 5"),
        ({"players": torch.zeros(1, 2, 3, dtype=torch.int64)}, "no token of player 1 in image 0"),
        ({"class_names": ("cat",)}, "class_names one for each; got .* and 1 names"),
    ],
)
def test_refuses_fields_that_do_not_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_efficiency_gap_is_the_missing_amount():
    explanation = make()
    assert float(explanation.efficiency_gap().abs().max()) < 1e-6
    base, full = explanation.base_values, explanation.full_values
    moved = make(full_values=full + 1e-5)  # within what float32 arithmetic on larger numbers may leave
    torch.testing.assert_close(
        moved.efficiency_gap(),
        moved.values.double().sum(1) - moved.full_values.double() + base.double(),
    )
    assert float(moved.efficiency_gap().mean()) == pytest.approx(-1e-5, rel=0.1)
    with pytest.raises(ValueError, match="not additive"):
        make(additive=False).efficiency_gap()


def test_heatmap_of_patches_is_the_values():
    explanation = make()
    assert torch.equal(explanation.heatmap(1), explanation.values[:, :, 1].view(2, 2, 3))
    assert torch.equal(explanation.heatmap("dog"), explanation.heatmap(1))


def test_heatmap_of_groups_shows_each_players_value_and_unassigned_tokens_as_nan():
    heat = ragged().heatmap()
    assert heat[0].tolist() == [[1, 3, 3, 2]]
    assert heat[1, 0, :3].tolist() == [-2, -1, -1]
    assert torch.isnan(heat[1, 0, 3])


def test_default_class_is_the_predicted_one_if_explained_else_the_first():
    prediction = torch.tensor([[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    classes = torch.tensor([[2, 1], [2, 1]])
    explanation = make(explained=2, additive=False, prediction=prediction, classes=classes)
    heat = explanation.heatmap()
    assert torch.equal(heat[0].flatten(), explanation.values[0, :, 1])
    assert torch.equal(heat[1].flatten(), explanation.values[1, :, 0])


def test_a_class_that_was_not_explained_is_refused():
    with pytest.raises(ValueError, match="crane was not explained for image 0; explained: cat, dog"):
        make(explained=2).heatmap(3)


@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        ("dig", ValueError, 'no class is named "dig"; did you mean "dog"'),
        ("crane", ValueError, r"several classes, \[2, 3\]"),
        (4, ValueError, "classes are 0 to 3, got 4"),
        (-1, ValueError, "classes are 0 to 3, got -1"),
        (True, TypeError, "got bool"),
        (1.0, TypeError, "got float"),
    ],
)
def test_class_index_refuses(target, error, message):
    with pytest.raises(error, match=message):
        class_index(target, NAMES, 4)


def test_class_index_by_name_needs_names():
    with pytest.raises(ValueError, match="by number"):
        class_index("dog", None, 4)


def test_top_lists_the_largest_values_with_their_places():
    assert ragged().top(2) == [
        [PlayerValue(1, 3.0, (0, 1)), PlayerValue(2, 2.0, (0, 3))],
        [PlayerValue(0, -1.0, (0, 1)), PlayerValue(1, -2.0, (0, 0))],
    ]
    assert all(type(axis) is int for best in ragged().top(2) for player in best for axis in player.position)
    assert [len(best) for best in ragged().top(9)] == [3, 2]  # players that an image lacks are not listed


def test_the_position_of_a_player_is_its_most_central_patch():
    labels = torch.zeros(1, 3, 5, dtype=torch.int64)
    labels[0, 0, 4] = (
        1  # the other player is everything else: its centre is the middle of the grid, a bit down and left
    )
    explanation = make(images=1, grid=(1, 2), players=labels, additive=False)
    assert {player.player: player.position for player in explanation.top(2)[0]} == {0: (1, 2), 1: (0, 4)}


def test_repr_is_one_line_without_numbers():
    assert repr(make()) == (
        "<Explanation by made up: 2 images, 6 players on a grid of 2 x 3, 3 of 4 classes, unit probability, "
        "64 evaluations and 0.1 s per image>"
    )
    assert "1 image, " in repr(make()[0])


def test_a_table_has_a_line_for_every_value():
    explanation = make(stderr=torch.rand(2, 6, 3))
    table = explanation.to_dataframe()
    columns = ["image", "class", "class_name", "player", "row", "column", "value", "stderr", "lower", "upper"]
    columns.append("prediction")
    assert list(table.columns) == columns
    assert len(table) == 2 * 6 * 3
    line = table[(table["image"] == 1) & (table["class"] == 2) & (table["row"] == 1) & (table["column"] == 0)]
    assert line["player"].tolist() == [3]
    assert line["class_name"].tolist() == ["crane"]
    assert line["value"].tolist() == [float(explanation.values[1, 3, 2])]
    assert line["stderr"].tolist() == [float(explanation.stderr[1, 3, 2])]
    low, high = explanation.interval(0.95)
    assert line[["lower", "upper"]].to_numpy().tolist() == [[float(low[1, 3, 2]), float(high[1, 3, 2])]]
    assert line["prediction"].tolist() == [float(explanation.prediction[1, 2])]
    assert table["row"].dtype == table["column"].dtype == int


def test_intervals_have_the_level_that_is_asked_for():
    explanation = make(stderr=torch.ones(2, 6, 3))
    for level, z in ((0.95, 1.959964), (0.6826895, 1.0)):
        low, high = explanation.interval(level)
        torch.testing.assert_close(high - explanation.values, torch.full((2, 6, 3), z))
        torch.testing.assert_close(explanation.values - low, torch.full((2, 6, 3), z))
    with pytest.raises(ValueError, match="between 0 and 1"):
        explanation.interval(95)
    with pytest.raises(ValueError, match="no standard errors"):
        make().interval()


def test_the_largest_values_are_drawn_with_their_intervals():
    explanation = make(stderr=torch.full((2, 6, 3), 0.5))
    axes = explanation[0].plot_intervals(4, target=1).axes[0]
    values = explanation.values[0, :, 1]
    order = values.abs().argsort(descending=True)[:4]
    drawn = [float(line.get_xdata()[0]) for line in axes.get_lines()[1:8:2]]
    assert drawn == pytest.approx(values[order].tolist())
    low, high = (end[0, :, 1] for end in explanation.interval())
    ends = [list(map(float, line.get_xdata())) for line in axes.get_lines()[0:8:2]]
    assert ends == [pytest.approx([float(low[i]), float(high[i])]) for i in order.tolist()]
    assert "95 % interval" in axes.get_xlabel()
    with pytest.raises(ValueError, match="one image is drawn, not 2"):
        explanation.plot_intervals()
    with pytest.raises(ValueError, match="no standard errors"):
        make()[0].plot_intervals()
    few = ragged()
    shown = replace(few, stderr=torch.ones_like(few.values))[1].plot_intervals().axes[0]
    assert len(shown.get_yticklabels()) == 2  # absent players are left out


def test_a_table_leaves_out_absent_players():
    table = ragged().to_dataframe()
    assert table[["image", "player", "column"]].to_numpy().tolist() == [
        [0, 0, 0],
        [0, 1, 1],
        [0, 2, 3],
        [1, 0, 1],
        [1, 1, 0],
    ]
    assert table["stderr"].isna().all()
    assert table["class_name"].isna().all()


def test_a_table_without_pandas_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        make().to_dataframe()


@given(
    images=st.integers(1, 4),
    k=st.integers(1, 8),
    target=st.integers(0, 2),
    seed=st.integers(0, 99),
)
@settings(max_examples=30, deadline=None)
def test_top_agrees_with_sorting_the_heatmap(images, k, target, seed):
    explanation = make(images=images, seed=seed)
    for best, heat in zip(explanation.top(k, target), explanation.heatmap(target), strict=True):
        assert [p.value for p in best] == sorted(heat.flatten().tolist(), reverse=True)[:k]
        for player in best:
            row, column = player.position
            assert isinstance(row, int)
            assert float(heat[row, column]) == player.value


def test_indexing_takes_images_and_keeps_what_they_share():
    explanation = make(images=3)
    assert len(explanation) == 3
    one = explanation[-1]
    assert len(one) == 1
    assert torch.equal(one.values[0], explanation.values[2])
    assert torch.equal(one.prediction[0], explanation.prediction[2])
    assert torch.equal(one.players, explanation.players)
    assert (one.method, one.seconds, one.evaluations) == ("made up", 0.1, 64)
    assert_equal(explanation[1:][0], explanation[1])
    assert [float(e.values[0, 0, 0]) for e in explanation] == explanation.values[:, 0, 0].tolist()
    with pytest.raises(IndexError, match="out of range"):
        explanation[3]
    with pytest.raises(ValueError, match=r"values must be.*not empty"):
        explanation[3:]


def test_indexing_takes_each_images_own_players():
    second = ragged()[1]
    assert torch.equal(second.players, torch.tensor([[[1, 0, 0, -1]]]))
    assert second.player_mask.tolist() == [[True, True, False]]


@given(images=st.integers(1, 3), explained=st.integers(1, 4), additive=st.booleans(), boxed=st.booleans())
@settings(max_examples=20, deadline=None)
def test_saving_and_loading_is_exact(tmp_path_factory, images, explained, additive, boxed):
    path = tmp_path_factory.mktemp("saved") / "one.safetensors"
    box = torch.rand(images, 4) if boxed else None
    explanation = make(images=images, explained=explained, additive=additive, image_box=box, seconds=0.1 + 0.2)
    explanation.save(path)
    assert_equal(Explanation.load(path), explanation)


def test_slices_and_shared_memory_are_saved_too(tmp_path):
    explanation = make(images=3)
    shared = replace(explanation, base_values=explanation.full_values, values=torch.zeros(3, 6, 3))
    shared[1:].save(tmp_path / "a")
    assert_equal(Explanation.load(tmp_path / "a"), shared[1:])
    ragged().save(tmp_path / "a")  # replaces
    assert_equal(Explanation.load(tmp_path / "a"), ragged())
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a"
    make().save(path)

    def disk_full(source, destination):
        raise OSError("no space left on device")

    monkeypatch.setattr("vitshap.files.os.replace", disk_full)
    with pytest.raises(OSError, match="no space"):
        ragged().save(path)
    assert_equal(Explanation.load(path), make())
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_foreign_and_damaged_files_are_refused(tmp_path):
    path = tmp_path / "a"
    with pytest.raises(FileNotFoundError):
        Explanation.load(path)
    path.write_bytes(b"GIF89a, not a tensor in sight")
    with pytest.raises(ValueError, match="damaged or holds no vitshap explanation"):
        Explanation.load(path)
    safetensors.torch.save_file({"values": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match="holds no vitshap explanation"):
        Explanation.load(path)
    make().save(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match="damaged"):
        Explanation.load(path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("{", "damaged or holds no"),
        ("[]", "damaged or holds no"),
        (json.dumps({"version": 99, "fields": {}}), "format version 99; this vitshap reads 1"),
        (json.dumps({"version": 1, "fields": {"method": "m"}}), "holds no vitshap explanation.*missing"),
        (json.dumps({"version": 1, "fields": {"colour": "red"}}), "holds no vitshap explanation.*colour"),
        (json.dumps({"version": 1, "fields": {"class_names": 3}}), "holds no vitshap"),
    ],
)
def test_headers_that_do_not_fit_are_refused(tmp_path, header, message):
    path = tmp_path / "a"
    safetensors.torch.save_file({"values": torch.zeros(2)}, path, metadata={FORMAT: header})
    with pytest.raises(ValueError, match=message):
        Explanation.load(path)
