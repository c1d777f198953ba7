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

With `entropy`, codes and sums travel close to their entropy (messages/thc.py): the result is the same.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from laconic.core import checks
from laconic.core.blocks import BlockPiece, block_pieces
from laconic.core.place import Capability, Messages, Route, Shards, Sum
from laconic.core.technique import Bucket, Cell, Desk, Nothing, Piece, Reading, Scheme, Setting, Slot, Turn
from laconic.kernels import thc as kernels
from laconic.messages.seals import blank
from laconic.messages.thc import CodedSums
from laconic.numerics import bits, rng, thc_grid
from laconic.numerics.damage import DamagedMessage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LANES = range(8, 17)
LANE_TYPES = {8: torch.uint8, 16: torch.int16}
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

    reads: ClassVar[str] = "gradients"

    def __post_init__(self) -> None:
        for name in ("bits", "granularity", "block", "lane"):
            checks.integer(name, getattr(self, name))
        checks.seed(self.seed)
        if self.bits not in range(2, 9):
            raise ValueError(f"bits is {self.bits}; use 2 to 8")
        if not 0 < checks.number("tail", self.tail) < 1:
            raise ValueError(f"tail is {self.tail}; use a share between 0 and 1, such as 1/32")
        if not 1e-15 < self.tail < 0.999:
            raise ValueError(f"tail is {self.tail}, which leaves no grid; use a share such as 1/32")
        if not 8 <= self.block <= LARGEST or self.block & (self.block - 1):
            raise ValueError(f"block is {self.block}; use a power of two from 8 to {LARGEST}")
        if self.lane is not None and self.lane not in LANES:
            raise ValueError(f"lane is {self.lane}; use 8 to 16 bits")
        for name in ("error_feedback", "uniform", "entropy"):
            checks.flag(name, getattr(self, name))
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

    def bind(self, setting: Setting) -> THCScheme:
        """With the grid for so many workers; codes are looked up by the worker where the place can only add."""
        adds = Capability.COMBINE not in setting.offers
        return THCScheme(self, setting.workers, self.grid(setting.workers, whole_bytes=adds), adds)

    def grid(self, workers: int, whole_bytes: bool = False) -> Grid:
        """The grid that `workers` workers use, with lanes of whole bytes if that is asked for."""
        least = self.granularity or 2**self.bits - 1
        lanes = LANES[::8] if whole_bytes else LANES
        if whole_bytes and self.lane not in (None, *lanes):
            raise ValueError(f"lane is {self.lane}, but a place that only adds has lanes of 8 or 16 bits")
        lane = self.lane or next((lane for lane in lanes if 2**lane > least * workers), LANES[-1])
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


@dataclass(frozen=True)
class THCScheme(Scheme):
    """THC among so many workers; with `adds`, messages are lanes that a place need only add."""

    technique: THC
    workers: int
    grid: Grid
    adds: bool = False

    surveys: ClassVar[bool] = True

    @property
    def memory(self) -> Mapping[str, Slot]:
        """The residual, unless it is switched off."""
        return {"residual": Slot()} if self.technique.error_feedback else {}

    @property
    def routes(self) -> tuple[Route, ...]:
        """By shards; only coded messages have sizes that vary."""
        return (Sum(self.grid.lane) if self.adds else Shards(vary=self.technique.entropy),)

    def cut(self, bucket: Bucket, wire: int) -> Sequence[BlockPiece]:
        """Pieces with so many bytes of sums."""
        width = wire * 8 // (self.grid.lane * self.workers)
        (route,) = self.routes
        return block_pieces(bucket, self.workers, block=self.technique.block, width=width, route=route)

    def longest(self, piece: Piece) -> int:
        """Codes or sums as they are."""
        return self._coded(piece).longest

    def survey(self, turn: Turn, grad: torch.Tensor) -> torch.Tensor:
        """The norm of every block."""
        chart = _chart(turn, grad)
        norms = grad.new_empty(len(chart), dtype=torch.float32)
        kernels.thc_norms(grad, self._residual(turn).old, chart, norms)
        return norms

    def encode(self, turn: Turn, grad: torch.Tensor) -> Messages:
        """The packed codes of every shard; or their integers, for a place that only adds."""
        assert turn.agreed is not None
        piece, grid, technique = turn.piece, self.grid, self.technique
        chart, residual = _chart(turn, grad), self._residual(turn)
        codes = blank(grad, piece.shards, piece.width * technique.bits // 8).zero_()
        quality = grad.new_empty(len(chart), 4, dtype=torch.float32)
        kernels.thc_encode(
            grad,
            residual.old,
            turn.agreed,
            chart,
            _table_on(grid.table, grad.device),
            grid.granularity,
            grid.threshold,
            rng.shared(technique.seed, turn.step),
            rng.own(technique.seed, turn.step, turn.worker),
            technique.bits,
            1 if len(chart) < SAMPLE**2 else SAMPLE,
            codes,
            residual.new,
            quality,
        )
        turn.readings.update(_readings(turn.agreed, quality))
        if self.adds:
            return self._lanes(codes)
        if not technique.entropy:
            return codes
        messages = self._coded(turn.piece).seal_codes(codes.cpu())
        turn.readings["bits up"] = Reading(8.0 * sum(map(len, messages)), piece.numel)
        return messages

    def combine(self, desk: Desk, messages: Messages) -> torch.Tensor:
        """The sums of the codes' integers, packed, and behind them the number of contributors."""
        if self.technique.entropy:
            return self._coded(desk.piece).add(messages, desk.shard).to(messages[0].device)
        assert isinstance(messages, torch.Tensor)
        grid = self.grid
        assert len(messages) * grid.granularity < 2**grid.lane, "the sums do not fit their lanes"
        reply = blank(messages, desk.piece.width * grid.lane // 8 + kernels.COUNT_BYTES)
        table = _table_on(grid.table, messages.device)
        kernels.thc_combine(messages, table, self.technique.bits, grid.lane, reply)
        return reply

    def decode(self, turn: Turn, replies: Messages, grad: torch.Tensor) -> None:
        """`grad` is the mean of what the contributors' codes say."""
        if self.technique.entropy:
            turn.readings["bits down"] = Reading(8.0 * sum(map(len, replies)), turn.piece.numel)
            replies = self._coded(turn.piece).unseal_sums(replies).to(grad.device)
        assert isinstance(replies, torch.Tensor)
        assert turn.agreed is not None
        if not replies.is_cuda:  # a device would have to be asked; there the op makes no number of them
            _check_counts(replies, self.workers)
        grid, key = self.grid, rng.shared(self.technique.seed, turn.step)
        kernels.thc_decode(
            replies, turn.agreed, _chart(turn, grad), grid.granularity, grid.threshold, key, grid.lane, grad
        )

    def _lanes(self, codes: torch.Tensor) -> torch.Tensor:
        """The integers that codes stand for, a lane each, and behind them one contributor."""
        table = torch.tensor(self.grid.table, dtype=LANE_TYPES[self.grid.lane], device=codes.device)
        integers = table[bits.unpack(codes, self.technique.bits, codes.shape[1] * 8 // self.technique.bits)]
        lanes = integers.view(len(codes), -1).view(torch.uint8)
        one = lanes.new_zeros(len(lanes), kernels.COUNT_BYTES)
        one[:, 0] = 1
        return torch.cat([lanes, one], 1)

    def _coded(self, piece: Piece) -> CodedSums:
        assert isinstance(piece, BlockPiece)
        return CodedSums(self.grid.table, self.technique.bits, self.grid.lane, piece)

    def _residual(self, turn: Turn) -> Cell | Nothing:
        return turn.memory["residual"] if self.technique.error_feedback else Nothing()


def _check_counts(replies: torch.Tensor, workers: int) -> None:
    """All replies are of as many contributors, of one worker at least and of all at most."""
    tails = replies[:, -kernels.COUNT_BYTES :].clone(memory_format=torch.contiguous_format)  # aligned
    counts = tails.view(torch.int32).flatten().tolist()
    usual = max(counts, key=counts.count)
    for worker, count in enumerate(counts):
        if not 1 <= count <= workers:
            raise DamagedMessage(worker, f"has {count} contributors where there are {workers} workers")
        if count != usual:
            raise DamagedMessage(worker, f"has {count} contributors where others have {usual}")


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
