import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from laconic.core.technique import Bucket, Reading, even_pieces


@given(
    numel=st.integers(1, 10**6),
    shards=st.integers(1, 16),
    width=st.integers(1, 10**5),
    align=st.sampled_from([1, 8, 4096]),
)
def test_pieces_cover_a_bucket_without_gap_or_overlap(numel, shards, width, align):
    bucket = Bucket(("w",), (numel,), torch.float32)
    width = max(width, numel // 1000)
    pieces = even_pieces(bucket, shards, width=width, align=align)
    assert [piece.start for piece in pieces] == [0, *(piece.stop for piece in pieces[:-1])]
    assert pieces[-1].stop == numel
    for piece in pieces:
        assert piece.numel >= 1
        assert piece.width % align == 0
        assert piece.padding >= 0
        assert piece.shards == shards
    assert all(piece.padding == 0 for piece in pieces[:-1])


@given(numel=st.integers(10**4, 10**7), shards=st.integers(1, 16))
def test_no_piece_is_much_wider_than_asked(numel, shards):
    bucket = Bucket(("w",), (numel,), torch.float32)
    pieces = even_pieces(bucket, shards, width=1000)
    assert all(piece.width <= 2000 for piece in pieces)


def test_shares_of_numbers_and_tensors_are_those_that_are_finite():
    readings = {
        "numbers": Reading(3, 4.0),
        "tensors": Reading(torch.tensor(1.5), torch.tensor(2, dtype=torch.int64)),
        "of nothing": Reading(1.0, 0.0),
        "of an empty tensor": Reading(torch.tensor(0.0), torch.tensor(0.0)),
        "lost": Reading(math.nan, 1.0),
        "mixed": Reading(torch.tensor(0.5), 1),
    }
    assert Reading.shares(readings) == {"numbers": 0.75, "tensors": 0.75, "mixed": 0.5}
    assert Reading.shares({}) == {}
