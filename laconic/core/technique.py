"""What a technique is: encode on the worker, combine at the aggregator, decode on the worker.

A technique is a frozen value that holds hyperparameters. What it remembers between steps lives in the
attachment and is handed to it (`core/memory.py`); where messages are combined is its place (`places/peers.py`).

A bucket of gradients travels as pieces, each a run of the bucket's coordinates. A piece is cut into one shard
per worker, so that every worker can combine one shard. For every piece and step there is one turn:

    technique.survey(turn, grad)                     only where workers must first agree on something
    messages = technique.encode(turn, grad)          one message a shard
    reply    = technique.combine(turn, messages)     the messages of one shard, one a worker
    technique.decode(turn, replies, grad)            one reply a shard; the result is written into grad
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from laconic.layers.products import Product
    from laconic.layers.taps import Rows
    from laconic.places.peers import Place

PIECE_BYTES = 1 << 19  # large enough to amortize a round trip, small enough to keep both directions busy

Messages: TypeAlias = "torch.Tensor | Sequence[torch.Tensor]"
"""Bytes: rows of one tensor when all messages have one size that everybody knows, else one tensor each."""

Count: TypeAlias = "Callable[[str, int], int]"
"""How many values are kept of a parameter, from its name and number of coordinates."""


class Capability(enum.Flag):
    """What a place can do with messages; a technique needs one of those it names."""

    COMBINE = enum.auto()
    """Run the technique's own `combine`."""
    SUM = enum.auto()
    """Add integers of a fixed width, and nothing else."""


@dataclass(frozen=True)
class Bucket:
    """Which parameters lie in a flat gradient, in order, and in which type."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        """Coordinates in the bucket."""
        return sum(self.sizes)


class Gather(NamedTuple):
    """Everybody's messages go to everybody; they have `message` bytes each, where that is known."""

    message: int | None


class Relay(NamedTuple):
    """One worker combines everybody's messages, of `message` bytes each, into a reply of `reply` bytes."""

    worker: int
    message: int
    reply: int


@dataclass(frozen=True)
class Piece:
    """Coordinates `start` to `stop` of a bucket, in `shards` shards of `width`; the last ones may be short."""

    bucket: Bucket
    start: int
    stop: int
    shards: int
    width: int

    @property
    def numel(self) -> int:
        """Coordinates in the piece."""
        return self.stop - self.start

    @property
    def gather(self) -> Gather | None:
        """How messages travel where nothing is combined."""
        return None

    @property
    def relay(self) -> Relay | None:
        """Who combines the whole piece, where one worker does and sizes are known."""
        return None

    @property
    def padding(self) -> int:
        """Coordinates that shards are short of `width`, together."""
        return self.shards * self.width - self.numel


class Reading(NamedTuple):
    """An amount, and the amount that it is a share of; scalars, on whatever device they were computed."""

    amount: torch.Tensor | float
    of: torch.Tensor | float

    @staticmethod
    def shares(readings: Mapping[str, Reading]) -> dict[str, float]:
        """The shares that are finite; the device is asked once."""
        values = [value for reading in readings.values() for value in reading]
        tensors = [value.double() for value in values if isinstance(value, torch.Tensor)]
        asked = iter(torch.stack(tensors).tolist() if tensors else ())
        numbers = [next(asked) if isinstance(value, torch.Tensor) else value for value in values]
        shares = {
            name: amount / of
            for name, amount, of in zip(readings, numbers[::2], numbers[1::2], strict=True)
            if of != 0
        }
        return {name: share for name, share in shares.items() if math.isfinite(share)}


class Memory(NamedTuple):
    """State for one piece: read what was committed, write all of what shall hold if the step is taken.

    Of a tally, which all pieces of a step share: add to what they have added.
    """

    old: torch.Tensor
    new: torch.Tensor


class Nothing(NamedTuple):
    """The memory of a technique that has none."""

    old: None = None
    new: None = None


class Tally(NamedTuple):
    """A few numbers that a worker keeps as an aggregator; after each step `fades` of the old ones is left."""

    shape: tuple[int, ...]
    fades: float


@dataclass
class Turn:
    """One piece in one step: who we are and what we remember."""

    piece: Piece
    step: int
    worker: int
    memory: dict[str, Memory] = field(default_factory=dict)
    """The piece's span of what the technique remembers, and the whole bucket's of what it keeps."""
    agreed: torch.Tensor | None = None
    """What the workers agreed on, for a technique that surveys them."""
    readings: dict[str, Reading] = field(default_factory=dict)
    """What a technique noticed, for telemetry: amounts and what they are shares of, added up over a step."""
    tallies: dict[str, Memory] = field(default_factory=dict)
    """Of a technique that keeps tallies."""
    rows: Rows | None = None
    """What a layer was given and what came back, where a piece is a layer."""
    products: Mapping[str, Product] = field(default_factory=dict)
    """Where a piece is a layer, what `decode` has found: its gradients, by parameter, not yet multiplied."""


class Technique(Protocol):
    """The three functions, and what the spine must know to run them."""

    @property
    def place(self) -> Place:
        """Where messages are combined."""

    @property
    def needs(self) -> Capability:
        """The capabilities of which a place must offer one."""

    @property
    def remembers(self) -> tuple[str, ...]:
        """Names of the fp32 state tensors, one value a coordinate, that are kept between steps."""

    @property
    def varies(self) -> bool:
        """Whether message sizes are unknown to the receiver; they then travel ahead of the messages."""

    def cut(self, bucket: Bucket, workers: int) -> Sequence[Piece]:
        """The pieces in which a bucket travels: a function of its arguments alone, so that workers agree."""

    def encode(self, turn: Turn, grad: torch.Tensor) -> Messages:
        """One message a shard; a non-finite `grad` must make the result non-finite on every worker."""

    def combine(self, turn: Turn, messages: Messages) -> torch.Tensor:
        """The reply for this worker's shard from its messages, one a worker in worker order."""

    def decode(self, turn: Turn, replies: Messages, grad: torch.Tensor) -> None:
        """`grad` holds the result, the same on every worker."""


@runtime_checkable
class Surveyor(Protocol):
    """A technique whose workers agree on some numbers before they encode."""

    def survey(self, turn: Turn, grad: torch.Tensor) -> torch.Tensor:
        """This worker's numbers; `turn.agreed` will be the largest of all workers', one by one."""


@runtime_checkable
class Tallier(Protocol):
    """A technique whose aggregators remember something of their own."""

    def tallies(self, workers: int) -> Mapping[str, Tally]:
        """What an aggregator keeps, by name."""


@runtime_checkable
class Keeper(Protocol):
    """A technique whose aggregators remember something of parameters, but not one value a coordinate."""

    def keeps(self, worker: int, workers: int) -> Mapping[str, Count]:
        """More fp32 memory, by name: how many values `worker` keeps of each parameter.

        It lies where messages are combined, parameter by parameter in the bucket's order. A turn's memory is the
        whole bucket's: the turns of a step must together write all of it.
        """


@runtime_checkable
class Holder(Protocol):
    """A technique whose workers remember something of parameters, but not one value a coordinate."""

    def holds(self) -> Mapping[str, Count]:
        """The same of what every worker has for itself; it lies where gradients do."""


@runtime_checkable
class Settler(Protocol):
    """A technique that leaves something to the number of workers."""

    def settled(self, workers: int) -> Technique:
        """The technique with nothing left open, as attachments and headers show it."""


def even_pieces(bucket: Bucket, shards: int, *, width: int, align: int = 1) -> list[Piece]:
    """Pieces that cover `bucket`, nearly equal, with shards of about `width` coordinates, multiples of `align`."""
    count = max(1, round(bucket.numel / (shards * width)))
    width = max(align, _round_up(-(-bucket.numel // (shards * count)), align))
    starts = range(0, bucket.numel, shards * width)
    return [
        Piece(bucket, start, min(bucket.numel, start + shards * width), shards, width) for start in starts
    ]


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
