"""Methods of gossip side by side, for many numbers of virtual workers and batches: `laconic simulate crossover`.

Every cell of the grid, methods × workers × batches × learning rates × seeds, is one run (`simulate`), which leaves a
JSON file in the directory of the study; a cell whose file is there is not run again. All methods see the same number
of samples and the same learning rates; `simulate_table` says what comes of it.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from laconic.lab.contestants import nearest
from laconic.lab.worker import check_training
from laconic.numerics import topology
from laconic.studies import simulate
from laconic.studies.simulate import METHODS, Cell, Moment, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from laconic.lab.tasks import Task

MODELS = ("average", "one")


@dataclass(frozen=True)
class Study:
    """The grid; `batch` is each worker's, and `steps` replaces `epochs` where given."""

    methods: Sequence[str]
    workers: Sequence[int]
    groups: int
    batch: Sequence[int]
    lr: Sequence[float]
    seeds: int
    segments: int
    epochs: float
    steps: int | None
    momentum: float

    def __post_init__(self) -> None:
        for method in self.methods:
            if method not in METHODS:
                raise ValueError(f"unknown method {method!r}{nearest(method, METHODS)}")
        for name in ("methods", "workers", "batch", "lr"):
            _check_distinct(name, getattr(self, name))
        for name in ("workers", "batch"):
            for value in getattr(self, name):
                if value < 1:
                    raise ValueError(f"{name} is {value}; it must be above zero")
        for lr in self.lr:
            check_training({"lr": lr, "momentum": self.momentum})

    def cells(self, task: Task, size: str) -> list[Cell]:
        """All runs, every one of a seed before the next seed."""
        numel = sum(parameter.numel() for parameter in task.model(0).parameters())
        topology.segments(numel, self.segments)  # fails now, if at all
        for workers in self.workers:
            next(task.batches(0, workers, batch=1, seed=0))
        return [
            simulate.cell(
                task,
                size,
                method,
                workers=workers,
                groups=self.groups,
                segments=self.segments,
                batch=batch,
                steps=self.steps or math.ceil(self.epochs * len(task.train) / (workers * batch)),
                lr=lr,
                momentum=self.momentum,
                seed=seed,
            )
            for seed in range(self.seeds)
            for workers in self.workers
            for batch in self.batch
            for method in self.methods
            for lr in self.lr
        ]


class Run(NamedTuple):
    """A cell and how it ended."""

    cell: Cell
    result: Result


def run(
    cells: Sequence[Cell], task: Task, directory: Path, device: str, tell: Callable[[Cell, int], None]
) -> Iterator[Run]:
    """The runs, each as soon as it is there; `tell` hears of every step."""
    for cell in cells:
        path = directory / file_name(cell)
        result = load(path, cell)
        if result is None:
            result = simulate.simulate(cell, task, device, partial(tell, cell))
            save(path, cell, result)
        yield Run(cell, result)


def save(path: Path, cell: Cell, result: Result) -> None:
    """The file has the run, or is as it was."""
    whole = path.with_suffix(".partial")
    whole.write_text(json.dumps({"cell": dataclasses.asdict(cell), **_plain(result)}))
    whole.replace(path)


def load(path: Path, cell: Cell) -> Result | None:
    """The run in the file, if it is just this cell's."""
    if not path.exists():
        return None
    saved = json.loads(path.read_text())
    if saved["cell"] != dataclasses.asdict(cell):
        return None
    moments = [Moment(step, _number(loss), _number(consensus)) for step, loss, consensus in saved["looks"]]
    average, one = ({name: _number(value) for name, value in saved[of].items()} for of in MODELS)
    return Result(average, one, moments, saved["seconds"])


def file_name(cell: Cell) -> str:
    """One for every cell of a plan; whether all else is the same, the file says."""
    shape = f"{cell.workers}x{cell.batch}-{cell.nodes}-nodes-{cell.segments}-segments"
    return f"{cell.method}-{shape}-{cell.steps}-steps-lr-{cell.lr:g}-seed-{cell.seed}.json"


def _plain(result: Result) -> dict[str, Any]:
    """For JSON, which has no infinities."""
    values = {of: {name: _finite(value) for name, value in getattr(result, of).items()} for of in MODELS}
    return {
        **values,
        "looks": [[*map(_finite, look)] for look in result.moments],
        "seconds": result.seconds,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _check_distinct(name: str, values: Sequence[object]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{value} is named {values.count(value)} times among {name}; name it once")
