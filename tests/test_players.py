"""Players: from coalitions to masks of tokens."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitshap.players import blocks, from_labels, from_pixels, patches, resolve


def _keep_by_hand(labels: torch.Tensor, coalition: torch.Tensor) -> list[bool]:
    return [label < 0 or bool(coalition[label]) for label in labels.flatten().tolist()]


@given(rows=st.integers(1, 6), columns=st.integers(1, 6), side=st.integers(1, 4), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=50)
def test_blocks_keep_whole_blocks(rows: int, columns: int, side: int, seed: int) -> None:
    players = blocks((rows, columns), side)
    assert players.num_players == -(-rows // side) * -(-columns // side)
    coalitions = torch.rand(5, players.num_players, generator=torch.Generator().manual_seed(seed)) < 0.5
    keep = players.keep_tokens(coalitions)
    for row, coalition in zip(keep, coalitions, strict=True):
        assert row.tolist() == _keep_by_hand(players.labels[0], coalition)
    across = -(-columns // side)
    assert int(players.labels[0, -1, -1]) == (rows - 1) // side * across + (columns - 1) // side


def test_patches_are_the_coalition_itself() -> None:
    coalitions = torch.rand(3, 12) < 0.5
    assert patches((3, 4)).keep_tokens(coalitions) is coalitions


def test_one_map_per_image_with_unequal_numbers_of_players() -> None:
    labels = torch.tensor([[[0, 1], [2, 2]], [[0, 0], [1, -1]]])
    players = from_labels(labels, (2, 2))
    assert players.num_players == 3
    assert players.player_mask.tolist() == [[True, True, True], [True, True, False]]
    image = torch.tensor([1, 0, 1])
    coalitions = torch.tensor([[True, False, True], [False, False, True], [False, True, False]])
    keep = players.keep_tokens(coalitions, image)
    for row, i, coalition in zip(keep, image, coalitions, strict=True):
        assert row.tolist() == _keep_by_hand(labels[i], coalition)


def test_patches_belong_to_the_segment_with_most_of_their_pixels() -> None:
    labels = np.full((8, 12), 7)  # as scikit-image counts: any numbers
    labels[:, 4:] = 3
    labels[0:4, 8:12] = 9
    labels[3, 8:12] = 3  # 12 of 16 pixels of that patch remain
    labels[4:8, 0:2], labels[7, 2] = 5, 5  # 9 of 16
    players = from_pixels(labels, (2, 3))
    assert players.labels.tolist() == [[[2, 0, 3], [1, 0, 0]]]
    assert players.num_players == 4
    twice = np.repeat(np.repeat(labels, 2, 0), 2, 1)  # the same segments at another resolution
    assert torch.equal(from_pixels(twice, (2, 3)).labels, players.labels)
    framed = np.pad(labels, ((1, 2), (3, 4)), constant_values=1)  # of a larger picture, of which the net sees a part
    assert torch.equal(from_pixels(framed, (2, 3), box=(3, 1, 15, 9)).labels, players.labels)


def test_segments_that_win_no_patch_are_dropped_and_negative_labels_mean_no_player() -> None:
    labels = torch.zeros(2, 4, 4, dtype=torch.int32)
    labels[0, 0, 0] = 4  # one pixel of four
    labels[1, :2, :2] = -3
    labels[1, 2:, 2:] = torch.tensor([[8, 8], [0, 0]])  # as many of each: the smaller label
    with pytest.warns(UserWarning, match="2 of 4 segments win no patch"):
        players = from_pixels(labels, (2, 2))
    assert players.labels.tolist() == [[[0, 0], [0, 0]], [[-1, 0], [0, 0]]]


@pytest.mark.parametrize(
    ("labels", "options", "error", "says"),
    [
        (torch.zeros(4, 4), {}, TypeError, "float32"),
        (torch.zeros(1, 4, dtype=torch.int64), {}, ValueError, "2 of 2 x 2 patches contain no pixel"),
        (torch.zeros(4, 4, dtype=torch.int64), {"box": (4, 0, 0, 4)}, ValueError, "left, top, right, bottom"),
        (torch.zeros(4, 4, dtype=torch.int64), {"box": (0, 0, 8, 4)}, ValueError, "contain no pixel"),
    ],
)
def test_bad_maps_of_pixels_are_named(labels, options, error, says: str) -> None:
    with pytest.raises(error, match=says):
        from_pixels(labels, (2, 2), **options)


def test_tokens_of_no_player_are_always_kept() -> None:
    players = from_labels(torch.tensor([[0, -1]]), (1, 2))
    assert players.keep_tokens(torch.tensor([[False]])).tolist() == [[False, True]]


def test_many_players_are_warned_about_and_blocks_offered() -> None:
    with pytest.warns(UserWarning, match="blocks of 2 x 2"):
        resolve("patch", (21, 20))


def test_players_are_resolved_from_what_users_write() -> None:
    assert resolve("patch", (2, 3)).num_players == 6
    assert resolve(2, (4, 4)).num_players == 4
    assert resolve(torch.tensor([[0, 0, 1]]), (1, 3)).num_players == 2
    assert resolve(patches((2, 2)), (2, 2)).num_players == 4


@pytest.mark.parametrize(
    ("players", "error", "says"),
    [
        ("patches", ValueError, "patches"),
        (0, ValueError, "at least 1"),
        (True, ValueError, "got True"),
        (2.0, ValueError, r"got 2\.0"),
        (torch.zeros(2, 2), TypeError, "float32"),
        (torch.zeros(3, 2, dtype=torch.int64), ValueError, "2 x 2"),
        (torch.tensor([[0, -2], [0, 0]]), ValueError, "-2"),
        (torch.tensor([[-1, -1], [-1, -1]]), ValueError, r"got \[-1\]"),
        (torch.tensor([[0, 2], [0, 0]]), ValueError, r"each at least once.*got \[0, 2\]"),
        (patches((3, 3)), ValueError, "grid"),
    ],
)
def test_bad_players_are_named(players, error, says: str) -> None:
    with pytest.raises(error, match=says):
        resolve(players, (2, 2))
