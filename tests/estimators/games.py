"""Games with known values that the analytic ones lack: strong effects of the size, as softmax outputs have."""

import torch
from torch import Tensor

from vitshap.analytic import AnalyticGame
from vitshap.bench.estimators import from_table, softmax_table
from vitshap.coalitions import Coalitions
from vitshap.estimators.posterior import Prior
from vitshap.game import Game


def size_effect(
    d: int, *, batch_size: int = 1, num_outputs: int = 2, seed: int = 0, noise: float = 0.02
) -> AnalyticGame:
    """Additive, plus interactions of three, plus a steep function of the size, which is shared equally by all."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(batch_size, d, num_outputs, generator=generator, dtype=torch.float64) / d
    triples = torch.rand(20, d, generator=generator).argsort(1)[:, :3]
    strength = noise * torch.randn(batch_size, 20, num_outputs, generator=generator, dtype=torch.float64)

    def value(s: Coalitions) -> Tensor:
        together = s[..., triples].all(-1).to(torch.float64)  # [B, S, 20]
        steep = torch.sigmoid(12 * (s.to(torch.float64).mean(-1, keepdim=True) - 0.7))
        return s.to(torch.float64) @ weights + together @ strength + steep

    incidence = torch.zeros(20, d, dtype=torch.float64).scatter_(1, triples, 1 / 3)
    ends = torch.sigmoid(torch.tensor([-12 * 0.7, 12 * 0.3], dtype=torch.float64))
    values = weights + incidence.T @ strength + (ends[1] - ends[0]) / d
    return AnalyticGame(value, values)


def digit_like(num_players: int = 16, num_outputs: int = 10) -> Game:
    """A classifier-like table of values; a stored table of a digit can stand in its place."""
    return from_table(softmax_table(num_players, num_outputs))


def noisy_prior(truth: Tensor, size: float, seed: int = 0) -> Prior:
    """The exact values with independent errors that add up to zero, and their true size."""
    generator = torch.Generator().manual_seed(seed)
    noise = size * torch.randn(truth.shape, generator=generator, dtype=torch.float64)
    noise = noise - noise.mean(1, keepdim=True)
    variance = torch.full((len(truth), truth.shape[2]), size**2, dtype=torch.float64)
    stderr = torch.full_like(truth, size)
    return Prior(truth + noise, None, variance, None, 0.3, 1.0, stderr)


def relative_error(values: Tensor, truth: Tensor) -> float:
    """Root mean squared error over the values' standard deviation over players, pooled over inputs and outputs."""
    return float(((values - truth).square().mean() / (truth - truth.mean(1, keepdim=True)).square().mean()).sqrt())
