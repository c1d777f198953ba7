import torch
from hypothesis import given
from hypothesis import strategies as st

from laconic.blocks import SMALLEST, block_pieces
from laconic.technique import Bucket

SIZES = st.lists(st.integers(1, 5000), min_size=1, max_size=6)


def _bucket(sizes):
    return Bucket(tuple(f"p{i}" for i in range(len(sizes))), tuple(sizes), torch.float32)


@given(sizes=SIZES, shards=st.integers(1, 9), width=st.sampled_from([64, 300, 5000]))
def test_runs_cover_a_bucket_and_fit_their_rows(sizes, shards, width):
    at = 0
    for piece in block_pieces(_bucket(sizes), shards, block=256, width=width):
        assert piece.start == at
        at = piece.stop
        inside, room = 0, 0
        for run in piece.runs:
            assert run.span.start == inside
            assert room <= run.at
            assert run.spot.stop <= shards * piece.width
            inside, room = run.span.stop, run.spot.stop
            starts = range(run.at, run.spot.stop, run.block)
            assert all(first // piece.width == (first + run.block - 1) // piece.width for first in starts)
        assert inside == piece.numel
    assert at == sum(sizes)


@given(sizes=SIZES)
def test_padding_is_less_than_the_smallest_block_a_parameter(sizes):
    pieces = block_pieces(_bucket(sizes), 1, block=256, width=1 << 20)
    padding = sum(run.padded - run.numel for piece in pieces for run in piece.runs)
    assert 0 <= padding < SMALLEST * len(sizes)
    assert all(run.block & (run.block - 1) == 0 for piece in pieces for run in piece.runs)


def _by_parameter(pieces):
    """Every block of every parameter: its parameter, place and size."""
    return {
        (run.parameter, run.offset + k * run.block, run.block)
        for piece in pieces
        for run in piece.runs
        for k in range(run.count)
    }


@given(sizes=SIZES, shards=st.integers(1, 9))
def test_blocks_do_not_depend_on_bucket_piece_or_shard(sizes, shards):
    together = _by_parameter(block_pieces(_bucket(sizes), shards, block=256, width=300))
    apart = set()
    for name, size in zip(_bucket(sizes).names, sizes, strict=True):
        alone = Bucket((name,), (size,), torch.float32)
        apart |= _by_parameter(block_pieces(alone, 1, block=256, width=1 << 20))
    assert together == apart


def test_a_parameter_falls_into_descending_powers_of_two():
    (piece,) = block_pieces(_bucket([5130]), 1, block=4096, width=1 << 20)
    assert [(run.block, run.count, run.numel) for run in piece.runs] == [
        (4096, 1, 4096),
        (1024, 1, 1024),
        (16, 1, 10),
    ]


def test_large_parameters_waste_almost_nothing():
    sizes = [3136 * 1024, 1024, 64 * 32 * 9, 64, 32 * 9, 32]
    pieces = block_pieces(_bucket(sizes), 8, block=4096, width=65536)
    assert sum(piece.shards * piece.width for piece in pieces) <= 1.01 * sum(sizes)
