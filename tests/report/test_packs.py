"""A pack has the records of a directory that pages are made from, in one small file that is always the same."""

import io
import json
import lzma
import tarfile
from pathlib import Path

import pytest

from laconic.cli import main
from laconic.lab import records, unpacking
from laconic.report import packs
from tests.support.evidence import DDP, THC, full, timing, trajectory
from tests.support.recorded import END, header, step, write


@pytest.fixture
def runs(tmp_path):
    for technique, seconds in ((DDP, 1.0), (THC, 0.1)):
        trajectory(tmp_path / "runs", technique)
        timing(tmp_path / "runs", technique, [seconds], sent=int(1e6 * seconds))
    full(tmp_path / "runs", THC, seconds=9.8)
    return tmp_path / "runs"


def test_an_unpacked_pack_is_the_directory(runs, tmp_path):
    with tarfile.open(packs.write(runs, tmp_path / "all.tar.xz")) as pack:
        pack.extractall(tmp_path / "again", filter="data")
    names = [
        sorted(path.relative_to(top) for path in top.rglob("*.jsonl")) for top in (runs, tmp_path / "again")
    ]
    assert names[0] == names[1] != []


def test_the_same_records_make_the_same_file(runs, tmp_path):
    first = packs.write(runs, tmp_path / "first.tar.xz").read_bytes()
    for file in runs.rglob("*.jsonl"):
        file.touch()
    assert packs.write(runs, tmp_path / "second.tar.xz").read_bytes() == first


def test_a_training_keeps_no_phases_and_a_timing_all_of_them(runs, tmp_path):
    phases = {"encode": 0.01}
    write(runs / "timed.jsonl", [header(), step(1, phases=phases, readings={"error": 0.5}), END])
    bare = header(link="none", steps=2)
    middle = {"kind": "eval", "step": 1, "accuracy": 0.5, "loss": 1.0, "seconds": 1.0}
    write(
        runs / "trained.jsonl", [bare, step(1, phases=phases, readings={"error": 0.5}), middle, step(2), END]
    )
    found = {run.path.name: run for run in records.find([packs.write(runs, tmp_path / "all.tar.xz")])}
    assert found["timed.jsonl"].steps[0].phases == phases
    assert found["timed.jsonl"].steps[0].readings == {"error": 0.5}
    assert found["trained.jsonl"].steps[0].phases == {}
    assert found["trained.jsonl"].steps[0].readings == {}
    assert found["trained.jsonl"].steps[0].loss == 1.0


def test_unfinished_runs_are_left_out(runs, tmp_path):
    write(runs / "cut.jsonl", [header(), step(1)])
    names = [run.path.name for run in records.find([packs.write(runs, tmp_path / "all.tar.xz")])]
    assert len(names) == 5
    assert "cut.jsonl" not in names


def test_what_cannot_be_packed_or_read_is_said_in_one_sentence(runs, tmp_path, capsys):
    assert main.main(["pack", str(runs), str(tmp_path / "all.zip")]) == 2
    assert "use a name that ends in .tar.xz" in capsys.readouterr().err
    assert main.main(["pack", str(tmp_path / "nothing"), str(tmp_path / "all.tar.xz")]) == 2
    assert "name a directory of run records" in capsys.readouterr().err
    (tmp_path / "bad.tar.xz").write_text(json.dumps(END))
    assert main.main(["report", str(tmp_path / "bad.tar.xz")]) == 2
    assert "give one that laconic pack wrote" in capsys.readouterr().err


def test_a_pack_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    def refusal(content, entry):
        path = tmp_path / "bomb.tar.xz"
        with tarfile.open(path, "w:xz") as pack:
            pack.addfile(entry, io.BytesIO(content))
        with pytest.raises(ValueError, match=r"bomb\.tar\.xz") as caught:
            records.find([path])
        return str(caught.value)

    monkeypatch.setattr(unpacking, "LIMIT", 1 << 20)
    entry = tarfile.TarInfo("a.jsonl")
    entry.size = 1 << 21
    assert "unpacks to more than 1 MiB, as no pack of records does" in refusal(bytes(entry.size), entry)
    long_name = tarfile.TarInfo("a" * (1 << 21))  # which is no file's content
    assert "unpacks to more than 1 MiB" in refusal(b"", long_name)
    holes = tarfile.TarInfo("a.jsonl")
    holes.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(1 << 40)}
    assert "is no pack of records (it has a sparse file)" in refusal(b"", holes)


def test_packs_of_this_packages_pages_are_far_from_the_limit():
    for pack in Path(__file__).parents[2].glob("docs/*.tar.xz"):
        with lzma.open(pack) as file:
            assert 20 * sum(map(len, iter(lambda: file.read(1 << 20), b""))) < unpacking.LIMIT
