"""Parameters cut into blocks of a power of two, and blocks into pieces.

Blocks belong to one parameter and never depend on the bucket that it travels in, so a technique that works on
blocks gives the same result however DDP happens to bucket: before and after it rebuilds its buckets, and after a
resume. A parameter of 5130 coordinates is one block of 4096, one of 1024 and one of 16, the last with padding.

A piece's blocks lie one behind the other in its message space, `shards` rows of `width` coordinates. A row may end
inside a block: who combines a shard need not know of blocks.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from laconic.core.place import Route, Shards
from laconic.core.technique import Bucket, Piece
from laconic.numerics import rng

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SMALLEST = 8  # so that packed codes of any width fill whole bytes


class Block(NamedTuple):
    """`size` coordinates, filled with `numel` values from `start` of a piece on and zeros, `at` in its messages.

    `parameter` is a number for the parameter's name and `offset` the block's place in it: with them, randomness is
    the same whatever the bucket.
    """

    parameter: int
    offset: int
    start: int
    numel: int
    size: int
    at: int


@dataclass(frozen=True)
class BlockPiece(Piece):
    """A piece in blocks."""

    blocks: tuple[Block, ...] = ()

    def chart(self, device: torch.device) -> torch.Tensor:
        """The blocks as rows of a tensor, as kernels/thc describes them; made once a device."""
        if device not in self._charts:
            self._charts[device] = torch.tensor(self.blocks, device=device)
        return self._charts[device]

    @functools.cached_property
    def _charts(self) -> dict[torch.device, torch.Tensor]:
        return {}


def block_pieces(
    bucket: Bucket, shards: int, *, block: int, width: int, route: Route = Shards()
) -> list[BlockPiece]:
    """Pieces that cover `bucket` in blocks of at most `block`, nearly equal, with rows of about `width`."""
    blocks = list(_blocks(bucket, block))
    total = sum(block.size for block in blocks)
    count = max(1, round(total / (shards * max(1, width))))
    groups = itertools.groupby(blocks, lambda block: (block.at + block.size - 1) * count // total)
    return [_piece(bucket, shards, list(group), route) for _, group in groups]


def _blocks(bucket: Bucket, largest: int) -> Iterator[Block]:
    """The bucket's blocks, as if it were one piece."""
    start = at = 0
    for name, numel in zip(bucket.names, bucket.sizes, strict=True):
        parameter, offset = rng.number(name), 0
        while offset < numel:
            size = _size(numel - offset, largest)
            filled = min(size, numel - offset)
            yield Block(parameter, offset, start + offset, filled, size, at)
            offset += filled
            at += size
        start += numel


def _size(left: int, largest: int) -> int:
    """Of the next block of a parameter with so many coordinates left; only the last block has padding."""
    if SMALLEST < left < 2 * SMALLEST:
        return min(largest, 2 * SMALLEST)
    return min(largest, max(SMALLEST, 1 << left.bit_length() - 1))


def _piece(bucket: Bucket, shards: int, blocks: Sequence[Block], route: Route) -> BlockPiece:
    first, last = blocks[0], blocks[-1]
    total = last.at + last.size - first.at
    width = -(-total // (shards * SMALLEST)) * SMALLEST
    local = tuple(block._replace(start=block.start - first.start, at=block.at - first.at) for block in blocks)
    return BlockPiece(bucket, first.start, last.start + last.numel, shards, width, route, local)
