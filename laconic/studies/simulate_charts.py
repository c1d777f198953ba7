"""The figures of `laconic simulate crossover`: accuracy against workers or batch, and consensus over steps."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Literal

from laconic.report import charts
from laconic.report.charts import COLORS, GREYS, TITLE_ON_TOP, Spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laconic.lab.tasks import Task
    from laconic.studies.simulate_table import Best

WIDTH, HEIGHT = 460, 240
LOOKS = {  # a method's color and dash: allreduce is what the others are compared with, ablations are dashed
    "allreduce": (GREYS[0], [1, 0]),
    "crossover": (COLORS[0], [1, 0]),
    "hierarchical": (COLORS[2], [1, 0]),
    "sgp": (COLORS[1], [1, 0]),
    "one segment": (COLORS[5], [7, 3]),
    "unfair": (COLORS[3], [2, 2]),
}


def figures(rows: Sequence[Best], task: Task) -> dict[str, Spec]:
    """By name: the metric against workers, against the batch where there are several, and the distances, if any."""
    figures = {f"{task.metric}-by-workers": metric_by(rows, task, "workers")}
    if len({row.cell.batch for row in rows}) > 1:
        figures[f"{task.metric}-by-batch"] = metric_by(rows, task, "batch")
    if any(_distances(row) for row in rows):
        figures["consensus-by-step"] = consensus_by_step(rows, task)
    return figures


def metric_by(rows: Sequence[Best], task: Task, what: Literal["workers", "batch"]) -> Spec:
    """The averaged model's metric against workers, a panel for every batch; or the other way round."""
    other: Literal["workers", "batch"] = "batch" if what == "workers" else "workers"
    panels = [
        (
            _words(other, value),
            [point(row, task, getattr(row.cell, what)) for row in rows if getattr(row.cell, other) == value],
        )
        for value in sorted({getattr(row.cell, other) for row in rows})
    ]
    share = {"format": ".1%"} if task.metric == "accuracy" else {}
    x = {"type": "ordinal", "title": "workers" if what == "workers" else "batch of each worker"}
    y = {"title": f"{task.metric} of the averaged model", "scale": {"zero": False}, "axis": share}
    return figure(rows, task, f"{task.metric.capitalize()} against {what}", panels, x, y)


def consensus_by_step(rows: Sequence[Best], task: Task) -> Spec:
    """The distance between nodes over steps, a panel for every setting; it is never zero on a logarithmic scale."""
    panels = [
        (
            f"{_words('workers', workers)}, {_words('batch', batch)}",
            [value for row in rows if row.setting == (workers, batch) for value in _distances(row)],
        )
        for workers, batch in dict.fromkeys(row.setting for row in rows)
    ]
    x = {"type": "quantitative", "title": "step", "scale": {"nice": False}}
    y = {
        "title": "consensus distance: mean |own - mean|² over |mean|²",
        "scale": {"type": "log", "nice": False},
        "axis": {"format": ".0e"},
    }
    return figure(rows, task, "Distance between nodes", panels, x, y)


def figure(
    rows: Sequence[Best], task: Task, title: str, panels: Sequence[tuple[str, list[Spec]]], x: Spec, y: Spec
) -> Spec:
    """Panels of points, under each other, all with the same axes and methods."""
    cell, seeds = rows[0].cell, max(len(row.runs) for row in rows)
    size = f", {cell.size}" if cell.size != "default" else ""
    seeds_words = f"mean of {seeds} seeds" if seeds > 1 else f"seed {cell.seed}"
    return {
        "config": charts.CONFIG,
        "title": charts.headline(
            f"{title}: {task.name}{size}",
            f"Every method at its best learning rate, momentum {cell.momentum:g}, {seeds_words}",
        ),
        "spacing": 44,
        "vconcat": [_panel(words, values, rows, x, y) for words, values in panels],
    }


def _panel(words: str, values: list[Spec], rows: Sequence[Best], x: Spec, y: Spec) -> Spec:
    """A line with points for every method; the band is from the lowest seed to the highest."""
    names = [name for name in LOOKS if any(row.name == name for row in rows)]
    colors, dashes = ([LOOKS[name][place] for name in names] for place in (0, 1))
    legend = {"orient": "right", "offset": 20, "symbolType": "stroke", "symbolSize": 300}
    y = {"type": "quantitative", **y, "axis": {**TITLE_ON_TOP, **y.get("axis", {})}}
    axis = {"axis": {"labelAngle": 0}} if x["type"] == "ordinal" else {}
    middle = {
        "y": {**y, "field": "value"},
        "strokeDash": {"field": "method", "legend": legend, "scale": {"domain": names, "range": dashes}},
    }
    return {
        "data": {"values": values},
        "width": WIDTH,
        "height": HEIGHT,
        "title": {"text": words, "anchor": "start", "fontSize": 12, "fontWeight": "normal", "offset": 30},
        "encoding": {
            "x": {"field": "x", **x, **axis},
            "color": {"field": "method", "legend": legend, "scale": {"domain": names, "range": colors}},
        },
        "layer": [
            {
                "mark": {"type": "area", "opacity": 0.15},
                "encoding": {"y": {**y, "field": "low"}, "y2": {"field": "high"}},
            },
            {"mark": {"type": "line", "strokeWidth": 1.75, "point": {"size": 16}}, "encoding": middle},
        ],
    }


def point(row: Best, task: Task, x: int) -> Spec:
    """The averaged model's metric at `x`."""
    return _values(row, x, row.averaged(task.metric))


def _distances(row: Best) -> list[Spec]:
    """Over seeds, at every step that all of them reached, where there is a distance."""
    seeds = [{moment.step: moment.consensus for moment in run.result.moments} for run in row.runs]
    steps = sorted(set.intersection(*map(set, seeds)))
    values = {step: [seed[step] for seed in seeds] for step in steps}
    return [
        _values(row, step, distances)
        for step, distances in values.items()
        if min(distances) > 0 and math.isfinite(sum(distances))
    ]


def _values(row: Best, x: int, values: Sequence[float]) -> Spec:
    spread = {"value": statistics.fmean(values), "low": min(values), "high": max(values)}
    return {"method": row.name, "x": x, **spread}


def _words(what: Literal["workers", "batch"], value: int) -> str:
    return f"{value} workers" if what == "workers" else f"batches of {value}"
