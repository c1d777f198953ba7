"""What a training step takes, from few physical numbers (docs/plan.md).

    wire   = F · max(sent, received) · 8 / (u · rate)          the busiest direction of a worker's link
    chain  = max(busy, wire) + min(busy, wire) / pieces + hops · latency
    step   = forward + max(backward + chain / buckets, backward / buckets + chain)
    step   = chain, with computing among what is busy          where the exchange is beside all of the next step

An exchange is a pipeline: while one piece travels, the worker's own work goes on with others. The slower of the two
sets the pace, and the other one shows only for the first piece or the last. Of what is exchanged, the last bucket
is there when backward ends, and nothing is before the first one is. No worker does more than its cores can: a step
is never shorter than (compute + busy) / cores.

F: frames to payload. u: the share of its time that a link is in use while a worker waits for nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FRAMES = 1514 / 1448
"""Ethernet, IP and TCP headers with timestamps, of full packets of 1500 bytes."""
RING = 0.96
"""Of a link's time, used by gloo's all-reduce; measured, as are the next three."""
LANE = 0.93
"""By pieces that follow each other, as in Laconic's lane."""
RELAYED = 0.86
"""By segments that each go on to another peer as soon as they are heard."""
SCATTERED = 0.75
"""By messages to many peers at once, the last of which is waited for."""
BACKWARD = 2 / 3
"""Of computing: backward multiplies twice what forward multiplies once."""


@dataclass(frozen=True)
class Link:
    """A worker's link, with so many bits a second in each direction; None is faster than anything else."""

    rate: float | None = None
    latency: float = 0.0

    def __post_init__(self) -> None:
        if self.rate is not None and not self.rate > 0:
            raise ValueError(f"a link's rate is {self.rate} bit/s; it must be above zero")
        if not self.latency >= 0:
            raise ValueError(f"a link's latency is {self.latency} s; it must not be negative")

    def seconds(self, payload: float) -> float:
        """To send so many bytes of payload, or to receive them, without a pause."""
        return 0.0 if self.rate is None else 8 * FRAMES * payload / self.rate


@dataclass(frozen=True)
class Exchange:
    """What workers say to each other in a step, as one worker sees it.

    `busy` is what the worker itself does for it, in seconds: kernels, copies, calls. `pieces` travel one behind the
    other. `hops` is how often the last of them waits for the link's latency.
    """

    sent: float
    received: float
    busy: float = 0.0
    pieces: int = 1
    hops: int = 0
    used: float = RING

    def wire(self, link: Link) -> float:
        """Seconds that the link needs."""
        return link.seconds(max(self.sent, self.received)) / self.used

    def chain(self, link: Link) -> float:
        """Seconds from the first piece's encoding to the last one's decoding."""
        short, long = sorted((self.busy, self.wire(link)))
        return long + short / self.pieces + self.hops * link.latency


@dataclass(frozen=True)
class Computing:
    """Forward and backward of a step alone, in seconds; gradients are ready in so many `buckets` of equal size.

    `beside` is the share of it beside which an exchange may travel. With one core, kernels take computing's time, as
    they do where both run on one device.
    """

    seconds: float
    buckets: float = 1
    beside: float = BACKWARD
    cores: float = 2.0

    def __post_init__(self) -> None:
        if not self.seconds >= 0:
            raise ValueError(f"computing takes {self.seconds} s; it must not be negative")


def step_seconds(computing: Computing, exchange: Exchange, link: Link) -> float:
    """What a step takes."""
    least = (computing.seconds + exchange.busy) / computing.cores
    if computing.beside == 1:
        work = max(least, computing.seconds, exchange.busy)
        return replace(exchange, busy=work).chain(link)
    backward, chain = computing.beside * computing.seconds, exchange.chain(link)
    last, first = chain / computing.buckets, backward / computing.buckets
    pipeline = computing.seconds - backward + max(backward + last, first + chain)
    return max(pipeline, least)


def all_reduced(payload: float, workers: int) -> float:
    """Bytes that a worker sends, and receives, to have the sum of `payload` bytes over workers from a ring."""
    return 2 * (workers - 1) / workers * payload
