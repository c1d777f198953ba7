"""Draws the two figures of thc.md; run it as `python docs/tools/thc_figures.py`."""

from pathlib import Path

import torch

from laconic import THC
from laconic.core.technique import Bucket, Setting
from laconic.engine.rehearsal import Rehearsal
from laconic.lab import tasks
from laconic.numerics import rng
from laconic.numerics.hadamard import hadamard
from laconic.numerics.thc_grid import clamping_error, rounding_error
from laconic.report import charts

DOCS = Path(__file__).parents[1]
NUMEL = 1 << 18
TAILS = {"1/32": 1 / 32, "1/128": 1 / 128, "1/512": 1 / 512}


def measured_error(workers: int, tail: float) -> float:
    """NMSE of the mean when every worker has the same gradient."""
    technique = THC(granularity=30, tail=tail, error_feedback=False)
    grad = torch.randn(NUMEL, generator=torch.Generator().manual_seed(workers))
    rehearsal = Rehearsal(technique, Setting(workers))
    result, *_ = rehearsal.reduce(Bucket(("w",), (NUMEL,), torch.float32), [grad] * workers)
    return float((result - grad).square().sum() / grad.square().sum())


def law(workers: int, tail: float) -> float:
    """Rounding averages out over workers, clamping does not."""
    table = THC(granularity=30, tail=tail).grid(workers).table
    return rounding_error(table, tail) / workers + clamping_error(tail)


def error_law() -> charts.Spec:
    """The law as lines, measurements as points."""
    rows = [
        {
            "workers": workers,
            "tail": name,
            "law": law(workers, tail),
            "measured": measured_error(workers, tail),
        }
        for name, tail in TAILS.items()
        for workers in range(1, 9)
    ]
    x = {"field": "workers", "type": "quantitative", "title": "workers", "axis": {"tickCount": 8}}
    scale = {"type": "log", "domain": [0.002, 0.03]}
    axis = {"values": [0.002, 0.005, 0.01, 0.02], "grid": True, "format": "~g", **charts.TITLE_ON_TOP}
    color = {
        "field": "tail",
        "type": "nominal",
        "title": "tail p",
        "scale": {"domain": list(TAILS), "range": list(charts.COLORS[:3])},
    }

    def layer(mark: charts.Spec, field: str) -> charts.Spec:
        title = "NMSE of the mean: points measured, lines the law"
        y = {"field": field, "type": "quantitative", "scale": scale, "axis": axis, "title": title}
        return {"mark": mark, "encoding": {"x": x, "y": y, "color": color}}

    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "config": charts.CONFIG,
        "data": {"values": rows},
        "width": 520,
        "height": 260,
        "layer": [
            layer({"type": "line", "strokeWidth": 1.5}, "law"),
            layer({"type": "point", "filled": True, "size": 55, "opacity": 1}, "measured"),
        ],
    }


def real_block() -> torch.Tensor:
    """A block of a real gradient: the widest layer of `digits` after a few steps."""
    task = tasks.load("digits", size="wide")
    model = task.model(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    batches = task.batches(0, 1, batch=32, seed=0)
    for _ in range(20):
        optimizer.zero_grad()
        task.loss(model, next(batches)).backward()
        optimizer.step()
    widest = max(model.parameters(), key=torch.Tensor.numel)
    assert widest.grad is not None
    return widest.grad.flatten()[:4096]


def rotation() -> charts.Spec:
    """A block before and after its rotation, in units of its root mean square, with the grid."""
    block = real_block()
    rotated = hadamard((block * rng.signs(7, 4096)).unsqueeze(0))[0]
    grid = THC().grid(4)
    levels = [{"level": grid.threshold * (2 * node / grid.granularity - 1)} for node in grid.table]
    panels = [
        _histogram(block / block.square().mean().sqrt(), "a block of a gradient", []),
        _histogram(
            rotated / rotated.square().mean().sqrt(), "rotated, and the 16 levels of its codes", levels
        ),
    ]
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "config": charts.CONFIG,
        "hconcat": panels,
        "spacing": 50,
    }


def _histogram(values: torch.Tensor, title: str, levels: list[charts.Spec]) -> charts.Spec:
    edges = torch.linspace(-5, 5, 81)
    counts = torch.histc(values, 80, -5, 5)
    rows = [
        {"from": edge, "count": count} for edge, count in zip(edges.tolist(), counts.tolist(), strict=False)
    ]
    x_axis = {"title": "times the root mean square", "values": [-4, -2, 0, 2, 4], "grid": False}
    scale = {"domain": [-5, 5]}
    bars = {
        "data": {"values": rows},
        "mark": {"type": "area", "interpolate": "step-after", "color": charts.COLORS[0]},
        "encoding": {
            "x": {"field": "from", "type": "quantitative", "axis": x_axis, "scale": scale},
            "y": {"field": "count", "type": "quantitative", "axis": None},
        },
    }
    rules = {
        "data": {"values": levels},
        "mark": {"type": "rule", "color": charts.COLORS[1], "strokeWidth": 1},
        "encoding": {"x": {"field": "level", "type": "quantitative", "scale": scale}},
    }
    return {"title": title, "width": 300, "height": 180, "layer": [bars, rules] if levels else [bars]}


if __name__ == "__main__":
    charts.figure(rotation(), DOCS / "thc_rotation.svg")
    charts.figure(error_law(), DOCS / "thc_error.svg")
