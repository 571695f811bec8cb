"""Error bars for one forward pass: how far an explainer's values are from the exact ones, learned on held-out images.

The logarithm of the squared error is a linear function of what is known in one pass: the size of the class's values, the
class's output, the model's confidence, the player's own value, and which player and class it is. The function is fitted by
the likelihood of normal errors to images that the explainer was not trained on, and its coefficients are stored in the
bundle. Beside the size of the errors, ``refine`` uses how much they vary between images that look the same, and how alike
they are for players with similar tokens.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from vitshap.estimators.priors import read_tokens
from vitshap.estimators.truth import Truth
from vitshap.explainers.explainer import Explainer
from vitshap.models.masked import Images

FEATURES = ("constant", "log size of the class's values", "log p (1 - p)", "log (1 - largest p)", "log relative size")
"""Of a value, for the logarithm of its squared error; numbers of its player and of its class are added. p: outputs if they
are probabilities."""
SMALL = 0.05
"""Added to a player's squared value relative to the mean over players: tiny values have errors too."""
RIDGE = 1.0
"""Penalty on the players' and classes' numbers, in units of one image."""
LEVEL = 0.95
"""Of the intervals whose coverage is made right on the held-out images."""
WHITE = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Candidates for the share of the errors' variance that is each player's own."""
SPREADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0, 1.25, 1.5, 2.0)
"""Candidates for the spread of an image's log error variance."""
CENTRES = (-1.0, -0.75, -0.5, -0.25, 0.0, 0.25)
"""Candidates for its mean: the logarithm of a mean is more than the mean of the logarithm."""
LEAST_FACTOR = 0.5
"""Of the standard errors; reached only if the reference values are too inexact to say more."""
FEWEST = 20
"""Images below which a calibration is refused."""


@dataclass(frozen=True)
class Calibration:
    """How to compute the standard errors of an explainer's values."""

    coefficients: tuple[float, ...]
    """Of ``FEATURES``."""
    players: tuple[float, ...]
    """Added to the logarithm of the variance, for each player."""
    classes: tuple[float, ...]
    """The same for each class."""
    factor: float
    """Standard errors are multiplied by this, so that intervals of ``LEVEL`` held that share of the held-out values."""
    spread: float
    """Standard deviation of the logarithm of the error variance between images and classes that look the same."""
    white: float
    """Share of the errors' variance that is each player's own; the rest is alike for players with similar tokens."""
    images: int
    """Held-out images that it was made from."""

    def stderr(self, values: Tensor, classes: Tensor, prediction: Tensor, probability: bool) -> Tensor:
        """Return standard errors ``[B, d, T]`` of ``values`` for ``classes`` (int64 ``[B, T]``).

        ``prediction``: the model's outputs, ``[B, K]``; ``probability``: whether they are probabilities.
        """
        rows = features(values.double(), prediction.double().gather(1, classes), prediction.double(), probability)
        log_variance = rows @ rows.new_tensor(self.coefficients) + rows.new_tensor(self.players)[:, None]
        log_variance = log_variance + rows.new_tensor(self.classes)[classes][:, None]
        return (self.factor * (log_variance / 2).exp()).to(values.dtype)

    def to_json(self) -> dict[str, Any]:
        """Return plain numbers by name."""
        return {**asdict(self), "features": list(FEATURES)}

    @staticmethod
    def from_json(stored: Any, num_players: int, num_classes: int) -> Calibration:
        """Read what ``to_json`` returned; ``ValueError`` if it is something else."""
        try:
            known = {**stored}
            if list(known.pop("features")) != list(FEATURES):
                raise ValueError("other features")
            for name, count in (("coefficients", len(FEATURES)), ("players", num_players), ("classes", num_classes)):
                known[name] = tuple(float(number) for number in known[name])
                if len(known[name]) != count:
                    raise ValueError(f"{len(known[name])} {name} instead of {count}")
            found = Calibration(**known)
            tables = (found.coefficients, found.players, found.classes, (found.factor, found.spread, found.white))
            numbers = torch.tensor([number for table in tables for number in table])
            if not bool(torch.isfinite(numbers).all()) or found.factor <= 0 or found.spread < 0:
                raise ValueError("numbers out of range")
            return found
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"the calibration of this bundle cannot be used: {error}") from error


def features(values: Tensor, outputs: Tensor, prediction: Tensor, probability: bool) -> Tensor:
    """Return ``FEATURES`` of values ``[B, d, T]`` with the classes' ``outputs`` ``[B, T]``, ``[B, d, T, 5]``."""
    centred = values - values.mean(1, keepdim=True)
    mean_square = centred.square().mean(1, keepdim=True).clamp(min=1e-16)  # [B, 1, T]
    one = torch.ones_like(values)
    uncertain, doubt = torch.zeros_like(outputs), torch.zeros_like(outputs)
    if probability:
        p = outputs.clamp(1e-4, 1 - 1e-4)
        uncertain = (p * (1 - p)).log()
        doubt = (1 - prediction.amax(1, keepdim=True)).clamp(min=1e-4).log().expand_as(outputs)
    return torch.stack(
        [
            one,
            mean_square.log().expand_as(values),
            uncertain[:, None].expand_as(values),
            doubt[:, None].expand_as(values),
            (centred.square() / mean_square + SMALL).log(),
        ],
        -1,
    )


def calibrate(explainer: Explainer, images: Images, truth: Truth | Tensor, /) -> Calibration:
    """Learn the errors of an explainer from held-out images with known Shapley values of all classes.

    ``truth``: reference values of these images (``vitshap.truth``), or exact ones as a tensor ``[N, d, K]``. The images
    must not be those that the explainer was trained on.
    """
    surrogate = explainer.surrogate
    pixels = surrogate.prepare(images).pixels
    if isinstance(truth, Truth):
        if truth.specification.surrogate != surrogate.fingerprint():
            raise ValueError("these reference values belong to another surrogate than the explainer's")
        known, noise = truth.values, truth.stderr.square()
    else:
        known, noise = truth.double().cpu(), torch.zeros_like(truth, dtype=torch.float64, device="cpu")
    expected = (len(pixels), surrogate.num_players, surrogate.num_classes)
    if tuple(known.shape) != expected or len(pixels) < FEWEST:
        raise ValueError(
            f"calibrate needs at least {FEWEST} images and values {list(expected)} of all players and classes, got "
            f"{list(known.shape)}"
        )
    explanations = [explainer(part) for part in pixels.split(64)]  # type: ignore[no-untyped-call]
    values, outputs = (
        torch.cat([getattr(e, name) for e in explanations]).double() for name in ("values", "prediction")
    )
    squares = (values - known).square()
    rows = features(values, outputs, outputs, surrogate.unit == "probability")
    coefficients, players, classes = _fit(rows, squares, noise)
    variance = (rows @ coefficients + players[:, None] + classes).exp()  # [N, d, K]
    factor = _factor(squares, variance, noise)
    spread = _spread(squares, variance, noise)
    white = _white(explainer, pixels, values - known, variance)
    linear, by_player, by_class = (tuple(table.tolist()) for table in (coefficients, players, classes))
    return Calibration(linear, by_player, by_class, factor, spread, white, len(pixels))


def _fit(rows: Tensor, squares: Tensor, noise: Tensor) -> list[Tensor]:
    """Return coefficients ``[F]``, players' ``[d]`` and classes' numbers ``[K]`` that maximise the likelihood."""
    scale = rows.flatten(0, -2).std(0).clamp(min=1e-6)
    scale[0] = 1.0
    parts = [rows.shape[-1], rows.shape[1], rows.shape[2]]
    weights = torch.zeros(sum(parts), dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        weights[0] = (squares - noise).mean().clamp(min=1e-16).log()
    optimiser = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        linear, players, classes = torch.split(weights, parts)
        log_variance = rows @ (linear / scale) + players[:, None] + classes
        total = log_variance.clamp(-60, 60).exp() + noise
        found: Tensor = (total.log() + squares / total).mean() / 2
        found = found + RIDGE * (players.square().mean() + classes.square().mean()) / (2 * len(rows))
        found.backward()  # type: ignore[no-untyped-call]
        return found

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    linear, players, classes = torch.split(weights.detach(), parts)
    return [linear / scale, players, classes]


def _factor(squares: Tensor, variance: Tensor, noise: Tensor) -> float:
    """Return the factor with which normal intervals of ``LEVEL`` hold that share of the reference values.

    The reference's own errors (variance ``noise``) count as in any comparison with it, and are not multiplied.
    """
    quantile = NormalDist().inv_cdf((1 + LEVEL) / 2)
    needed = ((squares / quantile**2 - noise) / variance).flatten()
    return float(needed.kthvalue(max(1, round(LEVEL * len(needed)))).values.clamp(min=LEAST_FACTOR**2).sqrt())


def _spread(squares: Tensor, variance: Tensor, noise: Tensor) -> float:
    """Return the most likely standard deviation of the log error variance between images and classes, ``SPREADS``.

    The variance of an image and class is that of the table times exp(t), t normal with that standard deviation.
    """
    t = torch.linspace(-5, 5, 81, dtype=torch.float64)
    likelihood = torch.stack([_log_likelihood(squares, one.exp() * variance + noise) for one in t])  # [81, N, K]
    best, found = -torch.inf, SPREADS[0]
    for spread in SPREADS:
        for centre in CENTRES:
            log_prior = torch.log_softmax(-((t - centre) ** 2) / (2 * spread**2), 0)
            evidence = float((likelihood + log_prior[:, None, None]).logsumexp(0).sum())
            best, found = max((best, found), (evidence, spread))
    return found


def _log_likelihood(squares: Tensor, variance: Tensor) -> Tensor:
    """Return that of the errors of every image and class, ``[N, K]``."""
    return -0.5 * (variance.log() + squares / variance).sum(1)


def _white(explainer: Explainer, pixels: Tensor, errors: Tensor, variance: Tensor) -> float:
    """Return the share of white variance under which errors ``[N, d, K]`` of these variances are most likely.

    The model is that of the prior of ``refine``: players of an image have variances of their own, and errors add up to
    zero. So errors divided by their sizes are known but for a multiple of the inverse sizes, which leaves d - 1 directions.
    """
    surrogate = explainer.surrogate
    size = (variance.log().mean(2, keepdim=True) / 2).exp()  # [N, d, 1]: the same for all classes, up to a factor
    lost = torch.nn.functional.normalize(1 / size, dim=1)
    best = torch.zeros(0, len(WHITE), dtype=torch.float64)  # by candidate for the similarity
    for start in range(0, len(pixels), 32):
        part = slice(start, start + 32)
        tokens = read_tokens(surrogate.adapter, pixels[part], surrogate.players)
        if tokens is None:
            return 1.0
        away = (lost[part] @ lost[part].transpose(1, 2))[:, None]  # [n, 1, d, d]
        inside = torch.eye(away.shape[2], dtype=away.dtype) - away
        # The lost direction gets the least eigenvalue, -1, and is dropped.
        every, vectors = torch.linalg.eigh(inside @ tokens.similarity.cpu() @ inside - away)
        spectrum, basis = every[..., 1:], vectors[..., 1:]  # [n, M, d - 1], [n, M, d, d - 1]
        squares = (basis.transpose(2, 3) @ (errors / size)[part, None]).square()  # [n, M, d - 1, K]
        best = best if len(best) else best.new_zeros(spectrum.shape[1], len(WHITE))
        for i, white in enumerate(WHITE):
            along = (1 - white) * spectrum.clamp(min=0) + white  # [n, M, d - 1]
            scale = (squares / along[..., None]).mean(2)  # [n, M, K]: the best one of each image and class
            logs = along.log().sum(2, keepdim=True) + squares.shape[2] * scale.clamp(min=1e-300).log()
            best[:, i] -= 0.5 * logs.sum((0, 2))
    return WHITE[int(best.amax(0).argmax())]
