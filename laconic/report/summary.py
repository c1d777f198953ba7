"""The summary of runs: rows that compare techniques, and the mean curves behind them.

A run is one technique with one seed. Runs that differ in nothing but their seed make one row, and rows that
may be compared with each other share a setting. In the order of the code: the values, grouping, the target
that the reference row (plain DDP where there is one) sets, a row's numbers, and the crossing of the target.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from laconic.lab.records import Eval, Header, Run, Setting, Step, grouped, outgoing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WARM_UP = 20
"""Steps that pay for connections, allocations and DDP's bucket rebuild, or have gradients like no later ones: in
`fashion` GenNorm sends twice as much in each of the first 18 as ever after. A short run counts its second half."""


@dataclass(frozen=True)
class Spread:
    """A mean over seeds, with the lowest and the highest of them."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Point:
    """The mean evaluation of several seeds after the same number of steps."""

    step: int
    seconds: float
    sent: float | None
    value: Spread


@dataclass(frozen=True)
class Row:
    """One technique in one setting, over all its seeds; None where nothing was measured or reached.

    `target` is the metric to reach, which the `aim` runs of the reference set; `faster` and `fewer_bytes` compare
    the way to it with the reference's, over the seeds that both have.
    """

    label: str
    spec: str
    family: str
    setting: Setting
    runs: tuple[Run, ...]
    left_out: tuple[Run, ...]
    aim: tuple[Run, ...]
    target: float | None
    counter: str | None
    step_seconds: Spread | None
    bytes_per_step: Spread | None
    final: Spread | None
    reached: int
    seconds_to_target: Spread | None
    bytes_to_target: Spread | None
    steps_to_target: Spread | None
    is_reference: bool = False
    faster: float | None = None
    fewer_bytes: float | None = None


def summarize(runs: Sequence[Run]) -> list[Row]:
    """One row for each technique in each setting, settings together, the plain row of a setting first."""
    settings = grouped(runs, setting_of)
    return [row for setting, members in settings.items() for row in _rows(setting, members)]


def curve(runs: Sequence[Run]) -> list[Point]:
    """The mean of the runs at each step that all of them evaluated with a finite result."""
    by_step = [{point.step: point for point in run.evals if math.isfinite(point.value)} for run in runs]
    shared = sorted(set.intersection(*map(set, by_step))) if by_step else []
    return [_point(step, [evals[step] for evals in by_step]) for step in shared]


def settled(run: Run, last: int | None = None) -> tuple[Step, ...]:
    """Of the run's steps, or of the first ones up to the `last`, those after the warm-up."""
    steps = run.steps[:last]
    return steps[min(WARM_UP, len(steps) // 2) :]


def setting_of(run: Run) -> Setting:
    """What this run shares with those it may be compared with."""
    return Setting(**{field.name: getattr(run.header, field.name) for field in fields(Setting)})


def _rows(setting: Setting, runs: Sequence[Run]) -> list[Row]:
    """The rows of one setting, compared with the first of them."""
    # another learning rate or length is another row: only the seed may differ within one
    same = attrgetter("family", "label", "spec", "optimizer", "lr", "momentum", "steps")
    groups = list(grouped(runs, lambda run: same(run.header)).values())
    groups.sort(key=lambda group: (group[0].header.family != "plain", -_goodness(group)))
    labels = _labels([group[0].header for group in groups])
    aim = _counted(groups[0])
    rows = [_row(setting, label, group, aim) for label, group in zip(labels, groups, strict=True)]
    reference = replace(rows[0], is_reference=True)
    return [_compared(row, reference) for row in [reference, *rows[1:]]]


def _labels(headers: Sequence[Header]) -> list[str]:
    """A label for each row; where two are the same, all that makes a row its own is added."""
    taken = [header.label for header in headers]
    more = [
        f" ({h.spec}, {h.optimizer} lr {h.lr:g}, momentum {h.momentum or 0:g}, {h.steps} steps)"
        for h in headers
    ]
    return [label + (more[i] if taken.count(label) > 1 else "") for i, label in enumerate(taken)]


def _counted(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs that the numbers come from: the finished ones, or all while none has finished."""
    return tuple(run for run in runs if run.end is not None) or tuple(runs)


def _goodness(runs: Sequence[Run]) -> float:
    """Where plain rows ended on average, higher is better: the best of several sets the target."""
    final, header = _final(_counted(runs)), runs[0].header
    if header.family != "plain" or final is None or not math.isfinite(final.mean):
        return -math.inf
    return final.mean if header.higher_is_better else -final.mean


def _target(runs: Sequence[Run]) -> float | None:
    """Where these runs ended on average, less half a point of accuracy or one percent of another metric."""
    final = _final(runs)
    if final is None or not math.isfinite(final.mean):
        return None
    header = runs[0].header
    slack = 0.005 if header.metric == "accuracy" else 0.01 * abs(final.mean)
    return final.mean - slack if header.higher_is_better else final.mean + slack


def _row(setting: Setting, label: str, runs: Sequence[Run], aim: tuple[Run, ...]) -> Row:
    """The summary of one technique, not yet compared with another."""
    counted, target = _counted(runs), _target(aim)
    own = [_crossings([run], target) for run in counted]
    steps, seconds, sent = _crossings(counted, target)
    return Row(
        label=label,
        spec=runs[0].header.spec,
        family=runs[0].header.family,
        setting=setting,
        runs=counted,
        left_out=tuple(run for run in runs if run not in counted),
        aim=aim,
        target=target,
        counter=_counter(counted),
        step_seconds=_spread(
            statistics.median(s.seconds for s in settled(run)) for run in counted if run.steps
        ),
        bytes_per_step=_spread(map(_mean_bytes, counted)),
        final=_final(counted),
        reached=sum(crossing.seconds is not None for crossing in own),
        seconds_to_target=_around(seconds, [crossing.seconds for crossing in own]),
        bytes_to_target=_around(sent, [crossing.sent for crossing in own]),
        steps_to_target=_around(steps, [crossing.steps for crossing in own]),
    )


def _compared(row: Row, reference: Row) -> Row:
    """The row with its ratios to the reference; bytes by different counters are not compared."""
    seeds = shared_seeds(row, reference)
    theirs, ours = reaches(reference, seeds), reaches(row, seeds)
    fewer = _ratio(theirs.sent, ours.sent) if row.counter == reference.counter else None
    return replace(row, faster=_ratio(theirs.seconds, ours.seconds), fewer_bytes=fewer)


def _ratio(reference: float | None, other: float | None) -> float | None:
    """How many times the other goes into the reference."""
    return reference / other if reference is not None and other else None


class Crossings(NamedTuple):
    """Steps, seconds and bytes at which a curve reaches the target."""

    steps: float | None = None
    seconds: float | None = None
    sent: float | None = None


def shared_seeds(*rows: Row) -> set[int]:
    """The seeds that all these rows, and those that set their target, were evaluated with."""
    return set.intersection(
        *({run.header.seed for run in runs if run.evals} for row in rows for runs in (row.runs, row.aim))
    )


def with_seeds(runs: Iterable[Run], seeds: set[int]) -> list[Run]:
    """Those of the runs that have one of these seeds."""
    return [run for run in runs if run.header.seed in seeds]


def reaches(row: Row, seeds: set[int]) -> Crossings:
    """Where the row's runs with these seeds reach the target that the reference sets with them."""
    runs = with_seeds(row.runs, seeds)
    return _crossings(runs, _target(with_seeds(row.aim, seeds))) if runs else Crossings()


def _crossings(runs: Sequence[Run], target: float | None) -> Crossings:
    """Where the mean curve of the runs first reaches the target.

    The mean curve, because one seed of the reference may itself end below the mean that sets the target.
    """
    if target is None:
        return Crossings()
    points = curve(runs)
    sign = 1 if runs[0].header.higher_is_better else -1
    heights = [sign * (point.value.mean - target) for point in points]
    steps = _crossing([point.step for point in points], heights)
    seconds = _crossing([point.seconds for point in points], heights)
    return Crossings(steps, seconds, _crossing([point.sent for point in points], heights))


def _crossing(places: Sequence[float | None], heights: Sequence[float]) -> float | None:
    """The place where the height first comes to zero, on straight lines between the points."""
    first = next((index for index, height in enumerate(heights) if height >= 0), None)
    if first is None or first == 0:
        return places[0] if first == 0 else None
    before, after = places[first - 1], places[first]
    if before is None or after is None:
        return None
    return before + (after - before) * heights[first - 1] / (heights[first - 1] - heights[first])


def _point(step: int, evals: Sequence[Eval]) -> Point:
    """The mean of evaluations of different seeds at one step."""
    seconds = statistics.fmean(point.seconds for point in evals)
    sent, value = _spread(map(outgoing, evals)), _spread(point.value for point in evals)
    assert value is not None
    return Point(step, seconds, sent.mean if sent else None, value)


def _counter(runs: Iterable[Run]) -> str | None:
    """Who counted the bytes of these runs: `interface`, `meter`, or nobody."""
    steps = [step for run in runs for step in run.steps]
    if not steps or any(outgoing(step) is None for step in steps):
        return None
    return "meter" if any(step.tx is None for step in steps) else "interface"


def _mean_bytes(run: Run) -> float | None:
    """Mean bytes of a settled step, if all of them were counted."""
    spread = _spread(map(outgoing, settled(run)))
    return spread.mean if spread else None


def _final(runs: Iterable[Run]) -> Spread | None:
    """The metric at the last evaluation of each run."""
    return _spread(run.evals[-1].value for run in runs if run.evals)


def _spread(values: Iterable[float | None]) -> Spread | None:
    """Mean, lowest and highest of the values, or None if there are none or one of them is missing."""
    known = list(values)
    present = [value for value in known if value is not None]
    if not present or len(present) < len(known):
        return None
    return Spread(statistics.fmean(present), min(present), max(present))


def _around(mean: float | None, values: Iterable[float | None]) -> Spread | None:
    """The mean with the range of those values that are known."""
    known = [value for value in (mean, *values) if value is not None]
    return None if mean is None else Spread(mean, min(known), max(known))
