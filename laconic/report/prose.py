"""The report in words: the headline, what a reader must be warned of, and numbers as people read them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from laconic.lab.records import Run, Setting
from laconic.report.summary import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PROJECTED = (
    "Seconds and bytes are projected: each row was trained in full on the bare machine, its median step was timed on "
    "this link in short runs, and the number of steps was multiplied with it."
)
SAME = 1.05  # ratios nearer to one than this are called the same


def headline(rows: Sequence[Row]) -> str:
    """The result of one setting in a sentence or two, also when it is not a good one."""
    reference, target = rows[0], rows[0].target
    if target is None:
        return f"{reference.label} sets no target: it has no finite evaluation."
    goal = target_text(target, reference.setting)
    reached = sorted((row for row in rows if row.seconds_to_target), key=_time)
    others = [row for row in reached if not row.is_reference]
    if not others:
        return _unrivaled(rows, goal)
    hero, first = next((row for row in others if row.family == "laconic"), others[0]), reached[0]
    beaten = f" {first.label} was sooner still, after {seconds_text(_time(first))}."
    return _against(hero, reference, goal) + ("" if first in (hero, reference) else beaten)


def notices(rows: Sequence[Row]) -> list[str]:
    """What a reader must know before using a technique or believing the numbers, a sentence each."""
    pairs = [(row, run) for row in rows for run in (*row.runs, *row.left_out)]
    notes = dict.fromkeys(run.header.note for _, run in pairs if run.header.note)
    warnings = dict.fromkeys(run.header.warning for _, run in pairs if run.header.warning)
    return [
        *warnings,
        *_shared_notices(rows),
        *(notice for row, run in pairs for notice in _run_notices(row, run)),
        *notes,
    ]


def metric_text(value: float, setting: Setting) -> str:
    """The metric as it is read: accuracy in percent, another one with four digits."""
    if not math.isfinite(value):
        return "diverged"
    return f"{100 * value:.1f}\u00a0%" if setting.metric == "accuracy" else _digits(value, 4)


def target_text(target: float, setting: Setting) -> str:
    """The target in words."""
    text = metric_text(target, setting)
    return text if setting.metric == "accuracy" else f"{setting.metric} {text}"


def seconds_text(seconds: float) -> str:
    """A duration in three digits and a unit."""
    units = ((7200.0, 3600.0, "h"), (600.0, 60.0, "min"), (0.0, 1.0, "s"))
    size, unit = next((size, unit) for least, size, unit in units if seconds >= least)
    return f"{_digits(seconds / size)}\u00a0{unit}"


def bytes_text(count: float) -> str:
    """A number of bytes in three digits and a decimal unit."""
    power = min(4, max(0, _exponent(count, 3) // 3))
    return f"{_digits(count / 1000**power)}\u00a0{('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def times_text(ratio: float) -> str:
    """A ratio, such as 3.6×."""
    return f"{ratio:.1f}×" if ratio < 10 else f"{ratio:.0f}×"


def _time(row: Row) -> float:
    """Seconds to the target, of a row that reached it."""
    assert row.seconds_to_target is not None
    return row.seconds_to_target.mean


def _unrivaled(rows: Sequence[Row], goal: str) -> str:
    """The headline when no row but perhaps the reference reached the target."""
    if len(rows) > 1:
        return f"No other technique reached {goal}, the target that {rows[0].label} set."
    return (
        f"{rows[0].label} ended near {goal}." if rows[0].seconds_to_target is None else _alone(rows[0], goal)
    )


def _alone(row: Row, goal: str) -> str:
    """The headline of a row that has nothing to be compared with."""
    return f"{row.label} reached {goal} in {seconds_text(_time(row))}."


def _against(row: Row, reference: Row, goal: str) -> str:
    """The headline of a row that reached the target."""
    if row.faster is None:
        return _alone(row, goal)
    if row.faster >= SAME:
        pace = f"{row.label} reached {goal} {times_text(row.faster)} sooner than {reference.label}"
    elif row.faster <= 1 / SAME:
        pace = f"{row.label} took {times_text(1 / row.faster)} as long as {reference.label} to reach {goal}"
    else:
        pace = f"{row.label} reached {goal} in about the same time as {reference.label}"
    return f"{pace}{_thrift(row.fewer_bytes)}."


def _thrift(ratio: float | None) -> str:
    """The headline's words about bytes."""
    if ratio is None:
        return ""
    if ratio >= SAME:
        return f", with {times_text(ratio)} fewer bytes"
    return f", with {times_text(1 / ratio)} the bytes" if ratio <= 1 / SAME else ", with about as many bytes"


def _shared_notices(rows: Sequence[Row]) -> Iterable[str]:
    """The notices that concern the whole section."""
    if not rows[0].setting.shaped:
        yield "The link was not shaped: these seconds do not show what a slow network does."
    if any(run.header.projected for row in rows for run in row.runs):
        yield PROJECTED
    if rows[0].family != "plain":
        yield f"There is no plain DDP run here: the target and the ratios come from {rows[0].label} instead."
    if len({run.header.machine for row in rows for run in row.runs}) > 1:
        yield "The runs come from different machines, so their seconds cannot be compared."
    if len({row.counter for row in rows}) > 1:
        yield "Not all bytes were counted the same way, so some of them are not compared."
    for row in rows:
        if 0 < row.reached < len(row.runs):
            yield f"Only {row.reached} of {len(row.runs)} seeds of {row.label} reached the target by themselves."


def _run_notices(row: Row, run: Run) -> Iterable[str]:
    """The notices that concern one run."""
    name = f"{row.label}, seed {run.header.seed},"
    if run.end is None:
        done = run.steps[-1].step if run.steps else 0
        fate = "left out of the numbers" if run in row.left_out else "shown as far as it got"
        yield f"{name} is unfinished ({done} of {run.header.steps} steps) and is {fate}."
    elif not run.end.replicas_equal:
        yield f"{name} {_apart(run.end.consensus)}."


def _apart(consensus: float | None) -> str:
    """How replicas ended that are not equal: by design where their distance is known."""
    if consensus is None:
        return "ended with replicas that differ from each other, so its numbers mean nothing"
    return (
        f"ended with workers' parameters {consensus:.2g} apart (consensus distance, relative to their mean); "
        "what is evaluated is their mean"
    )


def _digits(value: float, count: int = 3) -> str:
    """The value in so many significant digits, without an exponent."""
    return f"{value:.{max(0, count - 1 - _exponent(value, count))}f}" if value else "0"


def _exponent(value: float, count: int) -> int:
    """The power of ten of the value, once it is rounded to so many significant digits."""
    return int(f"{value:.{count - 1}e}".partition("e")[2])
