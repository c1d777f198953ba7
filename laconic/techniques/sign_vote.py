"""SignVote: top-K signs and a majority vote (Park and Lee, "S³GD-MV: Sparse-SignSGD with Majority Vote for
Communication-Efficient Distributed Learning", ISIT 2023, arXiv 2302.07475).

A worker says of its largest coordinates only whether they are to go up or down, and keeps the others for later.
With η = `memory` and K = ⌈density · N⌉, for each tensor of N coordinates:

    encode   e = η·e + gradient; I = the K largest |e|; send I and sign(e[I]); e[I] = 0
    combine  the sign of the sum of all votes; who did not choose a coordinate abstains
    decode   -1, 0 or 1

The result is a direction, not a gradient: every coordinate that moves does so by the learning rate, so rates are
those of Adam. Messages are gaps in Rice's code and signs, in both directions (numerics/ternary.py).

Weights (Park and Lee's later signSGD-FV, arXiv 2403.16372, and signSGD-FD, arXiv 2402.01340): with
`weighting="agreement"` a worker whose votes met others' on h coordinates and was against them on p·h counts
log((1 - p)/p). One that is mostly wrong counts negatively, so that workers who lie help.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import torch

from laconic.core import checks
from laconic.core.place import Capability, Messages, Route, Shards
from laconic.core.technique import (
    Bucket,
    Desk,
    Nothing,
    Piece,
    Reading,
    Scheme,
    Setting,
    Side,
    Slot,
    Turn,
)
from laconic.kernels import sign_vote as kernels
from laconic.messages import sign_vote
from laconic.numerics import rng, ternary
from laconic.numerics.damage import DamagedMessage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAJORITY = 3
"""Voters a coordinate, from which on a vote is more than one worker's word."""
FADES = 0.99
"""What is left of past agreement after a step."""
WARM_UP = 50
"""Steps in which all votes weigh the same, while agreement is counted."""
PRIOR = (1000.0, 250.0)
"""Votes that every worker is taken to have cast before it starts, and those that others were against."""
CLIP = 0.01
"""The smallest share of disagreement that is believed, and one minus the largest."""


@dataclass(frozen=True)
class SignVote:
    """Signs of a few coordinates up, a ternary direction down.

    Every coordinate that moves does so by the learning rate, so use one as for Adam, such as 3e-3 with plain SGD; and
    no clipping by norm, which would shrink the direction.

    `density` is the share of coordinates that a worker speaks of; or a function from the step to it, such as `Ramp`;
    or "auto", for three voters a coordinate if workers choose independently. `memory` is what is kept of everything
    unsaid. `scope` "tensor" chooses within each tensor, "bucket" among all that travel together. A tie changes
    nothing, or with `ties` "random" goes either way. At least one coordinate of every tensor speaks, so that one that
    is alone moves in nearly every step; give it a rate of its own if that is too much.

    `entropy` makes replies shorter where what moves lies close together, and changes nothing else: in the layers of
    a network by a few hundredths to a quarter, from a density of 0.01 on. Places at random are within 2 % of what is
    possible without it, and are sent as before.
    """

    density: float | Callable[[int], float] | str = field(default=0.03, metadata={"labels": True})
    memory: float = 1.0
    scope: str = "tensor"
    ties: str = "zero"
    weighting: str = "equal"
    entropy: bool = False
    seed: int = 0

    needs: ClassVar[Capability] = Capability.COMBINE
    reads: ClassVar[str] = "gradients"

    def __post_init__(self) -> None:
        if isinstance(self.density, str) and self.density != "auto":
            raise ValueError(
                f"density is {self.density!r}; use a share, a function from the step to one, or 'auto'"
            )
        if not isinstance(self.density, str) and not callable(self.density):
            _check_density(self.density)
        if not 0 <= checks.number("memory", self.memory) <= 1:
            raise ValueError(f"memory is {self.memory}; use 0, which forgets, to 1, which keeps everything")
        checks.choice("scope", self.scope, "tensor", "bucket")
        checks.choice("ties", self.ties, "zero", "random")
        checks.choice("weighting", self.weighting, "equal", "agreement")
        checks.flag("entropy", self.entropy)
        checks.seed(self.seed)

    def density_at(self, step: int, workers: int) -> float:
        """The share of coordinates that speak."""
        if isinstance(self.density, str):
            return min(1.0, MAJORITY / workers)
        return _check_density(float(self.density(step))) if callable(self.density) else self.density

    def bind(self, setting: Setting) -> SignVoteScheme:
        """With a density that is a number, where it was left open."""
        workers = setting.workers
        if workers > kernels.MOST:
            raise ValueError(f"there are {workers} workers; SignVote serves up to {kernels.MOST}")
        density = self.density_at(0, workers)  # a function that gives none says so now
        return SignVoteScheme(replace(self, density=density) if self.density == "auto" else self, workers)


@dataclass(frozen=True)
class SignVoteScheme(Scheme):
    """A vote among so many workers."""

    technique: SignVote
    workers: int

    directs: ClassVar[bool] = True

    @property
    def memory(self) -> Mapping[str, Slot]:
        """What is unsaid, unless it is forgotten; and of every worker its votes, met and contradicted."""
        unsaid = {"unsaid": Slot()} if self.technique.memory else {}
        if self.technique.weighting == "equal":
            return unsaid
        return {**unsaid, "agreement": Slot(Side.AGGREGATOR, tally=(self.workers, 2), fades=FADES)}

    @property
    def has_units(self) -> bool:
        """A direction's length is one."""
        return True

    @property
    def routes(self) -> tuple[Route, ...]:
        """By shards, as long as votes are."""
        return (Shards(vary=True),)

    def cut(self, bucket: Bucket, wire: int) -> Sequence[Piece]:  # noqa: ARG002
        """One piece: coordinates are chosen from whole tensors, and their messages are short."""
        if bucket.numel >= ternary.LARGEST:
            raise ValueError(
                f"a bucket has {bucket.numel} coordinates; use smaller ones, of less than {ternary.LARGEST}"
            )
        width = -(-bucket.numel // self.workers)
        whole = Piece(bucket, 0, bucket.numel, self.workers, width, Shards(vary=True))
        return [whole] if bucket.numel else []

    def longest(self, piece: Piece) -> int:
        """Five coordinates in a byte, at most."""
        return ternary.room(piece.width)

    def encode(self, turn: Turn, grad: torch.Tensor) -> Messages:
        """The votes of every shard."""
        piece, technique = turn.piece, self.technique
        chart = chart_of(piece.bucket, technique.density_at(turn.step, piece.shards), technique.scope)
        unsaid = turn.memory["unsaid"] if technique.memory else Nothing()
        votes = grad.new_empty(int(chart[:, 2].sum()), dtype=torch.int32)
        cast = kernels.sign_select(grad, unsaid.old, technique.memory, chart, unsaid.new, votes)
        if cast < 0:
            return [ternary.lost(grad.device)] * piece.shards
        rows = grad.new_empty(piece.shards, ternary.room(piece.width), dtype=torch.uint8)
        sizes = grad.new_empty(piece.shards, dtype=torch.int64)
        kernels.sign_pack(votes[:cast], piece.numel, piece.width, rows, sizes)
        messages = [row[:size] for row, size in zip(rows, sizes.tolist(), strict=True)]
        turn.readings["bits up"] = Reading(8.0 * sum(map(len, messages)), piece.numel)
        return messages

    def combine(self, desk: Desk, messages: Messages) -> torch.Tensor:
        """The majority of every coordinate's votes."""
        numel = _shard_numel(desk.piece, desk.shard)
        tally = desk.memory.get("agreement")
        weights = torch.ones(len(messages), dtype=torch.int64)
        if tally is not None and desk.step >= WARM_UP:
            weights = _weights(tally.old)
        reply = messages[0].new_empty(ternary.room(numel))
        counts = messages[0].new_empty(4 + 2 * len(messages), dtype=torch.int64)
        random = self.technique.ties == "random"
        coins = _coins(desk, rng.shared(self.technique.seed, desk.step)) if random else None
        size = kernels.sign_combine(list(messages), weights.to(reply.device), numel, coins, reply, counts)
        if tally is not None:
            tally.new.add_(counts[4:].view(-1, 2).to(tally.new))
        desk.readings.update(_readings(counts.tolist(), numel))
        return sign_vote.coded(reply[:size], numel) if self.technique.entropy else reply[:size]

    def decode(self, turn: Turn, replies: Messages, grad: torch.Tensor) -> None:
        """`grad` is -1, 0 or 1 everywhere, times what a `GradScaler` will divide it by."""
        turn.readings["bits down"] = Reading(8.0 * sum(map(len, replies)), turn.piece.numel)
        if self.technique.entropy:
            replies = [_opened(turn.piece, shard, reply) for shard, reply in enumerate(replies)]
        kernels.sign_decode(list(replies), turn.piece.width, grad)
        if turn.scale != 1:
            grad.mul_(turn.scale)


@dataclass(frozen=True)
class Ramp:
    """A density that goes from `first` to `last` within `steps` steps, by equal factors, and stays there."""

    first: float
    last: float
    steps: int

    def __post_init__(self) -> None:
        _check_density(self.first)
        _check_density(self.last)
        if not checks.number("steps", self.steps) >= 1:
            raise ValueError(f"steps is {self.steps}; use at least 1")

    def __call__(self, step: int) -> float:
        """The density in step `step`."""
        return self.first * (self.last / self.first) ** min(1.0, step / self.steps)


def _check_density(density: float) -> float:
    if not 0 < checks.number("density", density) <= 1:
        raise ValueError(f"density is {density}; use a share above 0, up to 1")
    return float(density)


@functools.lru_cache(maxsize=1024)
def chart_of(bucket: Bucket, density: float, scope: str) -> torch.Tensor:
    """A row for every tensor that is not empty, or one for all: where it starts, how many it has, how many speak."""
    sizes = bucket.sizes if scope == "tensor" else (bucket.numel,)
    starts = torch.tensor([0, *sizes]).cumsum(0)[:-1].tolist()
    return torch.tensor(
        [(start, size, _keep(density, size)) for start, size in zip(starts, sizes, strict=True) if size]
    )


def _keep(density: float, numel: int) -> int:
    """At least one, at most all; 0.07 of 100 are 7, though their product is a little more."""
    return min(numel, max(1, math.ceil(round(density * numel, 6))))


def _shard_numel(piece: Piece, shard: int) -> int:
    return min(piece.width, max(0, piece.numel - shard * piece.width))


def _opened(piece: Piece, shard: int, reply: torch.Tensor) -> torch.Tensor:
    """The reply in a form that the vote's ops know."""
    try:
        return sign_vote.opened(reply, _shard_numel(piece, shard))
    except ValueError as error:
        raise DamagedMessage(shard, str(error)) from None


def _coins(desk: Desk, key: int) -> torch.Tensor:
    """For every tensor in the shard where it starts there, with which coordinate, and its stream's key.

    So a coordinate's coin is the same whatever the buckets are.
    """
    names, sizes = desk.piece.bucket.names, desk.piece.bucket.sizes
    first = desk.shard * desk.piece.width
    last = first + _shard_numel(desk.piece, desk.shard)
    starts = [stop - size for size, stop in zip(sizes, itertools.accumulate(sizes), strict=True)]
    inside = [
        (max(0, start - first), max(0, first - start), rng.number(name))
        for name, start, size in zip(names, starts, sizes, strict=True)
        if size and start < last and start + size > first
    ]
    coins = torch.tensor(inside or [(0, 0, 0)])
    coins[:, 2] = rng.branch(key, coins[:, 2])
    return coins


def _weights(agreement: torch.Tensor) -> torch.Tensor:
    """log((1 - p)/p), p the share of a worker's votes that others were against, as integers up to the heaviest.

    All weights turned around would agree as well as these do; of the two, most votes count positively.
    """
    met, against = (agreement + agreement.new_tensor(PRIOR)).unbind(1)
    p = (against / met).clamp(CLIP, 1 - CLIP)
    weights = ((1 - p) / p).log()
    weights = weights if (weights * met).sum() >= 0 else -weights
    largest = weights.abs().max().clamp(min=CLIP)
    return (kernels.HEAVIEST * weights / largest).round().long()


def _readings(counts: Sequence[int], numel: int) -> dict[str, Reading]:
    """Of the shard that this worker combines."""
    votes, spoken, tied, decided = counts[:4]
    return {
        "votes": Reading(votes, numel),
        "voters": Reading(votes, spoken),
        "ties": Reading(tied, spoken),
        "nonzero": Reading(decided, numel),
    }
