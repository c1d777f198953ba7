"""What recorded runs say of a technique's step: its seconds, and what it is made of, in the model's terms.

Bytes and the worker's own work are those of runs of the same technique, and computing is the median over all runs
with so many workers. Workers share the machine's cores, and the times that were measured include it, so that `cores`
is 1.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from laconic.lab import contestants
from laconic.lab.contestants import Attached
from laconic.plan.cost import Computing, Exchange
from laconic.plan.pipeline import buckets, departures, pieces, used
from laconic.report.summary import grouped, settled
from laconic.techniques.dense import FORMATS, Dense

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from laconic.lab.contestants import Contestant
    from laconic.lab.records import Header, Run, Step

same_computing = attrgetter("machine", "task", "workers", "batch", "parameters")


@dataclass(frozen=True)
class Known:
    """What runs of one technique say: a step's seconds, and on the bare machine what it is made of."""

    header: Header
    seconds: float
    computing: Computing
    exchange: Exchange


def known(runs: Sequence[Run]) -> list[Known]:
    """What runs say about each technique and number of workers.

    The shortest of them count: those were made to be timed.
    """
    groups = grouped(
        [run for run in runs if says_enough(run)], lambda run: same_technique(run.header)
    ).values()
    shortest = [of_length(group, min(run.header.steps for run in group)) for group in groups]
    timed = [run for group in shortest for run in group]
    return [known_of(group, timed) for group in shortest]


def known_of(alone: Sequence[Run], all_runs: Sequence[Run], last: int | None = None) -> Known:
    """What one technique's runs say, up to step `last` or in all; computing is the median of `all_runs` like them."""
    header = alone[0].header
    crowd = [run for run in all_runs if same_computing(run.header) == same_computing(header) and run.steps]
    compute = median(crowd, None, lambda step: step.phases.get("compute"))
    seconds = median(alone, last, lambda step: step.seconds)
    contestant = contestants.parse(header.spec)
    delayed = isinstance(contestant, Attached) and getattr(contestant.technique, "overlap", False)
    exchange = Exchange(
        median(alone, last, lambda step: step.tx if step.sent is None else step.sent),
        median(alone, last, lambda step: step.rx if step.received is None else step.received),
        max(0.0, seconds - compute),
        _pieces(alone[0], contestant),
        used=used(contestant, header.workers),
    )
    computing = Computing(compute, math.inf, 1.0, 1) if delayed else Computing(compute, cores=1)
    return Known(header, seconds, computing, exchange)


def same_technique(header: Header) -> tuple[object, ...]:
    """Runs that say the same to each other, but for what they were trained with."""
    return (*same_computing(header), header.split, header.spec.partition("@")[0])


def of_length(runs: Iterable[Run], steps: int) -> list[Run]:
    """Those that were to train for so many steps."""
    return [run for run in runs if run.header.steps == steps]


def says_enough(run: Run) -> bool:
    """Whether the run has ended, and its steps say what computing took and how much was sent."""
    return run.end is not None and bool(run.steps) and _is_counted(run.steps[-1])


def median(runs: Sequence[Run], last: int | None, value: Callable[[Step], float | None]) -> float:
    """Over runs, of the median over the settled ones of their first steps."""
    return statistics.median(
        statistics.median(value(step) or 0.0 for step in settled(run, last)) for run in runs
    )


def _pieces(run: Run, contestant: Contestant) -> int:
    if run.layers and isinstance(contestant, Attached):
        dtype = getattr(contestant.technique, "dtype", "fp32")
        if any(layer.way != "dense" for layer in run.layers):
            return departures(run.layers, run.header.workers, FORMATS[dtype].itemsize)
        contestant = Attached(Dense(dtype))
    together = pieces(contestant, run.header.parameters, run.header.workers)
    return max(together, buckets(run.header.parameters))


def _is_counted(step: Step) -> bool:
    return "compute" in step.phases and (step.sent is not None or step.tx is not None)
