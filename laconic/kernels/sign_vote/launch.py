"""SignVote's ops on CUDA: the order of the kernels, which triton_select.py, triton_pack.py and triton_vote.py have,
and the memory between them.

However many rows a chart has, or messages a vote, the number of launches is the same. Every op that must tell
something to the host does so once, at its end.
"""

from __future__ import annotations

import typing
from typing import NamedTuple

import torch
import triton
from torch.utils.weak import WeakIdKeyDictionary

from laconic.kernels import sign_vote as reference
from laconic.kernels.sign_vote import triton_pack as pack
from laconic.kernels.sign_vote import triton_select as select
from laconic.kernels.sign_vote import triton_vote as vote
from laconic.numerics import ternary

TILE, GROUP = 4096, 32768
"""Coordinates of a program that reads the gradient, or sums of votes, and of one that lists candidates."""
SAMPLE = 4096
"""Coordinates from which a row's bar is guessed, where it has more."""
DOUBT = 4.0
"""Standard deviations that a guess may be wrong by."""
CHUNK, PART = 8192, 2048
"""Candidates of a program that finds their threshold, or that counts a part of more than these."""
VOTES = 2048
"""Votes of a program that packs."""
BYTES = 128
"""Bytes of a program that unpacks."""
BLOCK, SCAN, PROBES = 512, 4096, 1024
"""Of a group's candidates at a time, of all groups' counts, and of votes to find where shards end."""
FINE, AGAIN = 0, 2
"""What a selection may tell; anything else is that there is a value that is not finite."""

_plans = WeakIdKeyDictionary()


class Layout(NamedTuple):
    """A chart on a device: its rows and groups, the parts of large rows' candidates, and how many there are."""

    rows: torch.Tensor
    groups: torch.Tensor
    parts: torch.Tensor
    candidates: int
    large: int


class Scratch(NamedTuple):
    """What the kernels of a selection tell each other, and in the end the host."""

    state: torch.Tensor
    histograms: torch.Tensor
    told: torch.Tensor
    magnitudes: torch.Tensor
    candidates: torch.Tensor
    marks: torch.Tensor
    segments: torch.Tensor
    counts: torch.Tensor


class Mail(NamedTuple):
    """Opened messages: bytes one behind the other, what is known of each, ones and low parts before every chunk."""

    flat: torch.Tensor
    table: torch.Tensor
    status: torch.Tensor
    before: torch.Tensor
    places: torch.Tensor
    items: int


def sign_select(
    grad: torch.Tensor,
    old: torch.Tensor | None,
    memory: float,
    chart: torch.Tensor,
    new: torch.Tensor | None,
    votes: torch.Tensor,
) -> int:
    """How many votes were cast, or -1 where something is not finite; see the reference."""
    with torch.cuda.device_of(grad):
        told, cast = _select(grad, old, memory, _plan(chart, grad.device, guessed=True), new, votes)
        if told == AGAIN:
            told, cast = _select(grad, old, memory, _plan(chart, grad.device, guessed=False), new, votes)
    return cast if told == FINE else -1


def sign_pack(
    votes: torch.Tensor, numel: int, width: int, messages: torch.Tensor, sizes: torch.Tensor
) -> None:
    """Row k of `messages` begins with the message of shard k; see the reference."""
    with torch.cuda.device_of(votes):
        ends = votes.new_empty(3 * len(messages))
        _pack(votes, len(votes), len(votes), numel, width, ends, messages, sizes)


def sign_combine(
    messages: typing.Sequence[torch.Tensor],
    weights: torch.Tensor,
    numel: int,
    coins: torch.Tensor | None,
    reply: torch.Tensor,
    counts: torch.Tensor,
) -> int:
    """The size of the reply to all messages' votes; see the reference, which also serves messages it refuses."""
    with torch.cuda.device_of(reply):
        mail = _opened(messages, [numel] * len(messages), 0)
        total = reply.new_zeros(max(1, triton.cdiv(numel, TILE)) * TILE, dtype=torch.int32)
        counts.zero_()
        for mode in ("add", "meet"):
            _use(mail, mode, total, weights, counts)
        most = min(numel, 8 * len(mail.flat))
        votes, ends = _elected(total, coins, most, counts)
        _pack(votes, None, most, numel, numel, ends, reply[None], mail.status)
        size, *status = mail.status.tolist()
    if any(status):
        return reference.sign_combine.reference(messages, weights, numel, coins, reply, counts)
    return size


def sign_decode(replies: typing.Sequence[torch.Tensor], width: int, grad: torch.Tensor) -> None:
    """`grad` is what the replies say; see the reference, which also serves replies it refuses.

    Unlike there, `grad` may be anything then.
    """
    numels = [min(width, max(0, len(grad) - k * width)) for k in range(len(replies))]
    with torch.cuda.device_of(grad):
        mail = _opened(replies, numels, width)
        grad.zero_()
        _use(mail, "store", grad, None, None)
        _, *status = mail.status.tolist()
    if any(status) or len(replies) * width < len(grad):
        reference.sign_decode.reference(replies, width, grad)


def _select(
    grad: torch.Tensor,
    old: torch.Tensor | None,
    memory: float,
    plan: Layout,
    new: torch.Tensor | None,
    votes: torch.Tensor,
) -> tuple[int, int]:
    """What the kernels tell, and how many votes were cast."""
    scratch = _scratch(grad, plan)
    _list_candidates((grad, old, memory), new, plan, scratch)
    _cast_votes(new, votes, plan, scratch)
    told, cast = scratch.told.tolist()
    return told, cast


def _scratch(grad: torch.Tensor, plan: Layout) -> Scratch:
    rows, groups, room = len(plan.rows), len(plan.groups), plan.candidates
    zeros = grad.new_zeros(4 * rows + 1024 * plan.large + 2, dtype=torch.int32)
    empty = grad.new_empty(2 * room + groups * (GROUP // 32 + 2), dtype=torch.int32)
    counts = grad.new_empty(2 * (groups + 1), dtype=torch.int64)
    state, histograms, told = zeros.split((4 * rows, 1024 * plan.large, 2))
    magnitudes, candidates, marks, segments = empty.split((room, room, groups * GROUP // 32, 2 * groups))
    return Scratch(state, histograms, told, magnitudes, candidates, marks, segments, counts)


def _list_candidates(
    inputs: tuple[torch.Tensor, torch.Tensor | None, float],
    new: torch.Tensor | None,
    plan: Layout,
    scratch: Scratch,
) -> None:
    """`new` is the sums, and all that may be chosen are listed; nothing is fused, as the reference rounds twice."""
    state, _, told, magnitudes, candidates, marks, segments, _ = scratch
    options = {"num_warps": 8, "enable_fp_fusion": False}
    select.guess[(len(plan.rows),)](*inputs, plan.rows, state, SAMPLE, **options)
    tiles = len(plan.groups) * (GROUP // TILE)
    select.take[(tiles,)](*inputs, new, plan.groups, state, marks, GROUP, TILE, **options)
    listed = marks, magnitudes, candidates, segments
    select.gather[(len(plan.groups),)](
        *inputs, new, plan.groups, plan.rows, state, told, *listed, GROUP, **options
    )


def _cast_votes(new: torch.Tensor | None, votes: torch.Tensor, plan: Layout, scratch: Scratch) -> None:
    """Of the candidates the largest are votes, and 0 in `new`."""
    state, histograms, told, magnitudes, candidates, _, segments, counts = scratch
    rows, groups = len(plan.rows), len(plan.groups)
    for byte in range(4 if plan.large else 0):
        select.level[(len(plan.parts),)](plan.parts, plan.rows, state, magnitudes, histograms, byte, PART)
    select.settle[(rows,)](plan.rows, state, magnitudes, histograms, told, CHUNK, num_warps=8)
    select.tally[(groups,)](plan.groups, plan.rows, state, magnitudes, segments, counts, BLOCK)
    select.scan[(2,)](counts, groups, told, SCAN, num_warps=16)
    listed = magnitudes, candidates, segments
    select.cast[(groups,)](plan.groups, plan.rows, state, *listed, counts, new, votes, BLOCK)


def _plan(chart: torch.Tensor, device: torch.device, guessed: bool) -> Layout:
    """The chart's plan, made once; without guesses there is room for every coordinate."""
    plans = _plans.setdefault(chart, {})
    if (device, guessed) not in plans:
        plans[device, guessed] = _planned(chart.cpu(), device, guessed)
    return plans[device, guessed]


def _planned(chart: torch.Tensor, device: torch.device, guessed: bool) -> Layout:
    start, numel, keep = chart.unbind(1)
    rank, room = _guesses(numel, keep) if guessed else (torch.zeros_like(keep), numel)
    large = (room > CHUNK) & (keep < numel)
    base = start // 32 * 32
    many = -(-(start + numel - base) // GROUP)
    row, group = _spread(many)
    base = base[row] + group * GROUP
    low, high = (start[row] - base).clamp(min=0), (start[row] + numel[row] - base).clamp(max=GROUP)
    histograms = torch.where(large, _before(large.long()), -1)
    rows = (start, numel, keep, _before(room), room, rank, histograms, _before(many))
    parts = _spread(torch.where(large, -(-room // PART), 0))
    return Layout(
        _table(rows, device),
        _table((row, base // 32, low, high), device),
        _table(parts, device),
        _aligned(int(room.sum())),
        int(large.sum()),
    )


def _table(columns: tuple[torch.Tensor, ...], device: torch.device) -> torch.Tensor:
    return torch.stack(columns, 1).int().to(device)


def _guesses(numel: torch.Tensor, keep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which of a row's sample is its bar, or 0 where none is drawn, and the room for all that reach it."""
    mean = SAMPLE * keep / numel.double()
    rank = _doubtful(mean)
    room = (_doubtful(rank) * numel / SAMPLE).ceil()
    drawn = (numel > SAMPLE) & (room < numel)
    return torch.where(drawn, rank, 0).long(), torch.where(drawn, room, numel).long()


def _doubtful(rank: torch.Tensor) -> torch.Tensor:
    """A number that a Poisson variable with this mean hardly ever exceeds."""
    return (rank + DOUBT * rank.sqrt() + DOUBT).ceil()


def _spread(counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For each of all the counts' things its row, and its number there."""
    row = torch.arange(len(counts)).repeat_interleave(counts)
    return row, torch.arange(len(row)) - _before(counts)[row]


def _before(counts: torch.Tensor) -> torch.Tensor:
    return counts.cumsum(0) - counts


def _most(votes: int, width: int) -> int:
    """Bytes that hold any message of up to so many votes, of `width` coordinates."""
    listed = min(votes * (b + 2) + (width >> b) for b in range(31))
    return min(ternary.room(width), ternary.HEADER + 3 + listed // 8)


def _pack(
    votes: torch.Tensor,
    count: int | None,
    most: int,
    numel: int,
    width: int,
    ends: torch.Tensor,
    messages: torch.Tensor,
    sizes: torch.Tensor,
) -> None:
    """The messages of shards of `width` coordinates; where no count of votes is given, the first of `ends` is it.

    There are up to `most` votes, so that `_most` bytes of a message are to be 0 before bits are set.
    """
    rows, items = len(messages), most // VOTES + len(messages)
    forms, sums = ends[rows:], votes.new_empty(32 * items)
    many, target, whole = _power_of_two(rows), (messages, messages.stride(0)), (numel, width)
    shards, probes = (rows, many, VOTES), max(2, PROBES // many)
    pack.measure[(items,)](votes, count, *whole, ends, sums, *target, _most(most, width), *shards, probes)
    pack.choose[(rows,)](ends, forms, sums, *whole, *target, sizes, *shards, 256, num_warps=8)
    pack.write[(items,)](votes, ends, forms, sums, *whole, *target, messages.data_ptr() % 4, *shards)


def _opened(messages: typing.Sequence[torch.Tensor], numels: list[int], width: int) -> Mail:
    """The messages' headers and sums; message k is of coordinates that begin at k · `width`."""
    flat = torch.cat(tuple(messages))
    rows, offset, slot = [], 0, 0
    for k, (message, numel) in enumerate(zip(messages, numels, strict=True)):
        length = len(message)
        lists_the_rest = 8 * (length - ternary.HEADER) >= numel
        rows.append((offset, length, numel, k * width, slot if lists_the_rest else -1, *[0] * 7))
        offset, slot = offset + length, slot + numel * lists_the_rest
    items = sum(row[1] // BYTES + 1 for row in rows)
    table = torch.tensor(rows).to(flat.device, non_blocking=True)
    status = flat.new_zeros(1 + len(rows), dtype=torch.int64)
    before = flat.new_empty(2 * (items + 1), dtype=torch.int64)
    mail = Mail(flat, table, status, before, flat.new_empty(slot, dtype=torch.int32), items)
    vote.read[(len(rows),)](flat, table, status[1:], num_warps=1)
    vote.weigh[(items,)](*_header(mail), before, len(rows), _power_of_two(len(rows)), BYTES)
    select.scan[(2,)](before, items, None, SCAN, num_warps=16)
    return mail


def _header(mail: Mail) -> tuple[torch.Tensor, ...]:
    return mail.flat, mail.table, mail.status[1:]


def _use(
    mail: Mail, mode: str, target: torch.Tensor, weights: torch.Tensor | None, counts: torch.Tensor | None
) -> None:
    """All votes are added to the target, compared with it, or stored there."""
    rest = mail.places, target, weights, counts, len(mail.table), _power_of_two(len(mail.table)), BYTES, mode
    vote.speak[(mail.items,)](*_header(mail), mail.before, *rest)
    if len(mail.places):
        vote.rest[(mail.items,)](*_header(mail), *rest)


def _elected(
    total: torch.Tensor, coins: torch.Tensor | None, most: int, counts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The votes that were decided, up to `most`, and how many these are."""
    tiles = len(total) // TILE
    before = total.new_empty(tiles + 1, dtype=torch.int64)
    votes, ends = total.new_empty(most), total.new_empty(3)
    tossed = None if coins is None else coins.to(total.device, non_blocking=True)
    inputs = total, tossed, 0 if coins is None else len(coins)
    vote.decide[(tiles,)](*inputs, counts, before, TILE, num_warps=8)
    select.scan[(1,)](before, tiles, None, SCAN, num_warps=16)
    vote.elect[(tiles,)](*inputs, before, votes, ends, TILE, num_warps=8)
    return votes, ends


def _aligned(numel: int) -> int:
    """So many, or a few more, so that what follows them in memory starts where vectors may."""
    return -(-numel // 4) * 4


def _power_of_two(rows: int) -> int:
    return max(16, triton.next_power_of_2(rows))
