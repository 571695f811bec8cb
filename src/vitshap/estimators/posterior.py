"""Shapley values under a Gaussian prior: posterior mean and standard deviation from an estimate with known errors.

The values of an input and an output are ``mean + u``. Over the players u is normal with covariance ``a (1 - w) K + a w I``,
centred, since the sum of the values is known: K is how similar players are, w the share of the variance that is each
player's own, a the variance. An estimate of u with errors of variance sigma^2 has the posterior mean ``sum_j g_j z_j e_j``:
e_j are the eigenvectors of the covariance, z_j the estimate's coordinates along them, and ``g_j = c_j / (c_j + sigma^2)``
with the eigenvalues c_j. So one eigendecomposition per input and K serves all outputs. What is not known of a and w is
integrated over a grid, weighted by the likelihood of the estimate, and so is the choice between several K: the posterior
then covers their uncertainty too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import log
from typing import Any, NamedTuple

import torch
from torch import Tensor

WHITE = (0.02, 0.1, 0.25, 0.5, 0.75, 1.0)
"""Shares of the variance that is each player's own, if the share is not known."""
UNKNOWN = (1e-3, 10.0)
"""Range of variances, if nothing is known: multiples of the errors' variance and of the estimate's mean square."""
POINTS = 21
"""Of the grid of variances."""
CONTRADICTED = 3.0
"""Where the estimate's mean square is larger than this multiple of what the prior and the errors explain, the prior's
variance may be wrong: a prior of equal values, for example, would otherwise be certain whatever is evaluated ..."""
WRONG, WRONG_POINTS = 1e-3, 11
"""... with this probability, and is then larger, up to ``UNKNOWN``; and points of that grid."""
OUTPUTS_AT_ONCE = 32


@dataclass(frozen=True, eq=False)
class Prior:
    """What is known of the values of ``B`` inputs, ``d`` players and ``K`` outputs before any evaluation."""

    mean: Tensor
    """float64 ``[B, d, K]``."""
    similarity: Tensor | None = None
    """Covariance of players up to a factor, positive semi-definite, float64 ``[B, M, d, d]``: M candidates, between which
    the evaluations decide; None: none."""
    variance: Tensor | None = None
    """Expected squared error of the mean, averaged over players, float64 ``[B, K]``; None: not known."""
    profile: Tensor | None = None
    """Variance of each player relative to their mean, float64 ``[B, d]``; None: equal."""
    spread: float = 1.0
    """Standard deviation of the logarithm of ``variance``, between inputs and outputs that look the same."""
    white: float | None = None
    """Share of the variance that is each player's own; None: not known."""
    stderr: Tensor | None = None
    """Standard error of each value, float64 ``[B, d, K]``, where it is known."""

    def __getitem__(self, inputs: slice) -> Prior:
        """Return the prior of some of the inputs."""
        parts: dict[str, Any] = {
            field.name: value[inputs]
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **parts)


class Grid(NamedTuple):
    """Candidates for the variance of an input and output: logarithms ``[B, K, A]`` and their log prior."""

    log_variance: Tensor
    log_prior: Tensor


class Posterior(NamedTuple):
    """The posterior of ``values - prior.mean``."""

    mean: Tensor
    """float64 ``[B, d, K]``."""
    stderr: Tensor
    """Standard deviation of each value, float64 ``[B, d, K]``."""
    spread: Tensor
    """Standard deviation of the logarithm of the mean squared error over players, as far as the prior's variance is not
    known, float64 ``[B, K]``."""


def posterior(prior: Prior, residual: Tensor, stderr: Tensor, present: Tensor) -> Posterior:
    """Return the posterior from an estimate of what the prior leaves.

    ``residual`` (``[B, d, K]``) estimates that difference with independent errors ``stderr``, and sums to zero over the
    players ``present`` (bool ``[B, d]``).
    """
    candidates = [None] if prior.similarity is None else prior.similarity.unbind(1)
    return _mixture([_alone(prior, one, residual, stderr, present) for one in candidates])


def _alone(
    prior: Prior, similarity: Tensor | None, residual: Tensor, stderr: Tensor, present: Tensor
) -> tuple[Posterior, Tensor]:
    """Return the posterior with one of the similarities ``[B, d, d]``, and the logarithm of its evidence ``[B]``."""
    basis, spectrum = _eigenvectors(prior, similarity, present)  # [B, d, d], [B, W, d]
    count = (present.sum(1) - 1).clamp(min=1).to(residual)[:, None]  # [B, 1]: dimensions of centred values
    parts, evidence = [], residual.new_zeros(len(residual))
    for first in range(0, residual.shape[2], OUTPUTS_AT_ONCE):
        some = slice(first, first + OUTPUTS_AT_ONCE)
        mean_square = residual[..., some].square().sum(1) / count  # [B, K]
        noise = stderr[..., some].square().sum(1) / count
        noise = noise.clamp(min=torch.finfo(noise.dtype).tiny).maximum(1e-12 * mean_square)
        grid = _grid(prior, some, mean_square, noise)
        found, logs = _average(basis, spectrum, grid, residual[..., some], stderr[..., some], noise, count)
        parts.append(found)
        evidence = evidence + logs.sum(1)
    means, errors, spreads = zip(*parts, strict=True)
    return Posterior(torch.cat(means, 2), torch.cat(errors, 2), torch.cat(spreads, 1)), evidence


def _mixture(found: Sequence[tuple[Posterior, Tensor]]) -> Posterior:
    """Average posteriors of several similarities by their evidence: one choice per input, on which all outputs vote."""
    means, errors, spreads = (torch.stack(part) for part in zip(*(one for one, _ in found), strict=True))
    weight = torch.stack([evidence for _, evidence in found]).softmax(0)[..., None]  # [M, B, 1]
    mean = (weight[..., None] * means).sum(0)
    variance = (weight[..., None] * (errors.square() + (means - mean).square())).sum(0)
    return Posterior(mean, variance.sqrt(), (weight * spreads.square()).sum(0).sqrt())


def _average(
    basis: Tensor, spectrum: Tensor, grid: Grid, residual: Tensor, stderr: Tensor, noise: Tensor, count: Tensor
) -> tuple[Posterior, Tensor]:
    """Average posteriors over the grid; return the logarithm of the evidence too, ``[B, K]``."""
    scores = basis.transpose(1, 2) @ residual  # [B, d, K]
    free = spectrum > 0
    known = grid.log_variance.exp()[..., None, None] * spectrum[:, None, None]  # [B, K, A, W, d]
    total = known + noise[..., None, None, None]
    squares = scores.square().transpose(1, 2)[:, :, None, None]  # [B, K, 1, 1, d]
    one = free[:, None, None].to(known)
    likelihood = -0.5 * (one * (total.log() + squares / total)).sum(-1)  # [B, K, A, W]
    joint = (likelihood + grid.log_prior[..., None]).flatten(2)  # [B, K, AW]
    weight = joint.softmax(-1)
    gain = (known / total * one).flatten(2, 3)  # [B, K, AW, d]
    mean_gain = (weight[..., None] * gain).sum(2)  # [B, K, d]
    z = scores.transpose(1, 2)  # [B, K, d]
    mean = basis @ (mean_gain * z).transpose(1, 2)  # [B, d, K]
    # Shrinkage leaves (1 - g)^2 c of the prior's variance and lets g^2 of the error through; errors differ by player.
    left = (weight[..., None] * (1 - gain).square() * known.flatten(2, 3)).sum(2)  # [B, K, d]
    through = (weight[..., None] * gain.square()).sum(2) * noise[..., None]
    squared = basis.square()  # [B, d, d]
    relative = stderr.square() / (stderr.square().sum(1) / (count + 1))[:, None].clamp(min=torch.finfo(z.dtype).tiny)
    variance = squared @ left.transpose(1, 2) + relative * (squared @ through.transpose(1, 2))
    apart = (gain - mean_gain[:, :, None]) * z[:, :, None]  # [B, K, AW, d]
    moved = (apart @ basis[:, None].transpose(2, 3)).square()  # [B, K, AW, d]: by player
    variance = variance + (weight[..., None] * moved).sum(2).transpose(1, 2)
    each = ((1 - gain).square() * known.flatten(2, 3) + gain.square() * noise[..., None, None]).sum(-1)
    each = each.clamp(min=torch.finfo(z.dtype).tiny).log()  # [B, K, AW]
    spread = (weight * (each - (weight * each).sum(-1, keepdim=True)).square()).sum(-1).sqrt()
    return Posterior(mean, variance.sqrt(), spread), joint.logsumexp(-1)


def _grid(prior: Prior, outputs: slice, mean_square: Tensor, noise: Tensor) -> Grid:
    """Return candidates for the variance around what is known of it, or over all that the estimate allows."""
    lowest, highest = (UNKNOWN[0] * noise).log(), (UNKNOWN[1] * torch.maximum(mean_square, noise)).log()
    if prior.variance is None:
        log_variance = _between(lowest, highest, POINTS)
        return Grid(log_variance, log_variance / 2)  # flat in the standard deviation: no preference for zero
    expected = prior.variance[:, outputs].clamp(min=torch.finfo(noise.dtype).tiny).log()
    steps = torch.linspace(-3, 3, POINTS, dtype=noise.dtype, device=noise.device)
    log_variance = expected[..., None] + prior.spread * steps
    log_prior = (-steps.square() / 2).expand_as(log_variance)
    contradicted = mean_square > CONTRADICTED * (log_variance[..., -1].exp() + noise)
    if not bool(contradicted.any()):
        return Grid(log_variance, log_prior)
    larger = _between(torch.maximum(lowest, log_variance[..., -1]), highest, WRONG_POINTS)
    rest = torch.where(contradicted[..., None], log(WRONG / WRONG_POINTS), -torch.inf).to(larger).expand_as(larger)
    return Grid(torch.cat([log_variance, larger], -1), torch.cat([log_prior.log_softmax(-1), rest], -1))


def _between(low: Tensor, high: Tensor, points: int) -> Tensor:
    """Return ``points`` numbers at equal distances from ``low`` to ``high`` (``[B, K]``), ``[B, K, points]``."""
    steps = torch.linspace(0, 1, points, dtype=low.dtype, device=low.device)
    return low[..., None] + (high - low)[..., None] * steps


def _eigenvectors(prior: Prior, similarity: Tensor | None, present: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvectors ``[B, d, d]`` and the prior's variance along them ``[B, W, d]``, for W shares of white variance.

    ``similarity``: one of the prior's, ``[B, d, d]``. The variance is zero along directions in which values are not free:
    their sum, and absent players. Its mean over the others is one.
    """
    here = present.to(prior.mean)  # [B, d]
    count = here.sum(1)[:, None, None]
    inside = torch.diag_embed(here) - here[:, :, None] * here[:, None] / count  # projection on what is free
    identity = torch.eye(here.shape[1], dtype=here.dtype, device=here.device)
    known = 1.0 if similarity is None else prior.white
    similarity = identity.expand_as(inside) if similarity is None else similarity
    shares = here.new_tensor(WHITE if known is None and prior.profile is None else [0.0])
    if prior.profile is not None or known is not None:
        white = 0.5 if known is None else known
        root = torch.ones_like(here) if prior.profile is None else prior.profile.sqrt()
        similarity = root[:, :, None] * ((1 - white) * similarity + white * identity) * root[:, None]
    covariance = inside @ similarity @ inside
    freedom = (count[:, 0] - 1).clamp(min=1)  # [B, 1]
    covariance = (
        covariance * (freedom / covariance.diagonal(dim1=1, dim2=2).sum(1, keepdim=True).clamp(min=1e-300))[..., None]
    )
    apart = 2 * here.shape[1] + 1.0  # larger than any eigenvalue: marks the directions that are not free
    spectrum, basis = torch.linalg.eigh(covariance + apart * (identity - inside))
    free = (spectrum < apart / 2 + here.shape[1] / 2).to(spectrum)
    spectrum = spectrum.clamp(min=0)[:, None]  # [B, 1, d]
    variances = (1 - shares)[:, None] * spectrum + shares[:, None]
    return basis, variances.clamp(min=1e-9) * free[:, None]
