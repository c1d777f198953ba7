"""`laconic bench` and `laconic results` lead into benchmarks/, from wherever they are started, or say where it is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import laconic
from laconic.cli import doors, main
from tests.support.evidence import DDP, trajectory

COMMAND = os.path.join(os.path.dirname(sys.executable), "laconic")  # noqa: PTH118, PTH120


def test_a_door_of_a_clone_opens_from_any_directory(tmp_path):
    words = [COMMAND, "bench", "--json", "--coordinates", "4000"]
    measured = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "thc encode" in {row["op"] for row in json.loads(measured.stdout)}


@pytest.mark.parametrize("command", doors.PROGRAMS)
@pytest.mark.parametrize("words", [[], ["--json"], ["runs", "--out", "page.md"], ["--help"]])
def test_outside_a_clone_one_sentence_says_what_to_do(command, words, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(laconic, "__file__", str(tmp_path / "site-packages" / "laconic" / "__init__.py"))
    assert main.main([command, *words]) == 2
    assert capsys.readouterr().err == (
        f"laconic: laconic {command} needs a clone of the repository; run it there\n"
    )


def test_an_installed_package_finds_the_clone_that_it_is_started_in(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setattr(laconic, "__file__", str(tmp_path / "site-packages" / "laconic" / "__init__.py"))
    trajectory(tmp_path / "runs", DDP)
    out = tmp_path / "page.md"
    assert main.main(["results", str(tmp_path / "runs"), "--out", str(out)]) == 0
    assert capsys.readouterr().out.split()[0] == str(out)


def test_nothing_but_benchmarks_is_imported_from_a_clone(monkeypatch):
    clone = str(Path(__file__).parents[2])
    before = [path for path in sys.path if path not in ("", clone)]
    monkeypatch.setattr(sys, "path", [*before])
    with pytest.raises(SystemExit):
        main.main(["bench", "--help"])
    assert sys.path == before


def test_help_is_that_of_the_program_behind_the_door(capsys):
    with pytest.raises(SystemExit) as ended:
        main.main(["results", "--help"])
    assert ended.value.code == 0
    assert "python -m benchmarks.results" in capsys.readouterr().out


def test_debug_passes_through_a_door():
    for words in (["--debug", "bench"], ["bench", "--debug"]):
        with pytest.raises(ValueError, match="--coordinates is 0"):
            main.main([*words, "--coordinates", "0"])


def test_only_doors_take_words_that_are_not_known(capsys):
    with pytest.raises(SystemExit) as ended:
        main.main(["doctor", "--jsn"])
    assert ended.value.code == 2
    assert "laconic: unrecognized arguments: --jsn\n" in capsys.readouterr().err
