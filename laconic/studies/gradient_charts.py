"""The figure of `laconic inspect gradients`: how β goes while a task trains, and how far each density is off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laconic.report import charts
from laconic.report.charts import COLORS, DASHES, TITLE_ON_TOP, Spec
from laconic.report.rank_charts import title
from laconic.studies import goodness
from laconic.studies.inspect_gradients import HEADINGS, Layer, Look

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laconic.lab.worker import Settings

ROWS = 20
"""Layers that have a row of distances."""
CURVES = 8
"""Layers among them that have a curve of β; more cannot be told apart."""
FEWEST = 500
"""Coordinates of a layer that is drawn, where there are such: the shape of fewer is mostly chance."""
WIDTH = 560


def figure(settings: Settings, looks: Sequence[Look], layers: Sequence[Layer]) -> Spec:
    """Both charts, one above the other; `layers` are the large ones first."""
    measured = [layer for layer in layers if layer.measured]
    drawn = ([layer for layer in measured if layer.coordinates >= FEWEST] or measured)[:ROWS]
    return {
        "config": charts.CONFIG,
        "title": title(settings, "Gradients"),
        "spacing": 44,
        "vconcat": [_betas(looks, _spread(drawn)), _distances(drawn)],
        "resolve": {"scale": {"color": "independent", "strokeDash": "independent", "shape": "independent"}},
    }


def _spread(layers: Sequence[Layer]) -> list[Layer]:
    """CURVES layers from the highest β to the lowest: many that are alike would hide the others."""
    falling = sorted(layers, key=lambda layer: -layer.measured["beta"])
    last = min(CURVES, len(falling)) - 1
    return [falling[round(index * (len(falling) - 1) / max(last, 1))] for index in range(last + 1)]


def _betas(looks: Sequence[Look], layers: Sequence[Layer]) -> Spec:
    """Fitted β against steps, a line for each layer; on the logarithmic scale 1 and 2 are marked."""
    names = [layer.name for layer in layers]
    values = [
        {"layer": look.layer, "step": look.step, "beta": look.measured["beta"]}
        for look in looks
        if look.measured and look.layer in names
    ]
    colors = [COLORS[index % len(COLORS)] for index in range(len(names))]
    dashes = [DASHES[index // len(COLORS)] for index in range(len(names))]
    legend = {"orient": "right", "labelLimit": 240, "offset": 70, "symbolType": "stroke", "symbolSize": 300}
    y = {"field": "beta", "type": "quantitative", "title": "fitted β", "axis": _beta_axis(values)}
    lines = {
        "mark": {"type": "line", "strokeWidth": 1.75, "point": {"size": 16}},
        "encoding": {
            "x": {"field": "step", "type": "quantitative", "scale": {"nice": False}},
            "y": {**y, "scale": {"type": "log", "nice": False, "domain": _beta_domain(values)}},
            "color": {"field": "layer", "legend": legend, "scale": {"domain": names, "range": colors}},
            "strokeDash": {"field": "layer", "legend": legend, "scale": {"domain": names, "range": dashes}},
        },
    }
    return {
        "data": {"values": values},
        "width": WIDTH,
        "height": 280,
        "layer": [*_marked(values), lines],
    }


def _beta_domain(values: Sequence[Spec]) -> list[float]:
    """All β with a little space, and Laplace's 1."""
    betas = [value["beta"] for value in values]
    return [0.93 * min([0.93, *betas]), 1.07 * max([1.07, *betas])]


def _beta_axis(values: Sequence[Spec]) -> Spec:
    low, high = _beta_domain(values)
    ticks = (0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4)
    shown = [tick for tick in ticks if low <= tick <= high]
    return {"values": shown, "format": "~g", "labelOverlap": False, **TITLE_ON_TOP}


def _marked(values: Sequence[Spec]) -> list[Spec]:
    """Rules at the β of the densities with a name."""
    low, high = _beta_domain(values)
    named = [
        {"beta": beta, "name": name} for beta, name in ((1, "Laplace"), (2, "Normal")) if low <= beta <= high
    ]
    y = {"y": {"field": "beta", "type": "quantitative"}}
    rule = {"type": "rule", "strokeDash": [4, 4], "opacity": 0.6, "color": "currentColor"}
    words = {
        "type": "text",
        "align": "left",
        "dx": 8,
        "fontSize": 12,
        "opacity": 0.75,
        "color": "currentColor",
    }
    place = {"x": {"value": WIDTH}, "text": {"field": "name"}}
    return [
        {"data": {"values": named}, "mark": rule, "encoding": y},
        {"data": {"values": named}, "mark": words, "encoding": {**y, **place}},
    ]


def _distances(layers: Sequence[Layer]) -> Spec:
    """Median distances of the three densities, a row for each layer, with its β in the margin."""
    values = [
        {"layer": layer.name, "density": HEADINGS[family], "distance": layer.measured[f"w2_{family}"]}
        for layer in layers
        for family in goodness.FAMILIES
    ]
    names = [HEADINGS[family] for family in goodness.FAMILIES]
    legend = {"offset": 8}
    title = "Wasserstein-2 distance of each fit to the gradient, over its standard deviation"
    points = {
        "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
        "encoding": {
            "x": {"field": "distance", "type": "quantitative", "title": title, "scale": {"domainMin": 0}},
            "color": {
                "field": "density",
                "legend": legend,
                "scale": {"domain": names, "range": list(COLORS[:3])},
            },
            "shape": {"field": "density", "legend": legend, "scale": {"domain": names}},
        },
    }
    axis = {"grid": True, "labelLimit": 260, "labelOpacity": 1}
    rows = {
        "field": "layer",
        "title": None,
        "axis": axis,
        "scale": {"domain": [layer.name for layer in layers]},
    }
    return {
        "data": {"values": values},
        "width": WIDTH,
        "height": {"step": 22},
        "encoding": {"y": rows},
        "layer": [points, _margin(layers)],
    }


def _margin(layers: Sequence[Layer]) -> Spec:
    """Each row's median β, to the right of it."""
    values = [{"layer": layer.name, "beta": f"β {layer.measured['beta']:.2f}"} for layer in layers]
    mark = {
        "type": "text",
        "align": "left",
        "dx": 12,
        "fontSize": 12,
        "opacity": 0.75,
        "color": "currentColor",
    }
    return {
        "data": {"values": values},
        "mark": mark,
        "encoding": {"x": {"value": WIDTH}, "text": {"field": "beta"}},
    }
