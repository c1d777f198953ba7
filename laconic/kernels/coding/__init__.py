"""Ops of the lossless stage: sealing symbols into a message, and taking them out.

    kind       one byte: CODED, RAW, or LOST, which is all there is of a message whose sender met an infinity or a NaN
    header     whatever the technique has to say; it ends at `offset`
    symbols    CODED: as numerics/ans.py writes them. RAW: each in a few bits, where codes would not be shorter

That a message is what its sender sent is a matter of its seal (messages/seals.py).
"""

from __future__ import annotations

import torch

from laconic.kernels import op
from laconic.numerics import ans, bits

HEAD = 1
CODED, RAW, LOST = range(3)


def room(offset: int, count: int, width: int) -> int:
    """The bytes that sealing may use: those of the longest message, and some."""
    return offset + raw_bytes(count, width) + ans.SPARE


def raw_bytes(count: int, width: int) -> int:
    """The bytes of symbols that are not coded."""
    return (count * width + 7) // 8


def lost() -> torch.Tensor:
    """The message of a sender that met an infinity or a NaN."""
    return torch.tensor([LOST], dtype=torch.uint8)


def is_lost(message: torch.Tensor) -> bool:
    """Whether a message says so; one that says nothing is a ValueError."""
    ans.require(len(message) >= HEAD, "is cut short")
    return int(message[0]) == LOST


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
    message[0] = kind
    message[offset:size] = content
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
    """`symbols` are those of the message; a damaged one is a ValueError, unless only its seal would tell."""
    counts, which = parts.t().tolist()
    try:
        symbols.copy_(unsealed(message, [books[book] for book in which], counts, width, offset))
    except ValueError as error:
        raise ValueError(f"the message {error}") from None


def unsealed(
    message: torch.Tensor, books: list[torch.Tensor], counts: list[int], width: int, offset: int
) -> torch.Tensor:
    """The symbols behind `offset`."""
    ans.require(len(message) >= offset, "is cut short")
    kind, content, count = int(message[0]), message[offset:].cpu(), sum(counts)
    if kind == CODED and count:
        return ans.decode(content, books, counts)
    ans.require(kind in (CODED, RAW), "is of no known kind")
    size = raw_bytes(count, width) if kind == RAW else 0
    ans.require(len(content) >= size, "is cut short")
    ans.require(len(content) == size, "is longer than it says")
    return bits.unpack(content[None], width, count)[0].to(torch.uint8)
