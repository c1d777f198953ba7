import json
import re
import subprocess

import pytest
import torch
import torch.distributed as dist

import laconic
from laconic import DAD, EDAD, Dense, RankDAD, telemetry
from laconic.core.meter import Stats
from tests.support.workers import run

STATS = Stats(1, 100, 200, {"encode": 0.5}, readings={"error": 0.25})


def test_a_header_makes_a_run_repeatable():
    header = telemetry.header(Dense(dtype="bf16"), seed=7)
    assert header["technique"] == repr(Dense(dtype="bf16"))
    assert header["versions"]["torch"] == torch.__version__
    assert header["versions"]["laconic"] == laconic.__version__
    assert header["seed"] == 7
    assert header["kernels"].startswith("cpu: ")
    assert "cores" in header["machine"]
    assert header["commit"] == telemetry.commit()


def test_the_commit_is_that_of_laconics_own_repository(monkeypatch, tmp_path):
    for repository in (tmp_path, tmp_path / "laconic"):
        subprocess.run(["git", "init", "-q", repository], check=True)
    commit = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "first"]
    subprocess.run(["git", "-C", tmp_path / "laconic", *commit], check=True)
    monkeypatch.setattr(telemetry, "__file__", str(tmp_path / "laconic" / "laconic" / "telemetry.py"))
    assert re.fullmatch("[0-9a-f]{40}", telemetry.commit())
    monkeypatch.setattr(telemetry, "__file__", str(tmp_path / "site-packages" / "laconic" / "telemetry.py"))
    assert telemetry.commit() is None


@pytest.mark.parametrize("technique", [DAD(), EDAD(), RankDAD()])
def test_a_header_has_the_techniques_warning(technique):
    warning = telemetry.header(technique)["warning"]
    assert warning == technique.warning
    assert warning.startswith(f"{type(technique).__name__} is not private: ")
    assert "skip_inputs=True" in warning


def test_a_technique_that_needs_no_warning_has_none_in_its_header():
    assert "warning" not in telemetry.header(Dense())


def test_json_lines_hold_a_header_and_a_line_a_step(tmp_path):
    lines = telemetry.JsonLines(tmp_path / "run.jsonl", {"technique": "x"})
    lines(0, STATS)
    lines.close()
    header, step = map(json.loads, (tmp_path / "run.jsonl").read_text().splitlines())
    assert header == {"kind": "header", "technique": "x"}
    assert step == {
        "kind": "step",
        "step": 0,
        "sent": 100,
        "received": 200,
        "phases": {"encode": 0.5},
        "readings": {"error": 0.25},
    }


def test_a_resumed_runs_log_goes_on_behind_another_header(tmp_path):
    path = tmp_path / "run.jsonl"
    for step in (0, 7):
        lines = telemetry.JsonLines(path, {"technique": "x"})
        lines(step, STATS)
        lines.close()
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["kind"], line.get("step")) for line in written] == [
        ("header", None),
        ("step", 0),
        ("header", None),
        ("step", 7),
    ]


def test_a_line_that_was_cut_when_a_run_was_killed_is_taken_away(tmp_path):
    path = tmp_path / "run.jsonl"
    lines = telemetry.JsonLines(path, {"technique": "x"})
    lines(0, STATS)
    lines.close()
    whole = path.read_bytes()
    for kept in range(len(whole)):
        path.write_bytes(whole[:kept])
        telemetry.JsonLines(path, {"technique": "x"}).close()
        kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
        assert kinds == ["header"] * (1 + (b"\n" in whole[:kept]))


def test_a_log_is_written_by_one_alone(tmp_path):
    path = tmp_path / "run.jsonl"
    first = telemetry.JsonLines(path, {"technique": "x"})
    with pytest.raises(ValueError, match=r"run\.jsonl is being written already; give each worker a file"):
        telemetry.JsonLines(path, {"technique": "y"})
    first.close()
    telemetry.JsonLines(path, {"technique": "y"}).close()


def test_what_is_no_log_stays_as_it_is(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("remember the milk")
    with pytest.raises(ValueError, match=r"notes\.txt is there already, and no run's log; choose another"):
        telemetry.JsonLines(path, {"technique": "x"})
    assert path.read_text() == "remember the milk"


def _logged(directory):
    board = telemetry.TensorBoard(directory)
    board(dist.get_rank(), STATS)
    board.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_each_of_several_workers_has_a_run_of_its_own(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run(2, _logged, tmp_path)
    for worker in range(2):
        (events,) = (tmp_path / f"worker{worker}").iterdir()
        (event,) = accumulator.EventAccumulator(str(events)).Reload().Scalars("laconic/bytes/sent")
        assert event.step == worker


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_gets_bytes_seconds_and_readings(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = telemetry.TensorBoard(tmp_path)
    board(3, STATS)
    board.close()
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    for name, value in {
        "bytes/sent": 100,
        "bytes/received": 200,
        "seconds/encode": 0.5,
        "readings/error": 0.25,
    }.items():
        (event,) = events.Scalars(f"laconic/{name}")
        assert (event.step, event.value) == (3, value)
