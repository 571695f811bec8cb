"""What all tests share."""

import os

import torch
from hypothesis import settings

from vitshap.compat import make_torchvision_importable

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run on the CPU; read when triton is imported
make_torchvision_importable()
# `make test` tries the same cases every time, so that a red run means a change; `make test-long` looks for new ones.
settings.register_profile("repeatable", derandomize=True)
