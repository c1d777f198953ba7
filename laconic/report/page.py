"""A report: one HTML page that compares runs, in a single file that loads nothing from the network.

The page is report.html, filled with a section for each setting: the headline in words, the facts, whatever
the reader must be warned of, the table, and the charts. Everything that comes from a record is escaped.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from functools import partial
from html import escape
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from laconic.lab.records import Run, Setting
from laconic.report import charts, consensus_charts, rank_charts
from laconic.report.projection import Check, project
from laconic.report.prose import (
    bytes_text,
    headline,
    metric_text,
    notices,
    seconds_text,
    target_text,
    times_text,
)
from laconic.report.summary import Row, Spread, summarize
from laconic.sources.explain import HEADINGS, cells

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from laconic.report.charts import Spec, Styles


@dataclass(frozen=True)
class Column:
    """One column of the table: its heading, its number of a row, how it is written, and which is best."""

    title: str
    number: Callable[[Row], Spread | float | None]
    written: Callable[[float], str]
    best: Callable[[Iterable[float]], float]
    missing: str = "–"


@dataclass(frozen=True)
class Chart:
    """One chart of a section, with what it shows and how to read it."""

    name: str
    title: str
    caption: str
    draw: Callable[[Sequence[Row], Styles], Spec]
    label: str = ""
    """The row that it is about, if it is about one."""
    wide: bool = False


CHARTS = (
    Chart(
        "time",
        "{metric} against time",
        "Lines are means over seeds, bands their range.",
        charts.metric_by_seconds,
    ),
    Chart(
        "bytes",
        "{metric} against bytes",
        "What worker 0 sent to get there, on a logarithmic scale.",
        charts.metric_by_bytes,
    ),
    Chart("loss", "Loss against steps", "How well each step learns, whatever it costs.", charts.loss_by_step),
    Chart("wall", "What a step is made of", "Computing, and waiting for the network.", charts.wall_time),
    Chart(
        "phases",
        "Phases of the exchange",
        "They overlap with computing and with each other.",
        charts.overlapped_phases,
    ),
    Chart(
        "consensus",
        "Distance between workers",
        "How far their parameters are from the mean that is evaluated, on a logarithmic scale.",
        consensus_charts.consensus_by_step,
        wide=True,
    ),
)


def write(runs: Sequence[Run], path: Path) -> Path:
    """The report on these runs is in the file."""
    text = page(runs)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OSError(
            f"no report can be written to {path} ({error.strerror}); choose another place"
        ) from None
    return path


def page(runs: Sequence[Run]) -> str:
    """The report on these runs as HTML."""
    if not runs:
        raise ValueError("a report needs at least one run, and there is none; give run records")
    evidence = project(runs)
    rows = summarize(evidence.runs)
    styles = charts.styles(rows)
    sections = [list(group) for _, group in groupby(rows, attrgetter("setting"))]
    specs = {f"chart-{i}-{c.name}": c.draw(s, styles) for i, s in enumerate(sections) for c in _charts(s)}
    drawn = {name: spec for name, spec in specs.items() if spec["data"]["values"]}
    return Template(Path(__file__).with_name("report.html").read_text(encoding="utf-8")).substitute(
        title=escape(f"Laconic report: {', '.join(dict.fromkeys(row.setting.task for row in rows))}"),
        sections="\n".join(
            _section(s, styles, drawn, f"chart-{i}", evidence.checks) for i, s in enumerate(sections)
        ),
        settings="\n".join(map(_settings, sections)),
        specifications=_embedded(drawn),
        bundle=charts.engine().javascript_bundle(),
    )


def _charts(rows: Sequence[Row]) -> list[Chart]:
    """The charts of one setting: of all its rows together, and of each row's ranks."""
    return [*CHARTS, *(_rank_chart(number, row) for number, row in enumerate(rows))]


def _rank_chart(number: int, row: Row) -> Chart:
    return Chart(
        f"rank-{number}",
        "Effective rank: {label}",
        "How many directions have 95 % of a layer's gradient at worker 0, together with what earlier steps left; "
        "medians over the steps up to the one below. Where the number is above the technique's rank, the rest of "
        "the gradient waits for later steps.",
        lambda _rows, _styles: rank_charts.rank_by_step(row),
        row.label,
        wide=True,
    )


def _embedded(value: object) -> str:
    """The value as JSON that cannot end or open an element of the page around it."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")


def _section(
    rows: Sequence[Row], styles: Styles, drawn: Collection[str], prefix: str, checks: Iterable[Check]
) -> str:
    """The part of the page about one setting, with a place for each chart that is drawn."""
    warned = "".join(f"<p>{escape(notice)}</p>" for notice in notices(rows))
    figures = [
        _figure(chart, f"{prefix}-{chart.name}", rows[0].setting.metric)
        for chart in _charts(rows)
        if f"{prefix}-{chart.name}" in drawn
    ]
    return f"""<section>
<p class="eyebrow">{escape(_where(rows[0].setting))}</p>
<h2>{escape(headline(rows))}</h2>
{_facts(rows)}
{f'<aside class="notice" role="note">{warned}</aside>' if warned else ""}
{_table(rows, styles)}
{_check_table([check for check in checks if check.setting == rows[0].setting])}
{_legend(rows, styles)}
<div class="charts">{"".join(figures)}</div>
</section>"""


def _check_table(checks: Sequence[Check]) -> str:
    """The projected seconds beside those of full runs, or nothing."""
    if not checks:
        return ""
    titles = ("Check", "Projected", "Measured", "Projected / measured")
    lines = [
        f'<th scope="row">{escape(f"{check.label}, seed {check.seed}")}</th><td>{seconds_text(check.projected)}</td>'
        f"<td>{seconds_text(check.measured)}</td><td>{check.ratio:.2f}</td>"
        for check in checks
    ]
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"""<div class="scroll"><table><caption>Full runs on this link, and what was projected for them.</caption>
<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"""


def _where(setting: Setting) -> str:
    """The setting in a few words."""
    link = "an unshaped link" if not setting.shaped else setting.link
    return f"{setting.task} over {link}, {setting.workers} worker{'s' * (setting.workers > 1)}"


def _facts(rows: Sequence[Row]) -> str:
    """The line of facts under the headline."""
    setting = rows[0].setting
    headers = [run.header for row in rows for run in row.runs]
    facts = {
        "Task": f"{setting.task}, {setting.split}, {setting.parameters:,} parameters",
        "Workers": str(setting.workers),
        "Link": f"{setting.link}, {'shaped' if setting.shaped else 'not shaped'}",
        "Batch": str(setting.batch),
        "Seeds": ", ".join(map(str, sorted({header.seed for header in headers}))),
        "Machine": "; ".join(dict.fromkeys(header.machine for header in headers)),
        "Kernels": "; ".join(dict.fromkeys(header.kernels for header in headers)),
        "Versions": "; ".join(dict.fromkeys(_versions(header.versions) for header in headers)),
    }
    return f'<dl class="facts">{_terms(facts)}</dl>'


def _versions(versions: dict[str, str]) -> str:
    """The versions in one line."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _terms(terms: dict[str, str]) -> str:
    """The items of a description list."""
    return "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in terms.items() if v)


def _columns(rows: Sequence[Row]) -> list[Column]:
    """The columns of the table of one setting."""
    setting, target = rows[0].setting, rows[0].target
    goal = target_text(target, setting) if target is not None else "target"
    metric = max if setting.higher_is_better else min
    return [
        Column("Time per step", attrgetter("step_seconds"), seconds_text, min),
        Column(f"Time to {goal}", attrgetter("seconds_to_target"), seconds_text, min, "not reached"),
        Column("Sooner", attrgetter("faster"), times_text, max),
        Column("Bytes per step", attrgetter("bytes_per_step"), bytes_text, min),
        Column(f"Bytes to {goal}", attrgetter("bytes_to_target"), bytes_text, min),
        Column("Fewer bytes", attrgetter("fewer_bytes"), times_text, max),
        Column(f"Final {setting.metric}", attrgetter("final"), partial(metric_text, setting=setting), metric),
    ]


def _table(rows: Sequence[Row], styles: Styles) -> str:
    """The table of one setting."""
    columns = _columns(rows)
    head = "".join(f'<th scope="col">{escape(column.title)}</th>' for column in columns)
    best = [_best(column, rows) for column in columns]
    body = "".join(_table_row(row, columns, best, styles) for row in rows)
    words = f"Ratios are to {rows[0].label}. Small figures: the range over seeds."
    return f"""<div class="scroll"><table><caption>{escape(words)}</caption>
<thead><tr><th scope="col">Technique</th>{head}</tr></thead><tbody>{body}</tbody></table></div>"""


def _table_row(row: Row, columns: Sequence[Column], best: Sequence[str | None], styles: Styles) -> str:
    """One row of the table."""
    tags = {"baseline": row.is_reference, "unfinished": any(run.end is None for run in row.runs)}
    tag = "".join(f'<span class="tag">{tag}</span>' for tag, holds in tags.items() if holds)
    cells = "".join(_cell(row, column, top) for column, top in zip(columns, best, strict=True))
    name = f"{_key(row, styles)}{escape(row.label)}{tag}<small>{escape(row.spec)}</small>"
    return f'<tr><th scope="row">{name}</th>{cells}</tr>'


def _spread(number: Spread | float | None) -> Spread | None:
    """The number with its range over seeds; that of a ratio is itself."""
    return Spread(number, number, number) if isinstance(number, float) else number


def _best(column: Column, rows: Sequence[Row]) -> str | None:
    """The best number of the column as it is written, if there is a choice."""
    numbers = [_spread(column.number(row)) for row in rows]
    means = [number.mean for number in numbers if number and math.isfinite(number.mean)]
    return column.written(column.best(means)) if len(means) > 1 else None


def _cell(row: Row, column: Column, best: str | None) -> str:
    """One number, with its range over seeds under it; the best of its column stands out."""
    number = _spread(column.number(row))
    if number is None:
        return f'<td class="none">{column.missing if row.final else "–"}</td>'
    text, low, high = map(column.written, (number.mean, number.low, number.high))
    small = f"<small>{low} to {high}</small>" if low != high else ""
    return f"<td>{f'<strong>{text}</strong>' if text == best else text}{small}</td>"


def _key(row: Row, styles: Styles) -> str:
    """The line that stands for the row in the charts."""
    style = styles[row.label]
    dash = "" if style.dash[-1] == 0 else f' stroke-dasharray="{" ".join(map(str, style.dash))}"'
    line = f'<line x1="1" x2="23" y1="6" y2="6" stroke="{style.color}" stroke-width="4"{dash}/>'
    return f'<svg class="key" viewBox="0 0 24 12" aria-hidden="true">{line}</svg>'


def _legend(rows: Sequence[Row], styles: Styles) -> str:
    """The labels and colors of all charts of a section."""
    return f'<ul class="legend">{"".join(f"<li>{_key(row, styles)}{escape(row.label)}</li>" for row in rows)}</ul>'


def _figure(chart: Chart, name: str, metric: str) -> str:
    """The place where a chart will be drawn, with its words."""
    title = escape(chart.title.format(metric=metric.capitalize(), label=chart.label))
    words = f"<figcaption><h3>{title}</h3><p>{escape(chart.caption)}</p></figcaption>"
    wide = ' class="wide"' if chart.wide else ""
    return f'<figure{wide}>{words}<div class="chart" id="{name}"></div></figure>'


def _settings(rows: Sequence[Row]) -> str:
    """The full settings of the runs of one section: first what all share, then what differs."""
    described = [_described(run) for row in rows for run in (*row.runs, *row.left_out)]
    shared = {name: value for name, value in described[0].items() if all(d[name] == value for d in described)}
    differing = [name for name in described[0] if name not in shared]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in differing)
    lines = ["".join(f"<td>{escape(d[name])}</td>" for name in differing) for d in described]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"""<h3>{escape(_where(rows[0].setting))}: settings of each run</h3>
<dl class="facts">{_terms(shared)}</dl>
<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>
{"".join(map(_layers, rows))}"""


def _layers(row: Row) -> str:
    """How each layer travels in the first run of the row that says so, or nothing."""
    layers = next((run.layers for run in row.runs if run.layers), ())
    if not layers:
        return ""
    head = "".join(f'<th scope="col">{heading}</th>' for heading in HEADINGS)
    lines = [cells(**asdict(layer)) for layer in layers]
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in lines)
    return f"""<h3>How each layer travels with {escape(row.label)}</h3>
<div class="scroll layers"><table><caption>About how many numbers a worker sends and receives in a step, and how many
with the gradient.</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"""


def _described(run: Run) -> dict[str, str]:
    """Everything about a run but its steps, in words; its warning is a notice already."""
    header = asdict(run.header) | {"versions": _versions(run.header.versions)}
    del header["warning"], header["eval_every"]
    missing = dict.fromkeys(("seconds", "checksum", "replicas_equal", "consensus"), "unfinished")
    measured = {name: _rounded(value) for name, value in asdict(run.end).items()} if run.end else missing
    parts = {**header, **measured, "record": run.path.name}
    return {name.replace("_", " "): "" if value is None else str(value) for name, value in parts.items()}


def _rounded(value: object) -> object:
    """A measured number in four digits, and nothing where there is none."""
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else value
