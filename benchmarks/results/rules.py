"""What should hold of the results, with what was measured: how much sooner, and how little accuracy is lost.

Times are those to the target: where plain DDP ended, less half a point of accuracy or one percent of another metric.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.results.board import Board, Ratio, lost, missed, named, sooner, soonest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from laconic.report.summary import Row

OPPONENTS = {"ddp": "plain DDP", "fp16": "the fp16 hook", "powersgd": "the best PowerSGD hook"}

SPEED = (
    ("fashion", 4, "100mbit", {"ddp": 8.0, "fp16": 4.0, "powersgd": 1.5}),
    ("fashion", 4, "1gbit", {"ddp": 1.5, "fp16": 1.0, "powersgd": 1.0}),
    ("text", 4, "100mbit", {"ddp": 5.0, "fp16": 2.5, "powersgd": 1.2}),
)
"""How many times sooner Laconic's best row should be."""

LOSS = (
    ("thc", "fashion", 4, 0.3),
    ("thc", "text", 4, 1.0),
    ("gennorm", "fashion", 4, 0.5),
    ("sign_vote", "fashion", 4, 1.0),
    ("rank_dad", "fashion", 4, 0.5),
    ("rank_dad", "text", 4, 2.0),
    ("crossover", "fashion", 8, 0.5),
)
"""How many points of accuracy a technique may lose, or percent of another metric."""

MISSING = "—"


class Verdict(NamedTuple):
    """One thing that should hold; `met` is None where the records cannot say."""

    what: str
    required: str
    measured: str
    met: bool | None

    @property
    def word(self) -> str:
        """The verdict in a word or two."""
        return {True: "met", False: "**not met**", None: "not measured"}[self.met]


def verdicts(board: Board) -> list[Verdict]:
    """Everything that should hold."""
    return [*_speed(board), *_losses(board)]


def _speed(board: Board) -> Iterable[Verdict]:
    for task, workers, link, required in SPEED:
        rows = board.cell(task, workers, link)
        ours = [row for row in rows if row.family == "laconic"]
        for name, least in required.items():
            what = f"{task}, {workers} workers, {link}: Laconic's best against {OPPONENTS[name]}"
            yield _faster(what, least, ours, named(rows, name))


def _faster(what: str, least: float, ours: Sequence[Row], others: Sequence[Row]) -> Verdict:
    required = f"at least {least:g}× sooner" if least > 1 else "sooner"
    best = soonest(ours)
    if best is None and any(map(missed, ours)) and soonest(others) is not None:
        return Verdict(what, required, "not reached", met=False)
    ratio = sooner(best, others) if best is not None else None
    if best is None or ratio is None:
        return Verdict(what, required, MISSING, None)
    return Verdict(what, required, f"{ratio} ({best.label})", _holds(ratio, least))


def _holds(ratio: Ratio, least: float) -> bool | None:
    """Whether the ratio is as large as it should be; a bound below that says nothing."""
    enough = ratio.value >= least if least > 1 else ratio.value > 1
    return None if ratio.at_least and not enough else enough


def _losses(board: Board) -> Iterable[Verdict]:
    for name, task, workers, most in LOSS:
        rows = _trained(board, task, workers)
        plain = next((row for row in rows if row.family == "plain"), None)
        what = f"{task}, {workers} workers: {{}} ends behind plain DDP"
        unit = "points" if task != "text" else "%"
        required = f"by at most {most:.1f} {unit}"
        found = named(rows, name) if plain is not None else []
        if not found:
            yield Verdict(what.format(name), required, MISSING, None)
        for row in found:
            gap = lost(row, plain) if plain is not None else None
            met = None if gap is None else gap <= most
            yield Verdict(what.format(row.label), required, _behind(gap, unit), met)


def _behind(gap: float | None, unit: str) -> str:
    if gap is None or math.isinf(gap):
        return MISSING if gap is None else "diverged"
    return f"by {gap:.2f} {unit}" if gap >= 0 else f"ahead by {-gap:.2f} {unit}"


def _trained(board: Board, task: str, workers: int) -> Sequence[Row]:
    """The rows of this task on the first link that has a trained plain row."""
    sections = (board.cell(task, workers, link) for link in ("100mbit", "1gbit", "none"))
    return next((rows for rows in sections if rows and rows[0].final is not None), ())
