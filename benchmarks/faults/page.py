"""docs/faults.md from the outcomes of trials; its text is in page.md."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.faults import kinds, launched, script
from benchmarks.faults.trial import Outcome
from laconic.engine import program

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def write(outcomes: Path, out: Path, link: str, workers: int, command: str) -> None:
    """The page."""
    rows = [Outcome(**json.loads(line)) for line in outcomes.read_text().splitlines()]
    known = dict.fromkeys(row.technique for row in rows)
    cells: defaultdict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for row in rows:
        cells[row.kind, row.technique].append(row)
    counts = sorted({len(cell) for cell in cells.values()})
    trials = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    table = _table([*_names()], [*known], cells)
    limits = {"timeout": script.TIMEOUT, "patience": script.PATIENCE, "grace": program.GRACE}
    told = {"trials": trials, "workers": workers, "link": link, "command": command, "table": table}
    text = Path(__file__).with_suffix(".md").read_text()
    out.write_text(text.format(**told, **limits, compared=script.COMPARED))


def _names() -> Iterable[str]:
    return (*(kind.name for kind in kinds.KINDS if kind is not kinds.NOTHING), *launched.KINDS)


def _table(names: Sequence[str], techniques: Sequence[str], cells: Any) -> str:
    lines = [["", *techniques], ["---"] * (len(techniques) + 1)]
    lines += [[name, *(cell(cells.get((name, technique), [])) for technique in techniques)] for name in names]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cell(outcomes: Sequence[Outcome]) -> str:
    """What became of the trials, in a few words."""
    if not outcomes:
        return "—"
    survivors = sum(outcome.survivors for outcome in outcomes)
    well, named = (sum(getattr(outcome, what) for outcome in outcomes) for what in ("well", "named"))
    told = [_ending(outcomes, well, named, survivors)]
    hangs = sum(outcome.seconds is None for outcome in outcomes)
    signals = sum(outcome.signals for outcome in outcomes)
    apart = sum(not outcome.alike for outcome in outcomes)
    told += [f"{hangs} of {len(outcomes)} hang"] * bool(hangs)
    told += [f"{signals} signals"] * bool(signals)
    told += [f"{apart} of {len(outcomes)} end apart"] * bool(apart)
    return ", ".join(filter(None, told))


def _ending(outcomes: Sequence[Outcome], well: int, named: int, survivors: int) -> str:
    if well == survivors:
        return "as undisturbed" if all(outcome.alike for outcome in outcomes) else "goes on"
    seconds = max((outcome.seconds for outcome in outcomes if outcome.seconds is not None), default=None)
    told = f"{seconds:.1f} s" if seconds is not None else ""
    told += f", {well} of {survivors} end well" if well else ""
    return told + (f", {named} of {survivors} name it" if named < survivors - well else "")
