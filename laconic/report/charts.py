"""The charts of a report, as Vega-Lite specifications: one function for each chart.

Each takes the rows of one setting and the `styles` of all labels, so that a label looks the same everywhere.
Text and rules have `currentColor`: black in a figure, and that of the page, light or dark, in a report.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from laconic.lab.records import Run
from laconic.report.summary import Row, curve, settled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

Spec = dict[str, Any]

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
GREYS = ("#8a8f98", "#b3a89c")
# Okabe and Ito's colors for all kinds of color vision, less black and the yellow that is lost on white.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ([1, 0], [7, 3], [2, 2], [9, 3, 2, 3])
OVERLAPPED = ("agree", "encode", "seal", "up", "combine", "down", "gossip", "tell", "decode", "compare")
POINTS = 100  # a loss curve is thinned to this many: more cannot be told apart on a screen


@dataclass(frozen=True)
class Style:
    """How the marks of one label look; `dash` is lengths in pixels, on and off."""

    color: str
    dash: list[int]


Styles = dict[str, Style]

TITLE_ON_TOP = {"titleAngle": 0, "titleAlign": "left", "titleBaseline": "bottom", "titleX": 0, "titleY": -10}
CONFIG: Spec = {
    "font": FONT,
    "view": {"stroke": None},
    "axis": {
        "domain": False,
        "ticks": False,
        "grid": False,
        "gridColor": "currentColor",
        "gridOpacity": 0.12,
        "labelColor": "currentColor",
        "labelFontSize": 12,
        "labelOpacity": 0.75,
        "labelPadding": 8,
        "titleColor": "currentColor",
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titleOpacity": 0.75,
        "titlePadding": 10,
    },
    "axisQuantitative": {"grid": True, "tickCount": 6},
    "legend": {
        "orient": "top",
        "title": None,
        "labelColor": "currentColor",
        "labelFontSize": 12,
        "offset": 30,
        "symbolOpacity": 1,
    },
    "line": {"strokeWidth": 2.25, "strokeCap": "round"},
}


def styles(rows: Iterable[Row]) -> Styles:
    """A style for each label, plain DDP in grey; colors repeat only with another dash."""
    plain = dict.fromkeys(row.label for row in rows if row.family == "plain")
    others = dict.fromkeys(row.label for row in rows if row.label not in plain)
    return _numbered(plain, GREYS) | _numbered(others, COLORS)


def headline(title: str, subtitle: str, offset: int = 20) -> Spec:
    """The title of a figure that stands by itself."""
    return {
        "text": title,
        "subtitle": subtitle,
        "anchor": "start",
        "fontSize": 15,
        "subtitleFontSize": 12,
        "subtitlePadding": 6,
        "color": "currentColor",
        "subtitleColor": "currentColor",
        "offset": offset,
    }


def metric_by_seconds(rows: Sequence[Row], styles: Styles) -> Spec:
    """The metric against training seconds, with the target."""
    values = [point | {"x": point["seconds"]} for point in _evaluations(rows)]
    return _metric(
        rows, styles, values, {"title": "seconds of training", "scale": {"zero": True, "nice": False}}
    )


def metric_by_bytes(rows: Sequence[Row], styles: Styles) -> Spec:
    """The metric against bytes sent, with the target; the bytes on a logarithmic scale."""
    values = [point | {"x": point["bytes"]} for point in _evaluations(rows) if point["bytes"]]
    axis = {
        "values": ticks([point["x"] for point in values]),
        "labelExpr": "format(datum.value, '~s') + 'B'",
    }
    scale = {"type": "log", "nice": False, "padding": 8}
    return _metric(rows, styles, values, {"title": "bytes sent by worker 0", "scale": scale, "axis": axis})


def loss_by_step(rows: Sequence[Row], styles: Styles) -> Spec:
    """The training loss against steps, averaged over stretches of steps and over seeds."""
    values = [point for row in rows for point in _losses(row)]
    y = {"title": "training loss", "scale": _falling(values)}
    tooltip = [tip("label", "technique"), tip("x", "step"), tip("value", "loss", ".4f")]
    return chart(
        values, curves(rows, styles, {"title": "steps", "scale": {"nice": False}}, y, tooltip, 0), 300
    )


def wall_time(rows: Sequence[Row], styles: Styles) -> Spec:
    """What the wall time of a mean step is made of: computing, and waiting for the network."""
    values = [part for row in rows for part in _parts(row)]
    shown = [row for row in rows if any(value["label"] == row.label for value in values)]
    x = {
        "field": "seconds",
        "type": "quantitative",
        "title": "seconds per step, mean",
        "axis": {"grid": False},
    }
    tooltip = [tip("label", "technique"), tip("part", "part"), tip("seconds", "seconds", ".4f")]
    bars = {
        "mark": {"type": "bar", "height": {"band": 0.62}},
        "encoding": {
            "x": x,
            "color": {**_color(shown, styles), "legend": None},
            "opacity": _shades(values),
            "order": {"field": "order", "type": "quantitative"},
            "tooltip": tooltip,
        },
    }
    drawing = {"encoding": {"y": _by_label(shown)}, "layer": [bars, _totals(x)]}
    return chart(values, drawing, 80 + 40 * len(shown))


def overlapped_phases(rows: Sequence[Row], styles: Styles) -> Spec:
    """Seconds that each phase of a mean step took; phases overlap with each other and with computing."""
    values = [value for row in rows for value in _phases(row)]
    shown = [row for row in rows if any(value["label"] == row.label for value in values)]
    phases = [phase for phase in OVERLAPPED if any(value["phase"] == phase for value in values)]
    drawing = {
        "mark": {"type": "bar"},
        "encoding": {
            "x": {"field": "seconds", "type": "quantitative", "title": "seconds per step, mean"},
            "y": {
                "field": "phase",
                "title": None,
                "scale": {"domain": phases, "paddingInner": 0.3},
            },
            "yOffset": {"field": "label", "scale": {"domain": [row.label for row in shown]}},
            "color": _color(shown, styles),
            "tooltip": [
                tip("label", "technique"),
                tip("phase", "phase"),
                tip("seconds", "seconds", ".4f"),
            ],
        },
    }
    return chart(values, drawing, 60 + len(phases) * (14 + 10 * len(shown)))


def mean_seconds(runs: Iterable[Run]) -> dict[str, float]:
    """Mean seconds of a step, and of each of its phases, over all settled steps of all runs."""
    steps = [step for run in runs for step in settled(run)]
    names = dict.fromkeys(name for step in steps for name in step.phases)
    phases = {name: statistics.fmean(step.phases.get(name, 0.0) for step in steps) for name in names}
    return phases | {"step": statistics.fmean(step.seconds for step in steps)} if steps else {}


def chart(values: list[Spec], drawing: Spec, height: int) -> Spec:
    """A whole specification, as wide as what contains it."""
    return {
        "data": {"values": values},
        "width": "container",
        "height": height,
        "autosize": {"type": "fit", "contains": "padding"},
        "config": CONFIG,
        **drawing,
    }


def tip(field: str, title: str, form: str | None = None) -> Spec:
    """One line of a tooltip."""
    kind = {"type": "quantitative", "format": form} if form else {"type": "nominal"}
    return {"field": field, "title": title, **kind}


def figure(spec: Spec, path: Path) -> Path:
    """The chart is drawn in the file, which ends in .svg or .png, without a browser."""
    if path.suffix not in (".svg", ".png"):
        raise ValueError(f"a figure cannot be written as {path.name!r}; let its name end in .svg or .png")
    width = {"width": 640} if spec.get("width") == "container" else {}
    sized = {**spec, **width, "background": "white"}
    if path.suffix == ".svg":
        path.write_text(engine().vegalite_to_svg(sized), encoding="utf-8")
    else:
        path.write_bytes(engine().vegalite_to_png(sized, scale=2))
    return path


def engine() -> Any:
    """The vl_convert module, which carries Vega-Lite."""
    try:
        import vl_convert
    except ImportError:
        raise ImportError("drawing a report needs vl-convert; run pip install 'laconic[report]'") from None
    return vl_convert


def _numbered(labels: Iterable[str], colors: Sequence[str]) -> Styles:
    """The labels with the colors in turn, each round of them with the next dash."""
    rounds = [divmod(index, len(colors)) for index, _ in enumerate(labels)]
    looks = [Style(colors[place], DASHES[turn % len(DASHES)]) for turn, place in rounds]
    return dict(zip(labels, looks, strict=True))


def _evaluations(rows: Iterable[Row]) -> list[Spec]:
    """The points of every row's mean curve, as chart data; that of the untrained model would flatten the rest."""
    return [
        {
            "label": row.label,
            "step": point.step,
            "seconds": point.seconds,
            "bytes": point.sent,
            "value": point.value.mean,
            "low": point.value.low,
            "high": point.value.high,
            "first": index == 0,
        }
        for row in rows
        for index, point in enumerate(point for point in curve(row.runs) if point.step > 0)
    ]


def _metric(rows: Sequence[Row], styles: Styles, values: list[Spec], x: Spec) -> Spec:
    """Curves of the metric with the target, against whatever the values carry as x."""
    metric, share = rows[0].setting.metric, rows[0].setting.metric == "accuracy"
    scale = {"zero": False} if rows[0].setting.higher_is_better else _falling(values)
    y = {"title": metric, "scale": scale, "axis": {"format": ".0%"} if share else {}}
    tooltip = [
        tip("label", "technique"),
        tip("value", metric, ".2%" if share else ".4f"),
        tip("seconds", "seconds", ".1f"),
        tip("bytes", "bytes sent", ".3s"),
        tip("step", "step"),
    ]
    drawing = curves(rows, styles, x, y, tooltip, 26)
    drawing["layer"] += _target(rows[0].target, ".1%" if share else ".4~r")
    return chart(values, drawing, 320)


def curves(rows: Sequence[Row], styles: Styles, x: Spec, y: Spec, tooltip: list[Spec], dot: int) -> Spec:
    """A line for each label, in the band between its lowest and highest seed, with dots to hover over."""
    y = {"type": "quantitative", **y, "axis": {**TITLE_ON_TOP, **y.get("axis", {})}}
    middle, low, high = {**y, "field": "value"}, {**y, "field": "low"}, {"field": "high"}
    names = [row.label for row in rows]
    dash = {"field": "label", "scale": {"domain": names, "range": [styles[name].dash for name in names]}}
    size = {"condition": {"param": "near", "empty": False, "value": 90}, "value": dot}
    return {
        "encoding": {"x": {"field": "x", "type": "quantitative", **x}, "color": _color(rows, styles)},
        "layer": [
            {"mark": {"type": "area", "opacity": 0.18}, "encoding": {"y": low, "y2": high}},
            {"mark": "line", "encoding": {"y": middle, "strokeDash": dash}},
            {"mark": {"type": "circle", "opacity": 1}, "encoding": {"y": middle, "size": size}},
            _hover(middle, tooltip),
        ],
    }


def _falling(values: Sequence[Spec]) -> Spec:
    """The scale of what should fall: a row that diverges runs along the top, and the others stay readable."""
    limit = 1.25 * max((point["high"] for point in values if point["first"]), default=1.0)
    ceiling = min(limit, max((point["high"] for point in values), default=limit))
    return {"zero": False, "domainMax": ceiling, "clamp": True}


def _hover(y: Spec, tooltip: list[Spec]) -> Spec:
    """Wide invisible dots with a tooltip; `nearest` would do, but Vega-Lite 6 loses its nominal fields."""
    near = {"name": "near", "select": {"type": "point", "on": "pointerover", "clear": "pointerout"}}
    wide = {"type": "circle", "opacity": 0, "size": 500}
    return {"params": [near], "mark": wide, "encoding": {"y": y, "tooltip": tooltip}}


def _target(target: float | None, form: str) -> list[Spec]:
    """A dashed rule at the target, with its value in the margin, where no curve can be; or nothing."""
    if target is None:
        return []
    data = {"values": [{"target": target}]}
    words = {"calculate": f"['target', format(datum.target, '{form}')]", "as": "words"}
    y = {"field": "target", "type": "quantitative"}
    place = {"y": y, "x": {"value": "width"}, "color": {"value": "currentColor"}}
    rule = {"type": "rule", "strokeDash": [4, 4], "opacity": 0.6}
    text = {"type": "text", "align": "left", "dx": 8, "dy": -7, "fontSize": 12, "opacity": 0.75}
    return [
        {"data": data, "mark": rule, "encoding": {**place, "x2": {"value": 0}}},
        {"data": data, "transform": [words], "mark": text, "encoding": {**place, "text": {"field": "words"}}},
    ]


def ticks(places: Sequence[float]) -> list[float]:
    """Round numbers for a logarithmic axis: 1, 2, 5, 10 and so on, or 1, 3, 10 on a long one."""
    low, high = min(places, default=1.0), max(places, default=1.0)
    steps = (1, 2, 5) if high < 100 * low else (1, 3)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [step * 10.0**power for power in powers for step in steps]


def _losses(row: Row) -> list[Spec]:
    """The row's loss in at most POINTS stretches of steps, over the runs that have all of them."""
    last = max((step.step for run in row.runs for step in run.steps), default=1)
    width = math.ceil(last / POINTS)
    means = [_stretches(run, width) for run in row.runs]
    shared = sorted(set.intersection(*map(set, means)))
    return [_loss(row.label, index, width, [mean[index] for mean in means]) for index in shared]


def _stretches(run: Run, width: int) -> dict[int, float]:
    """Mean loss of each stretch of so many steps, where it is finite."""
    losses: dict[int, list[float]] = {}
    for step in run.steps:
        losses.setdefault((step.step - 1) // width, []).append(math.nan if step.loss is None else step.loss)
    means = {index: statistics.fmean(values) for index, values in losses.items()}
    return {index: mean for index, mean in means.items() if math.isfinite(mean)}


def _loss(label: str, index: int, width: int, values: Sequence[float]) -> Spec:
    """One stretch of a loss curve, as chart data."""
    spread = {"value": statistics.fmean(values), "low": min(values), "high": max(values)}
    return {"label": label, "x": (index + 1) * width, "first": index == 0, **spread}


def _parts(row: Row) -> list[Spec]:
    """The parts of the row's mean step, or the whole of it where parts were not recorded."""
    seconds = mean_seconds(row.runs)
    names = ("compute", "waiting") if "compute" in seconds else ("step",)
    known = [name for name in names if name in seconds]
    shown = {"step": "not split"}
    return [
        {"label": row.label, "part": shown.get(name, name), "seconds": seconds[name], "order": order}
        for order, name in enumerate(known)
    ]


def _phases(row: Row) -> list[Spec]:
    """The overlapped phases of the row's mean step."""
    seconds = mean_seconds(row.runs)
    known = [phase for phase in OVERLAPPED if phase in seconds]
    return [{"label": row.label, "phase": phase, "seconds": seconds[phase]} for phase in known]


def _shades(values: Iterable[Spec]) -> Spec:
    """The opacity of those parts of a step that occur."""
    shades = {"compute": 1.0, "waiting": 0.42, "not split": 0.7}
    present = {value["part"] for value in values}
    used = {part: shade for part, shade in shades.items() if part in present}
    scale = {"domain": list(used), "range": list(used.values())}
    legend = {"symbolFillColor": "currentColor", "symbolStrokeWidth": 0, "offset": 8}
    return {"field": "part", "type": "ordinal", "scale": scale, "legend": legend}


def _totals(x: Spec) -> Spec:
    """The length of each whole bar, written at its end."""
    total = {"op": "sum", "field": "seconds", "as": "seconds"}
    return {
        "transform": [{"aggregate": [total], "groupby": ["label"]}],
        "mark": {"type": "text", "align": "left", "dx": 6, "fontSize": 12, "color": "currentColor"},
        "encoding": {"x": x, "text": {"field": "seconds", "type": "quantitative", "format": ".3r"}},
    }


def _by_label(rows: Iterable[Row]) -> Spec:
    """A band for each label, in the order of the rows."""
    axis = {"labelLimit": 200, "labelOpacity": 1}
    return {"field": "label", "title": None, "axis": axis, "scale": {"domain": [row.label for row in rows]}}


def _color(rows: Iterable[Row], styles: Mapping[str, Style]) -> Spec:
    """The color scale of these rows, the same in every chart."""
    names = [row.label for row in rows]
    return {"field": "label", "scale": {"domain": names, "range": [styles[name].color for name in names]}}
