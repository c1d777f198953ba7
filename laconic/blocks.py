"""Parameters cut into blocks of a power of two, and blocks into pieces and shards.

Blocks belong to one parameter and never depend on the bucket that it travels in, so a technique that works on
blocks gives the same result however DDP happens to bucket: before and after it rebuilds its buckets, and after a
resume. A parameter of 5130 coordinates is one block of 4096, one of 1024 and one of 16, the last with padding.

A piece's message space has `shards` rows of `width` coordinates, one behind the other; no block lies across the
end of a row.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from laconic.technique import Bucket, Piece

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SMALLEST = 8  # so that packed codes of any width fill whole bytes


@dataclass(frozen=True)
class Run:
    """`count` blocks of `block` coordinates, from `start` of a piece on, filled with `numel` values and zeros.

    `parameter` is a number for the parameter's name and `offset` the run's place in it: with them, randomness is
    the same whatever the bucket.
    """

    parameter: int
    offset: int
    start: int
    numel: int
    block: int
    count: int
    at: int = 0

    @property
    def padded(self) -> int:
        """Coordinates that the run takes in a message."""
        return self.block * self.count

    @property
    def span(self) -> slice:
        """Where the run's values lie in its piece."""
        return slice(self.start, self.start + self.numel)

    @property
    def spot(self) -> slice:
        """Where the run lies in its piece's message space."""
        return slice(self.at, self.at + self.padded)

    def chart(self) -> torch.Tensor:
        """A row for every block: parameter, offset, start, numel, size, at."""
        begin = torch.arange(0, self.padded, self.block)
        columns = [
            torch.full_like(begin, self.parameter),
            begin + self.offset,
            begin + self.start,
            (self.numel - begin).clamp(max=self.block),
            torch.full_like(begin, self.block),
            begin + self.at,
        ]
        return torch.stack(columns, dim=1)


@dataclass(frozen=True)
class BlockPiece(Piece):
    """A piece in runs of blocks."""

    runs: tuple[Run, ...] = ()

    @property
    def blocks(self) -> int:
        """How many blocks the piece has."""
        return sum(run.count for run in self.runs)

    def chart(self, device: torch.device) -> torch.Tensor:
        """A row for every block, as kernels/thc.py describes them; made once a device."""
        if device not in self._charts:
            self._charts[device] = torch.cat([run.chart() for run in self.runs]).to(device)
        return self._charts[device]

    @functools.cached_property
    def _charts(self) -> dict[torch.device, torch.Tensor]:
        return {}


def block_pieces(bucket: Bucket, shards: int, *, block: int, width: int) -> list[BlockPiece]:
    """Pieces that cover `bucket` in blocks of at most `block`, with rows of about `width` coordinates."""
    return [_piece(bucket, shards, blocks) for blocks in _groups([*_blocks(bucket, block)], shards * width)]


def _blocks(bucket: Bucket, largest: int) -> Iterator[Run]:
    start = 0
    for name, size in zip(bucket.names, bucket.sizes, strict=True):
        parameter, offset = zlib.crc32(name.encode()), 0
        while offset < size:
            block = min(largest, max(SMALLEST, 1 << (size - offset).bit_length() - 1))
            if size - offset < 2 * SMALLEST:
                block = SMALLEST if size - offset <= SMALLEST else 2 * SMALLEST
            numel = min(block, size - offset)
            yield Run(parameter, offset, start + offset, numel, block, 1)
            offset += numel
        start += size


def _groups(blocks: Sequence[Run], most: int) -> Iterator[list[Run]]:
    """The blocks in their order, in groups of nearly equal size, of about `most` coordinates."""
    total = sum(block.block for block in blocks)
    share = total / max(1, round(total / most))
    for _, group in itertools.groupby(_with_ends(blocks), lambda item: min(item[0] - 1, total - 1) // share):
        yield [block for _, block in group]


def _with_ends(blocks: Iterable[Run]) -> Iterator[tuple[int, Run]]:
    end = 0
    for block in blocks:
        end += block.block
        yield end, block


def _piece(bucket: Bucket, shards: int, blocks: Sequence[Run]) -> BlockPiece:
    width, start = _narrowest(blocks, shards), blocks[0].start
    local = [replace(block, start=block.start - start) for block in blocks]
    runs = tuple(_joined(_placed(local, width)))
    return BlockPiece(bucket, start, start + runs[-1].span.stop, shards, width, runs)


def _narrowest(blocks: Sequence[Run], shards: int) -> int:
    """The least width at which the blocks, in order, fit into the rows."""
    total = sum(block.block for block in blocks)
    width = max(-(-total // shards), *(block.block for block in blocks))
    width = -(-width // SMALLEST) * SMALLEST
    while _placed(blocks, width)[-1].spot.stop > shards * width:
        width += SMALLEST
    return width


def _placed(blocks: Sequence[Run], width: int) -> list[Run]:
    """The blocks one behind the other, none across the end of a row."""
    placed, at = [], 0
    for block in blocks:
        if at // width != (at + block.block - 1) // width:
            at = -(-at // width) * width
        placed.append(replace(block, at=at))
        at += block.block
    return placed


def _joined(blocks: Iterable[Run]) -> Iterator[Run]:
    """Neighbours of one size and parameter as one run."""
    blocks = iter(blocks)
    run = next(blocks)
    for block in blocks:
        if (run.parameter, run.block, run.spot.stop) == (block.parameter, block.block, block.at):
            run = replace(run, numel=run.numel + block.numel, count=run.count + 1)
        else:
            yield run
            run = block
    yield run
