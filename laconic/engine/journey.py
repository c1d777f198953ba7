"""One journey: a piece, or a few small ones together, from a worker's gradient to everybody's result.

survey   where workers must agree on something, they do
encode   messages; they travel by their piece's route, and are combined where they meet
decode   the replies' result, in the place of the gradient
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from laconic.core import streams
from laconic.core.place import Combine, Everybody, Label, Messages, Post, Route, Sum, Trip
from laconic.core.technique import Desk, Reading, Scheme, Turn
from laconic.layers.loads import LayerTurn
from laconic.messages.seals import Envelopes, joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laconic.core.meter import Meter


class Load(NamedTuple):
    """A piece under way: the worker's turn, the desk where its shard is combined, and its gradient.

    A bucket's gradient becomes the result; a layer's is only given to measure errors.
    """

    turn: Turn
    desk: Desk
    grad: torch.Tensor

    @property
    def size(self) -> int | None:
        """Bytes of a message that everybody hears and knows the size of: such loads may travel together."""
        route = self.turn.piece.route
        return route.size if isinstance(route, Everybody) else None


@dataclass(frozen=True)
class Vehicle:
    """What all journeys of one attachment share."""

    scheme: Scheme
    post: Post
    meter: Meter
    device: torch.device
    measures: bool = False
    """Whether each result's error is measured against the exact mean."""

    def travel(self, loads: Sequence[Load]) -> Trip[None]:
        """The loads' gradients are the results; several travel together if everybody hears them all."""
        for load in loads:
            streams.borrow((load.grad, *_rows(load.turn)))
        exact = [load.grad.to(torch.float32, copy=True) for load in loads] if self.measures else []
        label = self._label(loads)
        if self.scheme.surveys:
            label = yield from self._survey(loads, label)
        with self.meter.phase("encode"):
            encoded = [self._carried(self.scheme.encode(load.turn, load.grad)) for load in loads]
        replies = yield from self._deliver(loads, encoded, label)
        with self.meter.phase("decode"):
            for load, heard in zip(loads, replies, strict=True):
                self.scheme.decode(load.turn, _moved(heard, self.device), load.grad)
        for load, mean in zip(loads, exact, strict=False):
            yield from self._measure(load, mean)

    def _label(self, loads: Sequence[Load]) -> Label:
        piece = loads[0].turn.piece
        return Label(loads[0].turn.step, piece.number, self.scheme.longest(piece))

    def _survey(self, loads: Sequence[Load], label: Label) -> Trip[Label]:
        (load,) = loads
        with self.meter.phase("encode"):
            numbers = self.scheme.survey(load.turn, load.grad).to(self.post.carrier)
        yield from self.post.agree(numbers, label)
        load.turn.agreed = numbers.to(self.device)
        return label.agreed(numbers)

    def _deliver(
        self, loads: Sequence[Load], encoded: Sequence[Messages], label: Label
    ) -> Trip[Sequence[Messages]]:
        if len(loads) == 1:
            desk, route = loads[0].desk, loads[0].turn.piece.route
            return [
                (yield from self._exchange(route, encoded[0], functools.partial(self._combine, desk), label))
            ]
        messages = [message for (message,) in encoded]
        together = joined(messages)
        heard = yield from self._exchange(Everybody(len(together)), [together], _refuse, label)
        assert isinstance(heard, torch.Tensor)
        return heard.split([len(message) for message in messages], dim=1)

    def _exchange(self, route: Route, messages: Messages, combine: Combine, label: Label) -> Trip[Messages]:
        """The replies; all that travels is sealed, but for what a place adds up on the way."""
        if isinstance(route, Sum):
            return (yield from self.post.deliver(route, messages, combine, label))
        envelopes = Envelopes(route, self.post.seat, label, self.meter)
        outgoing = envelopes.sealed(messages)
        return envelopes.opened(
            (yield from self.post.deliver(route, outgoing, envelopes.combining(combine), label))
        )

    def _combine(self, desk: Desk, messages: Messages) -> torch.Tensor:
        with self.meter.phase("combine"):
            return self.scheme.combine(desk, messages)

    def _measure(self, load: Load, exact: torch.Tensor) -> Trip[None]:
        yield from self.post.add(exact)
        exact /= self.post.seat.workers
        error = (load.grad - exact).square().sum()
        load.turn.readings["error"] = Reading(error, exact.square().sum())

    def _carried(self, messages: Messages) -> Messages:
        return _moved(messages, self.post.carrier)


def _rows(turn: Turn) -> tuple[torch.Tensor | None, ...]:
    return (turn.rows or ()) if isinstance(turn, LayerTurn) else ()


def _moved(messages: Messages, device: torch.device) -> Messages:
    if isinstance(messages, torch.Tensor):
        return messages.to(device)
    return [message.to(device) for message in messages]


def _refuse(_messages: Messages) -> torch.Tensor:
    raise AssertionError("what everybody hears is not combined")
