import pytest
import torch

from laconic import bench


def test_every_case_is_measured_against_copy_and_reference():
    results = bench.measure(40_000)
    assert {result.op for result in results} > {"thc encode", "thc combine", "thc decode"}
    for result in results:
        assert result.of_copy > 0
        assert result.of_reference > 0
        assert result.coordinates == 40_000
    assert len(bench.text(results).splitlines()) == len(results)


def test_a_wrong_op_is_not_timed(monkeypatch):
    wrong = bench.Case("wrong", 4, lambda: [torch.ones(1)], lambda: [torch.zeros(1)])
    monkeypatch.setattr(bench, "cases", lambda coordinates: [wrong])
    with pytest.raises(RuntimeError, match="wrong differs from its reference"):
        bench.measure(100)


def test_the_number_of_threads_is_left_as_it_was():
    before = torch.get_num_threads()
    bench.measure(4_000)
    assert torch.get_num_threads() == before
