"""THC: sum the codes, not the gradients (Li et al., "THC: Accelerating Distributed Deep Learning Using Tensor
Homomorphic Compression", NSDI 2024, arXiv 2302.08545).

Workers agree on one grid, send small codes, and the aggregator adds integers: it looks every code up in a table
and never sees a float. For each block of d coordinates, with x = gradient + residual:

    survey   ‖x‖; the largest of all workers, M, sets the block's scale
    encode   r = H D x (rotation.py), D signs that all workers share, fresh every step
             y = (r·√d/M + t)·g/2t, clamped to 0…g; rounded to a neighbour in the table T with a noise that is
             the worker's own; residual = x - D H (what the codes say), so it keeps what was clamped and rounded
    combine  Y = Σ T[code], and how many workers contributed
    decode   D H ((Y/count - g/2)·(2t/g)·M/√d)

Norms are taken per block, so that layers of different scale do not spoil each other. An infinite norm stands for
a gradient that is not finite; M = 0 gives zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from laconic import bits as packing
from laconic import quantize, rng, rotation
from laconic.blocks import BlockPiece, Run, block_pieces
from laconic.places import Peers, Place
from laconic.technique import PIECE_BYTES, Bucket, Capability, Messages, Turn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LANES = range(8, 17)
COUNT_BYTES = 2


class Grid(NamedTuple):
    """What codes stand for among a number of workers: code k is the integer table[k] of 0…granularity."""

    table: tuple[int, ...]
    granularity: int
    threshold: float
    lane: int


@dataclass(frozen=True)
class THC:
    """Codes of `bits` bits up, sums of `lane` bits down.

    `granularity` is the grid's number of steps; the widest that the lane holds for the workers at hand, unless
    given. `lane` is the reply's bits a coordinate: 8 where they are enough, more for many workers, unless given.
    `tail` is the share of coordinates that is clamped; with error feedback a large one pays. `uniform` makes every
    integer of the grid a code.
    """

    bits: int = 4
    granularity: int | None = None
    tail: float = 1 / 32
    error_feedback: bool = True
    block: int = 4096
    seed: int = 0
    lane: int | None = None
    uniform: bool = False
    place: Place = Peers()

    needs: ClassVar[Capability] = Capability.COMBINE | Capability.SUM
    varies: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.bits not in range(2, 9):
            raise ValueError(f"bits is {self.bits}; use 2 to 8")
        if not 0 < self.tail < 1:
            raise ValueError(f"tail is {self.tail}; use a share between 0 and 1, such as 1/32")
        if self.block < 8 or self.block & (self.block - 1):
            raise ValueError(f"block is {self.block}; use a power of two, at least 8")
        if self.lane is not None and self.lane not in LANES:
            raise ValueError(f"lane is {self.lane}; use 8 to 16 bits")
        self._check_granularity()

    def _check_granularity(self) -> None:
        least = 2**self.bits - 1
        if self.granularity is None:
            return
        if self.uniform and self.granularity != least:
            raise ValueError(
                f"granularity {self.granularity} is not uniform with {self.bits} bits; use {least}"
            )
        if self.granularity < least:
            raise ValueError(
                f"granularity {self.granularity} gives two of the {least + 1} codes the same value; "
                f"use at least {least}"
            )

    @property
    def remembers(self) -> tuple[str, ...]:
        """The residual, unless it is switched off."""
        return ("residual",) if self.error_feedback else ()

    def grid(self, workers: int) -> Grid:
        """The grid that `workers` workers use."""
        least = self.granularity or 2**self.bits - 1
        lane = self.lane or next((lane for lane in LANES if 2**lane > least * workers), LANES[-1])
        widest = (2**lane - 1) // workers
        if widest < least:
            raise ValueError(
                f"granularity {least} with {workers} workers sums to {least * workers}, beyond a lane of "
                f"{lane} bits; use {self._remedy(workers)}"
            )
        granularity = self.granularity or (2**self.bits - 1 if self.uniform else widest)
        table = (
            quantize.uniform_table(self.bits)
            if self.uniform
            else quantize.optimal_table(self.bits, granularity, self.tail)
        )
        return Grid(table, granularity, quantize.tail_threshold(self.tail), lane)

    def _remedy(self, workers: int) -> str:
        least = 2**self.bits - 1
        if self.lane is not None and least * workers < 2 ** LANES[-1]:
            return f"a lane of at least {(least * workers).bit_length()} bits"
        return f"a granularity of at most {(2 ** LANES[-1] - 1) // workers}, or fewer bits"

    def cut(self, bucket: Bucket, workers: int) -> Sequence[BlockPiece]:
        """Pieces whose replies are of a good size to send."""
        width = PIECE_BYTES * 8 // (self.grid(workers).lane * workers)
        return block_pieces(bucket, workers, block=self.block, width=width)

    def survey(self, turn: Turn, grad: torch.Tensor) -> torch.Tensor:
        """The norm of every block, infinite where it is not finite."""
        exact = self._exact(turn, grad)
        norms = torch.cat([_rows(exact, run).norm(dim=1) for run in _runs(turn)])
        return torch.where(norms.isfinite(), norms, torch.inf)  # a maximum might lose a NaN

    def encode(self, turn: Turn, grad: torch.Tensor) -> Messages:
        """The packed codes of every shard."""
        piece, grid, exact = turn.piece, self.grid(turn.piece.shards), self._exact(turn, grad)
        table = torch.tensor(grid.table, device=grad.device)
        codes = table.new_zeros(piece.shards * piece.width)
        for run, norms in _with_norms(turn):
            signs = self._signs(turn, run, grad.device)
            rotated = rotation.rotate(_rows(exact, run), signs)
            rounded = self._round(turn, run, rotated, norms, grid)
            codes[run.spot] = rounded.flatten()
            if self.error_feedback:
                said = rotation.rotate_back(_values(table[rounded].float(), norms, grid), signs)
                turn.memory["residual"].new[run.span] = exact[run.span] - said.flatten()[: run.numel]
        return packing.pack(codes.view(piece.shards, piece.width), self.bits)

    def combine(self, turn: Turn, messages: Messages) -> torch.Tensor:
        """The sums of the codes' integers, packed, and behind them the number of contributors."""
        assert isinstance(messages, torch.Tensor)
        grid, width = self.grid(turn.piece.shards), turn.piece.width
        codes = packing.unpack(messages, self.bits, width)
        sums = torch.tensor(grid.table, device=messages.device)[codes].sum(0, keepdim=True)
        count = torch.tensor([[len(messages)]], device=messages.device)
        return torch.cat([packing.pack(sums, grid.lane), packing.pack(count, 8 * COUNT_BYTES)], dim=1)[0]

    def decode(self, turn: Turn, replies: Messages, grad: torch.Tensor) -> None:
        """`grad` is the mean of what the contributors' codes say."""
        assert isinstance(replies, torch.Tensor)
        grid = self.grid(turn.piece.shards)
        sums = packing.unpack(replies[:, :-COUNT_BYTES], grid.lane, turn.piece.width)
        counts = packing.unpack(replies[:, -COUNT_BYTES:], 8 * COUNT_BYTES, 1)
        means = (sums.float() / counts.float()).flatten()
        for run, norms in _with_norms(turn):
            values = _values(means[run.spot].view(-1, run.block), norms, grid)
            rows = rotation.rotate_back(values, self._signs(turn, run, grad.device))
            grad[run.span] = rows.flatten()[: run.numel].to(grad.dtype)

    def _exact(self, turn: Turn, grad: torch.Tensor) -> torch.Tensor:
        return grad + turn.memory["residual"].old if self.error_feedback else grad.float()

    def _round(
        self, turn: Turn, run: Run, rotated: torch.Tensor, norms: torch.Tensor, grid: Grid
    ) -> torch.Tensor:
        scale = torch.where(norms > 0, grid.granularity / (2 * grid.threshold) * run.block**0.5 / norms, 0.0)
        heights = (
            (rotated * scale.unsqueeze(1) + grid.granularity / 2).nan_to_num(0.0).clamp(0, grid.granularity)
        )
        table = torch.tensor(grid.table, device=rotated.device)
        below = (torch.searchsorted(table, heights.long(), right=True) - 1).clamp(max=len(table) - 2)
        low, high = table[below], table[below + 1]
        key = rng.own(self.seed, turn.step, turn.worker, run.parameter)
        noise = rng.uniform(key, run.padded, run.offset, rotated.device).view_as(rotated)
        return below + (heights - low > noise * (high - low))

    def _signs(self, turn: Turn, run: Run, device: torch.device) -> torch.Tensor:
        key = rng.shared(self.seed, turn.step, run.parameter)
        return rng.signs(key, run.padded, run.offset, device).view(-1, run.block)


def _runs(turn: Turn) -> tuple[Run, ...]:
    assert isinstance(turn.piece, BlockPiece)
    return turn.piece.runs


def _with_norms(turn: Turn) -> Iterator[tuple[Run, torch.Tensor]]:
    """Every run with the norms of its blocks, the largest of all workers'."""
    assert turn.agreed is not None
    runs = _runs(turn)
    return zip(runs, turn.agreed.split([run.count for run in runs]), strict=True)


def _rows(values: torch.Tensor, run: Run) -> torch.Tensor:
    """The run's blocks, padded with zeros, one a row."""
    return torch.nn.functional.pad(values[run.span], (0, run.padded - run.numel)).view(-1, run.block)


def _values(heights: torch.Tensor, norms: torch.Tensor, grid: Grid) -> torch.Tensor:
    """What rows of heights on the grid stand for: not a number where the norm is infinite."""
    step = norms * (2 * grid.threshold / grid.granularity / heights.shape[1] ** 0.5)
    return (heights - grid.granularity / 2) * torch.where(step.isfinite(), step, torch.nan).unsqueeze(1)
