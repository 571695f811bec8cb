"""Charts that compare methods."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vitshap import plots
from vitshap.plots import Band


def band(points: int = 5, start: float = 0.1) -> Band:
    x = np.linspace(start, 1, points)
    return Band(x, x**2, np.full(points, 0.05))


@pytest.mark.parametrize(
    ("draw", "panels"),
    [
        (lambda named: plots.average_curves(named, named), 2),
        (lambda named: plots.sensitivity_curves(named), 1),
        (lambda named: plots.roar_curves(named, named), 2),
        (lambda named: plots.removal_curves(named, named), 2),
        (lambda named: plots.error_curves(named), 1),
    ],
)
def test_every_curve_is_drawn_with_its_band(draw: object, panels: int, tmp_path: Path) -> None:
    named = {f"method {i} with $a_long^name$": band(20) for i in range(9)} | {"random": band()}
    figure = draw(named)  # type: ignore[operator]
    assert len(figure.axes) == panels
    for axes in figure.axes:
        lines = axes.get_lines()
        assert len(lines) == len(axes.collections) == 10
        assert np.allclose(lines[0].get_ydata(), named["method 0 with $a_long^name$"].mean)
        looks = {(line.get_color(), line.get_linestyle()) for line in lines}
        assert len(looks) == 10
        edge = axes.collections[0].get_paths()[0].vertices[:, 1]
        assert edge.max() == pytest.approx(1.05)
    plots.save(figure, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_bad_curves_are_named() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        plots.sensitivity_curves({})
    with pytest.raises(ValueError, match=r"the curve of a has .* got \[2\], \[3\], \[2\]"):
        plots.sensitivity_curves({"a": Band(np.zeros(2), np.zeros(3), np.zeros(2))})
    with pytest.raises(ValueError, match="not finite"):
        plots.sensitivity_curves({"a": Band(np.zeros(2), np.full(2, np.nan), np.zeros(2))})


def test_values_with_intervals() -> None:
    names = ["row 1, column 2", "row 3, column 4", "$x^"]
    figure = plots.interval_figure(names, np.array([0.3, -0.1, 0.0]), np.array([0.2, -0.3, 0]), np.array([0.4, 0.1, 0]))
    (axes,) = figure.axes
    lines, points, zero = axes.get_lines()[0:6:2], axes.get_lines()[1:6:2], axes.get_lines()[6]
    assert [list(line.get_xdata()) for line in lines] == [[0.2, 0.4], [-0.3, 0.1], [0, 0]]
    assert [float(point.get_xdata()[0]) for point in points] == [0.3, -0.1, 0.0]
    assert [line.get_alpha() for line in lines] == [1, 0.5, 0.5]  # those that include zero are pale
    assert list(zero.get_xdata()) == [0, 0]
    assert [label.get_text() for label in axes.get_yticklabels()] == names
    assert axes.get_ylim() == (2.5, -0.5)  # the first is at the top
    with pytest.raises(ValueError, match="2 names need as many"):
        plots.interval_figure(names[:2], *np.zeros((3, 3)))
    with pytest.raises(ValueError, match="between the ends"):
        plots.interval_figure(["a"], np.array([1.0]), np.array([2.0]), np.array([3.0]))
