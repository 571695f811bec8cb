"""scikit-learn's handwritten digits: the data set that is always there.

8 x 8 grey images in ten classes. As 4 x 4 = 16 players all 65,536 coalitions can be asked, so that whatever is learned
can be compared with exact values, on a laptop, without a download.
"""

from __future__ import annotations

import torch

from vitshap.counter_rng import shuffled
from vitshap.data.dataset import ImageData, Splits

_COUNTS = (1257, 180, 360)
"""Training, validation and test images."""


def load_digits(*, seed: int = 0) -> Splits:
    """1,257 / 180 / 360 digits, pixels in 0..1, float32 ``[n, 1, 8, 8]``; the same for the same seed."""
    from sklearn.datasets import load_digits as load

    bunch = load()
    pixels = torch.from_numpy(bunch.images).float()[:, None] / 16
    labels = torch.from_numpy(bunch.target).long()
    order = shuffled(len(labels), seed=seed, epoch=0)  # no generator: the same split with every version of torch
    names = tuple(str(digit) for digit in range(10))
    parts = torch.split_with_sizes(order, _COUNTS)
    return Splits(*(ImageData(pixels[part], labels[part], names, channels=1, name="digits") for part in parts))
