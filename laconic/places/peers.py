"""Where messages are combined, and the transfers that take them there.

A place is written as generators that yield `Transfer`s: the lane issues each one and resumes the generator when
it has completed. So a place says what travels, and the lane alone decides when.

`Peers`: worker k combines shard k. Messages go up by an all-to-all, replies come down by an all-gather. Where
sizes vary they travel first, as integers, and replies are padded to the longest.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias

import torch
import torch.distributed as dist

from laconic.core.technique import Capability

if TYPE_CHECKING:
    from laconic.core.technique import Gather, Messages, Relay

UNEVEN = 1.25
"""How many times their sum padded messages may be."""

Combine: TypeAlias = "Callable[[Messages], torch.Tensor]"

# torch 2.13 renamed this collective and warns at its old name.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass(frozen=True)
class Transfer:
    """One collective: how to start it on a group, and the bytes that it moves to and from other workers."""

    phase: str
    start: Callable[[dist.ProcessGroup], dist.Work]
    sent: int
    received: int


Exchange: TypeAlias = "Generator[Transfer, None, Messages]"


class Place(Protocol):
    """Brings together the messages of each shard, has them combined, and gives everybody all replies."""

    @property
    def offers(self) -> Capability:
        """What this place can do with messages."""

    def rounds(self, varies: bool) -> int:
        """How many transfers one exchange takes, with message sizes that vary or not."""

    def agree(self, numbers: torch.Tensor, workers: int) -> Generator[Transfer, None, None]:
        """`numbers` are the largest of all workers', one by one."""

    def exchange(self, messages: Messages, worker: int, combine: Combine) -> Exchange:
        """The replies for all shards; message k is about shard k."""

    def gather(self, message: torch.Tensor, workers: int, gather: Gather) -> Exchange:
        """Everybody's messages, in worker order."""

    def relay(
        self, message: torch.Tensor, worker: int, workers: int, relay: Relay, combine: Combine
    ) -> Exchange:
        """The reply of the one who combines, and nothing else."""


@dataclass(frozen=True)
class Peers:
    """Every worker combines one shard; nothing but the process group is needed.

    Up to `direct` workers agree by telling everybody: one hop, and few bytes as long as the workers are few. More
    of them pass their numbers around a ring.
    """

    direct: int = 64

    offers: ClassVar[Capability] = Capability.COMBINE | Capability.SUM

    def rounds(self, varies: bool) -> int:
        """Up and down, each preceded by sizes where they vary."""
        return 4 if varies else 2

    def agree(self, numbers: torch.Tensor, workers: int) -> Generator[Transfer, None, None]:
        """One transfer, to everybody or around a ring."""
        if workers > self.direct:
            yield _largest(numbers, workers)
            return
        heard = numbers.new_empty(workers * len(numbers))
        yield replace(_all_to_all(heard, numbers.repeat(workers), own=numbers.nbytes), phase="agree")
        torch.amax(heard.view(workers, -1), 0, out=numbers)

    def exchange(self, messages: Messages, worker: int, combine: Combine) -> Exchange:
        """Message k goes to worker k, whose reply goes to all."""
        if isinstance(messages, torch.Tensor):
            return (yield from _exchange_rows(messages, worker, combine))
        return (yield from _exchange_list(messages, worker, combine))

    def gather(self, message: torch.Tensor, workers: int, gather: Gather) -> Exchange:
        """Every message goes to all, its size ahead if it is not known."""
        if gather.message is None:
            return (yield from _spread(message, workers))
        assert len(message) == gather.message
        heard = message.new_empty(workers, gather.message)
        yield _gather(heard, message)
        return heard

    def relay(
        self, message: torch.Tensor, worker: int, workers: int, relay: Relay, combine: Combine
    ) -> Exchange:
        """Up to one worker and down to all, two transfers."""
        assert len(message) == relay.message
        combines = worker == relay.worker
        to_one = [relay.message * (k == relay.worker) for k in range(workers)]
        incoming = [relay.message * combines] * workers
        arrived = message.new_empty(sum(incoming))
        yield _all_to_all(arrived, message, relay.message * combines, (incoming, to_one))
        reply = combine(arrived.split(incoming)) if combines else message.new_empty(0)
        heard = message.new_empty(relay.reply)
        from_one = [relay.reply * (k == relay.worker) for k in range(workers)]
        outgoing = [relay.reply * combines] * workers
        down = _all_to_all(heard, reply.repeat(workers), relay.reply * combines, (from_one, outgoing))
        yield replace(down, phase="down")
        return [heard]


def _exchange_rows(messages: torch.Tensor, worker: int, combine: Combine) -> Exchange:
    arrived = torch.empty_like(messages)
    yield _all_to_all(arrived, messages, own=messages[worker].nbytes)
    reply = combine(arrived)
    replies = reply.new_empty(len(messages), len(reply))
    yield _gather(replies, reply)
    return replies


def _exchange_list(messages: Messages, worker: int, combine: Combine) -> Exchange:
    sizes = torch.tensor([len(message) for message in messages], dtype=torch.int32, device=messages[0].device)
    arriving = torch.empty_like(sizes)
    yield _all_to_all(arriving, sizes, own=sizes.itemsize)
    outgoing, incoming = sizes.tolist(), arriving.tolist()
    arrived = messages[0].new_empty(sum(incoming))
    yield _all_to_all(arrived, torch.cat(list(messages)), outgoing[worker], (incoming, outgoing))
    return (yield from _spread(combine(arrived.split(incoming)), len(messages)))


def _spread(message: torch.Tensor, workers: int) -> Exchange:
    """Everybody's message; sizes that differ much are sent as they are, others padded to the longest."""
    counts = torch.empty(workers, dtype=torch.int32, device=message.device)
    yield _gather(counts, counts.new_tensor([len(message)]))
    sizes = counts.tolist()
    if max(sizes) * workers > UNEVEN * sum(sizes):
        heard = message.new_empty(sum(sizes))
        outgoing = [len(message)] * workers
        sent = _all_to_all(heard, message.repeat(workers), len(message), (sizes, outgoing))
        yield replace(sent, phase="down")
        return list(heard.split(sizes))
    rows = message.new_empty(workers, max(sizes))
    yield _gather(rows, torch.nn.functional.pad(message, (0, rows.shape[1] - len(message))))
    return [row[:count] for row, count in zip(rows, sizes, strict=True)]


def _all_to_all(
    arrived: torch.Tensor,
    messages: torch.Tensor,
    own: int,
    splits: tuple[list[int] | None, list[int] | None] = (None, None),
) -> Transfer:
    def start(group: dist.ProcessGroup) -> dist.Work:
        return dist.all_to_all_single(arrived, messages, *splits, group=group, async_op=True)

    return Transfer("up", start, messages.nbytes - own, arrived.nbytes - own)


def _largest(numbers: torch.Tensor, workers: int) -> Transfer:
    def start(group: dist.ProcessGroup) -> dist.Work:
        return dist.all_reduce(numbers, dist.ReduceOp.MAX, group, async_op=True)

    around = 2 * numbers.nbytes * (workers - 1) // workers  # a ring passes every number twice
    return Transfer("agree", start, around, around)


def _gather(rows: torch.Tensor, own: torch.Tensor) -> Transfer:
    def start(group: dist.ProcessGroup) -> dist.Work:
        return _all_gather(rows.flatten(), own, group=group, async_op=True)

    others = rows.nbytes - own.nbytes
    return Transfer("down", start, others, others)
