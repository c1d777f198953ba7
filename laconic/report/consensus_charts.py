"""The chart of a report on gossip: how far apart workers are, over steps.

A point for each evaluation but that of the untrained model: workers begin equal but for rounding, which would flatten
the rest of a logarithmic scale.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from laconic.report import charts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laconic.report.charts import Spec, Styles
    from laconic.report.summary import Row


def consensus_by_step(rows: Sequence[Row], styles: Styles) -> Spec:
    """The consensus distance of the rows that have one; without values, if there are none."""
    values = [point for row in rows for point in _distances(row)]
    shown = [row for row in rows if any(value["label"] == row.label for value in values)]
    y = {
        "title": "mean |own - mean|² over |mean|²",
        "scale": {"type": "log", "nice": False, "padding": 8},
        "axis": {"format": "~e", "tickCount": _ticks(values)},
    }
    tooltip = [
        charts.tip("label", "technique"),
        charts.tip("x", "step"),
        charts.tip("value", "distance", ".2e"),
    ]
    x = {"title": "steps", "scale": {"nice": False}}
    return charts.chart(values, charts.curves(shown, styles, x, y, tooltip, 26), 300)


def _ticks(values: Sequence[Spec]) -> int:
    """About how many: no more than powers of ten, where there are some, as others would crowd the scale."""
    low = min((value["low"] for value in values), default=1.0)
    powers = math.log10(max((value["high"] for value in values), default=1.0) / low)
    return 3 if powers < 2 else min(6, int(powers))


def _distances(row: Row) -> list[Spec]:
    """Over seeds, at every step at which all of them have a distance."""
    seeds = [
        {point.step: point.consensus or 0.0 for point in run.evals if point.step > 0} for run in row.runs
    ]
    steps = sorted(set.intersection(*map(set, seeds)))
    values = {step: [seed[step] for seed in seeds] for step in steps}
    return [
        _point(row.label, step, distances)
        for step, distances in values.items()
        if all(0 < distance < math.inf for distance in distances)
    ]


def _point(label: str, step: int, values: Sequence[float]) -> Spec:
    spread = {"value": statistics.fmean(values), "low": min(values), "high": max(values)}
    return {"label": label, "x": step, **spread}
