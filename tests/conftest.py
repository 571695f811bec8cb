"""What all tests share."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

# torchvision's public wheel does not load its operators beside a CPU-only torch, and timm and transformers import it.
# Its Python code works once the two operators that it registers shapes for have a schema.
_operators = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, _name):
        _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
