"""The figures of a page of results: the metric against time on one link, for each number of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from laconic.report import charts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laconic.report.charts import Spec, Styles
    from laconic.report.summary import Row


LEGEND = {
    "columns": 4,
    "columnPadding": 32,  # the reader's font may be wider than the one that was measured
    "labelLimit": 260,
    "symbolType": "stroke",
    "symbolSize": 400,
    "symbolStrokeWidth": 2.5,
}
BELOW, ABOVE = 0.08, 1.3
"""How far the figures go from the target: so much accuracy less, or so many times the loss."""


def metric_by_time(sections: Sequence[Sequence[Row]], styles: Styles) -> Spec:
    """The settings of one task and link side by side; seconds are on a logarithmic scale."""
    drawn = dict.fromkeys(row.label for rows in sections for row in rows if row.final)
    used = {label: style for label, style in styles.items() if label in drawn}
    return {
        "hconcat": [_panel(rows, used) for rows in sections],
        "resolve": {"scale": {"color": "shared", "strokeDash": "shared", "y": "shared"}},
        "config": {**charts.CONFIG, "legend": {**charts.CONFIG["legend"], **LEGEND}},
    }


def _panel(rows: Sequence[Row], styles: Styles) -> Spec:
    spec = charts.metric_by_seconds([row for row in rows if row.final], styles)
    drawing = {name: part for name, part in spec.items() if name not in ("config", "autosize", "width")}
    seconds = [value["seconds"] for value in spec["data"]["values"]]
    x = {
        **spec["encoding"]["x"],
        "title": "seconds of training, on a logarithmic scale",
        "scale": {"type": "log", "nice": False, "padding": 8},
        "axis": {"values": charts.ticks(seconds), "format": ",.4~r"},
    }
    color = {**spec["encoding"]["color"], "scale": _scale(styles, "color")}
    return {
        **drawing,
        "title": {
            "text": _title(rows[0]),
            "anchor": "start",
            "fontSize": 13,
            "offset": 14,
        },
        "width": 420,
        "encoding": {**spec["encoding"], "x": x, "color": color},
        "layer": [
            _zoomed(_dashed(_still(layer), styles), rows[0])
            for layer in spec["layer"]
            if "params" not in layer
        ],
    }


def _scale(styles: Styles, part: str) -> Spec:
    """Every label's color or dash: all panels have the same, as they share a legend."""
    return {"domain": list(styles), "range": [getattr(style, part) for style in styles.values()]}


def _dashed(layer: dict[str, Any], styles: Styles) -> dict[str, Any]:
    """The layer with all labels' dashes, where it has any."""
    encoding = layer.get("encoding", {})
    if "strokeDash" not in encoding:
        return layer
    dash = {**encoding["strokeDash"], "scale": _scale(styles, "dash")}
    return {**layer, "encoding": {**encoding, "strokeDash": dash}}


def _title(row: Row) -> str:
    split = row.setting.split
    return f"{row.setting.workers} workers" + ("" if split == "iid" else f", split {split}")


def _still(layer: dict[str, Any]) -> dict[str, Any]:
    """The layer without what follows a pointer."""
    size = layer.get("encoding", {}).get("size")
    if size is None:
        return layer
    return {**layer, "encoding": {**layer["encoding"], "size": {"value": size["value"]}}}


def _zoomed(layer: dict[str, Any], row: Row) -> dict[str, Any]:
    """The layer without what is far from the target, where the curves differ."""
    mark, y = layer["mark"], layer["encoding"]["y"]
    if row.target is None or "data" in layer:
        return layer
    near = (
        {"domainMin": row.target - BELOW}
        if row.setting.higher_is_better
        else {"domainMax": ABOVE * row.target}
    )
    clipped = {**(mark if isinstance(mark, dict) else {"type": mark}), "clip": True}
    encoding = {**layer["encoding"], "y": {**y, "scale": {"zero": False, "nice": False, **near}}}
    return {**layer, "mark": clipped, "encoding": encoding}
