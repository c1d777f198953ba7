"""All rows of a set of records, by task, workers and link, with the questions that a page of results asks of them."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from laconic.lab.records import Run
from laconic.report.projection import Evidence, check_machine, project, shows_only_time
from laconic.report.summary import (
    Row,
    Spread,
    curve,
    grouped,
    reaches,
    setting_of,
    settled,
    shared_seeds,
    summarize,
    with_seeds,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laconic.lab.records import Setting

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Board:
    """The records as they were read, what was projected from them, and the rows of each setting."""

    records: tuple[Run, ...]
    evidence: Evidence
    sections: tuple[tuple[Row, ...], ...]

    def cell(self, task: str, workers: int, link: str, split: str = "iid") -> Sequence[Row]:
        """The rows of this setting, or nothing; a link that was not shaped is not the link."""
        wanted = (task, workers, link, split)
        found = (rows for rows in self.sections if place(rows[0].setting) == wanted)
        return next((rows for rows in found if is_real(rows[0].setting)), ())

    def row(self, spec: str, task: str, workers: int, link: str, split: str = "iid") -> Row | None:
        """The row of a technique in this setting; `spec` says nothing of how it trains."""
        rows = self.cell(task, workers, link, split)
        return next((row for row in rows if row.spec.partition("@")[0] == spec), None)

    def timings(self, row: Row) -> list[Run]:
        """The short runs that a projected row's seconds and bytes come from."""
        return [run for run in self.evidence.timings if _is_timing_of(run, row)]

    def is_timed(self, setting: Setting) -> bool:
        """Whether seconds in this setting mean something.

        Where trainings on the bare machine are for projecting, many may have shared it.
        """
        projected = {run.header.task for run in self.evidence.runs if run.header.projected}
        return setting.link != "none" or setting.task not in projected

    def rounds(self, row: Row) -> Spread | None:
        """The median step over all rounds that were timed, or over all runs, with the lowest and highest of them."""
        timed = self.timings(row) or [run for run in row.runs if run.steps]
        if not timed:
            return None
        medians = [statistics.median(step.seconds for step in settled(run)) for run in timed]
        everything = statistics.median(step.seconds for run in timed for step in settled(run))
        return Spread(everything, min(medians), max(medians))


@dataclass(frozen=True)
class Ratio:
    """How many times sooner; `at_least` where the other never came there, and its whole run is the bound."""

    value: float
    at_least: bool = False

    def __str__(self) -> str:
        digits = 2 if self.value < 10 else 1
        return f"{'> ' if self.at_least else ''}{self.value:.{digits}f}×"


def board(runs: Sequence[Run]) -> Board:
    """What these records show; a run on a link that was evaluated only at its end shows what a step takes.

    Runs that have not ended show nothing yet, and where plain DDP was not trained there is no target.
    """
    evidence = project([run for run in runs if run.end is not None])
    for timings in grouped(evidence.timings, setting_of).values():
        check_machine(timings)
    rows = summarize([_without_target(run) for run in evidence.runs])
    groups = (tuple(sorted(group, key=place_in_table)) for _, group in groupby(rows, attrgetter("setting")))
    sections = tuple(rows if rows[0].family == "plain" else tuple(map(_aimless, rows)) for rows in groups)
    return Board(tuple(runs), evidence, sections)


def place(setting: Setting) -> tuple[str, int, str, str]:
    """Task, workers, link and split."""
    return setting.task, setting.workers, setting.link, setting.split


def is_real(setting: Setting) -> bool:
    """Whether the link was what its name says."""
    return setting.shaped or setting.link == "none"


def place_in_table(row: Row) -> tuple[int, list[str], list[float]]:
    """Plain DDP comes first, then PyTorch's hooks, then Laconic, each by name, and a rank of 2 before one of 16."""
    numbers = [float(digits) for digits in _NUMBER.findall(row.label)]
    return ("plain", "peer", "laconic").index(row.family), _NUMBER.split(row.label.lower()), numbers


def technique(row: Row) -> str:
    """The technique's short name, such as powersgd."""
    return row.spec.partition("@")[0].partition(":")[0]


def named(rows: Sequence[Row], name: str) -> list[Row]:
    """The rows of the technique with this short name."""
    return [row for row in rows if technique(row) == name]


def soonest(rows: Sequence[Row]) -> Row | None:
    """The row that reached the target first, if any did."""
    reached = [row for row in rows if row.seconds_to_target is not None]
    return min(reached, key=_seconds, default=None)


def missed(row: Row) -> bool:
    """Whether the row was trained and never reached the target."""
    return row.target is not None and row.final is not None and row.seconds_to_target is None


def sooner(row: Row, others: Sequence[Row]) -> Ratio | None:
    """How many times sooner the row reached the target than the first of the others; None if that is unknown."""
    ratios = [_pair(row, other) for other in others]
    known = [ratio for ratio in ratios if ratio is not None]
    reached = [ratio for ratio in known if not ratio.at_least]
    if not reached and len(known) < len(ratios):
        return None
    return min(reached or known, key=attrgetter("value"), default=None)


def _pair(row: Row, other: Row) -> Ratio | None:
    """Over the seeds that both have, as a few seeds alone may be luckier than others."""
    seeds = shared_seeds(row, other)
    ours, theirs = reaches(row, seeds).seconds, reaches(other, seeds).seconds
    if not ours:
        return None
    if theirs is not None:
        return Ratio(theirs / ours)
    points = curve(with_seeds(other.runs, seeds))
    return Ratio(points[-1].seconds / ours, at_least=True) if points else None


def lost(row: Row, reference: Row) -> float | None:
    """Points of accuracy, or percent of another metric, that a row ends behind the reference; inf if it diverged.

    On average over the seeds that both have.
    """
    ours, theirs = _ends(row), _ends(reference)
    seeds = ours.keys() & theirs.keys()
    expected = statistics.fmean(theirs[seed] for seed in seeds) if seeds else math.nan
    if not math.isfinite(expected):
        return None
    found = statistics.fmean(ours[seed] for seed in seeds)
    return behind(found, expected, row.setting) if math.isfinite(found) else math.inf


def behind(found: float, expected: float, setting: Setting) -> float:
    """Points of accuracy, or percent of what was expected of another metric, that are missing."""
    gap = expected - found if setting.higher_is_better else found - expected
    return 100 * gap if setting.metric == "accuracy" else 100 * gap / abs(expected)


def _ends(row: Row) -> dict[int, float]:
    """Where each seed of the row ended."""
    return {run.header.seed: run.evals[-1].value for run in row.runs if run.evals}


def _aimless(row: Row) -> Row:
    return replace(
        row,
        aim=(),
        target=None,
        reached=0,
        seconds_to_target=None,
        bytes_to_target=None,
        steps_to_target=None,
        faster=None,
        fewer_bytes=None,
    )


def _without_target(run: Run) -> Run:
    timed = run.header.link != "none" and shows_only_time(run)
    return replace(run, evals=()) if timed else run


def _seconds(row: Row) -> float:
    assert row.seconds_to_target is not None
    return row.seconds_to_target.mean


def _is_timing_of(run: Run, row: Row) -> bool:
    header = row.runs[0].header
    same = attrgetter("spec", "lr", "momentum", "optimizer")
    return same(run.header) == same(header) and setting_of(run) == row.setting and header.projected
