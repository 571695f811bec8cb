"""Control functions: their known values against enumeration, and columns against inner products."""

import pytest
import torch

from vitshap.bench.estimators import from_table
from vitshap.coalitions import all_coalitions, harmonic_number
from vitshap.estimators.controls import Controls, centre, size_curves, slope_curves
from vitshap.estimators.exact import exact
from vitshap.estimators.strata import Drawer, Strata, strata


def all_units(d: int, paired: bool) -> tuple[Strata, torch.Tensor, torch.Tensor]:
    design = strata(d, paired=paired)
    members, groups = Drawer(design, torch.Generator().manual_seed(0)).up_to(torch.tensor(design.population))
    return design, members, groups


@pytest.mark.parametrize(("d", "paired", "triples"), [(7, True, 0.3), (8, True, 0.3), (7, False, 0.0)])
def test_known_values_are_expectations(d: int, paired: bool, triples: float) -> None:
    design, members, groups = all_units(d, paired)
    controls = Controls(design, slope_curves(design, 3), triples)
    weight = (design.mass / torch.tensor(design.population))[groups][:, None]
    expected = (weight * centre(members, groups, design)).T @ controls.columns(members, groups)
    assert torch.allclose(controls.values_of_columns(members.device), expected, atol=1e-12)


def test_known_values_are_shapley_values() -> None:
    """Independently: a triple's product of signs is a game; its values by enumeration, up to the equal share."""
    d = 6
    sign = 2.0 * all_coalitions(d).to(torch.float64) - 1
    values = exact(from_table((sign[:, 0] * sign[:, 2] * sign[:, 5])[:, None])).values[0, :, 0]
    design = strata(d, paired=True)
    controls = Controls(design, slope_curves(design, 0), 1.0)
    column = torch.combinations(torch.arange(d), 3).tolist().index([0, 2, 5])
    scale = controls.columns(torch.ones(1, d, dtype=torch.bool), torch.tensor([0]))[0, column]
    known = controls.values_of_columns(torch.device("cpu"))[:, column] / scale
    # A pair's difference is twice the product.
    assert torch.allclose(2 * harmonic_number(d - 1) * known, values - values.mean(), atol=1e-12)


@pytest.mark.parametrize("triples", [0.0, 0.3])
def test_inner_products_are_those_of_the_columns(triples: float) -> None:
    design, members, groups = all_units(8, True)
    controls = Controls(design, slope_curves(design, 3), triples)
    columns = controls.columns(members, groups)
    assert columns.shape[1] == controls.num_columns
    assert torch.allclose(controls.inner_products(members, groups), columns @ columns.T, atol=1e-10)
    known = controls.values_of_columns(members.device) @ columns.T
    assert torch.allclose(controls.values_of_inner_products(members, groups), known, atol=1e-12)


@pytest.mark.parametrize("knots", [1, 2, 11, 98])
def test_size_curves_add_up_to_one_except_for_halves(knots: int) -> None:
    curves = size_curves(strata(196, paired=True), knots)
    assert curves.shape[1] <= knots
    assert torch.allclose(curves[:-1].sum(1), torch.ones(97, dtype=torch.float64))
    assert curves[-1].abs().max() == 0
    assert curves.min() >= 0
