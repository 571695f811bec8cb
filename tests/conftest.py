"""What all tests share."""

import os

import torch
from hypothesis import settings

import vitshap  # noqa: F401 (before timm and transformers, as everywhere)

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run on the CPU; read when triton is imported
# `make test` tries the same cases every time, so that a red run means a change; `make test-long` looks for new ones.
settings.register_profile("repeatable", derandomize=True)
