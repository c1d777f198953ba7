"""The main job: the same task trained with several techniques over the same links, recorded side by side.

Runs go one after another, so that each has the machine to itself; all techniques of a seed come before the next seed.
Where there are several plans, the first seed of all of them comes before the second of any, and plans that differ in
nothing but the link go abreast: a technique's runs on all links, and those of as many more techniques as there is
memory for, are started together and take turns, some steps each, while the others stand still. So the machine's moods
fall on all alike. A run whose record is complete is not run again, wherever its directory lies now.
"""

from __future__ import annotations

import dataclasses
import os
import re
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from laconic.lab import contestants, records
from laconic.lab.jobs import Job
from laconic.lab.records import Growing, RecordError, grouped
from laconic.lab.worker import Settings, check_training

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laconic.lab.links import Lab
    from laconic.lab.records import Header

TURN = 10
"""Steps that a run takes before those abreast of it take theirs."""
ROOM = 0.55e9
"""Bytes of memory that a worker takes, with its launcher: `fashion` and `text` on two cores."""
SHARE = 0.6
"""Of the machine's memory for workers that stand still or run."""


@dataclass(frozen=True)
class Comparison:
    """What to compare: `base` with each of `specs` in its place, for each of `seeds`.

    A spec may have settings of its own, which replace the base's.
    """

    base: Settings
    specs: tuple[str, ...]
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        for spec in self.specs:
            contestants.parse(spec)
            check_training(contestants.training(spec))
            if self.specs.count(spec) > 1:
                raise ValueError(f"technique {spec!r} is named {self.specs.count(spec)} times; name it once")

    @property
    def warnings(self) -> list[str]:
        """What to beware of with these techniques, each sentence once."""
        rows = [contestants.parse(spec) for spec in self.specs]
        found = [
            getattr(row.technique, "warning", "") for row in rows if isinstance(row, contestants.Attached)
        ]
        return list(dict.fromkeys(filter(None, found)))

    def runs(self, directory: Path, lab: Lab) -> list[Settings]:
        """The settings of every run, in order, with records in `directory`."""
        return [
            dataclasses.replace(
                self.base,
                spec=spec,
                seed=seed,
                record=str((directory / f"{_file_name(spec)}-{seed}.jsonl").absolute()),
                interface=lab.interface if lab.isolated else None,
                shaped=lab.shaped,
                note=lab.note or "",
                **contestants.training(spec),
            )
            for seed in self.seeds
            for spec in self.specs
        ]


@dataclass(frozen=True)
class Line:
    """One of several plans that are compared together, and its name, which its directory has too."""

    name: str
    plan: Comparison


def rounds(lines: Sequence[Line]) -> list[list[list[Line]]]:
    """The lines with one seed each: those with their first seed, those with their second, and so on.

    Within a round, lines that differ in nothing but the link are together.
    """
    most = max(len(line.plan.seeds) for line in lines)
    by_seed = ([_with_seed(line, n) for line in lines if n < len(line.plan.seeds)] for n in range(most))
    return [list(grouped(together, _but_for_link).values()) for together in by_seed]


def _with_seed(line: Line, number: int) -> Line:
    return Line(line.name, dataclasses.replace(line.plan, seeds=line.plan.seeds[number : number + 1]))


def _but_for_link(line: Line) -> Comparison:
    return dataclasses.replace(line.plan, base=dataclasses.replace(line.plan.base, link="none"))


Runs: TypeAlias = "Sequence[tuple[Settings, Lab]]"


def rows_abreast(workers: int, memory: float | None = None) -> int:
    """How many rows there is memory for, with so many workers in all runs of a row; at least one."""
    return max(1, int(SHARE * (_memory() if memory is None else memory) / ROOM / workers))


def _memory() -> float:
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


class Watcher(Protocol):
    """Is told how runs go."""

    def start(self, settings: Settings) -> None:
        """A run begins."""

    def look(self) -> None:
        """The run's record may have grown."""

    def finish(self) -> None:
        """The run has ended well."""


def compare(runs: Sequence[Runs], watcher: Watcher) -> list[Path]:
    """The records of all runs, complete; those that are together go abreast."""
    for abreast in runs:
        left = [(settings, lab) for settings, lab in abreast if not is_complete(settings)]
        if len(left) == 1:
            watcher.start(left[0][0])
            execute(*left[0], watcher)
        elif left:
            execute_abreast(left, watcher)
        for settings, _ in abreast:
            watcher.start(settings)
            watcher.finish()
    return [Path(settings.record) for abreast in runs for settings, _ in abreast]


def execute(settings: Settings, lab: Lab, watcher: Watcher) -> None:
    """The run's record is complete; the workers' logs lie beside it."""
    with _job(settings, lab) as job:
        job.wait(watcher.look)


def execute_abreast(runs: Runs, watcher: Watcher) -> None:
    """The records of all these are complete; no two run at the same time, but for their start."""
    growing = [Growing(Path(settings.record)) for settings, _ in runs]
    turns = [record.path.with_suffix(".turn") for record in growing]
    for turn in turns:
        turn.write_text("-1")
    try:
        with ExitStack() as stack:
            jobs = [
                stack.enter_context(_job(settings, lab, str(turn)))
                for (settings, lab), turn in zip(runs, turns, strict=True)
            ]
            for job, record in zip(jobs, growing, strict=True):
                job.wait_for(record.path.exists)
            for step in (*range(0, runs[0][0].steps, TURN), runs[0][0].steps):
                for (settings, _), turn, job, record in zip(runs, turns, jobs, growing, strict=True):
                    watcher.start(settings)
                    _allow(turn, step)
                    if step < settings.steps:
                        job.wait_for(partial(_has_come, record, step), watcher.look)
                    else:
                        job.wait(watcher.look)
    finally:
        for turn in turns:
            turn.unlink(missing_ok=True)


def _job(settings: Settings, lab: Lab, *more: str) -> Job:
    record = Path(settings.record)
    record.unlink(missing_ok=True)
    saved = settings.save(record.with_suffix(".json"))
    return Job(lab, "laconic.lab.worker", [str(saved), *more], log_directory=record.with_suffix(""))


def _allow(turn: Path, step: int) -> None:
    draft = turn.with_suffix(".draft")
    draft.write_text(str(step))
    draft.replace(turn)  # at once, for the worker reads it meanwhile


def _has_come(record: Growing, step: int) -> bool:
    """Whether the run has done the step and all that belongs to it; 0 is the evaluation before the first."""
    record.look()
    return len(record.steps) == step and bool(record.evals)


def is_complete(settings: Settings) -> bool:
    """Whether a run of just these settings has been recorded to its end, here or elsewhere."""
    try:
        run = records.read(Path(settings.record))
    except (FileNotFoundError, RecordError):
        return False
    return run.end is not None and _is_same(run.header, settings)


def _is_same(header: Header, settings: Settings) -> bool:
    """Whether the record's run trains the same; where the link is bare, it does not matter whose it is."""
    wanted = {
        name: value for name, value in settings.told().items() if name != "note" or settings.link != "none"
    }
    wanted["label"] = contestants.parse(settings.spec).label  # a default may have been another
    return all(getattr(header, name) == value for name, value in wanted.items())


def _file_name(spec: str) -> str:
    return re.sub(r"[^\w.,=+-]", "-", spec)  # different specs keep different names: only : and @ go
