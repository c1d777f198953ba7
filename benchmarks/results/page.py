"""A page of results in GitHub's Markdown, with its figures, and its summary for a README: all from records.

The page says what should hold and whether it does, has a table for every setting and a figure for every task and
link, sets the papers' claims and the cost model's steps beside what was measured, and ends with how everything was
made and checked.
"""

from __future__ import annotations

import math
from operator import attrgetter
from typing import TYPE_CHECKING

from benchmarks.results import claims, cost_check, figures, method, rates, rules
from benchmarks.results.board import Board, board, is_real, missed, place_in_table, sooner, soonest
from benchmarks.results.rules import MISSING
from benchmarks.results.tables import comparison, metric, phases, specs_of, table, words_table
from laconic.lab.records import PACKED
from laconic.report import charts
from laconic.report.projection import shows_only_time
from laconic.report.summary import grouped

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from laconic.lab.records import Run
    from laconic.report.charts import Spec
    from laconic.report.summary import Row

    Section = Sequence[Row]

READING = (
    "In the tables, a step is the median over all rounds, with the lowest and the highest round; final values are "
    "means over seeds, with the lowest and the highest seed; and bytes are those that worker 0 sent. The last column "
    "says how many trainings and how many rounds of timing a line has. A target is reached where the mean curve of "
    "all seeds first crosses it, on straight lines between evaluations; ratios between two lines are over the seeds "
    "that both have.\n\n"
    "All workers of a run share the cores of one machine, so that encoding and decoding take their time from "
    "computing. Links are limited in rate, both ways; they have no delay of their own and lose nothing. Techniques "
    "that were not timed abreast were timed minutes apart, in which this machine's own pace may change: where a line "
    "has one round, a ratio between 0.8 and 1.2 says little."
)
TOLERANCE = 0.15
"""How far off a prediction of the cost model may be."""
START, STOP = "<!-- results -->", "<!-- /results -->"


def write(runs: Sequence[Run], path: Path, rates: Sequence[Run] = ()) -> list[Path]:
    """The page on these runs is in the file, its figures beside it; `rates` are runs with other learning rates."""
    if not runs:
        raise ValueError("a page of results needs at least one run, and there is none; give run records")
    shown = board(runs)
    charts.engine()  # fails now, if at all
    figures = {name: spec for name, spec in _figures(shown, path.stem).items() if spec["hconcat"]}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(shown, path.stem, rates), encoding="utf-8")
        return [path, *(charts.figure(spec, path.with_name(name)) for name, spec in figures.items())]
    except OSError as error:
        raise OSError(
            f"no results can be written to {path} ({error.strerror}); choose another place"
        ) from None


def page(shown: Board, stem: str, rates: Sequence[Run] = ()) -> str:
    """The page as Markdown; the figures' names begin with `stem`."""
    tasks = list(dict.fromkeys(rows[0].setting.task for rows in shown.sections))
    parts = [
        "# Results",
        f"`python -m benchmarks.results` wrote this page from {len(shown.records)} records of runs"
        f"{_packs(shown.records)}. `python -m benchmarks.compare --preset paper --out RUNS` and then `--preset "
        "votes` make such records, and `python -m benchmarks.results RUNS` the page. A dash is what no record shows.",
        READING,
        "## What should hold\n" + _verdicts(shown),
        *(_task(shown, task, stem) for task in tasks),
        "## The papers' claims\n" + _claims(shown),
        _model(shown.records),
        "## How it was made\n" + method.projection(shown),
        method.replicas(shown.records),
        _rates(shown.records, rates),
        method.provenance(shown.records),
        _folded("Commands", "```\n" + "\n".join(method.commands([*shown.records, *rates])) + "\n```"),
    ]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def summary(shown: Board, link: str) -> str:
    """A short table for a README, with the fewest workers: how much sooner the first ones are, and where they end."""
    places = [
        rows
        for rows in shown.sections
        if rows[0].setting.shaped and any(row.final is not None for row in rows)
    ]
    fewest = min((rows[0].setting.workers for rows in places), default=0)
    chosen = [rows for rows in places if rows[0].setting.workers == fewest]
    labels = dict.fromkeys(
        row.label for row in sorted((row for rows in chosen for row in _first(rows)), key=place_in_table)
    )
    head = ["", *(f"{rows[0].setting.task}, {rows[0].setting.link}" for rows in chosen)]
    lines = [[label, *(_brief(label, rows) for rows in chosen)] for label in labels]
    seeds = max((len(row.runs) for rows in chosen for row in rows), default=0)
    machines = dict.fromkeys(
        run.header.machine for rows in chosen for row in rows for run in shown.timings(row)
    )
    words = (
        f"How many times sooner than plain DDP a technique reaches the target (plain DDP's final accuracy less half "
        f"a point, or its final loss and 1 %), and where it ends; of PyTorch's hooks and of Laconic's techniques, "
        f"those that are first in a column. {fewest} workers on one machine"
        f"{''.join(f' ({machine})' for machine in machines)}, the mean of up to {seeds} seeds. Seconds are "
        f"projected, from full trainings and from steps timed on each link; a dash is what no record shows. "
        f"[All results, and what they were made with]({link})"
    )
    return f"{table(head, lines)}\n\n{words}"


def replace_summary(readme: Path, text: str) -> Path:
    """The file has the text between its markers, and is as it was around them."""
    old = readme.read_text(encoding="utf-8")
    before, start, rest = old.partition(START)
    _, stop, after = rest.partition(STOP)
    if not (start and stop):
        raise ValueError(f"{readme} has no place for the table; write {START} and {STOP} where it belongs")
    readme.write_text(f"{before}{START}\n{text}\n{STOP}{after}", encoding="utf-8")
    return readme


def _packs(runs: Sequence[Run]) -> str:
    """Where the records are, if in packs."""
    names = {place.name for run in runs for place in run.path.parents if place.name.endswith(PACKED)}
    return f", which are in {', '.join(f'`{name}`' for name in sorted(names))}" if names else ""


def _model(runs: Sequence[Run]) -> str:
    """The cost model beside what was measured, where it can be."""
    cells = cost_check.check(runs)
    if not cells:
        return ""
    good = sum(abs(cell.ratio - 1) <= TOLERANCE for cell in cells)
    return (
        "## The cost model\nSteps on links as `laconic plan`'s model predicts them, from short runs on the bare "
        f"machine, bytes and the link's rate: {good} of {len(cells)} are within {100 * TOLERANCE:.0f} % of what was "
        f"measured, and the worst is off by {100 * cost_check.worst(cells):.0f} %.\n\n"
        + _folded("Cell by cell", cost_check.markdown(cells))
    )


def _rates(used: Sequence[Run], others: Sequence[Run]) -> str:
    tried = rates.tried(used, others)
    words = (
        "**Learning rates.** Every technique of these was trained with the same seed and other rates, too (of "
        "SignVote, whose step is a sign, with its own). Bold is what all other tables have:"
    )
    return f"{words}\n\n{tried}" if tried else ""


def _first(rows: Section) -> list[Row]:
    """Plain DDP, the first of PyTorch's hooks and the first of Laconic's techniques."""
    families = grouped([row for row in rows if row.final is not None], attrgetter("family"))
    return [soonest(family) or max(family, key=_end) for family in families.values()]


def _end(row: Row) -> tuple[bool, float]:
    """Where the row ends: more is better, and anything better than not a number."""
    assert row.final is not None
    value = row.final.mean if row.setting.higher_is_better else -row.final.mean
    return math.isfinite(value), value


def _brief(label: str, rows: Section) -> str:
    row = next((row for row in rows if row.label == label), None)
    if row is None or row.final is None:
        return MISSING
    plain = [other for other in rows if other.family == "plain"]
    told = sooner(row, plain) or ("not reached" if missed(row) else MISSING)
    end = metric(row.final.mean, row.setting)
    unit = " %" if row.setting.metric == "accuracy" else ""
    return f"{told} · {end}{unit}"


def _verdicts(shown: Board) -> str:
    lines = [[v.what, v.required, v.measured, v.word] for v in rules.verdicts(shown)]
    words = (
        "Times are those to the target: the accuracy that plain DDP has at the end of its run less 0.5 points, or "
        "its final loss and 1 %. `>`: the other one never reached the target, and its whole run is the bound."
    )
    return f"{words}\n\n{words_table(['', 'required', 'measured', ''], lines)}"


def _task(shown: Board, task: str, stem: str) -> str:
    """The part of the page about one task, the bare machine last."""
    sections = [rows for rows in shown.sections if rows[0].setting.task == task]
    sections.sort(key=lambda rows: rows[0].setting.link == "none")
    links = grouped(sections, lambda rows: rows[0].setting.link)
    parts = [_link(shown, task, link, group, stem) for link, group in links.items()]
    return "\n\n".join([f"## {task}", *parts])


def _link(shown: Board, task: str, link: str, sections: Sequence[Section], stem: str) -> str:
    name = _figure_name(stem, task, link)
    drawn = any(_is_drawn(shown, rows) for rows in sections)
    figure = [f"![The metric of {task} against seconds of training, {link}]({name})"] if drawn else []
    tables = [_setting(shown, rows) for rows in sections]
    return "\n\n".join([f"### {task}, {'bare machine' if link == 'none' else link}", *figure, *tables])


def _setting(shown: Board, rows: Section) -> str:
    setting = rows[0].setting
    split = "" if setting.split == "iid" else f", split {setting.split}"
    shaped = "" if is_real(setting) else " The link was **not shaped**."
    title = f"**{setting.workers} workers{split}.** {_kind(rows)}{shaped}"
    numbers = comparison(shown, rows, specs_of(shown, setting))
    by_phase = [_folded("Seconds by phase", phases(rows))] if shown.is_timed(setting) else []
    return "\n\n".join([title, numbers, _trained_with(rows), *by_phase])


def _trained_with(rows: Section) -> str:
    """What the rows train with, and who differs."""
    ways = grouped(rows, lambda row: method.training(row.runs[0].header))
    usual, *others = sorted(ways.items(), key=lambda way: -len(way[1]))
    but = [f"{', '.join(row.label for row in some)} with {way}" for way, some in others]
    return f"Trained with {'; '.join([usual[0], *but])}."


def _kind(rows: Section) -> str:
    """Where the numbers of a table come from."""
    if any(run.header.projected for row in rows for run in row.runs):
        return "Seconds and bytes are projected."
    return "Short runs." if all(shows_only_time(run) for row in rows for run in row.runs) else "Full runs."


def _claims(shown: Board) -> str:
    lines = [
        [claim.paper, claim.claim, claims.measured(claim, shown), f"`{claim.command}`"]
        for claim in claims.CLAIMS
    ]
    return words_table(["paper", "claims", "measured here", "command"], lines)


def _figures(shown: Board, stem: str) -> dict[str, Spec]:
    """The figure of each task and link, by file name."""
    styles = charts.styles([row for rows in shown.sections for row in rows])
    groups = grouped(shown.sections, lambda rows: (rows[0].setting.task, rows[0].setting.link))
    drawn = {place: [rows for rows in group if _is_drawn(shown, rows)] for place, group in groups.items()}
    return {
        _figure_name(stem, task, link): figures.metric_by_time(sections, styles)
        for (task, link), sections in drawn.items()
    }


def _is_drawn(shown: Board, rows: Section) -> bool:
    return shown.is_timed(rows[0].setting) and any(row.final for row in rows)


def _figure_name(stem: str, task: str, link: str) -> str:
    return f"{stem}_{task}_{link.replace(',', '+')}.svg"


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"
