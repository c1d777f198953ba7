"""Every message has a seal, by which its receiver knows that it is whole, and the one it waits for.

    message   its content, and behind it the seal
    seal      eight bytes: XXH3-64 of the content, keyed with what the message is about

What it is about (which piece of which step, what workers agreed on for it, who speaks, of which shard, on the way up
or down) does not travel: both ends know it. So a message that was changed, cut, swapped or repeated, or that is of
another step or worker, is noticed but once in 2^64. That is for accidents; against people there is TLS.

What a worker seals and opens, by the route of its piece:

    Shards      a message for each shard; the reply of each
    Everybody   one message; everybody's
    Owner       one message; the owner's reply

Sizes that travel ahead of messages are sealed as well, each in one number: its upper half is a seal of 31 bits.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from laconic.core.place import Owner, Route, Seat, Shards, Way
from laconic.numerics.damage import DamagedMessage
from laconic.numerics.digests import digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from laconic.core.meter import Meter
    from laconic.core.place import Combine, Label, Messages

SEAL = 8
"""Bytes."""
_SIZE = 2**32


class Envelopes(NamedTuple):
    """Those of one piece's messages, at one worker."""

    route: Route
    seat: Seat
    label: Label
    meter: Meter

    def sealed(self, messages: Messages) -> Messages:
        """What this worker says."""
        worker = self.seat.worker
        with self.meter.phase("seal"):
            keys = self.label.keys(Way.COMBINING, ((worker, shard) for shard in range(len(messages))))
            return sealed(messages, keys)

    def opened(self, replies: Messages) -> Messages:
        """What this worker is told: of everybody, or of whoever combined."""
        speakers: Sequence[int] = range(len(replies))
        if isinstance(self.route, Owner):
            speakers = [self.route.worker]
        way = Way.REPLY if isinstance(self.route, Owner | Shards) else Way.COMBINING
        with self.meter.phase("seal"):
            return opened(replies, self.label.keys(way, ((each, 0) for each in speakers)), speakers)

    def combining(self, combine: Combine) -> Combine:
        """From sealed messages to the sealed reply."""
        worker, shard = self.seat.worker, self.seat.worker if isinstance(self.route, Shards) else 0

        def reply(messages: Messages) -> torch.Tensor:
            speakers = range(len(messages))
            with self.meter.phase("seal"):
                keys = self.label.keys(Way.COMBINING, ((each, shard) for each in speakers))
                known = opened(messages, keys, speakers)
            combined = combine(known)
            with self.meter.phase("seal"):
                return sealed([combined], [self.label.key(Way.REPLY, worker)])[0]

        return reply


def blank(like: torch.Tensor, *shape: int) -> torch.Tensor:
    """A message, or rows of messages, of bytes that are yet to be written, where `like` lies.

    Behind each there is room for its seal, so that nothing needs to be copied to be sealed.
    """
    *rows, size = shape
    whole = like.new_empty(*rows, size + SEAL, dtype=torch.uint8)
    messages = whole[..., :size]
    messages.whole = whole  # type: ignore[attr-defined]
    return messages


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """One message of the parts' bytes, one behind the other."""
    bytes_ = [part.reshape(-1).view(torch.uint8) for part in parts]
    return torch.cat(bytes_, out=blank(parts[0], sum(map(len, bytes_))))


def sealed(messages: Messages, keys: Sequence[int]) -> Messages:
    """The messages, each with the seal of its key."""
    if not isinstance(messages, torch.Tensor):
        return [_sealed(message, [key]) for message, key in zip(messages, keys, strict=True)]
    return _sealed(messages, keys)


def seal(message: torch.Tensor, keys: Sequence[int]) -> None:
    """The last bytes of `message`, or of each of its rows, are the seal of those before."""
    rows = _rows(message)
    seals = [digest(row, key) for row, key in zip(rows[:, :-SEAL], keys, strict=True)]
    tails = np.array(seals, dtype="<u8").view(np.uint8).reshape(-1, SEAL)
    if message.device.type == "cpu":
        rows[:, -SEAL:] = tails
    else:
        message[..., -SEAL:] = torch.from_numpy(tails).view(*message.shape[:-1], SEAL)


def opened(messages: Messages, keys: Sequence[int], speakers: Sequence[int]) -> Messages:
    """What messages say, once every seal is right; the first that is not is told by who spoke.

    Rows stay where they are, with the seals between them: a copy takes longer than all else.
    """
    if isinstance(messages, torch.Tensor):
        _check(messages, keys, speakers)
        return messages[:, :-SEAL]
    for message, key, speaker in zip(messages, keys, speakers, strict=True):
        _check(message, [key], [speaker])
    return [message[:-SEAL] for message in messages]


def sealed_size(size: int, key: int) -> int:
    """A size as it travels, ahead of the message with this key."""
    return digest(struct.pack("<q", size), key) % (_SIZE // 2) * _SIZE + size


def opened_size(told: int, key: int, most: int, speaker: int) -> int:
    """The size that was told, at most that of the longest sealed message."""
    size = told % _SIZE
    if told != sealed_size(size, key):
        raise DamagedMessage(speaker, "is damaged: the seal of its size is wrong")
    if size > most + SEAL:
        raise DamagedMessage(speaker, f"has {size - SEAL} bytes, where {most} are the most")
    return size


def _sealed(messages: torch.Tensor, keys: Sequence[int]) -> torch.Tensor:
    """A message or rows, with their seals, in their own room or else in a copy."""
    whole: torch.Tensor | None = getattr(messages, "whole", None)
    if whole is None:
        copy = blank(messages, *messages.shape)
        return _sealed(copy.copy_(messages), keys)
    seal(whole, keys)
    return whole


def _check(messages: torch.Tensor, keys: Sequence[int], speakers: Sequence[int]) -> None:
    if messages.shape[-1] < SEAL:
        raise DamagedMessage(speakers[0], "is cut short")
    rows = _rows(messages)
    seals = np.ascontiguousarray(rows[:, -SEAL:]).view("<u8").ravel().tolist()
    for row, seal, key, speaker in zip(rows[:, :-SEAL], seals, keys, speakers, strict=True):
        if digest(row, key) != seal:
            raise DamagedMessage(speaker, "is damaged: its seal is wrong")


def _rows(messages: torch.Tensor) -> NDArray[np.uint8]:
    """The bytes of a message, or of rows of them, row by row, on the CPU."""
    array: NDArray[np.uint8] = messages.cpu().numpy()
    return array.reshape(-1, array.shape[-1])
