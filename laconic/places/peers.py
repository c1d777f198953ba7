"""Every worker combines one shard; nothing but the process group is needed.

    Shards      message k goes to worker k by an all-to-all, its reply to all by an all-gather
    Everybody   an all-gather
    Owner       everybody's message to one worker, and its reply to all
    Sum         as Shards, and worker k adds the lanes

Where sizes vary they travel first, as integers with a seal, and replies are padded to the longest, or sent as they
are if they differ much.

Each transfer of a piece has a channel of its own, a process group on the CPU; on NCCL one group serves all, since a
device's streams keep its transfers in order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

import torch
import torch.distributed as dist

from laconic.core.place import (
    Capability,
    Combine,
    Everybody,
    Label,
    Messages,
    Owner,
    Route,
    Seat,
    Shards,
    Sum,
    Traffic,
    Transfer,
    Trip,
    Way,
)
from laconic.messages.seals import SEAL, opened, opened_size, sealed, sealed_size

NOBODY = 1 << 30
"""A tag with which nothing is sent."""

UNEVEN = 1.25
"""How many times their sum padded messages may be."""

LANES = {8: torch.uint8, 16: torch.int16}
"""Sums of 16 bits wrap around as integers of either sign."""

# torch 2.13 renamed this collective and warns at its old name.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass(frozen=True)
class Peers:
    """Every worker combines one shard.

    Up to `direct` workers agree by telling everybody: one hop, and few bytes as long as the workers are few. More
    of them pass their numbers around a ring.
    """

    direct: int = 64

    offers: ClassVar[Capability] = Capability.COMBINE | Capability.SUM

    def open(self, group: dist.ProcessGroup, device: torch.device, traffic: Traffic) -> PeersPost:
        """A seat among the group's workers, with process groups of its own."""
        return PeersPost(group, device, traffic, self.direct)


class PeersPost:
    """One worker among its peers."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device, traffic: Traffic, direct: int) -> None:
        self.seat = Seat(dist.get_rank(group), dist.get_world_size(group))
        self._direct = direct
        self._first = int(traffic.surveys)
        self.channels = channels(traffic)
        self._groups, self.carrier = open_groups(group, device, self.channels)

    def close(self) -> None:
        """Its process groups are gone, and with them their threads, which must not meet the end of Python."""
        for group in self._groups:
            dissolve(group)
        self._groups = []

    def latest(self, numbers: torch.Tensor) -> Trip[None]:
        """One transfer, the only one of a journey."""
        largest = lambda group: dist.all_reduce(numbers, dist.ReduceOp.MAX, group, async_op=True)  # noqa: E731
        yield self._transfer("waiting", 0, largest, 0, 0)

    def agree(self, numbers: torch.Tensor, label: Label) -> Trip[None]:
        """One transfer, to everybody or around a ring."""
        worker, workers = self.seat
        if workers > self._direct:
            around = agreement_bytes(numbers, workers, self._direct)
            largest = lambda group: dist.all_reduce(numbers, dist.ReduceOp.MAX, group, async_op=True)  # noqa: E731
            yield self._transfer("agree", 0, largest, around, around)
            return
        keys = label.keys(Way.AGREEMENT, ((speaker, 0) for speaker in range(workers)))
        own = sealed(numbers.view(torch.uint8)[None], keys[worker : worker + 1])
        assert isinstance(own, torch.Tensor)
        heard = own.new_empty(workers, own.nbytes)
        yield self._all_to_all(0, heard, own.repeat(workers, 1), own=own.nbytes, phase="agree")
        told = opened(heard, keys, range(workers))
        assert isinstance(told, torch.Tensor)
        torch.amax(told.view(numbers.dtype), 0, out=numbers)

    def add(self, values: torch.Tensor) -> Trip[None]:
        """One transfer, the last one of a journey."""
        total = lambda group: dist.all_reduce(values, group=group, async_op=True)  # noqa: E731
        yield self._transfer("measure", self.channels - 1, total, 0, 0)

    def spread(self, message: torch.Tensor, source: int) -> Trip[None]:
        """One transfer, the last one of a journey."""
        worker, workers = self.seat
        copy = lambda group: dist.broadcast(  # noqa: E731
            message, dist.get_global_rank(group, source), group, async_op=True
        )
        sent = message.nbytes * (workers - 1) * (worker == source)
        yield self._transfer("spread", self.channels - 1, copy, sent, message.nbytes * (worker != source))

    def deliver(self, route: Route, messages: Messages, combine: Combine, label: Label) -> Trip[Messages]:
        """Up to those who combine, if anybody does, and down to all."""
        match route:
            case Everybody(None):
                return (yield from self._tell_all(self._first, messages[0], label))
            case Everybody():
                return (yield from self._tell_all_alike(self._first, messages[0]))
            case Owner(owner, None):
                return (yield from self._through_owner(owner, messages[0], combine, label))
            case Owner(owner):
                return (yield from self._through_owner_of_known_size(owner, messages[0], combine))
            case Sum(lane):
                return (yield from self._through_rows(messages, lambda arrived: added(arrived, lane)))
            case Shards(vary=True):
                return (yield from self._through_list(messages, combine, label))
            case Shards():
                return (yield from self._through_rows(messages, combine))

    def _through_rows(self, messages: Messages, combine: Combine) -> Trip[Messages]:
        assert isinstance(messages, torch.Tensor)
        arrived = torch.empty_like(messages)
        yield self._all_to_all(self._first, arrived, messages, own=messages[self.seat.worker].nbytes)
        reply = combine(arrived)
        replies = reply.new_empty(len(messages), len(reply))
        yield self._gather(self._first + 1, replies, reply)
        return replies

    def _through_list(self, messages: Messages, combine: Combine, label: Label) -> Trip[Messages]:
        first, (worker, workers) = self._first, self.seat
        outgoing = [len(message) for message in messages]
        keys = label.keys(Way.COMBINING, ((worker, shard) for shard in range(workers)))
        told = self._sealed_sizes(outgoing, keys)
        arriving = torch.empty_like(told)
        yield self._all_to_all(first, arriving, told, own=told.itemsize)
        keys = label.keys(Way.COMBINING, ((speaker, worker) for speaker in range(workers)))
        incoming = _opened_sizes(arriving, keys, label)
        arrived = messages[0].new_empty(sum(incoming))
        together = torch.cat(list(messages))
        yield self._all_to_all(first + 1, arrived, together, outgoing[worker], (incoming, outgoing))
        return (yield from self._tell_all(first + 2, combine(arrived.split(incoming)), label))

    def _through_owner(
        self, owner: int, message: torch.Tensor, combine: Combine, label: Label
    ) -> Trip[Messages]:
        """All others have nothing to combine, and nothing to say."""
        worker, workers = self.seat
        nothing = message.new_empty(0)
        messages = [message if each == owner else nothing for each in range(workers)]
        answer = combine if worker == owner else lambda _: nothing
        replies = yield from self._through_list(messages, answer, label)
        return [replies[owner]]

    def _through_owner_of_known_size(
        self, owner: int, message: torch.Tensor, combine: Combine
    ) -> Trip[Messages]:
        (worker, workers), first, size = self.seat, self._first, len(message)
        mine, theirs = (
            [size * (worker == owner)] * workers,
            [size * (each == owner) for each in range(workers)],
        )
        arrived = message.new_empty(sum(mine))
        yield self._all_to_all(first, arrived, message, mine[0], (mine, theirs))
        reply = combine(arrived.split(mine)) if worker == owner else message.new_empty(0)
        heard = message.new_empty(size)
        yield self._all_to_all(first + 1, heard, reply.repeat(workers), mine[0], (theirs, mine), phase="down")
        return [heard]

    def _tell_all_alike(self, channel: int, message: torch.Tensor) -> Trip[Messages]:
        """Everybody's message; all are as long."""
        heard = message.new_empty(self.seat.workers, len(message))
        yield self._gather(channel, heard, message)
        return heard

    def _tell_all(self, channel: int, message: torch.Tensor, label: Label) -> Trip[Messages]:
        """Everybody's message; those that differ much in size as they are, others padded to the longest."""
        worker, workers = self.seat
        keys = label.keys(Way.REPLY, ((speaker, 0) for speaker in range(workers)))
        told = self._sealed_sizes([len(message)], keys[worker : worker + 1])
        counts = told.new_empty(workers)
        yield self._gather(channel, counts, told)
        sizes = _opened_sizes(counts, keys, label)
        if max(sizes) * workers > UNEVEN * sum(sizes):
            heard, splits = message.new_empty(sum(sizes)), (sizes, [len(message)] * workers)
            repeated = message.repeat(workers)
            yield self._all_to_all(channel + 1, heard, repeated, len(message), splits, phase="down")
            return list(heard.split(sizes))
        rows = message.new_empty(workers, max(sizes))
        padded = torch.nn.functional.pad(message, (0, rows.shape[1] - len(message)))
        yield self._gather(channel + 1, rows, padded)
        return [row[:count] for row, count in zip(rows, sizes, strict=True)]

    def _sealed_sizes(self, sizes: Sequence[int], keys: Sequence[int]) -> torch.Tensor:
        return torch.tensor(list(map(sealed_size, sizes, keys)), device=self.carrier)

    def _all_to_all(
        self,
        channel: int,
        arrived: torch.Tensor,
        messages: torch.Tensor,
        own: int,
        splits: tuple[list[int] | None, list[int] | None] = (None, None),
        phase: str = "up",
    ) -> Transfer:
        def start(group: dist.ProcessGroup) -> dist.Work:
            return dist.all_to_all_single(arrived, messages, *splits, group=group, async_op=True)

        return self._transfer(phase, channel, start, messages.nbytes - own, arrived.nbytes - own)

    def _gather(self, channel: int, rows: torch.Tensor, own: torch.Tensor) -> Transfer:
        def start(group: dist.ProcessGroup) -> dist.Work:
            return _all_gather(rows.flatten(), own, group=group, async_op=True)

        others = rows.nbytes - own.nbytes
        return self._transfer("down", channel, start, others, others)

    def _transfer(
        self,
        phase: str,
        channel: int,
        start: Callable[[dist.ProcessGroup], dist.Work],
        sent: int,
        received: int,
    ) -> Transfer:
        if not self._groups:
            raise RuntimeError("the post is closed")
        group = self._groups[channel % len(self._groups)]
        return Transfer(phase, channel, lambda: start(group), sent, received)


def channels(traffic: Traffic) -> int:
    """How many transfers a journey has at most."""
    return traffic.surveys + max(map(rounds, traffic.routes)) + traffic.measures


def rounds(route: Route) -> int:
    """How many transfers a piece takes among peers; sizes that are not known travel ahead."""
    match route:
        case Everybody(size):
            return 1 if size is not None else 2
        case Owner(_, size):
            return 2 if size is not None else 4
        case Shards(vary=True):
            return 4
        case _:
            return 2


def agreement_bytes(numbers: torch.Tensor, workers: int, direct: int) -> int:
    """What a worker sends so that all agree: its numbers to everybody, or around a ring, which passes each twice."""
    others = workers - 1
    return (numbers.nbytes + SEAL) * others if workers <= direct else 2 * numbers.nbytes * others // workers


def _opened_sizes(told: torch.Tensor, keys: Sequence[int], label: Label) -> list[int]:
    """The sizes that workers told, in their order."""
    return [
        opened_size(size, key, label.most, worker)
        for worker, (size, key) in enumerate(zip(told.tolist(), keys, strict=True))
    ]


def added(messages: Messages, lane: int) -> torch.Tensor:
    """The sum of messages, in lanes of so many bits."""
    assert isinstance(messages, torch.Tensor)
    return messages.view(LANES[lane]).sum(0, dtype=LANES[lane]).view(torch.uint8)


def open_groups(
    group: dist.ProcessGroup, device: torch.device, channels: int
) -> tuple[list[dist.ProcessGroup], torch.device]:
    """Groups for so many channels, and the device on which messages must lie."""
    ranks = dist.get_process_group_ranks(group)
    if device.type == "cuda" and "nccl" in dist.get_backend_config(group):
        return [like(group, device, ranks)], device
    cpu = torch.device("cpu")
    return [like(group, cpu, ranks) for _ in range(channels)], cpu


def like(group: dist.ProcessGroup, carrier: torch.device, ranks: Sequence[int]) -> dist.ProcessGroup:
    """A group of some of the workers, with the same patience, for messages on `carrier`."""
    timeout = patience_of(group)
    everybody = len(ranks) == dist.get_world_size()
    backend = "nccl" if carrier.type == "cuda" else "gloo"
    return dist.new_group(list(ranks), timeout, backend, use_local_synchronization=not everybody)


def patience_of(group: dist.ProcessGroup) -> timedelta:
    """How long the group waits for a transfer."""
    timeout: timedelta = group._get_backend(torch.device(group._device_types[0])).options._timeout
    return timeout


def cut(group: dist.ProcessGroup) -> None:
    """All transfers of the group have ended, whether or not they came to their end, here and at the other end.

    gloo's own `abort` does nothing. A receive that nobody serves, and that is not waited for, closes all connections,
    unless the one that it asks is gone: so it asks all. Only who waits for a message of which half has come is not
    woken.
    """
    if torch.device("cpu") not in group._device_types:
        return
    others = (peer for peer in range(group.size()) if peer != group.rank())
    for peer in others:
        with contextlib.suppress(RuntimeError):
            group.recv([torch.empty(1)], peer, NOBODY).wait(timedelta(milliseconds=1))


def dissolve(group: dist.ProcessGroup) -> None:
    """Nothing is under way in the group; it is gone, if it is everybody's.

    One of some workers stays: torch would give its name, under which addresses are still stored, to the next one of
    the same workers, who would then wait for each other in vain.
    """
    cut(group)
    # The program may have ended torch.distributed before.
    with contextlib.suppress(AssertionError, ValueError):
        if dist.get_world_size(group) == dist.get_world_size():
            dist.destroy_process_group(group)
