"""The cost model against measured steps, cell by cell.

A cell is a task, a number of workers, a technique and a shaped link. Its prediction takes nothing from runs on that
link: bytes and the worker's own work are those of the same steps of runs of the same technique on the bare machine,
and computing is the median over all runs there with so many workers. Where some runs on both have the same length,
these alone count: they were made to be compared, side by side. Workers share the machine's cores, and the times that
were measured include it, so that `cores` is 1.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from laconic.lab import contestants
from laconic.lab.contestants import Attached
from laconic.lab.links import parse_rate
from laconic.plan.cost import Computing, Exchange, Link, step_seconds
from laconic.plan.pipeline import buckets, departures, pieces, used
from laconic.report.summary import grouped, settled
from laconic.techniques.dense import FORMATS, Dense

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from laconic.lab.contestants import Contestant
    from laconic.lab.records import Header, Run, Step

BARE = "none"
same_computing = attrgetter("machine", "task", "workers", "batch", "parameters")


@dataclass(frozen=True)
class Known:
    """What runs of one technique say: a step's seconds, and on the bare machine what it is made of."""

    header: Header
    seconds: float
    computing: Computing
    exchange: Exchange


@dataclass(frozen=True)
class Cell:
    """One prediction beside what was measured, in seconds."""

    task: str
    link: str
    workers: int
    label: str
    bare: float
    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted / self.measured


def check(runs: Sequence[Run]) -> list[Cell]:
    """A cell for every technique on every shaped link that also ran on the bare machine."""
    bare = [run for run in runs if run.header.link == BARE and _says_enough(run)]
    shaped = [run for run in runs if run.header.shaped and _rate(run) is not None and run.steps and run.end]
    groups = grouped(shaped, lambda run: (*same_technique(run.header), run.header.link))
    cells = (_cell(group, bare) for group in groups.values())
    return [cell for cell in cells if cell is not None]


def markdown(cells: Iterable[Cell]) -> str:
    """The table, as a page has it."""
    lines = [
        "| task | link | workers | technique | bare machine | predicted | measured | predicted / measured |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {cell.task} | {cell.link} | {cell.workers} | {cell.label} | {cell.bare:.3f} s | {cell.predicted:.3f} s | "
        f"{cell.measured:.3f} s | {cell.ratio:.2f} |"
        for cell in sorted(cells, key=attrgetter("task", "link", "workers", "label"))
    ]
    return "\n".join(lines)


def worst(cells: Iterable[Cell]) -> float:
    """The largest error of a prediction, as a share of what was measured."""
    return max((abs(cell.ratio - 1) for cell in cells), default=0.0)


def same_technique(header: Header) -> tuple[object, ...]:
    """Runs that say the same to each other, but for what they were trained with."""
    return (*same_computing(header), header.split, header.spec.partition("@")[0])


def known(runs: Sequence[Run], last: int | None = None) -> list[Known]:
    """What runs say about each technique and number of workers, in their first steps or in all.

    The shortest of them count: those were made to be timed.
    """
    groups = grouped(
        [run for run in runs if _says_enough(run)], lambda run: same_technique(run.header)
    ).values()
    shortest = [_of_length(group, min(run.header.steps for run in group)) for group in groups]
    timed = [run for group in shortest for run in group]
    return [_known(group, timed, last) for group in shortest]


def _cell(group: Sequence[Run], bare: Sequence[Run]) -> Cell | None:
    header = group[0].header
    alone = [run for run in bare if same_technique(run.header) == same_technique(header)]
    if not alone:
        return None
    lengths = {run.header.steps for run in group} & {run.header.steps for run in alone}
    if lengths:
        group, alone, bare = (_of_length(runs, min(lengths)) for runs in (group, alone, bare))
    last = min(len(run.steps) for run in group)
    there = _known(alone, bare, last)
    predicted = step_seconds(there.computing, there.exchange, Link(parse_rate(header.link)))
    measured = _median(group, last, lambda step: step.seconds)
    return Cell(header.task, header.link, header.workers, header.label, there.seconds, predicted, measured)


def _known(alone: Sequence[Run], all_runs: Sequence[Run], last: int | None) -> Known:
    header = alone[0].header
    crowd = [run for run in all_runs if same_computing(run.header) == same_computing(header) and run.steps]
    compute = _median(crowd, None, lambda step: step.phases.get("compute"))
    seconds = _median(alone, last, lambda step: step.seconds)
    contestant = contestants.parse(header.spec)
    delayed = isinstance(contestant, Attached) and getattr(contestant.technique, "overlap", False)
    exchange = Exchange(
        _median(alone, last, lambda step: step.tx if step.sent is None else step.sent),
        _median(alone, last, lambda step: step.rx if step.received is None else step.received),
        max(0.0, seconds - compute),
        _pieces(alone[0], contestant),
        used=used(contestant, header.workers),
    )
    computing = Computing(compute, math.inf, 1.0, 1) if delayed else Computing(compute, cores=1)
    return Known(header, seconds, computing, exchange)


def _of_length(runs: Iterable[Run], steps: int) -> list[Run]:
    return [run for run in runs if run.header.steps == steps]


def _pieces(run: Run, contestant: Contestant) -> int:
    if run.layers and isinstance(contestant, Attached):
        dtype = getattr(contestant.technique, "dtype", "fp32")
        if any(layer.way != "dense" for layer in run.layers):
            return departures(run.layers, run.header.workers, FORMATS[dtype].itemsize)
        contestant = Attached(Dense(dtype))
    together = pieces(contestant, run.header.parameters, run.header.workers)
    return max(together, buckets(run.header.parameters))


def _median(runs: Sequence[Run], last: int | None, value: Callable[[Step], float | None]) -> float:
    """Over runs, of the median over the settled ones of their first steps."""
    return statistics.median(
        statistics.median(value(step) or 0.0 for step in settled(run, last)) for run in runs
    )


def _says_enough(run: Run) -> bool:
    """Whether the run has ended, and its steps say what computing took and how much was sent."""
    return run.end is not None and bool(run.steps) and _is_counted(run.steps[-1])


def _is_counted(step: Step) -> bool:
    return "compute" in step.phases and (step.sent is not None or step.tx is not None)


def _rate(run: Run) -> int | None:
    """The one rate of all links, or None where they differ or are not shaped."""
    return None if "," in run.header.link else parse_rate(run.header.link)
