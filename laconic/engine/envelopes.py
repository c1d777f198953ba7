"""What a worker seals before it leaves and opens when it arrives, by the route of its piece.

Shards      a message for each shard; the reply of each
Everybody   one message; everybody's
Owner       one message; the owner's reply
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from laconic.core.place import Owner, Route, Seat, Shards, Way
from laconic.messages.seals import opened, sealed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laconic.core.meter import Meter
    from laconic.core.place import Combine, Label, Messages


class Envelopes(NamedTuple):
    """Those of one piece's messages, at one worker."""

    route: Route
    seat: Seat
    label: Label
    meter: Meter

    def sealed(self, messages: Messages) -> Messages:
        """What this worker says."""
        keys = [self.label.key(Way.COMBINING, self.seat.worker, shard) for shard in range(len(messages))]
        with self.meter.phase("seal"):
            return sealed(messages, keys)

    def opened(self, replies: Messages) -> Messages:
        """What this worker is told: of everybody, or of whoever combined."""
        speakers: Sequence[int] = range(len(replies))
        if isinstance(self.route, Owner):
            speakers = [self.route.worker]
        way = Way.REPLY if isinstance(self.route, Owner | Shards) else Way.COMBINING
        with self.meter.phase("seal"):
            return opened(replies, [self.label.key(way, speaker) for speaker in speakers], speakers)

    def combining(self, combine: Combine) -> Combine:
        """From sealed messages to the sealed reply."""
        worker, shard = self.seat.worker, self.seat.worker if isinstance(self.route, Shards) else 0

        def reply(messages: Messages) -> torch.Tensor:
            speakers = range(len(messages))
            with self.meter.phase("seal"):
                known = opened(
                    messages, [self.label.key(Way.COMBINING, k, shard) for k in speakers], speakers
                )
            combined = combine(known)
            with self.meter.phase("seal"):
                return sealed([combined], [self.label.key(Way.REPLY, worker)])[0]

        return reply
