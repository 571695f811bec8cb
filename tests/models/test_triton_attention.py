"""The kernel for sequences laid end to end; without a GPU by Triton's interpreter."""

from itertools import pairwise

import pytest
import timm
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from vitshap.coalitions import uniform_size
from vitshap.models import wrap
from vitshap.models.packed import Rows, encode_packed, run_bucket, run_packed
from vitshap.models.triton_attention import attend_packed

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def _spans(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    length = torch.tensor(lengths)
    ends = length.cumsum(0).repeat_interleave(length)
    return (ends - length.repeat_interleave(length)).int().to(DEVICE), ends.int().to(DEVICE)


@pytest.mark.parametrize(
    ("lengths", "heads", "width"),
    [
        ([1], 1, 16),
        ([3, 1, 7, 130, 2, 197, 5, 64, 64, 1, 9], 3, 64),  # many in a block, one over several, some at its edges
        ([1] * 70 + [20] * 5, 2, 32),
        ([64, 128], 2, 128),
        ([0, 5, 0, 2], 2, 16),
    ],
)
def test_every_token_attends_within_its_own_sequence(lengths: list[int], heads: int, width: int) -> None:
    generator = torch.Generator().manual_seed(0)
    # queries, keys and values as one linear layer leaves them: strided
    together = 3 * torch.randn(sum(lengths), 3 * heads * width, generator=generator).half().to(DEVICE)
    q, k, v = (part.unflatten(1, (heads, width)) for part in together.chunk(3, 1))
    found = attend_packed(q, k, v, *_spans(lengths), width**-0.5)
    borders = torch.tensor([0, *lengths]).cumsum(0).tolist()
    for start, end in pairwise(borders):
        if start == end:
            continue
        own = (x[start:end].transpose(0, 1).float() for x in (q, k, v))
        expected = F.scaled_dot_product_attention(*own).transpose(0, 1)
        assert (found[start:end].float() - expected).abs().max() <= 4e-3


def test_a_compiled_net_answers_by_it_as_padded_rows_do() -> None:
    net = timm.create_model("vit_tiny_patch16_224", embed_dim=32, depth=2, num_heads=2, img_size=32, patch_size=8)
    model = wrap(net.eval().to(DEVICE))
    dtype = torch.float16 if DEVICE == "cuda" else torch.float32
    keep = uniform_size(16).sample(40, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    keep[0], keep[1] = False, True
    rows = Rows(keep, torch.arange(40, device=DEVICE) % 2)
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    # Without the kernel there is no attention of unequal lengths on a CPU at all.
    compiled = torch.compile(encode_packed, backend="eager", dynamic=True)
    with torch.no_grad(), model.adapter.ready(), torch.autocast(DEVICE, dtype, enabled=DEVICE == "cuda"):
        table = model.adapter.embed(images)
        packed = run_packed(model.adapter, table, rows, compiled)
        assert (packed - run_bucket(model.adapter, table, rows)).abs().max() <= (2e-2 if DEVICE == "cuda" else 1e-4)
