"""THC: sum the codes, not the gradients (Li et al., "THC: Accelerating Distributed Deep Learning Using Tensor
Homomorphic Compression", NSDI 2024, arXiv 2302.08545).

Workers agree on one grid, send small codes, and the aggregator adds integers: it looks every code up in a table
and never sees a float. For each block of d coordinates, with x = gradient + residual:

    survey   ‖x‖; the largest of all workers, M, sets the block's scale
    encode   r = H D x (numerics/hadamard.py), D signs that all workers share, fresh every step
             y = (r·√d/M + t)·g/2t, clamped to 0…g; rounded to a neighbour in the table T with a noise that is
             the worker's own; residual = x - D H (what the codes say), so it keeps what was clamped and rounded
    combine  Y = Σ T[code], and how many workers contributed
    decode   D H ((Y/count - g/2)·(2t/g)·M/√d)

Norms are taken per block, so that layers of different scale do not spoil each other. An infinite norm stands for
a gradient that is not finite; M = 0 gives zeros.

With `entropy`, codes and sums travel close to their entropy, with a checksum (thc.py): the result is the same.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from laconic.core import checks
from laconic.core.blocks import BlockPiece, block_pieces
from laconic.core.technique import PIECE_BYTES, Bucket, Capability, Memory, Messages, Nothing, Reading, Turn
from laconic.kernels import thc as kernels
from laconic.messages import thc
from laconic.numerics import rng, thc_grid
from laconic.places.peers import Peers, Place

if TYPE_CHECKING:
    from collections.abc import Sequence

LANES = range(8, 17)
LARGEST = 1 << 15  # sums of 16-bit lanes over a block stay within 32 bits
SAMPLE = 8  # readings are of one block in so many, where there are many
WIDEST = 1023  # a finer grid gains nothing and its table takes long to find


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

    `entropy` makes messages shorter and changes nothing else. For 4 and 8 workers' normal values, sums of 8 bits take
    3.8 and 4.8 for codes of 2 bits, 5.7 and 6.4 for 3, 6.9 and 6.4 for 4; codes of 2 bits take 1.75, others 3 to 5 %
    less than their bits, or a fifth less where workers' norms differ much. Sums in lanes of more than 8 bits travel
    as they are. It takes about 15 ns a coordinate on the CPU, so it pays up to about 100 Mbit/s for codes of 4 bits,
    and up to 500 Mbit/s for 2.
    """

    bits: int = 4
    granularity: int | None = None
    tail: float = 1 / 32
    error_feedback: bool = True
    block: int = 4096
    seed: int = 0
    lane: int | None = None
    uniform: bool = False
    entropy: bool = False
    place: Place = Peers()

    def __post_init__(self) -> None:
        for name in ("bits", "granularity", "block", "seed", "lane"):
            value = getattr(self, name)
            if not isinstance(value, int | None):
                raise TypeError(f"{name} is {value!r}; use an integer")
        if self.bits not in range(2, 9):
            raise ValueError(f"bits is {self.bits}; use 2 to 8")
        if not 0 < self.tail < 1:
            raise ValueError(f"tail is {self.tail}; use a share between 0 and 1, such as 1/32")
        if not 1e-15 < self.tail < 0.999:
            raise ValueError(f"tail is {self.tail}, which leaves no grid; use a share such as 1/32")
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"seed is {self.seed}; use one of 64 bits")
        if not 8 <= self.block <= LARGEST or self.block & (self.block - 1):
            raise ValueError(f"block is {self.block}; use a power of two from 8 to {LARGEST}")
        if self.lane is not None and self.lane not in LANES:
            raise ValueError(f"lane is {self.lane}; use 8 to 16 bits")
        checks.flag("entropy", self.entropy)
        self._check_granularity()

    def _check_granularity(self) -> None:
        least = 2**self.bits - 1
        if self.granularity is None:
            return
        if self.uniform and self.granularity != least:
            raise ValueError(
                f"granularity {self.granularity} is not uniform with {self.bits} bits; use {least}"
            )
        if self.granularity > WIDEST:
            raise ValueError(f"granularity is {self.granularity}; use at most {WIDEST}")
        if self.granularity < least:
            raise ValueError(
                f"granularity {self.granularity} gives two of the {least + 1} codes the same value; "
                f"use at least {least}"
            )

    @property
    def needs(self) -> Capability:
        """Integers of a fixed width can be added by whoever can add; coded ones cannot."""
        return Capability.COMBINE if self.entropy else Capability.COMBINE | Capability.SUM

    @property
    def varies(self) -> bool:
        """Only coded messages."""
        return self.entropy

    @property
    def remembers(self) -> tuple[str, ...]:
        """The residual, unless it is switched off."""
        return ("residual",) if self.error_feedback else ()

    def grid(self, workers: int) -> Grid:
        """The grid that `workers` workers use."""
        least = self.granularity or 2**self.bits - 1
        lane = self.lane or next((lane for lane in LANES if 2**lane > least * workers), LANES[-1])
        widest = min(WIDEST, (2**lane - 1) // workers)
        if widest < least:
            raise ValueError(
                f"granularity {least} with {workers} workers sums to {least * workers}, beyond a lane of "
                f"{lane} bits; use {_remedy(least, workers, 2**self.bits - 1)}"
            )
        granularity = self.granularity or (2**self.bits - 1 if self.uniform else widest)
        table = (
            thc_grid.uniform_table(self.bits)
            if self.uniform
            else thc_grid.optimal_table(self.bits, granularity, self.tail)
        )
        return Grid(table, granularity, thc_grid.tail_threshold(self.tail), lane)

    def cut(self, bucket: Bucket, workers: int) -> Sequence[BlockPiece]:
        """Pieces of about a mebibyte down: three transfers each, so larger than those of one that needs two."""
        width = 2 * PIECE_BYTES * 8 // (self.grid(workers).lane * workers)
        return block_pieces(bucket, workers, block=self.block, width=width)

    def survey(self, turn: Turn, grad: torch.Tensor) -> torch.Tensor:
        """The norm of every block."""
        chart = _chart(turn, grad)
        norms = grad.new_empty(len(chart), dtype=torch.float32)
        kernels.thc_norms(grad, self._residual(turn).old, chart, norms)
        return norms

    def encode(self, turn: Turn, grad: torch.Tensor) -> Messages:
        """The packed codes of every shard."""
        assert turn.agreed is not None
        piece, grid = turn.piece, self.grid(turn.piece.shards)
        chart, residual = _chart(turn, grad), self._residual(turn)
        codes = grad.new_zeros(piece.shards, piece.width * self.bits // 8, dtype=torch.uint8)
        quality = grad.new_empty(len(chart), 4, dtype=torch.float32)
        kernels.thc_encode(
            grad,
            residual.old,
            turn.agreed,
            chart,
            _table_on(grid.table, grad.device),
            grid.granularity,
            grid.threshold,
            rng.shared(self.seed, turn.step),
            rng.own(self.seed, turn.step, turn.worker),
            self.bits,
            1 if len(chart) < SAMPLE**2 else SAMPLE,
            codes,
            residual.new,
            quality,
        )
        turn.readings.update(_readings(turn.agreed, quality))
        if not self.entropy:
            return codes
        messages = self._coded(turn).seal_codes(codes.cpu())
        turn.readings["bits up"] = Reading(8.0 * sum(map(len, messages)), piece.numel)
        return messages

    def combine(self, turn: Turn, messages: Messages) -> torch.Tensor:
        """The sums of the codes' integers, packed, and behind them the number of contributors."""
        if self.entropy:
            return self._coded(turn).add(messages, turn.worker).to(messages[0].device)
        assert isinstance(messages, torch.Tensor)
        grid = self.grid(turn.piece.shards)
        assert len(messages) * grid.granularity < 2**grid.lane, "the sums do not fit their lanes"
        reply = messages.new_empty(turn.piece.width * grid.lane // 8 + kernels.COUNT_BYTES)
        kernels.thc_combine(messages, _table_on(grid.table, messages.device), self.bits, grid.lane, reply)
        return reply

    def decode(self, turn: Turn, replies: Messages, grad: torch.Tensor) -> None:
        """`grad` is the mean of what the contributors' codes say."""
        if self.entropy:
            turn.readings["bits down"] = Reading(8.0 * sum(map(len, replies)), turn.piece.numel)
            replies = self._coded(turn).unseal_sums(replies).to(grad.device)
        assert isinstance(replies, torch.Tensor)
        assert turn.agreed is not None
        grid, key = self.grid(turn.piece.shards), rng.shared(self.seed, turn.step)
        kernels.thc_decode(
            replies, turn.agreed, _chart(turn, grad), grid.granularity, grid.threshold, key, grid.lane, grad
        )

    def _coded(self, turn: Turn) -> thc.CodedSums:
        assert isinstance(turn.piece, BlockPiece)
        grid = self.grid(turn.piece.shards)
        return thc.CodedSums(grid.table, self.bits, grid.lane, turn.piece)

    def _residual(self, turn: Turn) -> Memory | Nothing:
        return turn.memory["residual"] if self.error_feedback else Nothing()


def _remedy(granularity: int, workers: int, smallest: int) -> str:
    """What makes the sums of so many workers fit a lane."""
    needed = (granularity * workers).bit_length()
    widest = (2 ** LANES[-1] - 1) // workers
    if needed <= LANES[-1]:
        return f"a lane of at least {needed} bits"
    return f"a granularity of at most {widest}" if widest >= smallest else "fewer bits"


def _chart(turn: Turn, grad: torch.Tensor) -> torch.Tensor:
    assert isinstance(turn.piece, BlockPiece)
    return turn.piece.chart(grad.device)


@functools.cache
def _table_on(table: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.tensor(table, device=device)


def _readings(agreed: torch.Tensor, quality: torch.Tensor) -> dict[str, Reading]:
    """How well this worker's codes say what it has."""
    error, energy, clamped, coordinates = quality.sum(0)
    sampled = quality[:, kernels.COORDINATES] > 0
    return {
        "own error": Reading(error, energy),
        "clamped": Reading(clamped, coordinates),
        "norm spread": Reading(torch.where(sampled, agreed, 0.0).square().sum(), energy),
    }
