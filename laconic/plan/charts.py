"""The figures of `laconic plan`: a step against the link's rate, and a step and its bytes against workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laconic.plan.answer import RATES
from laconic.plan.units import bits_per_second, duration
from laconic.report.charts import COLORS, CONFIG, DASHES, GREYS, TITLE_ON_TOP, Spec, Style, headline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from laconic.plan.answer import Answer, Question
    from laconic.plan.scaling import Point

WIDTH, HEIGHT = 520, 300
EVERY = 4
"""Of the rates that were looked at, one in so many is drawn."""


def by_rate(answer: Answer) -> Spec:
    """Seconds of a step against the rate of the link, which is marked, on logarithmic scales."""
    values = [
        {"label": row.label, "x": rate / 1e6, "value": answer.seconds(row, rate)}
        for row in answer.rows
        for rate in RATES[::EVERY]
    ]
    families = {row.label: row.family for row in answer.rows}
    x = _axis("Mbit/s of each worker's link")
    drawn = [_lines(values, families, x, _axis("seconds a step"))]
    rate = answer.question.link.rate
    title = f"A step of {answer.question.workers} workers against their links"
    return _figure(title, subtitle(answer.question), [_panel([*drawn, _mark((rate or 0) / 1e6)])])


def by_workers(points: Sequence[Point], measured: Sequence[Point], subtitle: str) -> Spec:
    """Seconds of a step, and the bytes that a worker sends in it, against workers; dots are measured."""
    families = {point.label: point.family for point in [*points, *measured]}
    x = _axis("workers", values=sorted({point.workers for point in [*points, *measured]}))
    panels = []
    for what, title in (("seconds", "seconds a step"), ("megabytes", "MB that a worker sends in a step")):
        lines, dots = ([_value(point, what) for point in each] for each in (points, measured))
        y = _axis(title)
        panels.append(_panel([_lines(lines, families, x, y), _dots(dots, families, x, y)]))
    return _figure("What a worker pays as workers grow", subtitle, panels)


def _value(point: Point, what: str) -> Spec:
    return {"label": point.label, "x": point.workers, "value": getattr(point, what)}


def subtitle(question: Question) -> str:
    """What was asked, but for the workers."""
    return (
        f"{question.model.parameters / 1e6:,.4g} M parameters, {duration(question.compute)} of computing, "
        f"links of {bits_per_second(question.link.rate or 0)}"
    )


def _axis(title: str, **axis: object) -> Spec:
    return {
        "type": "quantitative",
        "title": title,
        "scale": {"type": "log", "nice": False},
        "axis": {"format": "~r", **axis},
    }


def _lines(values: list[Spec], families: Mapping[str, str], x: Spec, y: Spec) -> Spec:
    looks = _looks(families)
    scale = {"domain": list(looks), "range": [look.dash for look in looks.values()]}
    dash = {"field": "label", "legend": None, "scale": scale}
    encoding = _encoding(looks, x, y) | {"strokeDash": dash}
    return {"data": {"values": values}, "mark": {"type": "line", "strokeWidth": 2}, "encoding": encoding}


def _dots(values: list[Spec], families: Mapping[str, str], x: Spec, y: Spec) -> Spec:
    mark = {"type": "point", "filled": True, "size": 60, "opacity": 1}
    return {"data": {"values": values}, "mark": mark, "encoding": _encoding(_looks(families), x, y)}


def _encoding(looks: Mapping[str, Style], x: Spec, y: Spec) -> Spec:
    legend = {"orient": "right", "offset": 20, "symbolType": "stroke", "symbolSize": 300, "labelLimit": 220}
    scale = {"domain": list(looks), "range": [look.color for look in looks.values()]}
    return {
        "x": {**x, "field": "x"},
        "y": {**y, "field": "value", "axis": {**TITLE_ON_TOP, **y["axis"]}},
        "color": {"field": "label", "legend": legend, "scale": scale},
    }


def _mark(x: float) -> Spec:
    encoding = {"x": {"field": "x", "type": "quantitative"}, "color": {"value": "currentColor"}}
    mark = {"type": "rule", "strokeDash": [4, 4], "opacity": 0.6}
    return {"data": {"values": [{"x": x}]}, "mark": mark, "encoding": encoding}


def _looks(families: Mapping[str, str]) -> dict[str, Style]:
    """Plain DDP in grey; colors repeat only with another dash."""
    looks = {label: Style(GREYS[0], DASHES[0]) for label, family in families.items() if family == "plain"}
    for number, label in enumerate(label for label in families if label not in looks):
        turn, place = divmod(number, len(COLORS))
        looks[label] = Style(COLORS[place], DASHES[turn % len(DASHES)])
    return looks


def _panel(layers: list[Spec]) -> Spec:
    return {"width": WIDTH, "height": HEIGHT, "layer": layers}


def _figure(title: str, subtitle: str, panels: list[Spec]) -> Spec:
    return {"config": CONFIG, "title": headline(title, subtitle, 30), "spacing": 50, "vconcat": panels}
