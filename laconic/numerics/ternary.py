"""Ternary vectors as bytes: where something stands, as gaps in Rice's code, and with which sign.

A vector of -1, 0 and 1 is held as its votes: for every coordinate that is not 0, in order, twice its place, plus 1
if it is negative. A message has a header of five bytes and then the cheapest of three forms:

    VOTES   signs, one bit for every coordinate that is not 0; then the places of these coordinates
    REST    the same signs; then the places of all others, where those are fewer
    TRITS   five coordinates in a byte, 0, 1 or 2 each, in base 3: at most 1.6 bits a coordinate, whatever they are

Places are coded as the gaps between them: the low `b` bits of every gap, and then for each gap as many zeros as the
rest of it says, closed by a one. The b that takes the fewest bits is a matter of the mean gap, and stands in the
header: form · 32 + b in its first byte, and how many places there are in the other four. Bits fill bytes from the
lowest on, and every part begins with a new byte. For places at random this is within 3 % of what is possible.

A fourth form, LOST, says nothing but that there was no finite vector to speak of.
"""

from __future__ import annotations

import torch

from laconic.numerics import bits
from laconic.numerics.ans import require

HEADER = 5
VOTES, REST, TRITS, LOST = range(4)
FORM = 32
"""The first byte is so many times the form, and b."""
PER_BYTE = 5
POWERS = (1, 3, 9, 27, 81)
LARGEST = 1 << 30
"""Vectors are shorter than this, so that a vote is an int32."""


def room(numel: int) -> int:
    """The bytes that a message of a vector of `numel` coordinates takes at most."""
    return HEADER + -(-numel // PER_BYTE)


def lost(device: torch.device | str = "cpu") -> torch.Tensor:
    """The message of a vector that is not finite."""
    return _header(LOST, 0, 0, device)


def is_lost(message: torch.Tensor) -> bool:
    """Whether the message is of a vector that is not finite."""
    return len(message) == HEADER and message.tolist() == lost().tolist()


def pack(votes: torch.Tensor, numel: int) -> torch.Tensor:
    """The message of a vector of `numel` coordinates."""
    listed = _listed(votes, numel)
    return listed if len(listed) <= room(numel) else _trits(votes, numel)


def unpack(message: torch.Tensor, numel: int) -> torch.Tensor:
    """The votes in a message of `numel` coordinates; a damaged message is a ValueError."""
    form, b, count = _read_header(message)
    require(len(message) <= room(numel), "is longer than it says")
    body = message[HEADER:]
    if form == TRITS:
        require(b == 0 and count == 0, "has a damaged header")
        return _from_trits(body, numel)
    require(form in (VOTES, REST), "is of no known form")
    require(count <= numel and b < LARGEST.bit_length(), "has a damaged header")
    others = count if form == VOTES else numel - count
    signs, low = -(-others // 8), -(-count * b // 8)
    require(signs + low <= len(body), "is cut short")
    negative = bits.unpack(body[None, :signs], 1, others)[0]
    places = _from_gaps(body[signs : signs + low], body[signs + low :], b, count)
    require(count == 0 or int(places[-1]) < numel, "has a place beyond its coordinates")
    if form == REST:
        places = _complement(places, numel)
    return (2 * places + negative).int()


def parameter(gaps: torch.Tensor) -> int:
    """The b whose code of the gaps is shortest; the length is convex in b, so the first that is not beaten is it."""
    b = 0
    while len(gaps) < int(((gaps >> b) - (gaps >> (b + 1))).sum()):
        b += 1
    return b


def _listed(votes: torch.Tensor, numel: int) -> torch.Tensor:
    places, form = (votes >> 1).long(), VOTES
    if 2 * len(votes) > numel:
        places, form = _complement(places, numel), REST
    gaps = torch.diff(places, prepend=places.new_tensor([-1])) - 1
    b = parameter(gaps)
    low = bits.pack((gaps & ((1 << b) - 1))[None], b)[0]
    header = _header(form, b, len(places), votes.device)
    return torch.cat([header, bits.pack((votes & 1)[None].long(), 1)[0], low, _unary(gaps >> b)])


def _unary(numbers: torch.Tensor) -> torch.Tensor:
    """For every number as many zeros, and a one."""
    ones = (numbers + 1).cumsum(0) - 1
    stream = numbers.new_zeros(int(ones[-1]) + 1 if len(ones) else 0)
    stream[ones] = 1
    return bits.pack(stream[None], 1)[0]


def _from_gaps(low: torch.Tensor, high: torch.Tensor, b: int, count: int) -> torch.Tensor:
    """The places: gap j begins behind place j - 1."""
    stream = bits.unpack(high[None], 1, 8 * len(high))[0]
    ones = stream.nonzero().flatten()
    require(len(ones) >= count, "is cut short")
    require(len(ones) == count and (len(high) == 0 or bool(high[-1])), "is longer than it says")
    order = torch.arange(count, device=low.device)
    return ((ones - order) << b) + bits.unpack(low[None], b, count)[0].cumsum(0) + order


def _complement(places: torch.Tensor, numel: int) -> torch.Tensor:
    """All other places."""
    there = torch.ones(numel, dtype=torch.bool, device=places.device)
    there[places] = False
    return there.nonzero().flatten()


def _trits(votes: torch.Tensor, numel: int) -> torch.Tensor:
    trits = votes.new_zeros(-(-numel // PER_BYTE) * PER_BYTE)
    trits[(votes >> 1).long()] = 1 + (votes & 1)
    packed = (trits.view(-1, PER_BYTE) * trits.new_tensor(POWERS)).sum(1).to(torch.uint8)
    return torch.cat([_header(TRITS, 0, 0, votes.device), packed])


def _from_trits(packed: torch.Tensor, numel: int) -> torch.Tensor:
    require(len(packed) >= -(-numel // PER_BYTE), "is cut short")
    require(len(packed) == -(-numel // PER_BYTE), "is longer than it says")
    require(not bool((packed > 3**PER_BYTE - 1).any()), "has a byte that is no five trits")
    trits = (packed.int()[:, None] // packed.new_tensor(POWERS, dtype=torch.int32) % 3).flatten()
    places = trits.nonzero().flatten()
    require(len(places) == 0 or int(places[-1]) < numel, "has a place beyond its coordinates")
    return (2 * places + trits[places] - 1).int()


def _header(form: int, b: int, count: int, device: torch.device | str) -> torch.Tensor:
    header = [form * FORM + b, *count.to_bytes(HEADER - 1, "little")]
    return torch.tensor(header, dtype=torch.uint8, device=device)


def _read_header(message: torch.Tensor) -> tuple[int, int, int]:
    require(len(message) >= HEADER, "is cut short")
    first, *count = message[:HEADER].tolist()
    return first // FORM, first % FORM, int.from_bytes(bytes(count), "little")
