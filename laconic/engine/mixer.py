"""One worker's mixings: segments of a vector to peers and from peers, all in flight at once.

`depart` sends every segment; `arrive` mixes each when it has been heard, while others are still under way. `relay`
does both, segment by segment: whatever is heard is mixed in and goes on to the next peer at once, the first to
arrive first, so that a link always has something to carry. Nobody waits for anybody but those it sends to and hears
from.

A vector that is mixed where it lies becomes ½ (own + heard), bit for bit as in the simulator. One that has moved on
in the meantime (overlap), or that travels as code, changes by ½ (heard - sent).
"""

from __future__ import annotations

import functools
import queue
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from laconic.core.place import Transfer
from laconic.core.technique import Reading
from laconic.engine.alarm import LinkError, Quiet
from laconic.engine.waiters import Waiters
from laconic.messages.crossover import BLOCK, Coded, Modular
from laconic.numerics import topology

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from laconic.core.meter import Meter
    from laconic.engine.flat_view import FlatView
    from laconic.techniques.crossover import Crossover

OTHER = -1
"""The number of what is no segment."""


@dataclass(eq=False)
class Leg:
    """A segment under way."""

    span: slice
    sent: torch.Tensor
    """The segment, as its receiver has it."""
    message: torch.Tensor
    heard: torch.Tensor
    coded: bool
    works: list[dist.Work] = field(default_factory=list)
    """What ends when the message has been sent, and the other heard."""


class Mixer:
    """A gossiping worker, `node` of `ranks`, on a group of all of them; messages lie on `carrier`."""

    def __init__(
        self,
        technique: Crossover,
        group: dist.ProcessGroup,
        ranks: Sequence[int],
        node: int,
        carrier: torch.device,
        meter: Meter,
        alarm: Quiet,
    ) -> None:
        self._technique, self._group, self._ranks, self._node = technique, group, ranks, node
        self._carrier, self._meter = carrier, meter
        self._legs: dict[int, Leg] = {}
        self._rooms: dict[str, torch.Tensor] = {}
        self._unread: list[float] = []
        self._early: list[int] = []
        # On a device's stream nothing is waited for, and the order is the same on all workers.
        self._waiters = Waiters(technique.segments + 1) if carrier.type == "cpu" else None
        self._ended: queue.SimpleQueue[int | BaseException] = queue.SimpleQueue()
        self.error: BaseException | None = None
        """Why nothing more will be heard, if so."""
        self._alarm = alarm
        self.codec: Modular | None = None
        alarm.listen(self.fail)

    def fail(self, error: BaseException) -> None:
        """Nothing more is waited for."""
        self.error = self.error or error
        self._ended.put(self.error)

    def close(self) -> None:
        """No thread is left."""
        if self._waiters is not None:
            self._waiters.close()

    def wait(self, work: dist.Work) -> None:
        """Something other than a segment has ended."""
        if self._waiters is None:
            work.wait()
            return
        self._waiters.post([work], functools.partial(self._tell, OTHER))
        while (number := self._next(OTHER)) != OTHER:
            self._early.append(number)

    def depart(self, vector: FlatView, step: int) -> None:
        """All segments of the vector are on their way; those that must be coded each as soon as they are."""
        spans = self._spans(len(vector))
        together = len(spans) if self.codec is None else 1
        for first in range(0, len(spans), together):
            numbers = range(first, first + together)
            self._legs |= {number: self._loaded(vector, spans[number]) for number in numbers}
            self._post(numbers, step)
        self._departed()

    def arrive(self, vector: FlatView) -> None:
        """The vector that departed, or what has become of it, is mixed with what was heard."""
        for number in self._heard():
            self._land(vector, self._legs[number])
        self._legs = {}
        self._arrived()
        if self._technique.codec is not None and self.codec is None:
            sent, heard = (self._rooms[name].to(vector.device).view(-1, BLOCK) for name in ("sent", "heard"))
            self.codec = Modular.after(sent, heard)

    def forget(self) -> None:
        """What is under way has come, and changes nothing."""
        for number in self._heard():
            self._legs[number].works = []
        self._legs, self._unread = {}, []
        self._arrived()

    def relay(self, vector: FlatView, step: int) -> None:
        """As `arrive` and then `depart`, but a segment departs as soon as it has arrived."""
        if self._technique.codec is not None and self.codec is None:  # it will be known when all have arrived
            self.arrive(vector)
            self.depart(vector, step)
            return
        for number in self._heard():
            self._land(vector, self._legs[number])
            self._legs[number] = self._loaded(vector, self._legs[number].span)
            self._post([number], step)
        self._arrived()
        self._departed()

    def _loaded(self, vector: FlatView, span: slice) -> Leg:
        """The segment with its message, ready to be sent."""
        with self._meter.phase("encode"):
            sent = vector.read(span, self._room("sent", vector, vector.device)[span])
            if self.codec is None:
                heard = self._room("heard", vector, self._carrier)[span]
                return Leg(span, sent, sent.to(self._carrier), heard, coded=False)
            coded, received = self.codec.encode(sent.view(-1, BLOCK), _in_blocks(span))
            message = coded.message().to(self._carrier)
            return Leg(span, received.view(-1), message, torch.empty_like(message), coded=True)

    def _post(self, numbers: Sequence[int], step: int) -> None:
        """These segments are under way; receives come first, as a message waits where nobody is ready for it."""
        receives, sends = [], []
        for number in numbers:
            leg = self._legs[number]
            partners = topology.partners(self._technique.seed, step, number, len(self._ranks))
            to, source = (
                self._ranks[int(peers[self._node])] for peers in (partners, topology.sources(partners))
            )
            receives.append(dist.P2POp(dist.irecv, leg.heard, source, self._group, number))
            sends.append(dist.P2POp(dist.isend, leg.message, to, self._group, number))
        works = dist.batch_isend_irecv(receives + sends)
        each = len(works) == 2 * len(numbers)  # gloo has a work for each of them, NCCL one for all
        for place, number in enumerate(numbers):
            self._legs[number].works = [works[place], works[place + len(numbers)]] if each else works
            if self._waiters is not None:
                self._waiters.post(self._legs[number].works, functools.partial(self._tell, number))

    def _heard(self) -> Iterator[int]:
        """The numbers of all segments under way, each as soon as it has been heard and sent, or else in order."""
        pending, early, self._early = dict.fromkeys(self._legs), self._early, []
        while pending:
            with self._meter.phase("waiting"):
                number = early.pop() if early else self._next(next(iter(pending)))
            if number in pending:
                del pending[number]
                yield number
            else:
                self._early.append(number)  # it was passed on a moment ago, and has already come back

    def _tell(self, number: int, error: Exception | None) -> None:
        self._ended.put(number if error is None else LinkError(str(error)))

    def _next(self, upcoming: int) -> int:
        """The number of a segment that has been heard and sent."""
        if self._waiters is None:
            for work in self._legs[upcoming].works:
                work.wait()
            return upcoming
        if self.error is None:
            ended = self._ended.get()
            if isinstance(ended, int):
                return ended
            self.error = self.error or self._alarm.verdict(ended)
        raise self.error

    def _land(self, vector: FlatView, leg: Leg) -> None:
        """The segment is mixed."""
        with self._meter.phase("decode"):
            heard = leg.heard.to(vector.device)
            if leg.coded:
                assert self.codec is not None
                sent = leg.sent.view(-1, BLOCK)
                change, readable = self.codec.decode(_in_blocks(leg.span), sent, Coded.parse(heard))
                vector.add(leg.span, change.view(-1))
                self._unread.append(1 - float(readable.float().mean()))
            elif self._technique.overlap:
                vector.add(leg.span, (heard - leg.sent).mul_(0.5))
            else:
                for place, piece in vector.pieces(leg.span):
                    topology.mixed(piece, heard[place], out=piece)

    def _departed(self) -> None:
        """What is under way is counted."""
        size = sum(leg.message.nbytes for leg in self._legs.values())
        self._transfer = Transfer("gossip", 0, lambda: self._legs[0].works[0], size, size)
        self._meter.depart(self._transfer)

    def _arrived(self) -> None:
        """Nothing of the last mixing is under way."""
        self._meter.arrive(self._transfer)
        self._meter.readings = {}
        if self._unread:
            self._meter.readings = {"unread": Reading(sum(self._unread) / len(self._unread), 1.0)}
        self._unread = []

    def _room(self, name: str, vector: FlatView, device: torch.device) -> torch.Tensor:
        """Room for the whole vector, of whole blocks for a codec; the same each time."""
        numel = self._spans(len(vector))[-1].stop
        if name not in self._rooms or len(self._rooms[name]) != numel:
            self._rooms[name] = torch.empty(numel, dtype=torch.float32, device=device)
        return self._rooms[name]

    def _spans(self, numel: int) -> list[slice]:
        count = self._technique.segments
        if self._technique.codec is None:
            return topology.segments(numel, count)
        blocks = -(-numel // BLOCK)
        return [
            slice(BLOCK * part.start, BLOCK * part.stop)
            for part in topology.segments(blocks, min(count, blocks))
        ]


def _in_blocks(span: slice) -> slice:
    return slice(span.start // BLOCK, span.stop // BLOCK)
