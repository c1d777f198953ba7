"""The cost model against measured steps, cell by cell.

A cell is a task, a number of workers, a technique and a shaped link. Its prediction takes nothing from runs on that
link: it comes from the same steps of runs on the bare machine (laconic/plan/measured_steps.py). Where some runs on
both have the same length, these alone count: they were made to be compared, side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from laconic.lab.links import parse_rate
from laconic.plan.cost import Link, step_seconds
from laconic.plan.measured_steps import known_of, median, of_length, same_technique, says_enough
from laconic.report.summary import grouped

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from laconic.lab.records import Run

BARE = "none"


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
    bare = [run for run in runs if run.header.link == BARE and says_enough(run)]
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


def _cell(group: Sequence[Run], bare: Sequence[Run]) -> Cell | None:
    header = group[0].header
    alone = [run for run in bare if same_technique(run.header) == same_technique(header)]
    if not alone:
        return None
    lengths = {run.header.steps for run in group} & {run.header.steps for run in alone}
    if lengths:
        group, alone, bare = (of_length(runs, min(lengths)) for runs in (group, alone, bare))
    last = min(len(run.steps) for run in group)
    there = known_of(alone, bare, last)
    predicted = step_seconds(there.computing, there.exchange, Link(parse_rate(header.link)))
    measured = median(group, last, lambda step: step.seconds)
    return Cell(header.task, header.link, header.workers, header.label, there.seconds, predicted, measured)


def _rate(run: Run) -> int | None:
    """The one rate of all links, or None where they differ or are not shaped."""
    return None if "," in run.header.link else parse_rate(run.header.link)
