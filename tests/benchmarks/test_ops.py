import json

import pytest
import torch

from benchmarks.ops import gennorm, table
from benchmarks.ops.__main__ import main
from laconic.numerics import ans


def test_every_case_is_measured_against_copy_and_reference():
    results = table.measure(40_000)
    assert {result.op for result in results} > {"thc encode", "thc decode", "gennorm e5m2 huffman decode"}
    for result in results:
        assert result.of_copy > 0
        assert result.of_reference > 0
        assert result.coordinates == 40_000
    assert len(table.text(results).splitlines()) == len(results)


def test_a_wrong_op_is_not_timed(monkeypatch):
    wrong = table.Case("wrong", 4, lambda: [torch.ones(1)], lambda: [torch.zeros(1)])
    monkeypatch.setattr(table, "cases", lambda coordinates: [wrong])
    with pytest.raises(RuntimeError, match="wrong differs from its reference"):
        table.measure(100)


def test_the_number_of_threads_is_left_as_it_was():
    before = torch.get_num_threads()
    table.measure(4_000)
    assert torch.get_num_threads() == before


def test_gennorm_is_compared_with_zstd_in_speed_and_bits():
    pytest.importorskip("zstandard")
    for case in gennorm.cases(40_000):
        assert case.peer is not None
        assert len(case.peer.ways) == len(gennorm.LEVELS)
        if case.bits:
            stacks = 32 * ans.lanes(40_000) / 40_000  # next to nothing where there are more symbols
            assert case.bits["entropy"] < case.bits["ours"] < case.bits["zstd"] + stacks


def test_a_peer_that_is_not_installed_is_said_to_be_missing(monkeypatch):
    monkeypatch.setattr(gennorm.importlib.util, "find_spec", lambda name: None)
    case = gennorm.cases(4_000)[0]
    result = table.measured(case, 4_000)
    assert result.of_peer is None
    assert "zstd is not installed" in table.text([result])


def test_coordinates_of_gennorm_are_limited(monkeypatch):
    monkeypatch.setattr(gennorm, "MOST", 3_000)
    assert {case.coordinates for case in gennorm.cases(4_000)} == {3_000}


def test_the_command_prints_rows_for_people_or_for_programs(capsys):
    assert main(["--coordinates", "4000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert main(["--coordinates", "4000", "--json"]) == 0
    assert [row["op"] for row in json.loads(capsys.readouterr().out)] == [
        line.partition("  ")[0] for line in lines
    ]


def test_the_command_says_what_is_wrong_in_one_sentence(capsys):
    assert main(["--coordinates", "0"]) == 2
    assert capsys.readouterr().err == "laconic: --coordinates is 0; it must be above zero\n"
