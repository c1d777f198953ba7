"""The learning rates that were tried: what one seed of each technique ends with, in Markdown."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import TYPE_CHECKING

from benchmarks.results.board import behind
from benchmarks.results.tables import metric, words_table
from laconic.report.projection import shows_only_time
from laconic.report.summary import grouped, setting_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laconic.lab.records import Run


def tried(used: Sequence[Run], others: Sequence[Run]) -> str:
    """A line for every technique that was trained with several rates; bold are the `used` ones' rates."""
    full = [run for run in (*used, *others) if _is_full(run)]
    groups = grouped(full, lambda run: (setting_of(run), *_alike(run.header)))
    lines = []
    for (setting, label, *_), runs in groups.items():
        seeds = [{r.header.seed for r in part} for part in grouped(runs, lambda r: r.header.lr).values()]
        seed = min(set.intersection(*seeds), default=None)
        rates = {run.header.lr: run for run in reversed(runs) if run.header.seed == seed}  # used ones win
        if len(rates) > 1:
            ends = [_end(rates[rate], rates[rate] in used) for rate in sorted(rates)]
            split = "" if setting.split == "iid" else f", split {setting.split}"
            place = f"{setting.task}, {setting.workers} workers{split}"
            lines.append([place, label, " · ".join(ends), _verdict(rates, used)])
    return words_table(["", "technique", "rate: where it ends", "used"], lines) if lines else ""


_alike = attrgetter("label", "optimizer", "momentum", "steps")


def _is_full(run: Run) -> bool:
    return run.end is not None and run.header.link == "none" and bool(run.evals) and not shows_only_time(run)


def _end(run: Run, used: bool) -> str:
    text = f"{run.header.lr:g}: {metric(run.evals[-1].value, setting_of(run))}"
    return f"**{text}**" if used else text


def _verdict(rates: dict[float, Run], used: Sequence[Run]) -> str:
    """Whether the rate in use is the best, or by how much another one is better."""
    best = max(rates.values(), key=_goodness)
    own = next((run for run in rates.values() if run in used), None)
    if own is None:
        return "none of them"
    if own is best:
        return "the best"
    gap = behind(own.evals[-1].value, best.evals[-1].value, setting_of(own))
    return f"{gap:.2f} {'points' if own.header.metric == 'accuracy' else '%'} behind the best"


def _goodness(run: Run) -> float:
    value = run.evals[-1].value
    if not math.isfinite(value):
        return -math.inf
    return value if run.header.higher_is_better else -value
