"""Values over pixels: the pixels of a player add up to its value, whatever the players are."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.explanation.small_vit import patch_sums
from vitshap.explanation.export import pixel_owners, spread


def test_pixels_of_an_image_that_divides_are_its_patches():
    labels = torch.arange(6).view(1, 3, 2)
    owners = pixel_owners(labels, (24, 16))
    assert torch.equal(owners, labels.repeat_interleave(8, 1).repeat_interleave(8, 2))
    values = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    pixels = spread(values, owners)
    assert pixels.shape == (2, 4, 24, 16)
    for t in range(4):
        torch.testing.assert_close(patch_sums(pixels[:, t : t + 1]), values[:, :, t].double(), rtol=1e-6, atol=1e-6)


@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 5),
    more=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    images=st.integers(1, 3),
    shared=st.booleans(),
    seed=st.integers(0, 999),
)
@settings(max_examples=60, deadline=None)
def test_any_players_on_any_size_add_up(rows, columns, more, images, shared, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(-1, 4, (1 if shared else images, rows, columns), generator=generator)
    present = torch.stack([(labels == p).flatten(1).any(1) for p in range(4)], 1)  # [B or 1, d]
    values = torch.randn(images, 4, 2, generator=generator) * present[..., None]
    owners = pixel_owners(labels, (rows + more[0], columns + more[1]))
    pixels = spread(values, owners, dtype=torch.float64)
    for i in range(images):
        mine = owners[0 if shared else i]
        for player in range(4):
            torch.testing.assert_close(pixels[i][:, mine == player].sum(1), values[i, player].double())
            assert len(pixels[i][0, mine == player].unique()) <= 1  # equal shares
        assert not pixels[i][:, mine == -1].any()


def test_sizes_that_do_not_divide_go_by_the_pixels_centres():
    owners = pixel_owners(torch.tensor([[[0, 1, 2]]]), (1, 7))  # tokens end at 2.33 and 4.67
    assert owners.tolist() == [[[0, 0, 1, 1, 1, 2, 2]]]


def test_a_box_places_the_grid_and_leaves_the_rest_unassigned():
    owners = pixel_owners(torch.tensor([[[0, 1], [2, 3]]]), (6, 8), box=(2, 1, 6, 5))
    assert owners[0, :, 0].tolist() == [-1] * 6
    assert owners[0, 1].tolist() == [-1, -1, 0, 0, 1, 1, -1, -1]
    assert owners[0, 4].tolist() == [-1, -1, 2, 2, 3, 3, -1, -1]
    assert owners[0, [0, 5]].unique().tolist() == [-1]


def test_a_value_without_a_pixel_is_an_error():
    owners = pixel_owners(torch.arange(4).view(1, 1, 4), (1, 3))
    lost = next(p for p in range(4) if p not in owners.unique().tolist())
    with pytest.raises(ValueError, match=f"player {lost} has no pixel in image 0 of 1 x 3"):
        spread(torch.ones(1, 4, 1), owners)
    without = torch.ones(1, 4, 1)
    without[0, lost] = 0  # nothing to lose
    assert float(spread(without, owners).sum()) == pytest.approx(3)
