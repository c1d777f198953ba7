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


def test_compare_trains_side_by_side_and_reports(tmp_path, capsys):
    """The main job, end to end, as a user starts it."""
    command = "compare digits --techniques ddp dense dense:dtype=bf16 --workers 2 --link 1gbit --steps 12"
    arguments = command.split(" ")
    assert main.main([*arguments, "--eval-every", "6", "--out", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.out.strip().endswith("report.html")
    assert captured.err == "" or "unshaped" in captured.err  # quiet off a terminal
    runs = {run.header.spec: run for run in records.find([tmp_path])}
    assert set(runs) == {"ddp", "dense", "dense:dtype=bf16"}
    for run in runs.values():
        assert len(run.steps) == 12
        assert [e.step for e in run.evals] == [0, 6, 12]
        assert run.end.replicas_equal
    plain, dense = runs["ddp"], runs["dense"]
    assert [s.loss for s in dense.steps] == pytest.approx([s.loss for s in plain.steps], rel=1e-4)
    if dense.header.shaped:
        metered, counted = (sum(getattr(s, name) for s in dense.steps) for name in ("sent", "tx"))
        assert metered == pytest.approx(counted, rel=0.10)  # messages of a few kB, so framing weighs more
    assert (
        "<svg" in (tmp_path / "report.html").read_text() or "vega" in (tmp_path / "report.html").read_text()
    )


def test_a_warning_is_printed_once_before_the_runs(tmp_path, capsys):
    command = "compare digits --techniques dad dad:skip_inputs=true --workers 2 --link none --steps 3"
    assert main.main([*command.split(" "), "--eval-every", "3", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().err.count("laconic: DAD is not private: ") == 1
    runs = records.find([tmp_path])
    assert all(run.header.warning.startswith("DAD is not private: ") for run in runs)


def test_a_finished_run_is_not_run_again(tmp_path, capsys):
    command = "train digits --technique dense --workers 2 --link none --steps 3 --eval-every 3 --out"
    arguments = command.split(" ")
    for _ in range(2):
        assert main.main([*arguments, str(tmp_path)]) == 0
    record = tmp_path / "dense-0.jsonl"
    before = record.stat().st_mtime_ns
    assert main.main([*arguments, str(tmp_path)]) == 0
    assert record.stat().st_mtime_ns == before
    changed = [word if word != "3" else "4" for word in arguments]
    assert main.main([*changed, str(tmp_path)]) == 0
    assert record.stat().st_mtime_ns != before


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
