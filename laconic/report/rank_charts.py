"""Heat maps of effective rank, layer by step: the figure of `laconic inspect rank`, and a chart of a report.

A cell has the rank as a number and as a shade, on a logarithmic scale: from 1 to 2 is as far as from 8 to 16. In a
report steps are many, so a cell is the median over a stretch of steps, and over seeds.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Protocol

from laconic.report import charts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from laconic.lab.records import Step
    from laconic.lab.worker import Settings
    from laconic.layers.catalog import Layer
    from laconic.report.charts import Spec
    from laconic.report.summary import Row

READING = "rank "
"""What a technique's reading of a rank begins with; then comes the layer's name."""
STRETCHES = 25
"""Columns of a report's chart: numbers in more could not be read."""
CELL = 24
"""Pixels, for two digits and a little space."""
PADDING = {"left": 30, "top": 5, "right": 30, "bottom": 5}  # a browser's font may be wider than ours
SHADES = ("#e6f0f8", "#4a97c9", "#08305c")


class Ranked(Protocol):
    """A layer at one step."""

    @property
    def step(self) -> int:
        """When."""

    @property
    def rows(self) -> int:
        """How many the layer had."""

    @property
    def measured(self) -> dict[str, float]:
        """Its rank, and more."""


def title(settings: Settings, what: str) -> Spec:
    """What of the task a figure shows, and how the task was trained."""
    size = f", {settings.size}" if settings.size != "default" else ""
    momentum = f", momentum {settings.momentum:g}" if settings.optimizer == "sgd" else ""
    how = f"{settings.optimizer}, lr {settings.lr:g}{momentum}, batch {settings.batch}, seed {settings.seed}"
    return charts.headline(f"{what} of {settings.task}{size}", f"{settings.steps} steps of {how}")


def figure(settings: Settings, looks: Mapping[Layer, Sequence[Ranked]]) -> Spec:
    """The ranks at all steps, layers in the model's order, with the shape and the rows of each beside it."""
    values = [_cell(layer.name, look.step, look.measured["rank"]) for layer in looks for look in looks[layer]]
    heading = title(settings, "Effective rank of the gradients")
    words = "How many singular values have 95 % of the energy of a layer's gradient"
    cells = _heat_map(values, [layer.name for layer in looks])
    return {
        "config": charts.CONFIG,
        "title": {**heading, "subtitle": [heading["subtitle"], words]},
        "data": {"values": values},
        "width": {"step": CELL},
        "height": {"step": CELL},
        "padding": PADDING,
        **cells,
        "layer": [*cells["layer"], _margin(looks)],
    }


def rank_by_step(row: Row) -> Spec:
    """The ranks that a technique read while it trained, by the layers' names; without values, if there are none."""
    ranks = _stretched(row)
    names = sorted({name for name, _ in ranks}, key=_in_words_and_numbers)
    values = [
        _cell(name, step, statistics.median_low(found)) for (name, step), found in sorted(ranks.items())
    ]
    return charts.chart(values, _heat_map(values, names), 60 + CELL * len(names))


def _cell(layer: str, step: int, rank: float) -> Spec:
    return {"layer": layer, "step": step, "rank": rank}


def _heat_map(values: Sequence[Spec], names: Sequence[str]) -> Spec:
    """Cells with their numbers, which are left out where cells get too narrow for them."""
    highest = max([2, *(value["rank"] for value in values)])
    shades = {"type": "log", "domain": [1, math.sqrt(highest), highest], "range": list(SHADES), "clamp": True}
    number = {"type": "text", "aria": False, "fontSize": {"expr": f"bandwidth('x') < {CELL - 4} ? 0 : 11"}}
    on_dark = {"test": f"datum.rank > {highest**0.55}", "value": "white"}
    axis = {"labelAngle": 0, "labelOverlap": "parity", "labelSeparation": 8, "labelPadding": 6}
    rank = {"field": "rank", "type": "quantitative"}
    layers = {"field": "layer", "title": None, "scale": {"domain": list(names)}}
    return {
        "encoding": {
            "x": {"field": "step", "type": "ordinal", "title": "step", "axis": axis},
            "y": {**layers, "axis": {"labelLimit": 260, "labelOpacity": 1}},
        },
        "layer": [
            {
                "mark": {"type": "rect", "stroke": "white", "strokeWidth": 1, "strokeOpacity": 0.6},
                "encoding": {"color": {**rank, "scale": shades, "legend": None}, "tooltip": _tooltip()},
            },
            {"mark": number, "encoding": {"text": rank, "color": {"condition": on_dark, "value": "#1b2129"}}},
        ],
    }


def _tooltip() -> list[Spec]:
    return [charts.tip("layer", "layer"), charts.tip("step", "step"), charts.tip("rank", "rank")]


def _margin(looks: Mapping[Layer, Sequence[Ranked]]) -> Spec:
    """Every layer's shape and median rows, to the right of its cells."""
    values = [
        {"layer": layer.name, "words": f"{layer.outputs}×{layer.inputs}, {_rows(every):,.0f} rows"}
        for layer, every in looks.items()
    ]
    mark = {"type": "text", "align": "left", "dx": 10, "fontSize": 12, "opacity": 0.75}
    place = {"x": {"value": "width"}, "text": {"field": "words"}, "color": {"value": "currentColor"}}
    return {"data": {"values": values}, "mark": mark, "encoding": place}


def _rows(looks: Iterable[Ranked]) -> float:
    return statistics.median(look.rows for look in looks)


def _stretched(row: Row) -> dict[tuple[str, int], list[int]]:
    """All ranks of a layer in a stretch of steps, by its name and the last of these steps."""
    steps = [step for run in row.runs for step in run.steps]
    width = math.ceil(max((step.step for step in steps), default=1) / STRETCHES)
    ranks = defaultdict(list)
    for step in steps:
        for name, rank in _ranks(step).items():
            ranks[name, width * math.ceil(step.step / width)].append(rank)
    return ranks


def _ranks(step: Step) -> dict[str, int]:
    return {
        name.removeprefix(READING): round(value)
        for name, value in step.readings.items()
        if name.startswith(READING)
    }


def _in_words_and_numbers(name: str) -> list[tuple[int, str]]:
    """To sort by: layer 2 comes before layer 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
