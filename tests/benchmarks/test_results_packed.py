"""A pack has what a page of results is made from: the same page."""

import tarfile

import pytest

from benchmarks.results import page
from benchmarks.results.board import board
from laconic.lab import records
from laconic.report import packs
from tests.support.evidence import DDP, THC, full, timing, trajectory


@pytest.fixture
def runs(tmp_path):
    for technique, seconds in ((DDP, 1.0), (THC, 0.1)):
        trajectory(tmp_path / "runs", technique)
        timing(tmp_path / "runs", technique, [seconds], sent=int(1e6 * seconds))
    full(tmp_path / "runs", THC, seconds=9.8)
    return tmp_path / "runs"


def _page(path):
    return page.page(board(records.find([path])), "results")


def test_a_pack_makes_the_same_page_as_its_records(runs, tmp_path):
    pack = packs.write(runs, tmp_path / "all.tar.xz")
    assert _page(pack).replace(", which are in `all.tar.xz`", "") == _page(runs)


def test_an_unpacked_pack_makes_the_same_page(runs, tmp_path):
    with tarfile.open(packs.write(runs, tmp_path / "all.tar.xz")) as pack:
        pack.extractall(tmp_path / "again", filter="data")
    assert _page(tmp_path / "again") == _page(runs)
