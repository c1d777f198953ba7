"""What a study of simulated workers found: a table for every number of workers and batch, live and at the end.

A row is a method at the learning rate that is best for it, of those that all methods tried: the one whose averaged
model is best on held-out samples, as a mean over seeds.
"""

from __future__ import annotations

import math
import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.live import Live
from rich.text import Text

from laconic.report.tables import table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from laconic.lab.tasks import Task
    from laconic.studies.simulate import Cell
    from laconic.studies.simulate_study import Run

SPREAD = "± one standard deviation over seeds"
EDGES = "↓ ↑ the lowest or highest learning rate that was tried: one beyond may be better"


class Best(NamedTuple):
    """A method in one setting, at its best learning rate: a run for every seed."""

    runs: list[Run]
    edge: str

    @property
    def cell(self) -> Cell:
        """The first seed's."""
        return self.runs[0].cell

    @property
    def name(self) -> str:
        """The method's, in words."""
        return self.cell.method.replace("_", " ")

    @property
    def setting(self) -> tuple[int, int]:
        """Workers, and the batch of each: what one table has in common."""
        return self.cell.workers, self.cell.batch

    @property
    def consensus(self) -> float:
        """The median over a run, as a mean over seeds."""
        return statistics.fmean(
            statistics.median(moment.consensus for moment in run.result.moments) for run in self.runs
        )

    def averaged(self, metric: str) -> list[float]:
        """The metric of the averaged model, for every seed."""
        return [run.result.average[metric] for run in self.runs]

    def one(self, metric: str) -> list[float]:
        """The metric of the first node's model, for every seed."""
        return [run.result.one[metric] for run in self.runs]


def best(runs: Iterable[Run], task: Task) -> list[Best]:
    """A row for every setting and method, in the order of their first runs."""
    tried: dict[tuple[int, int, str], dict[float, list[Run]]] = {}
    for run in runs:
        rates = tried.setdefault((run.cell.workers, run.cell.batch, run.cell.method), {})
        rates.setdefault(run.cell.lr, []).append(run)
    return [_best(rates, task) for rates in tried.values()]


def text(rows: Sequence[Best], task: Task) -> str:
    """The tables, and what their signs say."""
    settings = dict.fromkeys(row.setting for row in rows)
    tables = [_table([row for row in rows if row.setting == setting], task) for setting in settings]
    signs = [SPREAD] * any(len(row.runs) > 1 for row in rows) + [EDGES] * any(row.edge for row in rows)
    return "\n\n".join(tables + ["\n".join(signs)] * bool(signs))


class Watch:
    """Keeps the tables so far on a terminal, with what is running; says nothing where there is none."""

    def __init__(self, cells: Sequence[Cell], task: Task) -> None:
        self._runs: list[Run] = []
        self._cells, self._task, self._now = cells, task, ""
        self._began = time.monotonic()
        console = Console(stderr=True)
        self._live = Live(console=console, get_renderable=self._text, refresh_per_second=2, transient=True)
        self._show = console.is_terminal

    def __enter__(self) -> Watch:
        if self._show:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._show:
            self._live.stop()

    def follow(self, runs: Iterable[Run]) -> list[Run]:
        """All of the runs; each is in the tables as soon as it is there."""
        for run in runs:
            self._runs.append(run)
        return self._runs

    def step(self, cell: Cell, step: int) -> None:
        """The run has come so far."""
        setting = f"{cell.workers} workers, batch {cell.batch}, lr {cell.lr:g}, seed {cell.seed}"
        self._now = f"{cell.method}, {setting}: step {step} of {cell.steps}"

    def _text(self) -> Text:
        seconds = int(time.monotonic() - self._began)
        done = f"{len(self._runs)} of {len(self._cells)} runs, {seconds // 60}:{seconds % 60:02d} so far"
        return Text(f"{text(best(self._runs, self._task), self._task)}\n\n{done}\n{self._now}")


def _best(rates: dict[float, list[Run]], task: Task) -> Best:
    def merit(lr: float) -> float:
        mean = statistics.fmean(run.result.average[task.metric] for run in rates[lr])
        return -math.inf if math.isnan(mean) else mean if task.higher_is_better else -mean

    lr = max(rates, key=merit)
    edges = {min(rates): " ↓", max(rates): " ↑"} if len(rates) > 1 else {}
    return Best(rates[lr], edges.get(lr, ""))


def _table(rows: Sequence[Best], task: Task) -> str:
    """The rows of one setting."""
    columns: dict[str, Callable[[Best], str]] = {
        "nodes": lambda row: str(row.cell.nodes),
        "segments": lambda row: str(row.cell.segments),
        "lr": lambda row: f"{row.cell.lr:g}{row.edge}",
        f"averaged {task.metric}": lambda row: _spread(row.averaged(task.metric), task),
        "one node's": lambda row: _spread(row.one(task.metric), task),
        "consensus": lambda row: f"{row.consensus:.1e}",
        "s/step": lambda row: f"{statistics.fmean(run.result.seconds for run in row.runs):.3f}",
    }
    cell = rows[0].cell
    title = f"{cell.workers} workers, batches of {cell.batch}, {cell.steps} steps"
    return f"{title}\n{table(rows, columns, 'method')}"


def _spread(values: Sequence[float], task: Task) -> str:
    """The mean, with the deviation over seeds where there are several; accuracy in percent."""
    scale, digits = (100, 2) if task.metric == "accuracy" else (1, 4)
    mean = f"{scale * statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {scale * statistics.stdev(values):.{digits}f}"
