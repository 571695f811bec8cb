"""The optima of the paper's appendix, on images of three patches where all expectations can be written down.

The net is a table: one row of logits for everything that can be seen of an image, a missing patch included. So whatever an
optimum is, the net can have it.
"""

from itertools import product

import pytest
import torch
from torch import Tensor, nn

from vitshap.coalitions import all_coalitions, shapley_kernel
from vitshap.estimators.exact import exact
from vitshap.game import Game
from vitshap.metrics.bound import error_bound
from vitshap.models import MaskedModel, wrap
from vitshap.training.fit import ClassifierStep, SurrogateStep
from vitshap.training.objectives import explainer_loss

D, K = 3, 2
IMAGES = torch.tensor(list(product((-1.0, 1.0), repeat=D)))  # [8, D]; a missing patch is 0
COUNTS = torch.tensor([5, 1, 2, 4, 1, 3, 6, 2])  # how often each is in the data: patches depend on each other
SHARE = torch.tensor([0.8, 0.25, 0.5, 1.0, 0.0, 1 / 3, 0.5, 0.5])  # p(y = 1 | x); times the count it is a whole number


class Table(nn.Module):
    """Logits of each pattern of {-1, 0, 1}^D."""

    image_size = (1, D)

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.rows = nn.Parameter(logits)  # [27, K]

    def forward(self, images: Tensor) -> Tensor:
        seen = images[:, 0].flatten(1).sign().long() + 1  # [B, D] of 0, 1, 2
        return self.rows[(seen * 3 ** torch.arange(D)).sum(1)]


def _model(logits: Tensor | None = None) -> MaskedModel:
    table = Table(torch.zeros(3**D, K) if logits is None else logits)
    return wrap(
        table, image_size=(1, D), players=torch.arange(D)[None], removal="pixels", output="softmax", check=False
    )


def _pixels(patches: Tensor) -> Tensor:
    return patches[:, None, None].expand(-1, 3, -1, -1)  # [B, 3, 1, D]


def _minimised(step: nn.Module, *batch: Tensor) -> None:
    optimiser = torch.optim.LBFGS(
        [p for p in step.parameters() if p.requires_grad],
        max_iter=500,
        tolerance_grad=1e-9,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = step(*batch)
        value.backward()
        return value

    optimiser.step(loss)


def _given_what_is_seen(of_image: Tensor) -> Tensor:
    """E[of_image(x) | x_s] for all images and coalitions, ``[8, 8, K]``, counted over the data."""
    found = torch.zeros(len(IMAGES), 2**D, of_image.shape[1])
    for i, image in enumerate(IMAGES):
        for j, s in enumerate(all_coalitions(D)):
            matching = (IMAGES[:, s] == image[s]).all(1) * COUNTS
            found[i, j] = (matching[:, None] * of_image).sum(0) / matching.sum()
    return found


def test_the_surrogate_that_is_optimal_answers_the_conditional_expectation() -> None:
    classifier = _model(torch.randn(3**D, K, generator=torch.Generator().manual_seed(0)))
    surrogate = _model()
    data = _pixels(IMAGES.repeat_interleave(COUNTS, 0))
    everything = all_coalitions(D).expand(len(data), -1, -1)
    _minimised(SurrogateStep(surrogate, classifier), data, everything)
    with torch.no_grad():
        answers = surrogate(_pixels(IMAGES), all_coalitions(D).expand(len(IMAGES), -1, -1))
        whole = classifier(_pixels(IMAGES))
    torch.testing.assert_close(answers, _given_what_is_seen(whole), atol=2e-4, rtol=0)
    assert float((answers - whole[:, None]).abs().max()) > 0.1, "it is not the classifier itself"


def test_the_masked_classifier_that_is_optimal_answers_the_probability_of_the_class_given_what_is_seen() -> None:
    model = _model()
    ones = (SHARE * COUNTS).round().long()
    images = IMAGES.repeat_interleave(COUNTS, 0)
    labels = torch.cat([(torch.arange(n) < m).long() for n, m in zip(COUNTS.tolist(), ones.tolist(), strict=True)])
    everything = all_coalitions(D).expand(len(images), -1, -1)
    _minimised(ClassifierStep(model, None), _pixels(images), labels, everything)
    share = ones / COUNTS
    with torch.no_grad():
        answers = model(_pixels(IMAGES), all_coalitions(D).expand(len(IMAGES), -1, -1))
    # Where a class never occurs its logit goes on falling: the probability is near zero, and not at it.
    torch.testing.assert_close(answers, _given_what_is_seen(torch.stack([1 - share, share], 1)), atol=2e-3, rtol=0)


def test_corollary_1_losses_that_come_to_their_optimum_bring_the_values_with_them() -> None:
    """A table of values per image, by gradient steps on the exact objective: loss, bound and error fall together."""
    surrogate = _model(torch.randn(3**D, K, generator=torch.Generator().manual_seed(1)))
    pixels = _pixels(IMAGES)
    game = surrogate.game(pixels)
    truth = exact(game).values.float()
    inner = all_coalitions(D)[1:-1]
    law = shapley_kernel(D)
    # Every inner coalition of three players is equally likely in a size, and both sizes have the same probability.
    assert torch.allclose(law.size_probabilities, torch.tensor([0, 0.5, 0.5, 0], dtype=torch.float64))
    coalitions = inner.expand(len(IMAGES), -1, -1)
    with torch.no_grad():
        coalition_values, full, base = surrogate(pixels, coalitions), surrogate(pixels), game.null
    raw = torch.zeros(len(IMAGES), D, K, requires_grad=True)
    optimiser = torch.optim.SGD([raw], lr=2.0)

    def values() -> Tensor:
        return raw + ((full - base - raw.sum(1)) / D)[:, None]

    def loss(of: Tensor) -> Tensor:
        return explainer_loss(of, coalitions, coalition_values, base) / D

    best = float(loss(truth))
    errors, gaps = [], []
    for _ in range(12):
        with torch.no_grad():
            found = values()
            errors.append(float((found - truth).norm(dim=1).mean()))
            gaps.append(float(loss(found)) - best)
            assert errors[-1] <= error_bound(game, found).bound + 1e-4  # float32
        for _ in range(10):
            optimiser.zero_grad()
            loss(values()).backward()
            optimiser.step()
    assert best > 0
    assert errors == sorted(errors, reverse=True)
    assert gaps[0] > 1e-4
    assert gaps[-1] == pytest.approx(0, abs=1e-6)
    assert errors[-1] < 1e-3 * errors[0]


def test_the_game_of_the_optimal_surrogate_is_that_of_conditional_expectations() -> None:
    """What is explained in the end: Shapley values of E[f(x) | x_s] by hand, and by the optimal surrogate."""
    classifier = _model(torch.randn(3**D, K, generator=torch.Generator().manual_seed(2)))
    surrogate = _model()
    data = _pixels(IMAGES.repeat_interleave(COUNTS, 0))
    _minimised(SurrogateStep(surrogate, classifier), data, all_coalitions(D).expand(len(data), -1, -1))
    with torch.no_grad():
        table = _given_what_is_seen(classifier(_pixels(IMAGES)))  # [8, 2^D, K]
    code = 2 ** torch.arange(D)

    def conditional(s: Tensor) -> Tensor:
        number = (s.long() * code).sum(-1)
        return table[torch.arange(len(IMAGES))[:, None], number.expand(len(IMAGES), -1)]

    by_hand = Game(conditional, num_players=D, num_outputs=K, batch_size=len(IMAGES))
    torch.testing.assert_close(
        exact(surrogate.game(_pixels(IMAGES))).values.float(), exact(by_hand).values.float(), atol=5e-4, rtol=0
    )
