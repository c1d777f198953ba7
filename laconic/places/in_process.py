"""All workers in one process, taking steps together: for tests, the planner and figures.

Each worker has a post; `together` advances everybody's journeys transfer by transfer. A post leaves what it says on
the table before a transfer and reads what others left after it, so nothing else happens than among real workers.

Where fewer are present than there are workers, the messages of those who are absent are the messages of those present
about other shards: as long, and as independent. Replies of theirs are as long as ours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist

from laconic.core.place import (
    Combine,
    Everybody,
    Label,
    Messages,
    Owner,
    Result,
    Route,
    Seat,
    Shards,
    Sum,
    Traffic,
    Transfer,
    Trip,
    Way,
)
from laconic.messages.seals import opened, sealed
from laconic.places.peers import Peers, added, agreement_bytes, channels

SIZE_BYTES = 8


class InProcess:
    """A place for so many workers, of whom `present` have a post.

    `damage` may change what everybody says about shards, workers × shards, before it is sealed.
    """

    def __init__(
        self,
        workers: int,
        device: torch.device,
        traffic: Traffic,
        present: int | None = None,
        damage: Callable[[list[Any]], list[Any]] | None = None,
    ) -> None:
        self.workers, self.device, self.traffic, self.damage = workers, device, traffic, damage
        self.posts = [InProcessPost(self, worker) for worker in range(min(present or workers, workers))]
        self.table: defaultdict[int, dict[int, Any]] = defaultdict(dict)
        """What was said before each transfer, by whom."""
        self._damaged: tuple[Any, list[Any]] = (None, [])
        """What one of those present said last, and what became of everybody's."""

    def damaged(self, heard: list[Any], label: Label) -> list[Any]:
        """What everybody is taken to have said, under their own seals."""
        if self.damage is None:
            return heard
        if self._damaged[0] is not heard[0]:
            self._damaged = (heard[0], self._changed(heard, label, self.damage))
        return self._damaged[1]

    def _changed(self, heard: list[Any], label: Label, change: Callable[[list[Any]], list[Any]]) -> list[Any]:
        keys = [
            [label.key(Way.COMBINING, worker, shard) for shard in range(len(said))]
            for worker, said in enumerate(heard)
        ]
        contents = [
            list(opened(said, own, [worker] * len(said)))
            for worker, (said, own) in enumerate(zip(heard, keys, strict=True))
        ]
        return [sealed(said, own) for said, own in zip(change(contents), keys, strict=True)]

    def heard(self, spoken: int) -> list[Any]:
        """What those who are present said, in worker order; what was said longer ago is gone."""
        self.table.pop(spoken - 2, None)
        return [said for _, said in sorted(self.table[spoken].items())]


class InProcessPost:
    """One of the workers."""

    def __init__(self, place: InProcess, worker: int) -> None:
        self.seat, self.carrier = Seat(worker, place.workers), place.device
        self.channels = channels(place.traffic)
        self._place = place
        self._spoken = 0

    def close(self) -> None:
        """There is nothing to close."""

    def latest(self, numbers: torch.Tensor) -> Trip[None]:
        """Everybody hears everybody."""
        heard = yield from self._say("waiting", numbers.clone(), 0)
        torch.amax(torch.stack(heard), 0, out=numbers)

    def agree(self, numbers: torch.Tensor, label: Label) -> Trip[None]:  # noqa: ARG002
        """Everybody hears everybody."""
        heard = yield from self._say(
            "agree", numbers.clone(), agreement_bytes(numbers, self.seat.workers, Peers.direct)
        )
        torch.amax(torch.stack(heard), 0, out=numbers)

    def add(self, values: torch.Tensor) -> Trip[None]:
        """Everybody hears everybody."""
        heard = yield from self._say("measure", values, 0)
        torch.sum(torch.stack(heard), 0, out=values)

    def spread(self, message: torch.Tensor, source: int) -> Trip[None]:
        """Everybody hears the source."""
        said = yield from self._say("spread", message, len(message) * (self.seat.worker == source))
        message.copy_(said[source])

    def deliver(self, route: Route, messages: Messages, combine: Combine, label: Label) -> Trip[Messages]:
        """Up to those who combine, if anybody does, and down to all."""
        worker, workers = self.seat
        match route:
            case Everybody():
                message = messages[0]
                heard = yield from self._say("down", message, len(message) * (workers - 1))
                return _joined(_everybody(heard, workers, Way.COMBINING, label), route.size is not None)
            case Owner(owner, _):
                message = messages[0]
                heard = yield from self._say("up", message, len(message) * (worker != owner))
                arrived = _everybody(heard, workers, Way.COMBINING, label)
                reply = combine(arrived) if worker == owner else None
                replies = yield from self._say("down", reply, _size(reply) * (workers - 1))
                return [next(reply for reply in replies if reply is not None)]
            case Sum(lane):
                return (
                    yield from self._through_shards(
                        messages, lambda arrived: added(arrived, lane), Shards(), label
                    )
                )
            case Shards():
                return (yield from self._through_shards(messages, combine, route, label))

    def _through_shards(
        self, messages: Messages, combine: Combine, route: Shards, label: Label
    ) -> Trip[Messages]:
        worker, workers = self.seat
        ahead = SIZE_BYTES * (workers - 1) * route.vary
        others = sum(len(message) for shard, message in enumerate(messages) if shard != worker)
        heard = self._place.damaged((yield from self._say("up", list(messages), others + ahead)), label)
        arrived = [self._about_this_shard(heard, speaker, label) for speaker in range(workers)]
        reply = combine(_joined(arrived, not route.vary))
        replies = yield from self._say("down", reply, len(reply) * (workers - 1) + ahead)
        return _joined(_everybody(replies, workers, Way.REPLY, label), not route.vary)

    def _about_this_shard(self, heard: Sequence[Any], speaker: int, label: Label) -> torch.Tensor:
        """What the speaker says about our shard; of one who is absent, what somebody says about another."""
        worker, workers = self.seat
        present, shard = speaker % len(heard), (worker + speaker // len(heard)) % workers
        return _as_if_of(speaker, worker, heard[present][shard], (present, shard), Way.COMBINING, label)

    def _say(self, phase: str, what: Any, sent: int) -> Trip[list[Any]]:
        """What everybody says, once all have."""
        spoken = self._spoken
        self._place.table[spoken][self.seat.worker] = _copied(what)
        self._spoken += 1
        yield Transfer(phase, 0, _nothing, sent, sent)
        return self._place.heard(spoken)


def together(
    journeys: Sequence[Trip[Result]], count: Callable[[int, Transfer], None] = lambda _, __: None
) -> list[Result]:
    """What each worker's journey comes to, with all of them under way at once; `count` is told of transfers."""
    results: dict[int, Result] = {}
    under_way = dict(enumerate(journeys))
    while under_way:
        for worker, journey in list(under_way.items()):
            try:
                count(worker, next(journey))
            except StopIteration as end:
                results[worker] = end.value
                del under_way[worker]
    return [results[worker] for worker in range(len(journeys))]


def _nothing() -> dist.Work:
    return cast("dist.Work", None)


def _copied(what: Any) -> Any:
    """As if it had left: a message may lie where its worker's result will."""
    return (
        [each.clone() for each in what] if isinstance(what, list) else what if what is None else what.clone()
    )


def _everybody(said: Sequence[torch.Tensor], workers: int, way: Way, label: Label) -> list[torch.Tensor]:
    """What all workers say, from what those who are present do."""
    present = len(said)
    return [_as_if_of(k, 0, said[k % present], (k % present, 0), way, label) for k in range(workers)]


def _as_if_of(
    speaker: int, shard: int, message: torch.Tensor, said: tuple[int, int], way: Way, label: Label
) -> torch.Tensor:
    """The message under the seal of another speaker and shard, unless they are those who said it and of which."""
    if said == (speaker, shard):
        return message
    content = opened([message], [label.key(way, *said)], [speaker])
    return sealed(content, [label.key(way, speaker, shard)])[0]


def _joined(messages: Sequence[torch.Tensor], alike: bool) -> Messages:
    return torch.stack(list(messages)) if alike else messages


def _size(reply: torch.Tensor | None) -> int:
    return 0 if reply is None else len(reply)
