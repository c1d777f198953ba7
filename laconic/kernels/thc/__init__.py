"""THC's ops: the norms of blocks, their codes, sums of codes, and what the sums say.

A chart has a row for every block of a piece, with the columns

    parameter   the parameter's number, for its randomness
    offset      the block's place in the parameter
    start       its place in the piece's gradient
    numel       how many of its coordinates are there; the others are zeros
    size        d, its coordinates, a power of two
    at          its place in the piece's messages, `width` coordinates a shard, one shard behind the other

With x = gradient + residual, M the agreed norm, T the table of integers from 0 to g, t the threshold:

    y      = 256 · (g/2 + g/2t · H D x √d / M), clamped to 0…256 g, to the nearest integer
    code   = the k with T[k] ≤ y/256 ≤ T[k+1], or the next: with probability (y/256 - T[k]) / (T[k+1] - T[k])
    said   = D H (T[code] - g/2) · 2t/g · M/√d

From y on everything is integer arithmetic up to one product, so every backend gives the same bits: twice
T[code] - g/2 is an integer, and so are its butterflies' sums. √d H is the transform without its scale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from laconic.kernels import op
from laconic.numerics import bits as packing
from laconic.numerics import rng
from laconic.numerics.hadamard import hadamard

if TYPE_CHECKING:
    from collections.abc import Iterator

PARAMETER, OFFSET, START, NUMEL, SIZE, AT = range(6)
COUNT_BYTES = 4  # so that replies of bytes are words
ERROR, ENERGY, CLAMPED, COORDINATES = range(4)
UNIT = 256
"""Steps of y between neighbours of the grid."""
TINY = 2.0**-90
"""Norms below it count as zero, so that no scale overflows."""


@op("norms")
def thc_norms(
    grad: torch.Tensor, residual: torch.Tensor | None, chart: torch.Tensor, norms: torch.Tensor
) -> None:
    """`norms` are the blocks' norms, infinite where one is not finite."""
    exact = _exact(grad, residual)
    for block in _blocks(chart):
        norms[block.rows] = block.take(exact).norm(dim=1)
    norms.copy_(torch.where(norms.isfinite(), norms, torch.inf))  # a maximum might lose a NaN


@op("codes", "new", "quality")
def thc_encode(
    grad: torch.Tensor,
    residual: torch.Tensor | None,
    norms: torch.Tensor,
    chart: torch.Tensor,
    table: torch.Tensor,
    granularity: int,
    threshold: float,
    shared: int,
    own: int,
    bits: int,
    every: int,
    codes: torch.Tensor,
    new: torch.Tensor | None,
    quality: torch.Tensor,
) -> None:
    """`codes` are the packed codes, `new` what they do not say.

    `codes` come as zeros, and stay so where no block lies. `quality` has for a sample of blocks the squared error,
    the squared length, how many coordinates lay at or beyond the threshold, and of how many; zeros for the others.
    Block k is in the sample if `every` divides k + `own`, so that it is another one in every step.
    """
    sample = (torch.arange(len(chart), device=chart.device) + own) % every == 0
    exact, chosen = _exact(grad, residual), table.new_zeros(codes.numel() * 8 // bits)
    for block in _blocks(chart):
        x, norm, signs = block.take(exact), norms[block.rows, None], block.signs(shared)
        scale = torch.where(norm > TINY, norm.new_tensor(UNIT * granularity / (2 * threshold)) / norm, 0.0)
        height = hadamard(x * signs) * scale + (UNIT * granularity / 2 + 0.5)
        y = height.nan_to_num(0.0).clamp(0, UNIT * granularity).long()
        rounded = _round(y, table, block.noise(own))
        chosen[block.at] = rounded
        step = norm * norm.new_tensor(2 * threshold / granularity) * (0.5 / block.size)
        left = x - hadamard(2 * table[rounded].int() - granularity) * step * signs
        left = torch.where(block.filled, left, 0.0)
        if new is not None:
            new[block.index[block.filled]] = left[block.filled]
        clamped = ((y == 0) | (y == UNIT * granularity)).sum(1)
        lengths = [left.square().sum(1), x.square().sum(1)]
        measured = torch.stack([*lengths, clamped, torch.full_like(clamped, block.size)], dim=1)
        quality[block.rows] = torch.where(sample[block.rows, None], measured, 0.0)
    codes.copy_(packing.pack(chosen.view(len(codes), -1), bits))


@op("reply")
def thc_combine(
    messages: torch.Tensor, table: torch.Tensor, bits: int, lane: int, reply: torch.Tensor
) -> None:
    """`reply` has the sums of the codes' integers, packed, and behind them the number of messages."""
    width = messages.shape[1] * 8 // bits
    sums = table[packing.unpack(messages, bits, width)].sum(0, keepdim=True)
    reply[:-COUNT_BYTES] = packing.pack(sums, lane)[0]
    reply[-COUNT_BYTES:] = packing.pack(sums.new_tensor([[len(messages)]]), 8 * COUNT_BYTES)[0]


@op("grad")
def thc_decode(
    replies: torch.Tensor,
    norms: torch.Tensor,
    chart: torch.Tensor,
    granularity: int,
    threshold: float,
    shared: int,
    lane: int,
    grad: torch.Tensor,
) -> None:
    """`grad` is the mean of what the contributors' codes say; all replies have as many."""
    width = (replies.shape[1] - COUNT_BYTES) * 8 // lane
    sums = packing.unpack(replies[:, :-COUNT_BYTES], lane, width).flatten()
    counts = packing.unpack(replies[:, -COUNT_BYTES:], 8 * COUNT_BYTES, 1).flatten().tolist()
    if len(set(counts)) > 1:
        raise ValueError("the shards of a piece have different numbers of contributors")
    if not 0 < counts[0] * granularity < 2**lane:
        raise ValueError(f"{counts[0]} contributors have no sums in lanes of {lane} bits")
    count = norms.new_tensor(counts[0])  # as a scalar, CUDA would multiply by its rounded inverse
    share = norms.new_tensor(2 * threshold / granularity) / count
    for block in _blocks(chart):
        step = norms[block.rows, None] * share * (0.5 / block.size)
        said = hadamard(2 * sums[block.at].int() - counts[0] * granularity) * step * block.signs(shared)
        grad[block.index[block.filled]] = said[block.filled].to(grad.dtype)


class _Blocks:
    """The chart's blocks of one size: `rows` are their places in it."""

    def __init__(self, chart: torch.Tensor, rows: torch.Tensor, size: int) -> None:
        inside = torch.arange(size, device=chart.device)
        self.rows, self.size, self._chart = rows, size, chart[rows]
        self.at = self._chart[:, AT, None] + inside
        self.index = self._chart[:, START, None] + inside
        self.filled = inside < self._chart[:, NUMEL, None]

    def take(self, values: torch.Tensor) -> torch.Tensor:
        """The blocks' values, one block a row."""
        return torch.where(self.filled, values[self.index.clamp(max=len(values) - 1)], 0.0)

    def signs(self, key: int) -> torch.Tensor:
        """The blocks' signs."""
        keys = rng.branch(key, self._chart[:, PARAMETER])
        return rng.signs(keys, self.size, self._chart[:, OFFSET], keys.device)

    def noise(self, key: int) -> torch.Tensor:
        """Integers below 2^16 for the blocks' rounding."""
        keys = rng.branch(key, self._chart[:, PARAMETER])
        return rng.halves(keys, self.size, self._chart[:, OFFSET], keys.device)


def _blocks(chart: torch.Tensor) -> Iterator[_Blocks]:
    for size in chart[:, SIZE].unique().tolist():
        yield _Blocks(chart, (chart[:, SIZE] == size).nonzero().flatten(), size)


def _exact(grad: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
    return grad.float() if residual is None else grad.float() + residual


def _round(y: torch.Tensor, table: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The codes between which y lies, one or the other by the noise."""
    below = (torch.searchsorted(table, y // UNIT, right=True) - 1).clamp(max=len(table) - 2)
    low, width = UNIT * table[below], UNIT * (table[below + 1] - table[below])
    return below + (y - low > (noise * width >> 16))
