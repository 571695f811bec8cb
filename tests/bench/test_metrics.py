"""Metrics timed beside Quantus: every way is there, with a time."""

import torch

from vitshap.bench import metrics


def test_every_way_is_timed() -> None:
    table = metrics.measure("timm", "tiny", torch.device("cpu"), images=1, step=98, subsets=2, rounds=1)
    assert len(table.rows) == 6
    assert all(seconds > 0 for seconds in table.values("seconds"))
    assert table.values("ratio")[0] == table.values("ratio")[3] == 1
    assert [way.startswith("Quantus") for way in table.values("way")] == [True, False, False] * 2
