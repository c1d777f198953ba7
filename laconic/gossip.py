"""One worker's mixings: segments of a flat vector to peers and from peers, all in flight at once.

`depart` posts every segment's send and receive; `arrive` mixes each segment when both have ended, while others are
still under way. Nobody waits for anybody but those it sends to and hears from.

A vector that is mixed where it lies becomes ½ (own + heard), bit for bit as in the simulator. One that has moved on
in the meantime (overlap), or that travels as code, changes by ½ (heard - sent).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from laconic import mixing
from laconic.modular import BLOCK, Coded, Modular
from laconic.places import Transfer
from laconic.technique import Reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laconic.crossover import Crossover
    from laconic.meter import Meter


@dataclass
class Flight:
    """A mixing under way."""

    sent: torch.Tensor
    """The vector, as receivers have it."""
    outgoing: list[torch.Tensor]
    heard: list[torch.Tensor]
    works: list[dist.Work]
    transfer: Transfer
    coded: bool


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
    ) -> None:
        self._technique, self._group, self._ranks, self._node = technique, group, ranks, node
        self._carrier, self._meter = carrier, meter
        self.codec: Modular | None = None

    def depart(self, flat: torch.Tensor, step: int) -> Flight:
        """All segments of `flat` are on their way; nobody but `arrive` may change it until they have arrived."""
        with self._meter.phase("encode"):
            coded = self.codec is not None
            sent, outgoing = self._encode(flat)
            heard = [torch.empty_like(message) for message in outgoing]
        ops = []
        for number, (message, into) in enumerate(zip(outgoing, heard, strict=True)):
            partners = mixing.partners(self._technique.seed, step, number, len(self._ranks))
            to, source = (
                self._ranks[int(peers[self._node])] for peers in (partners, mixing.sources(partners))
            )
            ops.append(dist.P2POp(dist.isend, message, to, self._group, number))
            ops.append(dist.P2POp(dist.irecv, into, source, self._group, number))
        size = sum(message.nbytes for message in outgoing)
        works = dist.batch_isend_irecv(ops)
        transfer = Transfer("gossip", lambda _: works[0], size, size)
        self._meter.depart(transfer)
        return Flight(sent, outgoing, heard, works, transfer, coded)

    def arrive(self, flight: Flight, flat: torch.Tensor) -> None:
        """`flat`, which is the vector that departed or what has become of it, is mixed with what is heard."""
        readable = []
        each = len(flight.works) // len(flight.heard)
        for number, (span, heard) in enumerate(zip(self._spans(flat), flight.heard, strict=True)):
            with self._meter.phase("waiting"):
                for work in flight.works[number * each : (number + 1) * each] or flight.works:
                    work.wait()
            with self._meter.phase("decode"):
                readable.append(self._mix(flight, flat, span, heard.to(flat.device)))
        self._meter.arrive(flight.transfer)
        if self._technique.codec is not None and not flight.coded:
            whole = torch.cat([message.to(flat.device) for message in flight.heard])
            self.codec = Modular.after(flight.sent.view(-1, BLOCK), whole.view(-1, BLOCK))
        unread = sum(1 - share for share in readable) / len(readable)
        self._meter.readings = {"unread": Reading(unread, 1.0)} if flight.coded else {}

    def _encode(self, flat: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The vector as receivers have it, and its segments' messages."""
        spans = self._spans(flat)
        if self.codec is None:
            # With a codec both what was sent and what was heard are looked at again, after they were mixed.
            sent = flat.clone() if self._technique.codec is not None else flat
            return sent, [sent[span].to(self._carrier) for span in spans]
        coded, sent = self.codec.encode(flat.view(-1, BLOCK))
        parts = [Coded(*(side[_in_blocks(span)] for side in coded)) for span in spans]
        return sent.view(-1), [part.message().to(self._carrier) for part in parts]

    def _mix(self, flight: Flight, flat: torch.Tensor, span: slice, heard: torch.Tensor) -> float:
        """The share of blocks that could be read."""
        own = flat[span]
        if flight.coded:
            assert self.codec is not None
            blocks = _in_blocks(span)
            sent = flight.sent[span].view(-1, BLOCK)
            change, readable = self.codec.decode(blocks, sent, Coded.parse(heard))
            own += change.view(-1)
            return float(readable.float().mean())
        if self._technique.overlap:
            own.add_(heard - flight.sent[span], alpha=0.5)
        else:
            mixing.mixed(own, heard, out=own)
        return 1.0

    def _spans(self, flat: torch.Tensor) -> list[slice]:
        count = self._technique.segments
        if self._technique.codec is None:
            return mixing.segments(len(flat), count)
        blocks = len(flat) // BLOCK
        return [
            slice(BLOCK * part.start, BLOCK * part.stop)
            for part in mixing.segments(blocks, min(count, blocks))
        ]


def _in_blocks(span: slice) -> slice:
    return slice(span.start // BLOCK, span.stop // BLOCK)
