"""What only a GPU can show: variable-length attention in half precision, real out-of-memory errors, bounded memory."""

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

from tests.models import nets  # noqa: E402
from vitshap.coalitions import uniform_size  # noqa: E402
from vitshap.models import wrap  # noqa: E402
from vitshap.models.removal import AttentionSession  # noqa: E402

HALF_TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Largest difference of probabilities between half precision under autocast and float32; random weights, 2 blocks."""


def _asked(d: int, n: int = 12) -> torch.Tensor:
    coalitions = uniform_size(d).sample(2 * n, generator=torch.Generator("cuda").manual_seed(0)).view(2, n, d)
    coalitions[:, 0], coalitions[:, 1] = False, True
    return coalitions


@pytest.mark.parametrize("name", nets.FAMILIES)
def test_buckets_and_full_length_agree_in_float32(name: str) -> None:
    model = wrap(nets.build(name).cuda())
    pixels = nets.images(name).cuda()
    coalitions = _asked(model.num_players)
    with torch.no_grad():
        packed = model(pixels, coalitions)
        model.evaluation = "full"
        assert (packed - model(pixels, coalitions)).abs().max() <= 1e-5


@pytest.mark.parametrize("dtype", HALF_TOLERANCE)
@pytest.mark.parametrize("name", nets.FAMILIES)
def test_packed_under_autocast_stays_near_float32(name: str, dtype: torch.dtype) -> None:
    model = wrap(nets.build(name).cuda())
    pixels = nets.images(name).cuda()
    coalitions = _asked(model.num_players)
    with torch.no_grad():
        exact = model(pixels, coalitions)
        with torch.autocast("cuda", dtype):
            session = AttentionSession(model.adapter, pixels)
            assert session.packs is not model.adapter.has_bias
            packed = model(pixels, coalitions)
    assert packed.dtype == torch.float32
    assert (packed - exact).abs().max() <= HALF_TOLERANCE[dtype]


def test_gradients_flow_through_variable_length_attention() -> None:
    model = wrap(nets.build("timm ViT").cuda())
    pixels = nets.images("timm ViT").cuda()
    coalitions = _asked(model.num_players)
    gradients = []
    for packed in (True, False):
        model.zero_grad()
        model.evaluation = "packed" if packed else "full"
        with torch.autocast("cuda", torch.bfloat16, enabled=packed):
            model(pixels, coalitions)[..., 0].sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert torch.nn.functional.cosine_similarity(*gradients, dim=0) > 0.999


def test_out_of_memory_halves_the_chunk_instead_of_dying() -> None:
    model = wrap(nets.build("timm ViT").cuda().bfloat16())
    pixels = nets.images("timm ViT").cuda().bfloat16()
    coalitions = uniform_size(16).sample(60_000, device="cuda").view(2, 30_000, 16)
    expected = model.game(pixels)(coalitions)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    model.max_tokens = 1 << 22  # far too much for what is left
    try:
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (64 << 20)) / total)
        squeezed = model.game(pixels)(coalitions)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert model.max_tokens < 1 << 22
    torch.testing.assert_close(squeezed, expected, atol=3e-2, rtol=0)


def test_memory_does_not_grow_with_the_number_of_coalitions() -> None:
    model = wrap(nets.build("timm ViT").cuda().bfloat16())
    pixels = nets.images("timm ViT", n=1).cuda().bfloat16()
    peaks = []
    for n in (200_000, 1_000_000):
        coalitions = uniform_size(16).sample(n, device="cuda")[None]
        game = model.game(pixels)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        values = game(coalitions)
        peaks.append(torch.cuda.max_memory_allocated() - before - values.numel() * values.element_size())
        del coalitions, game, values
    assert peaks[1] < 1.1 * peaks[0]


def test_compiled_gives_the_same_answers() -> None:
    model = wrap(nets.build("transformers ViT eager").cuda().bfloat16())
    pixels = nets.images("transformers ViT eager").cuda().bfloat16()
    coalitions = _asked(model.num_players)
    plain = model.game(pixels)(coalitions)
    model.compile()
    torch.testing.assert_close(model.game(pixels)(coalitions), plain, atol=3e-2, rtol=0)
