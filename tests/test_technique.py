import torch
from hypothesis import given
from hypothesis import strategies as st

from laconic.technique import Bucket, even_pieces


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
