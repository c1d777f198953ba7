"""The main job: the same task trained with several techniques over the same links, recorded side by side.

Runs go one after another, so that each has the machine to itself; all techniques of a seed come before the next seed.
Where there are several plans, the first seed of all of them comes before the second of any, and plans that differ in
nothing but the link take turns: a technique on each link, then the next one. So the machine's moods fall on all
alike. A run whose record is complete is not run again, wherever its directory lies now.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from laconic import specs
from laconic.launch import Job
from laconic.summary import grouped
from laconic.train import Settings, check_training

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laconic.lab import Lab

Item = TypeVar("Item")


@dataclass(frozen=True)
class Plan:
    """What to compare: `base` with each of `specs` in its place, for each of `seeds`.

    A spec may have settings of its own, which replace the base's.
    """

    base: Settings
    specs: tuple[str, ...]
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        for spec in self.specs:
            specs.parse(spec)
            check_training(specs.training(spec))
            if self.specs.count(spec) > 1:
                raise ValueError(f"technique {spec!r} is named {self.specs.count(spec)} times; name it once")

    @property
    def warnings(self) -> list[str]:
        """What to beware of with these techniques, each sentence once."""
        rows = [specs.parse(spec) for spec in self.specs]
        found = [getattr(row.technique, "warning", "") for row in rows if isinstance(row, specs.Attached)]
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
                **specs.training(spec),
            )
            for seed in self.seeds
            for spec in self.specs
        ]


@dataclass(frozen=True)
class Line:
    """One of several plans that are compared together, and its name, which its directory has too."""

    name: str
    plan: Plan


def rounds(lines: Sequence[Line]) -> list[list[list[Line]]]:
    """The lines with one seed each: those with their first seed, those with their second, and so on.

    Within a round, lines that differ in nothing but the link are together.
    """
    most = max(len(line.plan.seeds) for line in lines)
    by_seed = ([_with_seed(line, n) for line in lines if n < len(line.plan.seeds)] for n in range(most))
    return [list(grouped(together, _but_for_link).values()) for together in by_seed]


def _with_seed(line: Line, number: int) -> Line:
    return Line(line.name, dataclasses.replace(line.plan, seeds=line.plan.seeds[number : number + 1]))


def _but_for_link(line: Line) -> Plan:
    return dataclasses.replace(line.plan, base=dataclasses.replace(line.plan.base, link="none"))


class Watcher(Protocol):
    """Is told how runs go."""

    def start(self, settings: Settings) -> None:
        """A run begins."""

    def look(self) -> None:
        """The run's record may have grown."""

    def finish(self) -> None:
        """The run has ended well."""


def by_turns(runs: Sequence[Sequence[Item]]) -> list[Item]:
    """The first of each, then the second of each, and so on; there are as many of each."""
    return list(chain.from_iterable(zip(*runs, strict=True)))


def compare(runs: Sequence[tuple[Settings, Lab]], watcher: Watcher) -> list[Path]:
    """The records of all runs, complete."""
    for settings, lab in runs:
        watcher.start(settings)
        if not is_complete(settings):
            execute(settings, lab, watcher)
        watcher.finish()
    return [Path(settings.record) for settings, _ in runs]


def execute(settings: Settings, lab: Lab, watcher: Watcher) -> None:
    """The run's record is complete; the workers' logs lie beside it."""
    record = Path(settings.record)
    record.unlink(missing_ok=True)
    settings.save(record.with_suffix(".json"))
    logs = record.with_suffix("")
    with Job(lab, "laconic.train", [str(record.with_suffix(".json"))], log_directory=logs) as job:
        job.wait(watcher.look)


def is_complete(settings: Settings) -> bool:
    """Whether a run of just these settings has been recorded to its end, here or elsewhere."""
    record = Path(settings.record)
    saved = record.with_suffix(".json")
    if not (record.exists() and saved.exists()) or not _is_same(saved.read_text(), settings):
        return False
    lines = record.read_text().splitlines()
    return bool(lines) and lines[-1].startswith('{"kind": "end"')


def _is_same(text: str, settings: Settings) -> bool:
    """Whether the saved settings train the same; where the link is bare, it does not matter whose it is."""
    try:
        saved = json.loads(text)
    except ValueError:
        return False
    apart = {"record"} | ({"interface", "note"} if settings.link == "none" else set())
    wanted = dataclasses.asdict(settings)
    return all(saved.get(name) == wanted[name] for name in wanted if name not in apart)


def _file_name(spec: str) -> str:
    return re.sub(r"[^\w.,=+-]", "-", spec)  # different specs keep different names: only : and @ go
