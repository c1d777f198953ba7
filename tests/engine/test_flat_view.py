import pytest
import torch

from laconic.engine.flat_view import FlatView


def tensors():
    across = torch.arange(6.0, 12.0).view(2, 3).t()  # does not lie in one run
    return [torch.arange(6.0).view(2, 3), across, torch.tensor(12.0), torch.arange(13.0, 20.0).bfloat16()]


def numbers():
    return torch.cat([tensor.flatten().float() for tensor in tensors()])


@pytest.mark.parametrize(("start", "stop"), [(0, 20), (0, 1), (5, 7), (4, 14), (12, 13), (6, 12), (19, 20)])
def test_a_span_is_read_as_if_all_lay_in_one_run(start, stop):
    vector = FlatView(tensors())
    assert len(vector) == 20
    assert torch.equal(vector.read(slice(start, stop), torch.empty(stop - start)), numbers()[start:stop])


def test_beyond_the_end_are_zeros():
    read = FlatView(tensors()).read(slice(18, 24), torch.full([6], 7.0))
    assert read.tolist() == [18.0, 19.0, 0.0, 0.0, 0.0, 0.0]
    assert not FlatView(tensors()).read(slice(20, 24), torch.ones(4)).any()


@pytest.mark.parametrize(("start", "stop"), [(0, 20), (5, 7), (3, 14), (8, 24)])
def test_changes_reach_the_tensors(start, stop):
    given = tensors()
    vector = FlatView(given)
    span = slice(start, stop)
    vector.add(span, torch.ones(stop - start))
    vector.settle()
    expected = numbers()
    expected[span] += 1
    assert torch.equal(torch.cat([tensor.flatten().float() for tensor in given]), expected)
    vector.write(span, torch.full([stop - start], 3.0))
    vector.settle()
    expected[span] = 3
    assert torch.equal(torch.cat([tensor.flatten().float() for tensor in given]), expected)


def test_a_mixing_may_change_pieces_themselves():
    given = [torch.zeros(3), torch.zeros(2)]
    for place, piece in FlatView(given).pieces(slice(1, 4)):
        piece.copy_(torch.tensor([1.0, 2.0, 3.0])[place])
    assert [tensor.tolist() for tensor in given] == [[0.0, 1.0, 2.0], [3.0, 0.0]]
