"""Draws the figure of crossover.md, and prints its differences and counts, from the records of the study.

python docs/tools/crossover_figures.py STUDY DATA

STUDY is what benchmarks/gpu_crossover.py wrote, with the commands in crossover.md; DATA has Fashion-MNIST's files.
"""

import statistics
import sys
from collections import Counter
from pathlib import Path

from laconic.lab import tasks
from laconic.lab.tasks import Task
from laconic.report import charts
from laconic.studies import simulate_charts, simulate_study, simulate_table
from laconic.studies.simulate_study import Run

DOCS = Path(__file__).parents[1]
METHODS = ["allreduce", "crossover", "hierarchical", "sgp", "one_segment", "unfair"]
RATES = [0.025, 0.05, 0.1, 0.2, 0.4, 0.8]
PAIRS = [
    ("hierarchical", "allreduce"),
    ("crossover", "sgp"),
    ("crossover", "one_segment"),
    ("crossover", "unfair"),
]


class Study:
    """Records of a directory."""

    def __init__(self, directory: Path, task: Task) -> None:
        self.directory, self.task = directory, task

    def runs(
        self, workers: int, batch: int, rates: list[float], seeds: int = 3, epochs: float = 10
    ) -> list[Run]:
        """All methods' runs in one setting."""
        plan = simulate_study.Study(METHODS, [workers], 8, [batch], rates, seeds, 16, epochs, None, 0.9)
        paths = [
            (cell, self.directory / simulate_study.file_name(cell)) for cell in plan.cells(self.task, "small")
        ]
        results = [(cell, simulate_study.load(path, cell)) for cell, path in paths]
        return [Run(cell, result) for cell, result in results if result is not None]


def figure(study: Study) -> charts.Spec:
    """Accuracy against workers with 4096 samples a step, and against the batch of each of 64 workers."""
    task = study.task
    by_workers = [
        row
        for workers in (8, 16, 32, 64)
        for row in simulate_table.best(study.runs(workers, 4096 // workers, RATES), task)
    ]
    by_batch = [
        row for batch in (32, 64, 128) for row in simulate_table.best(study.runs(64, batch, RATES), task)
    ]
    panels = [
        (
            "10 epochs in 147 steps of 4096 samples, against the number of workers",
            [simulate_charts.point(row, task, row.cell.workers) for row in by_workers],
        ),
        (
            "10 epochs with 64 workers, against the batch of each (293, 147 and 74 steps)",
            [simulate_charts.point(row, task, row.cell.batch) for row in by_batch],
        ),
    ]
    x = {"type": "ordinal", "title": None}
    y = {"title": "accuracy of the averaged model", "scale": {"zero": False}, "axis": {"format": ".0%"}}
    return simulate_charts.figure(by_workers, task, "Accuracy", panels, x, y)


def differences(study: Study) -> str:
    """Points by which one method is above another in the same run otherwise, with the error of the mean."""
    lines = []
    for epochs, seeds in ((10, 6), (30, 3)):
        for workers in (32, 64):
            runs = study.runs(workers, 4096 // workers, [0.025, 0.05, 0.1], seeds, epochs)
            found = {
                (run.cell.method, run.cell.lr, run.cell.seed): 100 * run.result.average["accuracy"]
                for run in runs
            }
            for one, other in PAIRS:
                apart = [
                    value - found[other, lr, seed]
                    for (method, lr, seed), value in found.items()
                    if method == one
                ]
                error = statistics.stdev(apart) / len(apart) ** 0.5
                words = f"{epochs} epochs, {workers} workers, {one} - {other}"
                lines.append(f"{words}: {statistics.fmean(apart):+.2f} ± {error:.2f} ({len(apart)} pairs)")
    return "\n".join(lines)


def lost(study: Study) -> str:
    """How many of the runs of 10 epochs, 4096 samples a step, ended below 70 %."""
    lines = []
    for lr in RATES[:4]:
        settings = ((8, 3), (16, 3), (32, 6), (64, 6))
        runs = [
            run for workers, seeds in settings for run in study.runs(workers, 4096 // workers, [lr], seeds)
        ]
        bad = Counter(run.cell.method for run in runs if not run.result.average["accuracy"] >= 0.7)
        counts = ", ".join(f"{method} {bad[method]}" for method in METHODS)
        lines.append(f"lr {lr}, of {len(runs) // len(METHODS)} runs each: {counts}")
    return "\n".join(lines)


if __name__ == "__main__":
    directory, data = map(Path, sys.argv[1:])
    study = Study(directory, tasks.load("fashion", data=data, size="small"))
    print(charts.figure(figure(study), DOCS / "crossover_accuracy.svg"))
    print(differences(study), lost(study), sep="\n")
