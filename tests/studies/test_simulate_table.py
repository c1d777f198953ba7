import math

import pytest

from laconic.lab import tasks
from laconic.studies import simulate
from laconic.studies.simulate import Moment, Result
from laconic.studies.simulate_study import Run
from laconic.studies.simulate_table import Watch, best, text

DIGITS = tasks.load("digits")
TEXT = tasks.load("text", size="small")
OPTIONS = {"groups": 2, "segments": 4, "steps": 3, "momentum": 0.9}


def a_run(value, method="crossover", task=DIGITS, workers=4, batch=8, lr=0.1, seed=0, distances=(0.1,)):
    """A run whose averaged model has this value, and whose nodes have a tenth less."""
    moments = [Moment(step, 1.0, distance) for step, distance in enumerate(distances, 1)]
    cell = simulate.cell(task, "default", method, workers=workers, batch=batch, lr=lr, seed=seed, **OPTIONS)
    return Run(cell, Result({task.metric: value}, {task.metric: 0.9 * value}, moments, 0.25))


def _words(line):
    return " ".join(line.split())


@pytest.mark.parametrize(
    ("task", "values", "lr", "edge"),
    [
        (DIGITS, {0.1: 0.5, 0.2: 0.7, 0.4: 0.6}, 0.2, ""),
        (DIGITS, {0.1: 0.5, 0.2: 0.7}, 0.2, " ↑"),
        (DIGITS, {0.1: 0.7, 0.2: 0.5}, 0.1, " ↓"),
        (DIGITS, {0.1: 0.7}, 0.1, ""),
        (TEXT, {0.1: 3.0, 0.2: 2.0, 0.4: math.nan}, 0.2, ""),
        (TEXT, {0.1: math.nan, 0.2: 5.0}, 0.2, " ↑"),
    ],
)
def test_a_row_has_the_best_learning_rate_and_says_if_it_is_at_an_end(task, values, lr, edge):
    (row,) = best([a_run(value, task=task, lr=rate) for rate, value in values.items()], task)
    assert (row.cell.lr, row.edge) == (lr, edge)


def test_the_best_is_best_over_all_seeds():
    runs = [
        a_run(value, lr=lr, seed=seed)
        for lr, *values in ((0.1, 0.9, 0.5), (0.2, 0.8, 0.8))
        for seed, value in enumerate(values)
    ]
    (row,) = best(runs, DIGITS)
    assert row.averaged("accuracy") == [0.8, 0.8]
    assert [run.cell.seed for run in row.runs] == [0, 1]


def test_every_method_and_setting_has_its_row():
    settings = [
        (method, workers, batch) for workers in (4, 8) for batch in (8, 16) for method in ("sgp", "crossover")
    ]
    rows = best(
        [a_run(0.5, method, workers=workers, batch=batch) for method, workers, batch in settings], DIGITS
    )
    assert [(row.cell.method, *row.setting) for row in rows] == settings


def test_the_table_has_means_and_deviations_in_percent():
    runs = [
        a_run(value, "one_segment", seed=seed, lr=0.05, distances=(1e-3, 2e-3, 9.0))
        for seed, value in enumerate((0.8, 0.9))
    ]
    title, heading, line, *_ = text(best(runs, DIGITS), DIGITS).splitlines()
    assert title == "4 workers, batches of 8, 3 steps"
    assert _words(heading) == "method nodes segments lr averaged accuracy one node's consensus s/step"
    assert _words(line) == "one segment 4 1 0.05 85.00 ± 7.07 76.50 ± 6.36 2.0e-03 0.250"


def test_a_table_for_every_setting_and_signs_only_where_used():
    plain = text(best([a_run(0.5), a_run(0.6, workers=8)], DIGITS), DIGITS)
    assert plain.count("workers, batches") == 2
    assert "±" not in plain
    assert "↑" not in plain
    signed = text(best([a_run(0.5, seed=seed, lr=lr) for seed in (0, 1) for lr in (1, 2)], DIGITS), DIGITS)
    assert "± one standard deviation over seeds\n↓ ↑ the lowest or highest" in signed


def test_a_loss_is_no_percentage():
    assert "2.5000" in text(best([a_run(2.5, task=TEXT)], TEXT), TEXT)


def test_what_runs_is_said_and_all_runs_come_back():
    runs = [a_run(0.5), a_run(0.6, lr=0.2)]
    cells = [run.cell for run in runs]
    with Watch(cells, DIGITS) as watch:
        watch.step(cells[0], 2)
        assert watch._text().plain.endswith(
            "0 of 2 runs, 0:00 so far\ncrossover, 4 workers, batch 8, lr 0.1, seed 0: step 2 of 3"
        )
        assert watch.follow(iter(runs)) == runs
        assert "0.2 ↑" in watch._text().plain
        assert "2 of 2 runs" in watch._text().plain
