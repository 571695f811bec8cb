"""Losses on their way from the device."""

from __future__ import annotations

import torch
from torch import Tensor


class UnreadLoss:
    """The loss of a step, on its way from the device.

    Asking a GPU for a number waits for everything that was queued before the question. So the copy is queued with the
    step, and only that copy is waited for, while the GPU works on the next step.
    """

    def __init__(self, step: int, rate: float, loss: Tensor) -> None:
        self.step, self.rate = step, rate
        self._loss = loss.to("cpu", non_blocking=True)
        self._copied = torch.cuda.Event() if loss.is_cuda else None  # type: ignore[no-untyped-call]
        if self._copied is not None:
            self._copied.record()

    def loss(self) -> float:
        if self._copied is not None:
            self._copied.synchronize()
        return float(self._loss)
