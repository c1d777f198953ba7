"""Draws the two figures of sign_vote.md from the records of two comparisons.

python docs/tools/sign_vote_figures.py RATES VOTES

RATES has SignVote at several learning rates, each with one seed; VOTES is what
`python -m benchmarks.compare --preset votes --out VOTES` wrote.
"""

import statistics
import sys
from operator import itemgetter
from pathlib import Path

from laconic.lab import contestants, records
from laconic.lab.records import Run
from laconic.report import charts, summary

DOCS = Path(__file__).parents[1]
SPLITS = {"iid": "every worker sees all labels", "labels:2": "every worker sees two labels of ten"}


def rates(runs: list[Run]) -> charts.Spec:
    """Where runs end, against their learning rate."""
    values = [
        {"lr": run.header.lr, "accuracy": 100 * run.evals[-1].value, "technique": _name(run)} for run in runs
    ]
    values.sort(key=lambda value: value["technique"])
    x = {"field": "lr", "type": "quantitative", "scale": {"type": "log"}, "title": "learning rate"}
    axis = {"grid": True, **charts.TITLE_ON_TOP}
    axis_x = {"format": "~g", "values": sorted({value["lr"] for value in values}), "grid": True}
    y = {
        "field": "accuracy",
        "type": "quantitative",
        "scale": {"zero": False},
        "axis": axis,
        "title": "accuracy, %",
    }
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "config": charts.CONFIG,
        "data": {"values": values},
        "width": 520,
        "height": 260,
        "mark": {"type": "line", "point": {"size": 55}, "strokeWidth": 1.5},
        "encoding": {"x": {**x, "axis": axis_x}, "y": y, "color": _color(values)},
    }


def splits(runs: list[Run]) -> charts.Spec:
    """Accuracy by step, the mean of all seeds, a panel for each split of the data."""
    seeds = summary.grouped(
        ((e.step, _name(run), run.header.split, e.value) for run in runs for e in run.evals),
        itemgetter(0, 1, 2),
    )
    values = [
        {
            "step": step,
            "technique": name,
            "split": split,
            "accuracy": 100 * statistics.mean(value for *_, value in ends),
        }
        for (step, name, split), ends in seeds.items()
    ]
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "config": charts.CONFIG,
        "spacing": 50,
        "hconcat": [_panel([v for v in values if v["split"] == split], SPLITS[split]) for split in SPLITS],
    }


def _panel(values: list[charts.Spec], title: str) -> charts.Spec:
    axis = {"grid": True, **charts.TITLE_ON_TOP}
    y = {"field": "accuracy", "type": "quantitative", "scale": {"domain": [0, 100]}, "axis": axis}
    return {
        "title": title,
        "width": 300,
        "height": 220,
        "data": {"values": values},
        "mark": {"type": "line", "strokeWidth": 1.5},
        "encoding": {
            "x": {"field": "step", "type": "quantitative"},
            "y": {**y, "title": "accuracy, %"},
            "color": _color(values),
        },
    }


def _name(run: Run) -> str:
    contestant = contestants.parse(run.header.spec)
    momentum = contestants.training(run.header.spec).get("momentum", 0.0)
    if not isinstance(contestant, contestants.Attached):
        return "average (DDP)"
    density = getattr(contestant.technique, "density", None)
    name = "all signs (density 1)" if density == 1 else f"density {density:g}"
    return f"{name}, momentum {momentum:g}" if momentum else name


def _color(values: list[charts.Spec]) -> charts.Spec:
    names = sorted({value["technique"] for value in values})
    scale = {"domain": names, "range": list(charts.COLORS[: len(names)])}
    return {"field": "technique", "type": "nominal", "title": None, "scale": scale}


if __name__ == "__main__":
    charts.figure(rates(records.find([Path(sys.argv[1])])), DOCS / "sign_vote_rates.svg")
    charts.figure(splits(records.find([Path(sys.argv[2])])), DOCS / "sign_vote_splits.svg")
