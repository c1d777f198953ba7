import dataclasses
import json
import math
import re

import pytest

from laconic.cli import main, studies
from laconic.lab import tasks
from laconic.studies import simulate, simulate_study
from laconic.studies.simulate import METHODS, Moment, Result
from laconic.studies.simulate_study import Study, load, run, save

DIGITS = tasks.load("digits")
PLAN = Study(
    methods=["allreduce", "crossover"],
    workers=[2, 4],
    groups=2,
    batch=[4],
    lr=[0.1, 0.2],
    seeds=2,
    segments=3,
    epochs=1,
    steps=2,
    momentum=0.9,
)
RESULT = Result(
    {"accuracy": 0.5, "loss": 1.0}, {"accuracy": 0.4, "loss": math.nan}, [Moment(1, 2.0, 0.1)], 0.5
)


def cells(**changes):
    return dataclasses.replace(PLAN, **changes).cells(DIGITS, "default")


def untold(cell, step):
    """Nobody listens."""


def test_every_cell_of_the_grid_is_there_once_and_seeds_come_one_after_another():
    found = cells()
    assert len(found) == len(set(found)) == 16
    assert [cell.seed for cell in found] == [0] * 8 + [1] * 8
    assert {(cell.method, cell.workers, cell.lr) for cell in found[:8]} == {
        (method, workers, lr) for method in PLAN.methods for workers in PLAN.workers for lr in PLAN.lr
    }


@pytest.mark.parametrize(("epochs", "steps"), [(1, {180, 90}), (0.5, {90, 45}), (2, {360, 180})])
def test_epochs_are_an_equal_number_of_samples(epochs, steps):
    """1437 samples, rounded up to whole steps."""
    assert {cell.steps for cell in cells(steps=None, epochs=epochs)} == steps


def test_a_run_that_is_there_is_not_run_again(tmp_path, monkeypatch):
    first = list(run(cells(seeds=1), DIGITS, tmp_path, "cpu", untold))
    monkeypatch.setattr(simulate, "simulate", None)
    assert list(run(cells(seeds=1), DIGITS, tmp_path, "cpu", untold)) == first
    with pytest.raises(TypeError):
        list(run(cells(seeds=1, momentum=0.5), DIGITS, tmp_path, "cpu", untold))


def test_an_interrupted_study_goes_on_where_it_was(tmp_path):
    told = []
    runs = run(cells(), DIGITS, tmp_path, "cpu", lambda cell, step: told.append((cell, step)))
    for _ in range(3):
        next(runs)
    runs.close()
    assert len(told) == 6
    assert len(list(run(cells(), DIGITS, tmp_path, "cpu", lambda *step: told.append(step)))) == 16
    assert told == [(cell, step) for cell in cells() for step in (1, 2)]


def test_a_file_gives_back_what_it_was_given_and_is_strict_json(tmp_path):
    cell = cells()[0]
    save(tmp_path / "run.json", cell, RESULT)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert "NaN" not in (tmp_path / "run.json").read_text()
    assert json.loads((tmp_path / "run.json").read_text())["one"] == {"accuracy": 0.4, "loss": None}
    again = load(tmp_path / "run.json", cell)
    assert math.isnan(again.one.pop("loss"))
    assert again == RESULT._replace(one={"accuracy": 0.4})
    assert load(tmp_path / "run.json", dataclasses.replace(cell, lr=0.3)) is None
    assert load(tmp_path / "none.json", cell) is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"methods": ["crosover"]}, "unknown method 'crosover'; did you mean 'crossover'?"),
        ({"methods": ["sgp", "sgp"]}, "sgp is named 2 times among methods; name it once"),
        ({"workers": [4, 0]}, "workers is 0; it must be above zero"),
        ({"batch": [-1]}, "batch is -1; it must be above zero"),
        ({"lr": [0.1, 0.0]}, "lr is 0.0; it must be above zero"),
        ({"momentum": 1.0}, "momentum is 1.0; it must be at least 0 and below 1"),
        ({"segments": 0}, "0 segments cannot be cut from 17226 parameters; use at least 1 and at most 17226"),
        ({"segments": 17_227}, "17227 segments cannot be cut from 17226 parameters"),
        ({"methods": ["hierarchical"], "groups": 3}, "3 groups do not divide 2 workers"),
        ({"workers": [2000]}, "1437 samples are too few for 2000 workers; use fewer workers"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_before_it_runs(changes, sentence):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        cells(**changes)


def test_the_command_has_all_methods():
    assert studies.METHODS.split() == list(METHODS)


def test_the_command_prints_a_table_and_draws_figures(tmp_path, capsys, monkeypatch):
    command = "simulate crossover digits --workers 2 4 --groups 2 --batch 4 8 --steps 3 --lr 0.05 0.1 --out"
    assert main.main([*command.split(), str(tmp_path)]) == 0
    first = capsys.readouterr()
    assert first.err == ""
    names = ["accuracy-by-workers.svg", "accuracy-by-batch.svg", "consensus-by-step.svg"]
    assert first.out.split()[-3:] == [str(tmp_path / name) for name in names]
    assert len(list(tmp_path.glob("*.json"))) == 6 * 2 * 2 * 2
    monkeypatch.setattr(simulate, "simulate", None)
    assert main.main([*command.split(), str(tmp_path)]) == 0
    assert capsys.readouterr() == first


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("digit", "unknown task 'digit', nearest to 'digits'"),
        ("digits --methods gossip", "unknown method 'gossip'"),
        ("digits --workers 16 --groups 5", "5 groups do not divide 16 workers; use a divisor of 16"),
        ("digits --groups 0", "--groups is 0; it must be above zero"),
        ("digits --epochs 0", "--epochs is 0.0; it must be above zero"),
        ("digits --segments 0", "0 segments cannot be cut"),
        ("digits --size small", "unknown digits size 'small'"),
        ("digits --device toaster", "device 'toaster' cannot be used here; use cpu"),
        ("digits --out /proc/nowhere", "cannot write to /proc/nowhere"),
    ],
)
def test_bad_options_get_one_sentence(words, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main.main(["simulate", "crossover", *words.split()]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_cells_are_found_by_their_own_files():
    assert len({simulate_study.file_name(cell) for cell in cells(methods=list(METHODS))}) == 48
