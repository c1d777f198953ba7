"""Ops of the lossless stage: sealing symbols into a message, and taking them out.

    check      eight bytes, the checksum of all that follows
    kind       one byte: CODED, RAW, or LOST, which is all there is of a message whose sender met an infinity or a NaN
    header     whatever the technique has to say; it ends at `offset`
    symbols    CODED: as numerics/ans.py writes them. RAW: each in a few bits, where codes would not be shorter

The checksum of some bytes: with zeros appended to make words w_0, w_1, … of eight bytes, the lowest byte first,

    number of bytes + Σ w_i · (2i + 1) · φ  mod 2^64        φ = 0x9E3779B97F4A7C15, 2^64 over the golden ratio

As all factors are odd, a change within any one word is always noticed; others go unnoticed once in about 2^64.
"""

from __future__ import annotations

import numpy as np
import torch

from laconic.kernels import op
from laconic.numerics import ans, bits

CHECK, HEAD = 8, 9
CODED, RAW, LOST = range(3)
GOLDEN = 0x9E3779B97F4A7C15


def room(offset: int, count: int, width: int) -> int:
    """The bytes that sealing may use: those of the longest message, and some."""
    return offset + raw_bytes(count, width) + ans.SPARE


def raw_bytes(count: int, width: int) -> int:
    """The bytes of symbols that are not coded."""
    return (count * width + 7) // 8


def lost() -> torch.Tensor:
    """The message of a sender that met an infinity or a NaN."""
    message = torch.zeros(HEAD, dtype=torch.uint8)
    message[CHECK] = LOST
    return _checked(message)


def is_lost(message: torch.Tensor) -> bool:
    """Whether a message says so; one whose checksum is wrong is a ValueError."""
    ans.require(len(message) >= HEAD, "is cut short")
    check = int.from_bytes(message[:CHECK].cpu().numpy().tobytes(), "little", signed=True)
    ans.require(checksum(message[CHECK:]) == check, "is damaged: its checksum is wrong")
    return int(message[CHECK]) == LOST


@op("message")
def seal(
    symbols: torch.Tensor,
    parts: torch.Tensor,
    books: torch.Tensor,
    width: int,
    offset: int,
    message: torch.Tensor,
) -> int:
    """The size of the message, of which the header is there already and everything else now is.

    A part has a row in `parts`: how many symbols it has, and which of `books` says their shares. Symbols are of
    `width` bits, 4 or 8.
    """
    counts, which = parts.t().tolist()
    raw = bits.pack(symbols.long()[None], width)[0]
    coded = ans.encode(symbols, [books[book] for book in which], counts) if len(symbols) else raw
    kind, content = (CODED, coded) if len(coded) < len(raw) else (RAW, raw)
    size = offset + len(content)
    message[CHECK] = kind
    message[offset:size] = content
    _checked(message[:size])
    return size


@op("symbols")
def unseal(
    message: torch.Tensor,
    parts: torch.Tensor,
    books: torch.Tensor,
    width: int,
    offset: int,
    symbols: torch.Tensor,
) -> None:
    """`symbols` are those of the message; a damaged one is a ValueError, unless only its checksum would tell."""
    counts, which = parts.t().tolist()
    try:
        symbols.copy_(unsealed(message, [books[book] for book in which], counts, width, offset))
    except ValueError as error:
        raise ValueError(f"the message {error}") from None


@op()
def checksum(content: torch.Tensor) -> int:
    """The checksum of some bytes, as an integer with a sign."""
    padded = torch.nn.functional.pad(content.cpu(), (0, -len(content) % 8)).numpy().view("<u8")
    factors = (2 * np.arange(len(padded), dtype=np.uint64) + np.uint64(1)) * np.uint64(GOLDEN)
    total = (padded * factors).sum(dtype=np.uint64) + np.uint64(len(content))
    return int(total.astype(np.int64))


def unsealed(
    message: torch.Tensor, books: list[torch.Tensor], counts: list[int], width: int, offset: int
) -> torch.Tensor:
    """The symbols behind `offset`."""
    ans.require(len(message) >= offset, "is cut short")
    kind, content, count = int(message[CHECK]), message[offset:].cpu(), sum(counts)
    if kind == CODED and count:
        return ans.decode(content, books, counts)
    ans.require(kind in (CODED, RAW), "is of no known kind")
    size = raw_bytes(count, width) if kind == RAW else 0
    ans.require(len(content) >= size, "is cut short")
    ans.require(len(content) == size, "is longer than it says")
    return bits.unpack(content[None], width, count)[0].to(torch.uint8)


def _checked(message: torch.Tensor) -> torch.Tensor:
    message[:CHECK] = torch.tensor([checksum(message[CHECK:])]).view(torch.uint8)
    return message
