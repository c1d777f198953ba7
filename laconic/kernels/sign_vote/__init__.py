"""SignVote's ops: who speaks, their messages, the vote on messages, and what it says.

Votes are as numerics/ternary.py has them: for every coordinate that speaks, in order, twice its place, plus 1 if
it is negative.
A chart has a row for every part of a gradient in which coordinates are chosen together, one behind the other:

    start   the part's place in the gradient
    numel   its coordinates
    keep    how many of them speak
"""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, TypeAlias

import torch

from laconic.kernels import op
from laconic.numerics import rng, ternary
from laconic.numerics.damage import DamagedMessage

if TYPE_CHECKING:
    from collections.abc import Iterator

Ballot: TypeAlias = "tuple[torch.Tensor, torch.Tensor]"
"""The places and signs of a worker's votes."""

VOTERS, SPOKEN, TIED, DECIDED = range(4)
MOST = 1023
"""Messages in one vote, so that a coordinate's votes and their sum fit into 32 bits."""
HEAVIEST = 511
"""The largest weight of a vote, for the same reason."""


@op("new", "votes")
def sign_select(
    grad: torch.Tensor,
    old: torch.Tensor | None,
    memory: float,
    chart: torch.Tensor,
    new: torch.Tensor | None,
    votes: torch.Tensor,
) -> int:
    """How many votes were cast, or -1 where `memory` · `old` + `grad` is not finite.

    Of every part the coordinates of largest magnitude speak, of equals the first ones; one that is 0 has nothing to
    say. `new` is what was not said.
    """
    exact = grad.float() if old is None else old * memory + grad.float()
    if not bool(exact.isfinite().all()):
        return -1
    places = torch.cat(
        [start + _largest(exact[start : start + n], keep) for start, n, keep in chart.tolist()]
    )
    votes[: len(places)] = 2 * places + (exact[places] < 0)
    if new is not None:
        new.copy_(exact)
        new[places] = 0
    return len(places)


@op("messages", "sizes")
def sign_pack(
    votes: torch.Tensor, numel: int, width: int, messages: torch.Tensor, sizes: torch.Tensor
) -> None:
    """Row k of `messages` begins with the message of shard k, `width` coordinates of `numel`, of sizes[k] bytes."""
    for k, (row, count) in enumerate(zip(messages, _shards(numel, width, len(messages)), strict=True)):
        inside = votes[(votes >= 2 * k * width) & (votes < 2 * (k * width + count))]
        message = ternary.pack(inside - 2 * k * width, count)
        row[: len(message)] = message
        sizes[k] = len(message)


@op("reply", "counts")
def sign_combine(
    messages: typing.Sequence[torch.Tensor],
    weights: torch.Tensor,
    numel: int,
    coins: torch.Tensor | None,
    reply: torch.Tensor,
    counts: torch.Tensor,
) -> int:
    """The size of the message at the beginning of `reply`: the sign of the weighted sum of all messages' votes.

    Ties are 0, or what a row of `coins` says: from coordinate `start` on, the signs of the stream `key` from number
    `offset` on; the first row starts at 0, and starts rise. `counts` are all votes, the coordinates that got one,
    those of them that tied, those decided; then for every worker how many of its votes met others that did not
    cancel out, and how many of those spoke against it. One lost message makes the reply a lost one.
    """
    counts.zero_()
    ballots = [_open(message, numel, worker) for worker, message in enumerate(messages)]
    heard = [ballot for ballot in ballots if ballot is not None]
    lost = len(heard) < len(messages)
    result = ternary.lost(reply.device) if lost else _vote(heard, weights, numel, coins, counts)
    reply[: len(result)] = result
    return len(result)


@op("grad")
def sign_decode(replies: typing.Sequence[torch.Tensor], width: int, grad: torch.Tensor) -> None:
    """`grad` is what the replies say, `width` coordinates each, or NaN if one of them is lost."""
    if len(replies) * width < len(grad):
        raise ValueError("replies cover all coordinates")
    counts = _shards(len(grad), width, len(replies))
    ballots = [_open(reply, count, k) for k, (reply, count) in enumerate(zip(replies, counts, strict=True))]
    grad.zero_()
    for worker, ballot in enumerate(ballots):
        if ballot is not None:
            grad[worker * width + ballot[0]] = ballot[1].to(grad.dtype)
    if any(ballot is None for ballot in ballots):
        grad.fill_(torch.nan)


def _vote(
    ballots: list[Ballot], weights: torch.Tensor, numel: int, coins: torch.Tensor | None, counts: torch.Tensor
) -> torch.Tensor:
    """The message of what was decided."""
    total, voters = torch.zeros(2, numel, dtype=torch.int64, device=counts.device)
    for weight, (places, signs) in zip(weights, ballots, strict=True):
        total[places] += weight * signs
        voters[places] += 1
    decided, tied = total.sign(), (voters > 0) & (total == 0)
    if coins is not None:
        decided = torch.where(tied, _tossed(coins.tolist(), numel).to(decided), decided)
    places = decided.nonzero().flatten()
    counts[:4] = torch.stack([voters.sum(), (voters > 0).sum(), tied.sum(), (decided != 0).sum()])
    met = [_met(total, weight, *ballot) for weight, ballot in zip(weights, ballots, strict=True)]
    counts[4:] = torch.stack(met).flatten()
    return ternary.pack((2 * places + (decided[places] < 0)).int(), numel)


def _largest(values: torch.Tensor, keep: int) -> torch.Tensor:
    """The places, in order, of the `keep` largest magnitudes that are not 0."""
    order = values.abs().sort(descending=True, stable=True).indices[:keep].sort().values
    return order[values[order] != 0]


def _shards(numel: int, width: int, shards: int) -> Iterator[int]:
    """The coordinates of every shard; the last ones may have fewer than `width`, or none."""
    return (min(width, max(0, numel - k * width)) for k in range(shards))


def _open(message: torch.Tensor, numel: int, worker: int) -> Ballot | None:
    """The places and signs in a message, or None if it is lost."""
    if ternary.is_lost(message):
        return None
    try:
        votes = ternary.unpack(message, numel)
    except ValueError as error:
        raise DamagedMessage(worker, str(error)) from None
    return (votes >> 1).long(), 1 - 2 * (votes & 1).long()


def _tossed(coins: list[list[int]], numel: int) -> torch.Tensor:
    """A sign for every coordinate."""
    stops = [*(start for start, _, _ in coins[1:]), numel]
    return torch.cat(
        [
            rng.signs(key, stop - start, offset)
            for (start, offset, key), stop in zip(coins, stops, strict=True)
        ]
    )


def _met(
    total: torch.Tensor, weight: torch.Tensor, places: torch.Tensor, signs: torch.Tensor
) -> torch.Tensor:
    """How many of a worker's votes met others, and how many of those were against it."""
    others = total[places] - weight * signs
    return torch.stack([(others != 0).sum(), (others * signs < 0).sum()])
