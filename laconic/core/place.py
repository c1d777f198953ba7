"""Where messages meet, as every room speaks of it: what a place can do, how messages travel, and one transfer.

A place is opened for a process group and gives a post: one worker's seat there. What a post does is written as
generators that yield transfers; the lane starts each one and resumes the generator when it has completed. So a post
says what travels, and the lane alone decides when.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, TypeVar

import torch

from laconic.numerics.digests import digest

if TYPE_CHECKING:
    import torch.distributed as dist

Messages: TypeAlias = "torch.Tensor | Sequence[torch.Tensor]"
"""Bytes: rows of one tensor when all messages have one size that everybody knows, else one tensor each."""

Combine: TypeAlias = Callable[[Messages], torch.Tensor]
"""From the messages about one shard, one a worker, to the reply."""

Result = TypeVar("Result")
Trip: TypeAlias = "Generator[Transfer, None, Result]"


class Capability(enum.Flag):
    """What a place can do with messages; a technique needs one of those it names."""

    COMBINE = enum.auto()
    """Run the technique's own `combine`."""
    SUM = enum.auto()
    """Add lanes of 8 or 16 bits, and nothing else."""


class Shards(NamedTuple):
    """Message k goes to whoever combines shard k, whose reply goes to all; where sizes vary, they go ahead."""

    vary: bool = False


class Everybody(NamedTuple):
    """Everybody's messages go to everybody, and nothing is combined; they have `size` bytes, where that is known."""

    size: int | None


class Owner(NamedTuple):
    """One worker combines everybody's messages, and its reply goes to all; each has `size` bytes, where known."""

    worker: int
    size: int | None


class Sum(NamedTuple):
    """The place adds everybody's messages about a shard, in lanes of so many bits; all have the sums."""

    lane: int


Route: TypeAlias = Shards | Everybody | Owner | Sum
"""How the messages of a piece travel."""


class Traffic(NamedTuple):
    """What will travel, for a place to prepare: the routes that pieces may have, and what comes before and after."""

    routes: tuple[Route, ...]
    surveys: bool = False
    """Whether workers agree on numbers before they encode."""
    measures: bool = False
    """Whether exact gradients are added up, too, to measure errors."""


class Way(enum.IntEnum):
    """What a message is on its way to."""

    AGREEMENT = 0
    COMBINING = 1
    REPLY = 2
    MIXING = 3


class Label(NamedTuple):
    """What messages are about, as both ends know it: something in a step, and the most bytes that one may have."""

    step: int
    about: int
    most: int

    def key(self, way: Way, speaker: int, shard: int = 0) -> int:
        """Of what this worker says about a shard."""
        (key,) = self.keys(way, [(speaker, shard)])
        return key

    def keys(self, way: Way, those: Iterable[tuple[int, int]]) -> list[int]:
        """Of what workers say about shards, each of a speaker and a shard below 2^32."""
        own = digest(struct.pack("<qQq", self.step, self.about, way))
        return [own ^ speaker << 32 ^ shard for speaker, shard in those]

    def agreed(self, numbers: torch.Tensor) -> Label:
        """The label among workers who have agreed on these numbers; one who has others understands nobody."""
        return self._replace(about=digest(numbers.cpu().numpy(), self.about))


class Transfer(NamedTuple):
    """Something under way between workers: how to start it, and the bytes that go to others and come from them.

    A channel starts its transfers in the order of their journeys; a journey uses channels in rising order.
    """

    phase: str
    channel: int
    start: Callable[[], dist.Work]
    sent: int
    received: int


class Seat(NamedTuple):
    """Who we are among how many."""

    worker: int
    workers: int

    def __str__(self) -> str:
        return f"worker {self.worker} of {self.workers}"


class Post(Protocol):
    """One worker's seat at a place."""

    seat: Seat
    carrier: torch.device
    """Where messages lie."""
    channels: int

    def agree(self, numbers: torch.Tensor, label: Label) -> Trip[None]:
        """`numbers` are the largest of all workers', one by one."""

    def deliver(self, route: Route, messages: Messages, combine: Combine, label: Label) -> Trip[Messages]:
        """The replies: one a shard, or everybody's messages, or the owner's reply alone."""

    def add(self, values: torch.Tensor) -> Trip[None]:
        """`values` are the sums of all workers', one by one; a measurement, whose bytes do not count."""

    def spread(self, message: torch.Tensor, source: int) -> Trip[None]:
        """`message` is the source's; the last transfer of a journey, for what is seldom."""

    def latest(self, numbers: torch.Tensor) -> Trip[None]:
        """`numbers` are the largest of all workers', one by one; a journey of its own, whose bytes do not count."""

    def close(self) -> None:
        """Nothing is held any more."""


class Place(Protocol):
    """Brings together the messages of each shard, has them combined, and gives everybody all replies."""

    @property
    def offers(self) -> Capability:
        """What this place can do with messages."""

    def open(self, group: dist.ProcessGroup, device: torch.device, traffic: Traffic) -> Post:
        """A seat for a worker of the group whose gradients lie on `device`; all of them must open one."""
