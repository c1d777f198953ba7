import torch
from hypothesis import given
from hypothesis import strategies as st

from laconic.core.blocks import SMALLEST, block_pieces
from laconic.core.technique import Bucket

SIZES = st.lists(st.integers(1, 5000), min_size=1, max_size=6)


def _bucket(sizes):
    return Bucket(tuple(f"p{i}" for i in range(len(sizes))), tuple(sizes), torch.float32)


@given(sizes=SIZES, shards=st.integers(1, 9), width=st.sampled_from([64, 300, 5000]))
def test_blocks_cover_a_bucket_and_lie_one_behind_the_other(sizes, shards, width):
    at = 0
    for piece in block_pieces(_bucket(sizes), shards, block=256, width=width):
        assert piece.start == at
        at = piece.stop
        inside, room = 0, 0
        for block in piece.blocks:
            assert (block.start, block.at) == (inside, room)
            inside, room = block.start + block.numel, block.at + block.size
        assert inside == piece.numel
        assert room <= shards * piece.width < room + shards * SMALLEST
    assert at == sum(sizes)


@given(sizes=SIZES)
def test_padding_is_less_than_the_smallest_block_a_parameter(sizes):
    pieces = block_pieces(_bucket(sizes), 1, block=256, width=1 << 20)
    padding = sum(block.size - block.numel for piece in pieces for block in piece.blocks)
    assert 0 <= padding < SMALLEST * len(sizes)
    assert all(block.size & (block.size - 1) == 0 for piece in pieces for block in piece.blocks)


@given(sizes=SIZES, block=st.sampled_from([8, 64, 4096]))
def test_a_block_starts_at_a_multiple_of_its_size(sizes, block):
    """Kernels rely on it: a block's random words begin with a word, or it lies within one."""
    for piece in block_pieces(_bucket(sizes), 2, block=block, width=500):
        assert all(one.offset % one.size == 0 for one in piece.blocks)


def _by_parameter(pieces):
    return {(block.parameter, block.offset, block.size) for piece in pieces for block in piece.blocks}


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
    assert [(block.size, block.numel) for block in piece.blocks] == [(4096, 4096), (1024, 1024), (16, 10)]


def test_pieces_of_a_bucket_are_of_nearly_equal_size():
    pieces = block_pieces(_bucket([1_000_000, 30, 450_000]), 8, block=4096, width=16_384)
    sizes = [piece.numel for piece in pieces]
    assert len(sizes) == 11
    assert max(sizes) - min(sizes) <= 2 * 4096


def test_many_workers_waste_almost_nothing():
    sizes = [3136 * 1024, 1024, 64 * 32 * 9, 64, 32 * 9, 32]
    for shards in (1, 8, 1000):
        pieces = block_pieces(_bucket(sizes), shards, block=4096, width=(1 << 20) // shards)
        assert sum(piece.shards * piece.width for piece in pieces) <= 1.01 * sum(sizes)
