"""The ops on prepared inputs, as `python -m benchmarks.ops` measures them."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from laconic.core.blocks import block_pieces
from laconic.core.technique import Bucket
from laconic.kernels import plain, sign_vote
from laconic.kernels import thc as ops
from laconic.numerics import bits, ternary
from laconic.techniques.sign_vote import SignVote, chart_of
from laconic.techniques.thc import SAMPLE, THC

if TYPE_CHECKING:
    from collections.abc import Callable

WORKERS = 4


class Peer(NamedTuple):
    """How others do the same: the fastest of these ways counts, and there are none if something is not installed."""

    name: str
    ways: tuple[Callable[[], object], ...]


@dataclass(frozen=True)
class Case:
    """An op and its reference; each gives what it computed, equal but for a relative `tolerance`.

    `bytes` is what counts for the op's speed.
    """

    op: str
    bytes: int
    run: Callable[[], list[torch.Tensor]]
    reference: Callable[[], list[torch.Tensor]]
    tolerance: float = 0.0
    peer: Peer | None = None
    coordinates: int | None = None
    """How many there are, if not as many as were asked for."""
    bits: dict[str, float] = field(default_factory=dict)
    """What a symbol takes, by whom."""


def cases(coordinates: int) -> list[Case]:
    """All cases, for vectors of so many coordinates."""
    averages = [_average(coordinates, dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)]
    return [*averages, *_thc(coordinates), *_sign_vote(coordinates)]


def _case(
    name: str,
    counted: int,
    op: Any,
    inputs: list[Any],
    results: list[torch.Tensor],
    scratch: list[torch.Tensor] | None = None,
    tolerance: float = 0.0,
) -> Case:
    """A case of an op that takes inputs, results and scratch, in this order."""

    def compute(function: Callable[..., None]) -> list[torch.Tensor]:
        function(*inputs, *results, *(scratch or []))
        return results

    return Case(
        name, counted, functools.partial(compute, op), functools.partial(compute, op.reference), tolerance
    )


def _average(coordinates: int, dtype: torch.dtype) -> Case:
    messages = _random(WORKERS, coordinates // WORKERS).to(dtype)
    name = f"average {str(dtype).removeprefix('torch.')}"
    return _case(name, messages.nbytes, plain.average, [messages], [torch.empty_like(messages[0])])


def _thc(coordinates: int) -> list[Case]:
    """One worker of four, with one piece; `combine` has all coordinates of all four workers."""
    technique = THC()
    grid = technique.grid(WORKERS)
    bucket = Bucket(("w",), (coordinates,), torch.float32)
    (piece,) = block_pieces(bucket, WORKERS, block=technique.block, width=coordinates)
    chart, table = piece.chart(torch.device("cpu")), torch.tensor(grid.table)
    grad, residual = _random(coordinates), 0.3 * _random(coordinates, seed=1)
    norms, new, mean = torch.empty(len(chart)), torch.empty(coordinates), torch.empty(coordinates)
    ops.thc_norms(grad, residual, chart, norms)
    norms = 1.1 * norms  # some other worker's are larger
    quality = torch.empty(len(chart), 4)
    codes = torch.zeros(WORKERS, piece.width // 2, dtype=torch.uint8)
    messages = _bytes(256, WORKERS, -(-coordinates // 16) * 8)
    reply = torch.empty(2 * messages.shape[1] + ops.COUNT_BYTES, dtype=torch.uint8)
    replies = _bytes(WORKERS * grid.granularity, WORKERS, piece.width + ops.COUNT_BYTES)
    replies[:, -ops.COUNT_BYTES :] = torch.tensor([WORKERS, 0, 0, 0], dtype=torch.uint8)
    span, shared, own = [grid.granularity, grid.threshold], 1, 2
    encode = [grad, residual, norms, chart, table, *span, shared, own, technique.bits, SAMPLE]
    decode = [replies, norms, chart, *span, shared, grid.lane]
    combine = [messages, table, technique.bits, grid.lane]
    size = grad.nbytes
    return [
        _case(
            "thc norms",
            size,
            ops.thc_norms,
            [grad, residual, chart],
            [torch.empty_like(norms)],
            tolerance=1e-5,
        ),
        _case("thc encode", size, ops.thc_encode, encode, [codes, new], [quality]),
        _case("thc combine", WORKERS * size, ops.thc_combine, combine, [reply]),
        _case("thc decode", size, ops.thc_decode, decode, [mean]),
    ]


class _Votes:
    """One worker of four that selects and packs, and four workers' messages about all coordinates."""

    def __init__(self, coordinates: int) -> None:
        bucket = Bucket(("w",), (coordinates,), torch.float32)
        self.coordinates, self.grad = coordinates, _random(coordinates)
        self.old = 0.3 * _random(coordinates, seed=1)
        self.chart = chart_of(bucket, SignVote(0.01).density_at(0, WORKERS), "tensor")
        self.keep, self.new = int(self.chart[:, 2].sum()), torch.empty(coordinates)
        self.weights = torch.ones(WORKERS, dtype=torch.int64)

    def encode(self, select: Any, pack: Any) -> list[torch.Tensor]:
        votes = torch.empty(self.keep, dtype=torch.int32)
        cast = select(self.grad, self.old, 1.0, self.chart, self.new, votes)
        return [*self._packed(pack, votes[:cast], WORKERS), self.new]

    def naive(self) -> object:
        """As with PyTorch alone: topk, places as int32, signs as bits."""
        exact = self.grad + self.old
        chosen = exact.abs().topk(self.keep).indices
        signs = bits.pack((exact[chosen] < 0).long()[None], 1)
        exact[chosen] = 0
        return chosen.int(), signs, exact

    def messages(self) -> list[torch.Tensor]:
        votes = torch.empty(self.keep, dtype=torch.int32)
        sent = []
        for worker in range(WORKERS):
            grad = _random(self.coordinates, seed=worker)
            cast = sign_vote.sign_select(grad, None, 0.0, self.chart, None, votes)
            sent += self._packed(sign_vote.sign_pack, votes[:cast], 1)
        return sent

    def vote(self, combine: Any, messages: list[torch.Tensor]) -> list[torch.Tensor]:
        reply = torch.empty(ternary.room(self.coordinates), dtype=torch.uint8)
        counts = torch.empty(4 + 2 * WORKERS, dtype=torch.int64)
        size = combine(messages, self.weights, self.coordinates, None, reply, counts)
        return [reply[:size], counts]

    def _packed(self, pack: Any, votes: torch.Tensor, shards: int) -> list[torch.Tensor]:
        width = -(-self.coordinates // shards)
        rows = torch.empty(shards, ternary.room(width), dtype=torch.uint8)
        sizes = torch.empty(shards, dtype=torch.int64)
        pack(votes, self.coordinates, width, rows, sizes)
        return [row[:size] for row, size in zip(rows, sizes.tolist(), strict=True)]


def _sign_vote(coordinates: int) -> list[Case]:
    select, pack, combine = sign_vote.sign_select, sign_vote.sign_pack, sign_vote.sign_combine
    work = _Votes(coordinates)
    messages, size = work.messages(), work.grad.nbytes
    (reply, _), result = work.vote(combine, messages), torch.empty(coordinates)
    return [
        Case(
            "sign_vote select+pack",
            size,
            functools.partial(work.encode, select, pack),
            functools.partial(work.encode, select.reference, pack.reference),
            peer=Peer("topk and naive packing", (work.naive,)),
        ),
        Case(
            "sign_vote combine",
            WORKERS * size,
            functools.partial(work.vote, combine, messages),
            functools.partial(work.vote, combine.reference, messages),
        ),
        _case("sign_vote decode", size, sign_vote.sign_decode, [[reply], coordinates], [result]),
    ]


def _bytes(below: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, below, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
