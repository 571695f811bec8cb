"""Tables and figures from finished steps, beside the paper's numbers. Nothing is computed here.

A view has tables of text and charts. Every number says what it is: made by the profile (a smoke test, a reduced scale or
a reproduction), or not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vitshap.experiments.tables import Column, Table
from vitshap.plots.comparisons import Band, comparison_figure
from vitshap.plots.comparisons import Panel as Chart
from vitshap.reproduce.cells import (
    ARROWS,
    LEGEND,
    NOT_RUN,
    ROWS,
    finished_parts,
    has_number,
    joined,
    marks_of,
    own_text,
    printed_text,
    rows_of,
)
from vitshap.reproduce.paper import printed, tables
from vitshap.reproduce.profiles import Profile, Setting
from vitshap.reproduce.sources import (
    EARLIER_TRAINING,
    NAMES,
    Source,
    data_name,
    explained_classes,
    facts,
    of_earlier_training,
    panel_title,
)
from vitshap.reproduce.specifications import (
    ABLATIONS,
    ESTIMATORS,
    EXPLAINER_ERRORS,
    EXPLAINERS,
    Panel,
    Specification,
)
from vitshap.reproduce.store import Result, Store

ERRORS = {
    "distance": "Euclidean distance",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
}
"""Measures of the errors of estimators, as charts name them."""


ROUNDING = 1e-5
"""Relative difference of stored numbers that is rounding."""


@dataclass
class View:
    """What a table or figure shows."""

    specification: Specification
    tables: list[Table] = field(default_factory=list)
    charts: dict[str, list[Chart]] = field(default_factory=dict)
    """By the name of the picture's file."""
    pictures: list[Path] = field(default_factory=list)
    """Pictures that a step left: maps over photos."""
    sources: dict[str, Source] = field(default_factory=dict)
    """Where the numbers come from, by ``SETTING/STEP``."""
    filled: int = 0
    not_run: int = 0

    def draw(self, folder: Path) -> list[Path]:
        """Draw the charts into a folder."""
        from vitshap.plots import save

        return [save(comparison_figure(panels), folder / name) for name, panels in self.charts.items()]


class Viewer:
    """Makes views of the results of one profile; with ``finished_only`` no table of which nothing was run."""

    def __init__(self, profile: Profile, store: Store, *, finished_only: bool = False) -> None:
        self.profile, self.store, self.finished_only = profile, store, finished_only

    def view(self, one: Specification) -> View:
        """Return the view of a table or figure."""
        made = View(one)
        build = {
            "metrics": self._metrics,
            "kernelshap-areas": self._metrics,
            "ablations": self._ablations,
            "times": self._times,
            "removal": self._removal,
            "sensitivity": self._sensitivity,
            "curves": self._curves,
            "roar": self._roar,
            "kernelshap-error": self._errors,
            "maps": self._maps,
            "class-maps": self._maps,
        }[one.kind]
        build(made)
        return made

    def _found(self, view: View, panel: Panel, step: str | None = None) -> tuple[Setting | None, Result | None]:
        """Return a panel's setting and result, and note where the result comes from."""
        setting = self.profile.setting(panel.data, panel.model)
        if setting is None:
            return None, None
        results = finished_parts(self.store, setting.name, step or panel.step)
        for name, result in results.items():
            if len(results) > 1 and not rows_of(result) & set(view.specification.methods):
                continue  # variants of methods that this table or figure leaves out
            source = view.sources.setdefault(f"{setting.name}/{name}", Source(setting, result.record))
            source.facts |= dict.fromkeys(facts(panel, setting, result))
            if of_earlier_training(self.store, setting, name, result):
                source.facts[EARLIER_TRAINING] = None
        return setting, joined(results)

    def _count(self, view: View, value: object) -> None:
        if value is None:
            view.not_run += 1
        else:
            view.filled += 1

    def _metrics(self, view: View) -> None:
        for panel in view.specification.panels:
            setting, result = self._found(view, panel)
            table = self._metric_table(view, panel, setting, result)
            if view.specification.kind == "kernelshap-areas":
                table.notes.append(self._evaluations(panel))
            if result is not None or not self.finished_only:
                view.tables.append(table)

    def _evaluations(self, panel: Panel) -> str:
        """Return the evaluations of the estimators and of the truth, and how reliable that is."""
        scale, setting = self.profile.scale, self.profile.setting(panel.data, panel.model)
        truth = None if setting is None else self.store.find(setting.name, "truth")
        text = (
            f"Evaluations per image: KernelSHAP {scale.paired:,} with and {scale.unpaired:,} without pairs (the paper's "
            f"table 12: until it converges, about 300,000 to 1,200,000), kernelshap {scale.paired // 8:,}, refine "
            f"{scale.refined:,}, truth {scale.truth:,}"
        )
        if truth is None:
            return f"{text}."
        known = {name: value for name, value in truth.values["reliability"].items() if value is not None}
        reliability = ", ".join(f"{value:.3f} for {name} classes" for name, value in known.items())
        return f"{text}. Reliability of the truth (1: without error): {reliability}."

    def _metric_table(self, view: View, panel: Panel, setting: Setting | None, result: Result | None) -> Table:
        """Return the rows of one data set, model and kind of class, ours beside the paper's."""
        one = view.specification
        formula = one.kind == "metrics"
        names = [*one.metrics, *(["faithfulness formula"] if formula else [])]
        columns = [Column("method")]
        for metric in names:
            arrow = ARROWS.get(metric, "\N{UPWARDS ARROW}")
            columns.append(Column(metric, title=f"{metric} {arrow}"))
            if metric != "faithfulness formula":
                columns.append(Column(f"{metric} paper", title="paper"))
        found = {} if result is None else result.values.get(panel.classes, {})
        run = rows_of(result)
        marked = {metric: marks_of(found.get("metrics", {}).get(metric, {}), metric) for metric in names}
        table = Table(panel_title(panel, setting, found.get("images")), columns, notes=[LEGEND])
        for row in one.methods:
            cells: dict[str, Any] = {"method": ROWS[row]}
            for metric in names:
                number = printed(one.id, row, metric, data=panel.data, classes=panel.classes)
                own = found.get("metrics", {}).get(metric, {}).get(row)
                expected = has_number(row, panel, metric)
                if expected:
                    self._count(view, own if found.get("images") != 0 else None)
                cells[metric] = own_text(own, marked[metric].get(row), run=row in run, expected=expected)
                if metric != "faithfulness formula":
                    cells[f"{metric} paper"] = printed_text(number)
            table.add(**cells)
        return table

    def _ablations(self, view: View) -> None:
        columns = (
            Column("variant"),
            *(Column(name) for name in ("validation loss", "test loss")),
            Column("excess"),
            *(Column(f"{name} paper", title=f"{name}, paper") for name in ("validation loss", "test loss")),
        )
        table = Table("Loss of variants of the explainer", columns)
        block = tables()["table-3"][0]
        by_step = {panel.step.removeprefix("ablation-"): panel for panel in view.specification.panels}
        for name, row in ABLATIONS.items():
            _, result = self._found(view, by_step[name])
            values = {} if result is None else result.values
            own = {"validation loss": values.get("validation_loss"), "test loss": values.get("test_loss")}
            own["excess"] = values.get("excess")
            cells = {key: NOT_RUN if value is None else f"{value:.4f}" for key, value in own.items()}
            for value in own.values():
                self._count(view, value)
            paper = {f"{key} paper": printed_text(block.number(row, key)) for key in ("validation loss", "test loss")}
            table.add(variant=row, **cells, **paper)
        view.tables.append(table)

    def _times(self, view: View) -> None:
        panels = view.specification.panels
        columns, results = [Column("method")], {}
        for panel in panels:
            setting, results[panel.data] = self._found(view, panel)
            columns += [Column(panel.data, title=f"{data_name(panel, setting)}, ms")]
            columns += [Column(f"{panel.data} paper", title=f"paper, {NAMES[panel.data]}, ms")]
        table = Table("Milliseconds per image for all classes", columns)
        for row in view.specification.methods:
            if row == "random":
                continue
            cells = {"method": ROWS[row]}
            for panel in panels:
                result = results[panel.data]
                own = None if result is None else result.values["rows"][row]["milliseconds"]
                self._count(view, own)
                cells[panel.data] = NOT_RUN if own is None else f"{own:,.2f}"
                number = printed("table-11", row, "milliseconds", data=panel.data, classes="all")
                cells[f"{panel.data} paper"] = printed_text(number, digits=1)
            table.add(**cells)
        view.tables.append(table)

    def _curves(self, view: View) -> None:
        for panel in view.specification.panels:
            setting, result = self._found(view, panel)
            found = {} if result is None else result.values.get(panel.classes, {})
            charts = []
            for metric in ("insertion", "deletion"):
                curves = found.get("curves", {}).get(metric, {})
                bands = {}
                for row in self._shown(view, panel, curves, result):
                    mean = curves[row]["mean"]
                    bands[ROWS[row]] = _band(np.linspace(0, 1, len(mean)), mean, curves[row]["interval"])
                title = f"{data_name(panel, setting)}: {metric}, {explained_classes(panel)}"
                charts.append(
                    Chart(title, f"share of patches {metric[:-3]}ed", "probability", bands, (ROWS["random"],))
                )
            self._add_charts(view, f"{panel.data}-{panel.classes}", charts)

    def _sensitivity(self, view: View) -> None:
        for panel in view.specification.panels:
            setting, result = self._found(view, panel)
            found = {} if result is None else result.values.get(panel.classes, {})
            charts = []
            for metric, what in (
                ("sensitivity", "authors' definition"),
                ("sensitivity formula", "the paper's formula"),
            ):
                curves = found.get("curves", {}).get(metric, {})
                bands = {
                    ROWS[row]: _band(found["sizes"], curves[row]["mean"], curves[row]["interval"])
                    for row in self._shown(view, panel, curves, result)
                }
                title = f"{data_name(panel, setting)}, {panel.classes}: {what}"
                charts.append(Chart(title, "patches in a subset, n", "correlation", bands, (ROWS["random"],)))
            self._add_charts(view, f"{panel.data}-{panel.classes}", charts)

    def _shown(self, view: View, panel: Panel, curves: Mapping[str, Any], result: Result | None) -> Iterator[str]:
        """Yield the methods with a curve, explainers first, counting all that should have one."""
        for row in sorted(view.specification.methods, key=lambda row: row not in EXPLAINERS):
            if has_number(row, panel, "insertion"):
                self._count(view, curves.get(row))
                if row in curves and result is not None:
                    yield row

    def _removal(self, view: View) -> None:
        for panel in view.specification.panels:
            setting, result = self._found(view, panel)
            charts = []
            for metric in view.specification.metrics:
                self._count(view, result)
                if result is None:
                    continue
                label = "KL divergence" if metric == "divergence" else "accuracy"
                bands = {
                    name: _band(result.values["kept"], curve["mean"], curve["interval"])
                    for name, curve in result.values[metric].items()
                }
                view.not_run += len(result.record.get("withdrawn", ()))
                charts.append(Chart(f"{data_name(panel, setting)}: {label}", "patches kept", label, bands))
            self._add_charts(view, panel.data, charts)

    def _roar(self, view: View) -> None:
        for panel in view.specification.panels:
            _, result = self._found(view, panel)
            charts = []
            for direction in view.specification.metrics:
                rows = {} if result is None else result.values["rows"]
                bands = {}
                for row in view.specification.methods:
                    self._count(view, rows.get(row))
                    if row in rows and result is not None:
                        ends = rows[row][direction]
                        half = (np.array(ends["high"]) - np.array(ends["low"])) / 2
                        bands[ROWS[row]] = _band(result.values["counts"], ends["mean"], half)
                title = f"{panel.step.removeprefix('roar-').replace('-', ' ')}: {direction}"
                charts.append(Chart(title, f"patches {direction[:-3]}ed", "accuracy", bands, (ROWS["random"],)))
            self._add_charts(view, panel.step, charts)

    def _errors(self, view: View) -> None:
        panel = view.specification.panels[0]
        results = {step: self._found(view, panel, step)[1] for step in ESTIMATORS}
        for result in results.values():
            self._count(view, result)
        known = {ESTIMATORS[step]: result for step, result in results.items() if result is not None}
        lines: dict[str, Any] = {}
        for step in EXPLAINER_ERRORS:
            result = self._found(view, panel, step)[1]
            self._count(view, result)
            lines |= {} if result is None else result.values["rows"]
        columns = (Column("compared", title="estimator"), *(Column(row, title=ROWS[row]) for row in EXPLAINERS))
        table = Table("Evaluations per image at which an estimator passes an explainer (distance)", columns)
        for classes in ("target", "non-target"):
            charts = []
            for measure in view.specification.metrics:
                bands: dict[str, Band] = {}
                for kind, result in known.items():
                    curve, evaluations = result.values["curves"][measure].get(classes), result.values["evaluations"]
                    if curve is not None:
                        start = int(evaluations[0] <= 2)  # refine's prior, which is the explainer's line
                        points = evaluations, curve["mean"], curve["interval"]
                        bands[kind] = _band(*(each[start:] for each in points))
                reach = [band.x for band in bands.values()]
                for row in lines if reach else ():
                    line = lines[row][measure].get(classes)
                    if line is not None:
                        ends = [min(float(x[0]) for x in reach), max(float(x[-1]) for x in reach)]
                        bands[ROWS[row]] = _band(ends, [line["mean"][0]] * 2, [line["interval"][0]] * 2)
                label = ERRORS[measure]
                title = f"{label}, {classes}"
                chart = Chart(title, "evaluations per image", label, bands, log=(True, measure == "distance"))
                charts.append(chart)
            self._add_charts(view, f"errors-{classes}", charts)
            for kind, result in known.items():
                curve = result.values["curves"]["distance"].get(classes)
                shown = dict.fromkeys(EXPLAINERS, NOT_RUN)
                for row in lines if curve is not None else ():
                    level, evaluations = lines[row]["distance"][classes]["mean"][0], result.values["evaluations"]
                    shown[row] = _passed(crossing(evaluations, curve["mean"], level), evaluations[0])
                table.add(compared=f"{kind}, {classes}", **shown)
        table.notes.append(
            "The paper: about 120,000 for KernelSHAP as published, about 40,000 with pairs. refine with "
            "vitshap's explainer starts from its values."
        )
        if table.rows:
            table.notes.append(self._evaluations(panel))
            view.tables.append(table)

    def _maps(self, view: View) -> None:
        one = view.specification
        for panel in one.panels:
            _, result = self._found(view, panel)
            if one.kind == "class-maps":
                wanted = ["curves-target.png", "curves-non-target.png"]
            else:
                wanted = ["non-target.png"] if panel.classes == "non-target" else [f"maps-{one.part[0]}.png"]
            if result is None:
                self._count(view, None)
                continue
            there = [result.folder / name for name in wanted if name in result.values["pictures"]]
            self._count(view, there or None)
            view.pictures += there

    def _add_charts(self, view: View, name: str, charts: Sequence[Chart]) -> None:
        drawn = [chart for chart in charts if chart.bands]
        if drawn:
            view.charts[f"{view.specification.id}-{name}.png"] = drawn


def crossing(evaluations: Sequence[float], curve: Sequence[float], level: float) -> float | None:
    """Return the evaluations at which an error falls to a level, interpolated between points on a logarithmic scale.

    None: it never does; the first point if it starts below. Stored numbers are rounded, so a curve that starts at the level
    has reached it.
    """
    for i, value in enumerate(curve):
        if value > level * (1 + ROUNDING):
            continue
        if i == 0:
            return evaluations[0]
        before = curve[i - 1]
        share = min((before - level) / (before - value), 1.0)
        return float(evaluations[i - 1] * (evaluations[i] / evaluations[i - 1]) ** share)
    return None


def _passed(evaluations: float | None, first: float) -> str:
    """Return a crossing as text; the first point of a curve is only an upper limit."""
    if evaluations is None:
        return "not reached"
    return f"at most {first:,.0f}" if evaluations <= first else f"{evaluations:,.0f}"


def _band(x: Sequence[float] | np.ndarray[Any, Any], mean: Any, half: Any) -> Band:
    """Return a curve without the points that are not known."""
    arrays = [np.array([np.nan if one is None else one for one in part], dtype=np.float64) for part in (x, mean, half)]
    known = np.isfinite(arrays[1])
    return Band(arrays[0][known], arrays[1][known], np.nan_to_num(arrays[2][known]))
