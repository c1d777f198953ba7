"""Full trainings on a bare link, timed on a slow one: what a run there would have recorded.

A synchronous technique learns the same whatever the link, so a training need not be repeated on each. Of one task,
split, number of workers, batch, model and technique there may be

trajectory   a run with `--link none`: what is learned, step by step
timing       a shorter run on a link, evaluated only at its end: what a step takes there; one with `--link none`
             is of use to the cost model alone
check        a run on the link that is as long as the trajectory: what the product should have been, by the timing
             that was made next to it

Where there are trajectories and timings, runs are projected: the trajectory's evaluations, with the seconds of the
timings' first steps (which pay for connections, and in which PowerSGD and RankDAD still send everything) and for all
others the median step, over the settled steps of all timings together. Bytes are the trajectory's own by the meter,
times what the link's frames add to them; where there is no meter they are the timings', like seconds. Projected runs
replace trajectories, timings and checks; all other runs stay as they are.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING

from laconic.lab.records import Eval, Run, Setting, Step
from laconic.report.summary import grouped, setting_of, settled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_same = attrgetter(
    *("task", "split", "workers", "batch", "parameters", "metric"),
    *("label", "spec", "family", "optimizer", "lr", "momentum"),
)
"""What a timing shares with its trajectory."""


@dataclass(frozen=True)
class Check:
    """Training seconds of one full run on a link, as projected and as measured, and where it and its twin ended.

    The twin is the trajectory with the same seed, or there is none.
    """

    label: str
    setting: Setting
    seed: int
    projected: float
    measured: float
    ended: float | None
    twin_ended: float | None

    @property
    def ratio(self) -> float:
        """1 where the projection is right, above where it is too long."""
        return self.projected / self.measured


@dataclass(frozen=True)
class Evidence:
    """Runs to summarize, some of them projected, with the timings and checks behind these."""

    runs: tuple[Run, ...]
    timings: tuple[Run, ...]
    checks: tuple[Check, ...]


def project(runs: Sequence[Run]) -> Evidence:
    """The runs, with projected ones in the place of trajectories and timings."""
    groups = grouped(runs, lambda run: _same(run.header)).values()
    parts = [part for group in groups for part in _projected(group)]
    projected = {setting_of(run) for part in parts for run in part.runs if run.header.projected}
    tasks = {setting.task for setting in projected}
    return Evidence(
        tuple(
            _without_evals(run, projected)
            for part in parts
            for run in part.runs
            if not (run.header.task in tasks and run.header.link == "none" and shows_only_time(run))
        ),
        tuple(run for part in parts for run in part.timings),
        tuple(check for part in parts for check in part.checks),
    )


def _projected(runs: Sequence[Run]) -> list[Evidence]:
    """The evidence of one technique: a part for each link, and one for trajectories that no link uses."""
    bare = [run for run in runs if run.header.link == "none"]
    steps = max((run.header.steps for run in bare), default=0)
    trajectories = [run for run in bare if run.header.steps == steps]
    links = grouped([run for run in runs if run not in bare], setting_of).values()
    parts = [_on_link(trajectories, steps, group) for group in links]
    used = trajectories if any(part.timings for part in parts) else []
    left = [run for run in bare if run not in used and not _is_timing(run, steps)]
    return [*parts, Evidence(tuple(left), (), ())]


def _on_link(trajectories: Sequence[Run], steps: int, runs: Sequence[Run]) -> Evidence:
    """The evidence of one technique on one link."""
    short = [run for run in runs if _is_timing(run, steps)]
    timings = [run for run in short if run.end is not None and run.steps]
    others = [run for run in runs if run not in short]
    if not timings:
        return Evidence(tuple(others), (), ())
    pace = _pace(timings)
    full = [run for run in others if run.header.steps == steps]
    checks = [
        _check(run, _pace([_nearest(timings, run)]), trajectories) for run in full if run.end is not None
    ]
    made = [_on(run, timings[0], pace) for run in trajectories]
    return Evidence((*made, *(run for run in others if run not in full)), tuple(timings), tuple(checks))


def _nearest(timings: Sequence[Run], run: Run) -> Run:
    """The one that was made next to the run, as a machine's pace changes with the hours."""
    start = datetime.fromisoformat(run.header.started)
    return min(timings, key=lambda timing: abs(datetime.fromisoformat(timing.header.started) - start))


def _is_timing(run: Run, steps: int) -> bool:
    """Whether the run is shorter than the trajectory's `steps` and shows nothing but what a step takes."""
    return run.header.steps < steps and shows_only_time(run)


@dataclass(frozen=True)
class Pace:
    """What steps take on a link: the first ones each by itself, all others alike."""

    first: tuple[Step, ...]
    then: Step

    def steps(self, count: int) -> tuple[Step, ...]:
        """So many, from the first one on."""
        return (self.first + (self.then,) * max(0, count - len(self.first)))[:count]

    def seconds(self, count: int) -> float:
        """Of so many steps."""
        return sum(step.seconds for step in self.first[:count]) + self._others(count) * self.then.seconds

    def sent(self, count: int, counter: Callable[[Step], int | None]) -> int | None:
        """Bytes of so many steps, or None where they were not counted."""
        first, then = [counter(step) for step in self.first[:count]], counter(self.then)
        known = [number for number in first if number is not None]
        return None if then is None or len(known) < len(first) else sum(known) + self._others(count) * then

    def _others(self, count: int) -> int:
        return max(0, count - len(self.first))


def _pace(timings: Sequence[Run]) -> Pace:
    """Medians over all these runs."""
    check_machine(timings)
    first = min(len(run.steps) - len(settled(run)) for run in timings)
    return Pace(
        tuple(_average([run.steps[number] for run in timings]) for number in range(first)),
        _usual_step([step for run in timings for step in settled(run)]),
    )


def check_machine(timings: Sequence[Run]) -> None:
    """Fails where these were not all timed on the same one."""
    machines = {run.header.machine: run.header for run in timings}
    if len(machines) > 1:
        where = ", ".join(f"{header.label} on {machine}" for machine, header in sorted(machines.items()))
        link = timings[0].header.link
        raise ValueError(f"steps on {link} were timed on several machines ({where}); give records of one")


def _usual_step(steps: Sequence[Step]) -> Step:
    """The median step; of a technique that does not exchange in every one, the mean of both kinds' medians."""
    kinds = {silent: _average(kind) for silent, kind in grouped(steps, _is_silent).items()}
    return _average([kinds[_is_silent(step)] for step in steps], statistics.fmean)


def _is_silent(step: Step) -> bool:
    return step.sent == 0


def _average(steps: Sequence[Step], average: Callable[[Iterable[float]], float] = statistics.median) -> Step:
    """A step whose every number is the median over these, or another average."""
    names = dict.fromkeys(name for step in steps for name in step.phases)

    def count(numbers: Iterable[int | None]) -> int | None:
        """In whole bytes, or None where one is missing."""
        known = list(numbers)
        present = [number for number in known if number is not None]
        return round(average(present)) if present and len(present) == len(known) else None

    return Step(
        step=0,
        seconds=average(step.seconds for step in steps),
        loss=None,
        phases={name: average(step.phases.get(name, 0.0) for step in steps) for name in names},
        tx=count(step.tx for step in steps),
        rx=count(step.rx for step in steps),
        sent=count(step.sent for step in steps),
        received=count(step.received for step in steps),
    )


def _on(trajectory: Run, timing: Run, pace: Pace) -> Run:
    """The trajectory as it would have been recorded on the timing's link, where it goes at this pace."""
    header, end = trajectory.header, trajectory.end
    return replace(
        trajectory,
        header=replace(timing.header, seed=header.seed, steps=header.steps, projected=True),
        steps=tuple(
            replace(step, step=past.step, loss=past.loss, readings=past.readings)
            for past, step in zip(trajectory.steps, pace.steps(len(trajectory.steps)), strict=True)
        ),
        evals=tuple(_eval_on(past, pace) for past in trajectory.evals),
        end=None if end is None else replace(end, seconds=pace.seconds(header.steps)),
    )


def _eval_on(past: Eval, pace: Pace) -> Eval:
    """The evaluation with the link's seconds and bytes: the meter's where there is one, as messages may shrink."""
    sent = past.sent if past.sent is not None else pace.sent(past.step, attrgetter("sent"))
    tx, then = pace.sent(past.step, attrgetter("tx")), pace.then
    if then.tx is not None and past.sent is not None and then.sent:
        tx = round(past.sent * then.tx / then.sent)
    return replace(past, seconds=pace.seconds(past.step), tx=tx, sent=sent)


def _check(run: Run, pace: Pace, trajectories: Sequence[Run]) -> Check:
    """The projection's seconds beside those of the whole run."""
    assert run.end is not None
    twins = [other for other in trajectories if other.header.seed == run.header.seed]
    return Check(
        run.header.label,
        setting_of(run),
        run.header.seed,
        pace.seconds(run.header.steps),
        run.end.seconds,
        *(next((one.evals[-1].value for one in some if one.evals), None) for some in ([run], twins)),
    )


def shows_only_time(run: Run) -> bool:
    """Whether the run was evaluated at its end at most, so that it shows what a step takes and no way to a target."""
    return {point.step for point in run.evals} <= {0, run.header.steps}


def _without_evals(run: Run, projected: set[Setting]) -> Run:
    """A timing that has no trajectory says nothing about accuracy, beside others that have one."""
    lonely = setting_of(run) in projected and not run.header.projected
    return replace(run, evals=()) if lonely and shows_only_time(run) else run
