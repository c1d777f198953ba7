"""The tables of a page of results, in GitHub's Markdown; what was not measured is a dash."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import TYPE_CHECKING

from benchmarks.results.board import Board, missed, named, place_in_table, sooner
from benchmarks.results.rules import MISSING
from laconic.report.charts import OVERLAPPED, mean_seconds
from laconic.report.prose import target_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from laconic.lab.records import Setting
    from laconic.report.summary import Row, Spread

Specs = dict[str, str]
"""The label of each spec that a table has a line for."""


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table whose first column is words, and whose others are numbers."""
    rule = [":--", *["--:"] * (len(head) - 1)]
    return "\n".join(_line(cells) for cells in [head, rule, *lines])


def words_table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table of words."""
    return "\n".join(_line(cells) for cells in [head, ["---"] * len(head), *lines])


def specs_of(board: Board, setting: Setting) -> Specs:
    """Every technique that trains this task's model alike, on any link, so that a table shows what it lacks."""
    rows = [row for section in board.sections for row in section if _alike(row.setting) == _alike(setting)]
    labels = {row.spec: row.runs[0].header.label for row in sorted(rows, key=place_in_table)}
    taken = list(labels.values())
    return {spec: label if taken.count(label) == 1 else f"{label} ({spec})" for spec, label in labels.items()}


_alike = attrgetter("task", "split", "batch", "parameters")


def comparison(board: Board, rows: Sequence[Row], specs: Specs) -> str:
    """The table of one setting."""
    target, setting = rows[0].target, rows[0].setting
    goal = f"to {target_text(target, setting)}" if target is not None else "to the target"
    head = [
        *("technique", "step, ms", "× faster a step", "sent a step, MB", _final(setting)),
        *(f"steps {goal}", "seconds", "sent, MB", "× sooner than DDP", "than fp16", "than best PowerSGD"),
        "seeds, rounds",
    ]
    measured = {
        spec: [[row.label, *_cells(board, row, rows)] for row in rows if row.spec == spec] for spec in specs
    }
    missing = [MISSING] * (len(head) - 1)
    return table(
        head, [line for spec, label in specs.items() for line in measured[spec] or [[label, *missing]]]
    )


def phases(rows: Sequence[Row]) -> str:
    """Milliseconds of each phase of a step."""
    seconds = {row.label: mean_seconds(row.runs) for row in rows}
    names = [n for n in ("compute", "waiting", *OVERLAPPED) if any(n in known for known in seconds.values())]
    lines = [[label, *(_milliseconds(known.get(n)) for n in names)] for label, known in seconds.items()]
    return table(["milliseconds a step", *names], lines)


def metric(value: float, setting: Setting) -> str:
    """Accuracy in percent, another metric as it is."""
    if not math.isfinite(value):
        return "diverged"
    return f"{100 * value:.2f}" if setting.metric == "accuracy" else f"{value:.3f}"


def _final(setting: Setting) -> str:
    return f"final {setting.metric}{', %' if setting.metric == 'accuracy' else ''}"


def _cells(board: Board, row: Row, rows: Sequence[Row]) -> list[str]:
    timed = board.is_timed(row.setting)
    plain = rows[0].step_seconds if timed and rows[0].family == "plain" else None
    return [
        _spread(board.rounds(row) if timed else None, lambda seconds: f"{1000 * seconds:.0f}"),
        _faster(plain, row.step_seconds),
        _megabytes(row.bytes_per_step),
        _spread(row.final, lambda value: metric(value, row.setting)),
        _steps(row),
        f"{row.seconds_to_target.mean:.1f}" if timed and row.seconds_to_target else MISSING,
        _megabytes(row.bytes_to_target),
        *(_sooner(row, named(rows, name) if timed else []) for name in ("ddp", "fp16", "powersgd")),
        f"{_seeds(row)}, {len(board.timings(row)) or (len(row.runs) if timed else 0)}",
    ]


def _seeds(row: Row) -> int:
    """How many finished trainings the row has."""
    return sum(run.end is not None for run in row.runs) if row.final else 0


def _steps(row: Row) -> str:
    if row.steps_to_target is not None:
        return f"{row.steps_to_target.mean:.0f}"
    return "not reached" if missed(row) else MISSING


def _faster(plain: Spread | None, own: Spread | None) -> str:
    return f"{plain.mean / own.mean:.2f}×" if plain and own else MISSING


def _sooner(row: Row, others: Sequence[Row]) -> str:
    ratio = sooner(row, others)
    return MISSING if ratio is None else str(ratio)


def _megabytes(count: Spread | None) -> str:
    return (
        MISSING
        if count is None
        else f"{count.mean / 1e6:.3g}"
        if count.mean < 1e8
        else f"{count.mean / 1e6:.0f}"
    )


def _milliseconds(seconds: float | None) -> str:
    return MISSING if seconds is None else f"{1000 * seconds:.0f}"


def _spread(number: Spread | None, written: Callable[[float], str]) -> str:
    """The mean, with the lowest and the highest where they differ."""
    if number is None:
        return MISSING
    mean, low, high = map(written, (number.mean, number.low, number.high))
    return mean if low == high else f"{mean} ({low}–{high})"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"
