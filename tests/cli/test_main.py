import json
import os
import subprocess
import sys

import pytest
import torch

from laconic.cli import main
from laconic.lab import records


def _said(arguments, capsys):
    status = main.main(arguments)
    captured = capsys.readouterr()
    assert status == 2
    assert "Traceback" not in captured.err
    assert captured.err.count("\n") == 1, "an error is one line"
    return captured.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "fashio"], "'fashion'"),
        (["train", "digits", "--technique", "dence"], "unknown technique 'dence'; did you mean 'dense'?"),
        (["train", "digits", "--link", "fast"], "fast"),
        (["train", "digits", "--link", "1gbit,100mbit"], "4"),
        (["train", "digits", "--workers", "0"], "--workers is 0; it must be above zero"),
        (["train", "digits", "--steps", "-3"], "--steps is -3"),
        (["train", "digits", "--batch", "0"], "--batch is 0"),
        (["train", "digits", "--lr", "nan"], "lr is nan"),
        (["train", "digits", "--momentum", "-1"], "momentum is -1"),
        (["compare", "digits", "--techniques", "ddp", "ddp"], "technique 'ddp' is named 2 times"),
        (["train", "digits", "--workers", "4000", "--link", "none"], "4000"),
        (["train", "digits", "--out", "/proc/nowhere"], "cannot write to /proc/nowhere"),
        (["train", "digits", "--split", "label:2"], "label"),
        (["compare", "digits", "--seeds", "0"], "--seeds is 0"),
        (["train", "fashion", "--data", "/nonexistent"], "/nonexistent"),
        (["report", "/nonexistent"], "/nonexistent"),
        (["bench", "--coordinates", "0"], "--coordinates is 0"),
    ],
)
def test_bad_input_gets_one_clear_sentence(arguments, sentence, capsys):
    assert sentence in _said(arguments, capsys)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_refused(capsys):
    assert "device 'cuda' cannot be used here; use cpu" in _said(
        ["train", "digits", "--device", "cuda"], capsys
    )


def test_an_unknown_command_names_the_nearest(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["laconic", "trian"])
    with pytest.raises(SystemExit) as ended:
        main.main(["trian"])
    assert ended.value.code == 2
    assert "unknown command 'trian'; did you mean 'train'?" in capsys.readouterr().err


def test_debug_shows_the_traceback():
    command = ["train", "digits", "--technique", "dence"]
    for arguments in ([*command, "--debug"], ["--debug", *command]):
        with pytest.raises(ValueError, match="unknown technique"):
            main.main(arguments)


def test_compare_trains_side_by_side_reports_and_runs_nothing_again(tmp_path, capsys):
    """The main job, end to end, as a user starts it, and again with one row more."""
    command = (
        f"compare digits --workers 2 --link 1gbit --steps 12 --eval-every 6 --out {tmp_path} --techniques"
    )
    arguments = [*command.split(" "), "ddp", "dense"]
    assert main.main(arguments) == 0
    said = capsys.readouterr()
    assert said.out.strip().endswith("report.html")
    assert not [line for line in said.err.splitlines() if "unshaped" not in line]  # off a terminal
    before = _written(tmp_path)
    assert main.main([*arguments, "dad"]) == 0
    quiet = [line for line in capsys.readouterr().err.splitlines() if "unshaped" not in line]
    assert [line.partition(": DAD is not private: ")[0] for line in quiet] == ["laconic"]
    after = _written(tmp_path)
    assert len(after) == 3
    assert before.items() < after.items(), "a finished run is not run again"
    runs = {run.header.spec: run for run in records.find([tmp_path])}
    assert set(runs) == {"ddp", "dense", "dad"}
    for run in runs.values():
        assert len(run.steps) == 12
        assert [e.step for e in run.evals] == [0, 6, 12]
        assert run.end.replicas_equal
    assert runs["dad"].header.warning.startswith("DAD is not private: ")
    plain, dense = runs["ddp"], runs["dense"]
    assert [s.loss for s in dense.steps] == pytest.approx([s.loss for s in plain.steps], rel=1e-4)
    if dense.header.shaped:
        metered, counted = (sum(getattr(s, name) for s in dense.steps) for name in ("sent", "tx"))
        assert metered == pytest.approx(counted, rel=0.10)  # messages of a few kB, so framing weighs more
    assert "<svg" in (tmp_path / "report.html").read_text()


def _written(directory):
    return {path.name: path.stat().st_mtime_ns for path in directory.glob("*.jsonl")}


def test_a_run_with_other_settings_is_run_again(tmp_path):
    command = (
        f"train digits --technique dense --workers 1 --link none --eval-every 3 --out {tmp_path} --steps"
    )
    written = []
    for steps in "3", "3", "4":
        assert main.main([*command.split(" "), steps]) == 0
        written.append(_written(tmp_path)["dense-0.jsonl"])
    assert written[0] == written[1] != written[2]


def test_doctor_says_what_is_there(capsys):
    assert main.main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "kernels" in text
    assert "torch" in text
    assert main.main(["doctor", "--json"]) == 0
    assert {"subject", "well", "found", "remedy"} == set(json.loads(capsys.readouterr().out)[0])


def test_lab_clean_finds_nothing_when_nothing_was_left(capsys):
    assert main.main(["lab", "clean"]) == 0
    assert "nothing" in capsys.readouterr().out


def test_the_command_is_installed():
    command = os.path.join(os.path.dirname(sys.executable), "laconic")  # noqa: PTH118, PTH120
    helped = subprocess.run([command, "--help"], capture_output=True, text=True, check=True)
    assert "compare" in helped.stdout
