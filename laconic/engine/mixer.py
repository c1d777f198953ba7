"""One worker's mixings: segments of a vector to peers and from peers, all in flight at once.

`depart` sends every segment; `arrive` mixes each when it has been heard, while others are still under way. `relay`
does both, segment by segment: whatever is heard is mixed in and goes on to the next peer at once, the first to
arrive first, so that a link always has something to carry. Nobody waits for anybody but those it sends to and hears
from.

A vector that is mixed where it lies becomes ½ (own + heard), bit for bit as in the simulator. One that has moved on
in the meantime (overlap), or that travels as code, changes by ½ (heard - sent).
"""

from __future__ import annotations

import contextlib
import functools
import queue
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from laconic.core.place import Label, Transfer, Way
from laconic.core.technique import Reading
from laconic.engine.alarm import LinkError, Quiet, linked
from laconic.engine.waiters import Waiters, never_ends, to_the_end
from laconic.messages.crossover import BLOCK, Coded, Modular
from laconic.messages.seals import SEAL, opened, seal
from laconic.numerics import topology
from laconic.places.peers import patience_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from laconic.core.meter import Meter
    from laconic.engine.flat_view import FlatView
    from laconic.techniques.crossover import Crossover

ENDS = 3.0
"""Seconds in which threads end whose connections are closed; usually at once."""
OTHER = -1
"""The number of what is no segment."""


NOTHING = torch.empty(0, device="cpu")


@dataclass(eq=False)
class Leg:
    """A segment under way, number so many, of the mixing in a step."""

    number: int
    span: slice
    step: int
    sent: torch.Tensor = NOTHING
    """The segment, as its receiver has it."""
    message: torch.Tensor = NOTHING
    """What is sent, with a seal; and `heard`, as long."""
    heard: torch.Tensor = NOTHING
    coded: bool = False
    source: int = -1
    """The node that is heard."""
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
        self._timeout = patience_of(group).total_seconds()
        self._legs: dict[int, Leg] = {}
        self._rooms: dict[str, torch.Tensor] = {}
        self._unread: list[float] = []
        self._early: list[int] = []
        # On a device's stream nothing is waited for, and the order is the same on all workers.
        self._waiters = (
            Waiters(technique.segments + 1, "mixer", to_the_end) if carrier.type == "cpu" else None
        )
        self._ended: queue.SimpleQueue[int | BaseException] = queue.SimpleQueue()
        self.error: BaseException | None = None
        """Why nothing more will be heard, if so."""
        self._alarm = alarm
        self.codec: Modular | None = None
        alarm.listen(self.fail)
        alarm.before_leaving(self._settle)

    def fail(self, error: BaseException) -> None:
        """Nothing more is waited for."""
        self.error = self.error or error
        self._ended.put(self.error)

    def close(self) -> None:
        """No thread is left, but for those that wait for half a message of somebody who is gone."""
        if self._waiters is not None and not self._waiters.close(ENDS):
            never_ends((self._group, [leg.works for leg in self._legs.values()]))
        del self._group  # with it, its threads end

    def _settle(self) -> None:
        """What is under way has been sent and heard, or there was no patience for it."""
        deadline = time.monotonic() + self._alarm.patience
        pending = self._legs.keys() - self._early if self._waiters is not None else set()
        while pending and self.error is None and (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                pending.discard(self._ended.get(timeout=left))

    def wait(self, work: dist.Work) -> None:
        """Something other than a segment has ended."""
        if self._waiters is None:
            with linked():
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
            self._legs |= {number: self._loaded(vector, number, spans[number], step) for number in numbers}
            self._post(numbers)
        self._departed()

    def arrive(self, vector: FlatView) -> None:
        """The vector that departed, or what has become of it, is mixed with what was heard."""
        for number in self._heard():
            self._land(vector, self._legs[number])
        legs, self._legs = [leg for _, leg in sorted(self._legs.items())], {}
        self._arrived()
        if self._technique.codec is not None and self.codec is None:
            heard = torch.cat([_numbers(leg.heard) for leg in legs]).to(vector.device)
            self.codec = Modular.after(
                torch.cat([leg.sent for leg in legs]).view(-1, BLOCK), heard.view(-1, BLOCK)
            )

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
            self._legs[number] = self._loaded(vector, number, self._legs[number].span, step)
            self._post([number])
        self._arrived()
        self._departed()

    def _loaded(self, vector: FlatView, number: int, span: slice, step: int) -> Leg:
        """The segment with its message, ready to be sent."""
        with self._meter.phase("encode"):
            if self.codec is None:
                leg = self._plain(vector, Leg(number, span, step))
            else:
                leg = self._coded(vector, Leg(number, span, step), self.codec)
            seal(leg.message, [_label(step).key(Way.MIXING, self._node, number)])
            return leg

    def _plain(self, vector: FlatView, leg: Leg) -> Leg:
        """The leg with the segment's numbers; where they can, they lie in the message itself."""
        leg.message, leg.heard = (self._slot(name, vector, leg) for name in ("message", "heard"))
        numbers = _numbers(leg.message)
        if vector.device == self._carrier:
            leg.sent = vector.read(leg.span, numbers)
        else:
            leg.sent = vector.read(leg.span, self._room("sent", vector)[leg.span])
            numbers.copy_(leg.sent)
        return leg

    def _coded(self, vector: FlatView, leg: Leg, codec: Modular) -> Leg:
        """The leg with a byte for each of the segment's numbers."""
        values = vector.read(leg.span, self._room("sent", vector)[leg.span])
        coded, received = codec.encode(values.view(-1, BLOCK), _in_blocks(leg.span))
        content = coded.message().to(self._carrier)
        leg.coded, leg.sent = True, received.view(-1)
        leg.message = torch.cat([content, content.new_empty(SEAL)])
        leg.heard = torch.empty_like(leg.message)
        return leg

    def _post(self, numbers: Sequence[int]) -> None:
        """These segments are under way; receives come first, as a message waits where nobody is ready for it."""
        receives, sends = [], []
        for number in numbers:
            leg = self._legs[number]
            partners = topology.partners(self._technique.seed, leg.step, number, len(self._ranks))
            to, leg.source = (int(peers[self._node]) for peers in (partners, topology.sources(partners)))
            receives.append(dist.P2POp(dist.irecv, leg.heard, self._ranks[leg.source], self._group, number))
            sends.append(dist.P2POp(dist.isend, leg.message, self._ranks[to], self._group, number))
        with linked():
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
            with linked():
                for work in self._legs[upcoming].works:
                    work.wait()
            return upcoming
        if self.error is None:
            ended = self._ended_next()
            if isinstance(ended, int):
                return ended
            self.error = self.error or self._alarm.verdict(ended)
        raise self.error

    def _ended_next(self) -> int | BaseException:
        """The number of what has ended, or why nothing more will."""
        try:
            return self._ended.get(timeout=self._timeout)
        except queue.Empty:
            return LinkError(f"Timed out after {self._timeout:g} s")

    def _land(self, vector: FlatView, leg: Leg) -> None:
        """The segment is mixed."""
        with self._meter.phase("decode"):
            key = _label(leg.step).key(Way.MIXING, leg.source, leg.number)
            (content,) = opened([leg.heard], [key], [self._ranks[leg.source]])
            heard = (content if leg.coded else _numbers(leg.heard)).to(vector.device)
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

    def _room(self, name: str, vector: FlatView) -> torch.Tensor:
        """Room for the whole vector where it lies, of whole blocks for a codec; the same each time."""
        numel = self._spans(len(vector))[-1].stop
        return self._kept(name, numel, torch.float32, vector.device)

    def _slot(self, name: str, vector: FlatView, leg: Leg) -> torch.Tensor:
        """Room for the message of a segment, where messages lie; the same each time."""
        spans, span = self._spans(len(vector)), leg.span
        size = 4 * spans[-1].stop + SEAL * len(spans)
        room = self._kept(name, size, torch.uint8, self._carrier)
        return room[4 * span.start + SEAL * leg.number : 4 * span.stop + SEAL * (leg.number + 1)]

    def _kept(self, name: str, size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        if name not in self._rooms or len(self._rooms[name]) != size:
            self._rooms[name] = torch.empty(size, dtype=dtype, device=device)
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


def _numbers(message: torch.Tensor) -> torch.Tensor:
    """What is in a message that is not coded."""
    return message[:-SEAL].view(torch.float32)


def _label(step: int) -> Label:
    """Of segments; their sizes are known."""
    return Label(step, about=0, most=0)


def _in_blocks(span: slice) -> slice:
    return slice(span.start // BLOCK, span.stop // BLOCK)
