"""Chunks: every row once, within the budget, and smaller after memory ran out."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitshap.models import packed
from vitshap.models.packed import Rows
from vitshap.players import patches


class _Recorder:
    """A session that answers with the coalition's size and has memory for ``capacity`` tokens."""

    bytes_per_token = 1

    def __init__(self, sort_by_length: bool, capacity: int = 1 << 30) -> None:
        self.sort_by_length = sort_by_length
        self.capacity = capacity
        self.costs: list[int] = []

    def lengths(self, keep: torch.Tensor) -> torch.Tensor:
        return keep.sum(1) + 1

    def run(self, rows: Rows) -> torch.Tensor:
        lengths = self.lengths(rows.keep)
        cost = int(lengths.max()) * len(lengths) if self.sort_by_length else int(lengths.sum())
        self.costs.append(cost if len(lengths) > 1 else 0)
        if cost > self.capacity:
            raise torch.OutOfMemoryError("no memory left")
        return torch.stack([rows.keep.sum(1), rows.image], dim=1).float()


@given(
    batch=st.integers(1, 3),
    per_image=st.integers(1, 60),
    budget=st.integers(1, 300),
    rows_at_once=st.integers(1, 50),
    similar=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, max_examples=100)
def test_every_row_is_answered_in_its_place_within_the_budget(
    batch: int, per_image: int, budget: int, rows_at_once: int, similar: bool, seed: int
) -> None:
    coalitions = torch.rand(batch, per_image, 12, generator=torch.Generator().manual_seed(seed)) < 0.5
    session = _Recorder(similar)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "ROWS_AT_ONCE", rows_at_once)
        out = packed.evaluate_rows(session, coalitions, patches((3, 4)), budget, lambda _: None)
    assert torch.equal(out[..., 0], coalitions.sum(-1).float())
    assert torch.equal(out[..., 1], torch.arange(batch)[:, None].expand(-1, per_image).float())
    assert max(session.costs) <= budget


@pytest.mark.parametrize("similar", [False, True])
def test_running_out_of_memory_makes_chunks_smaller(similar: bool) -> None:
    coalitions = torch.rand(1, 500, 12, generator=torch.Generator().manual_seed(0)) < 0.5
    session = _Recorder(similar, capacity=100)
    told: list[int] = []
    out = packed.evaluate_rows(session, coalitions, patches((3, 4)), 10_000, told.append)
    assert torch.equal(out[..., 0], coalitions.sum(-1).float())
    assert told == sorted(told, reverse=True)
    assert 25 <= told[-1] <= 100


def test_one_row_too_many_is_an_error() -> None:
    coalitions = torch.ones(1, 3, 12, dtype=torch.bool)
    with pytest.raises(torch.OutOfMemoryError):
        packed.evaluate_rows(_Recorder(False, capacity=5), coalitions, patches((3, 4)), 100, lambda _: None)
