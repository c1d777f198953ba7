"""What a technique is: encode on the worker, combine at the aggregator, decode on the worker.

A technique is a frozen value that holds hyperparameters, and knows neither its place nor its source. Bound to a
setting (how many workers, what the place can do, for some which layers), it is a scheme with nothing left open.
What a scheme remembers between steps lives in the attachment and is handed to it (memory.py).

A bucket of gradients travels as pieces, each a run of the bucket's coordinates. A piece is cut into one shard
per worker, so that every worker can combine one shard. For every piece and step there is one turn on each worker,
and one desk where a shard is combined:

    scheme.survey(turn, grad)                     only where workers must first agree on something
    messages = scheme.encode(turn, grad)          one message a shard
    reply    = scheme.combine(desk, messages)     the messages of one shard, one a worker
    scheme.decode(turn, replies, grad)            one reply a shard; the result is written into grad
"""

from __future__ import annotations

import abc
import enum
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import torch

from laconic.core.place import Capability, Messages, Route, Shards
from laconic.numerics.digests import digest

MOST = (1 << 31) - 1
"""Bytes of a message, whatever it says."""


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


@dataclass(frozen=True)
class Piece:
    """Coordinates `start` to `stop` of a bucket, in `shards` shards of `width`; the last ones may be short."""

    bucket: Bucket
    start: int
    stop: int
    shards: int
    width: int
    route: Route = Shards()

    @property
    def numel(self) -> int:
        """Coordinates in the piece."""
        return self.stop - self.start

    @functools.cached_property
    def number(self) -> int:
        """By which it is known among all pieces of a model."""
        return digest("\0".join((*self.bucket.names, str(self.start), str(self.stop))).encode())

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


class Side(enum.Enum):
    """Whose memory something is."""

    WORKER = "worker"
    """It lies where gradients do."""
    AGGREGATOR = "aggregator"
    """It lies where messages are combined."""


class Scaler(Protocol):
    """What multiplies a loss before backward, and divides gradients before the optimizer's step."""

    def get_scale(self) -> float:
        """By how much, in the next step."""


Count: TypeAlias = Callable[[str, int, int], int]
"""How many values are kept of a parameter: from its name, its number of coordinates, and which worker keeps them."""


Rescale: TypeAlias = Callable[[str, torch.Tensor, float], None]
"""A parameter's values, by its name, become what they would be of gradients that are so many times as large."""


def linear(_name: str, values: torch.Tensor, factor: float) -> None:
    """What is kept grows as gradients do."""
    values.mul_(factor)


@dataclass(frozen=True)
class Slot:
    """Something that is remembered between steps, in fp32: whose it is, and how much of it there is.

    A slot without a count has one value a coordinate, and a turn is given its piece's span. With one, values lie
    parameter by parameter in the bucket's order; a turn is given the whole bucket's, and the turns of a step must
    together write all of it. A tally has a shape of its own and adds up what the pieces of a step say; after each
    step `fades` of the old numbers is left, whatever unit gradients are in.
    """

    side: Side = Side.WORKER
    count: Count | None = None
    tally: tuple[int, ...] | None = None
    fades: float = 1.0
    rescale: Rescale = linear


class Cell(NamedTuple):
    """What is remembered for one piece: read what was committed, write all of what shall hold if the step is taken.

    Of a tally, which all pieces of a step share: add to what they have added.
    """

    old: torch.Tensor
    new: torch.Tensor


class Nothing(NamedTuple):
    """The memory of a scheme that has none."""

    old: None = None
    new: None = None


@dataclass(eq=False)
class Turn:
    """One piece in one step on one worker."""

    piece: Piece
    step: int
    worker: int
    memory: Mapping[str, Cell] = field(default_factory=dict)
    """The worker's."""
    scale: float = 1.0
    """By which the gradients are multiplied, and the result is to be: the loss's scale, where it is known."""
    agreed: torch.Tensor | None = None
    """What the workers agreed on, for a scheme that surveys them."""
    readings: dict[str, Reading] = field(default_factory=dict)
    """What a scheme noticed, for telemetry: amounts and what they are shares of, added up over a step."""


@dataclass(eq=False)
class Desk:
    """One shard of a piece in one step, where it is combined: all that an aggregator knows, wherever it sits."""

    piece: Piece
    step: int
    shard: int
    memory: Mapping[str, Cell] = field(default_factory=dict)
    """The aggregator's."""
    scale: float = 1.0
    readings: dict[str, Reading] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """What a technique is bound to: how many workers there are, and what their place can do."""

    workers: int
    offers: Capability = Capability.COMBINE | Capability.SUM


class Scheme(abc.ABC):
    """A technique with nothing left open, and no memory of its own: a server may hold one as well as a worker.

    Schemes are frozen dataclasses.
    """

    technique: Any
    """As attachments and headers show it."""
    workers: int
    surveys: ClassVar[bool] = False
    """Whether workers agree on some numbers before they encode."""
    directs: ClassVar[bool] = False
    """Whether the result is a direction, which is no longer one when something multiplies it."""

    @property
    def memory(self) -> Mapping[str, Slot]:
        """What is remembered, by name."""
        return {}

    @property
    def has_units(self) -> bool:
        """Whether it matters by what the loss was multiplied."""
        return bool(self.memory)

    @property
    def routes(self) -> tuple[Route, ...]:
        """Those that its pieces may have."""
        return (Shards(),)

    @abc.abstractmethod
    def cut(self, bucket: Bucket, wire: int) -> Sequence[Piece]:
        """The pieces in which a bucket travels, of about `wire` bytes each; results do not depend on it.

        A function of its arguments alone, so that workers agree.
        """

    def longest(self, piece: Piece) -> int:  # noqa: ARG002
        """The most bytes that a message or a reply about `piece` has, where they vary."""
        return MOST

    def survey(self, turn: Turn, grad: torch.Tensor) -> torch.Tensor:
        """This worker's numbers; `turn.agreed` will be the largest of all workers', one by one."""
        raise NotImplementedError

    @abc.abstractmethod
    def encode(self, turn: Turn, grad: torch.Tensor) -> Messages:
        """One message a shard; a non-finite `grad` must make the result non-finite on every worker."""

    @abc.abstractmethod
    def combine(self, desk: Desk, messages: Messages) -> torch.Tensor:
        """The reply for a shard from its messages, one a worker in worker order."""

    @abc.abstractmethod
    def decode(self, turn: Turn, replies: Messages, grad: torch.Tensor) -> None:
        """`grad` holds the result, the same on every worker."""


class Technique(Protocol):
    """A frozen value: hyperparameters, no place."""

    reads: ClassVar[str]
    """Whence it takes what it sends: "gradients", "layers" or "parameters"."""

    @property
    def needs(self) -> Capability:
        """The capabilities of which a place must offer one."""

    def bind(self, setting: Any) -> Scheme:
        """The technique with nothing left open, or an error that says why it cannot serve."""


def even_pieces(bucket: Bucket, shards: int, *, width: int, align: int = 1) -> list[Piece]:
    """Pieces that cover `bucket`, nearly equal, with shards of about `width` coordinates, multiples of `align`."""
    count = max(1, round(bucket.numel / (shards * max(1, width))))
    width = max(align, _round_up(-(-bucket.numel // (shards * count)), align))
    starts = range(0, bucket.numel, shards * width)
    return [
        Piece(bucket, start, min(bucket.numel, start + shards * width), shards, width) for start in starts
    ]


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
