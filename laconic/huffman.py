"""Huffman codes of limited length, built from integer weights alone, and messages in several streams.

Lengths are those of the best prefix code with no code longer than `limit` (package-merge: Larmore and Hirschberg
1990), with ties decided by the symbol, so both ends that know the weights know the code:

    leaves are in order of weight, and of symbol among equal weights
    a row is the leaves, merged with the sums of the neighbors 1 and 2, 3 and 4, … of the row before; a leaf
    comes before a sum of equal weight; the first row has leaves only, and there are `limit` rows
    of the last row the first 2n - 2 are taken, and in the row before the two parts of every sum that was taken
    a symbol's length is how often its leaf was taken

Every symbol has a code, even one of weight 0, and the code is complete: 2^-length adds up to 1. A single symbol has
the length 0, and takes no bits.

Codes are canonical: in order of length, and of symbol among equal lengths, they count up from 0, and a longer code
goes on from the one before, plus one, with zeros appended. That is with the first bit as the highest, and streams are
read from the lowest on, so `codes` are reversed: the first bit is the lowest. The next `limit` bits of a stream, as
they lie there, are then an index into `table`.

Symbol i is in stream i mod S, so that a decoder has S chains that do not wait for each other. A message is

    S fields of four bytes, the lowest first: how many bits stream 0, 1, … has
    stream 0, 1, …: the codes of its symbols in order, filling bytes from the lowest bit on; each stream begins with
    a new byte, and a last byte that is not full ends in zeros

How many symbols there are, and the lengths, the decoder must know. Each stream must end exactly where it says, with
its last symbol; that is all the redundancy there is, so a flipped bit may go unnoticed: check sums are the caller's.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from laconic import bits

Table = tuple[torch.Tensor, torch.Tensor]

LIMIT = 13
"""At 12 bits the 247 codes of e5m2 cost 1.1 % more than at 15, at 13 bits half a percent, with 16 KB to look up."""
FIELD = 4
"""The bytes of a stream's size."""


def lengths(weights: Sequence[int], limit: int = LIMIT) -> tuple[int, ...]:
    """The number of bits of each symbol's code, at most `limit`, with the least sum of weight · length."""
    count = len(weights)
    if not 1 <= count <= 1 << limit:
        raise ValueError(
            f"{count} symbols have no code of at most {limit} bits; have 1 to {1 << limit} symbols"
        )
    if min(weights) < 0:
        raise ValueError(f"symbol {weights.index(min(weights))} has the weight {min(weights)}; use 0 or more")
    order = sorted(range(count), key=lambda symbol: weights[symbol])
    rows = _rows([weights[symbol] for symbol in order], limit)
    found, taken = [0] * count, 2 * count - 2
    for row in reversed(rows):
        sums = sum(row[:taken])
        for symbol in order[: taken - sums]:
            found[symbol] += 1
        taken = 2 * sums
    return tuple(found)


def codes(lengths: Sequence[int]) -> tuple[int, ...]:
    """The canonical codes, the first bit lowest; lengths of no complete prefix code are a ValueError."""
    _require_complete(lengths)
    found, code, last = [0] * len(lengths), 0, 0
    for symbol in sorted(range(len(lengths)), key=lambda symbol: lengths[symbol]):
        code <<= lengths[symbol] - last
        last = lengths[symbol]
        found[symbol] = _reversed(code, last)
        code += 1
    return tuple(found)


def table(lengths: Sequence[int], limit: int = LIMIT) -> Table:
    """For any next `limit` bits of a stream, which symbol they begin with, and how many bits that takes."""
    if max(lengths, default=0) > limit:
        raise ValueError(f"a code of {max(lengths)} bits is not within {limit}")
    symbols, sizes = torch.zeros(2, 1 << limit, dtype=torch.int64)
    for symbol, (code, length) in enumerate(zip(codes(lengths), lengths, strict=True)):
        symbols[code :: 1 << length] = symbol
        sizes[code :: 1 << length] = length
    return symbols, sizes


def expected_bits(lengths: Sequence[int], weights: Sequence[float]) -> float:
    """The mean number of bits of symbols that are as frequent as the weights, or counts, say; 0 of none."""
    return sum(length * weight for length, weight in zip(lengths, weights, strict=True)) / (sum(weights) or 1)


def encode(symbols: torch.Tensor, lengths: Sequence[int], streams: int) -> torch.Tensor:
    """The message of a vector of symbols, as bytes."""
    if len(symbols) and not 0 <= int(symbols.min()) <= int(symbols.max()) < len(lengths):
        raise ValueError(
            f"symbols {int(symbols.min())} to {int(symbols.max())} are not 0 to {len(lengths) - 1}"
        )
    code = torch.tensor(codes(lengths), device=symbols.device)
    length = torch.tensor(lengths, device=symbols.device)
    parts = [_stream(code[part], length[part], max(lengths)) for part in _split(symbols.long(), streams)]
    sizes = torch.tensor([[len(part) for part in parts]], device=symbols.device)
    if int(sizes.max()) >= 1 << 8 * FIELD:
        raise ValueError(f"a stream of {int(sizes.max())} bits is too long; use more than {streams} streams")
    return torch.cat([bits.pack(sizes, 8 * FIELD)[0], *(bits.pack(part[None], 1)[0] for part in parts)])


def decode(message: torch.Tensor, lengths: Sequence[int], count: int, streams: int) -> torch.Tensor:
    """The `count` symbols of a message, int64; a damaged message is a ValueError."""
    symbols = torch.empty(count, dtype=torch.int64, device=message.device)
    parts = _split(symbols, streams)
    _require(len(message) >= FIELD * streams, "is cut short")
    sizes = bits.unpack(message[None, : FIELD * streams], 8 * FIELD, streams)[0].tolist()
    ends = list(itertools.accumulate((-(-size // 8) for size in sizes), initial=FIELD * streams))
    _require(ends[-1] <= len(message), "is cut short")
    _require(ends[-1] == len(message), "is longer than it says")
    known = table(lengths, max(lengths))
    for part, (begin, end), size in zip(parts, itertools.pairwise(ends), sizes, strict=True):
        part.copy_(_from_stream(message[begin:end], size, known, len(part)))
    return symbols


def _rows(leaves: list[int], limit: int) -> list[list[int]]:
    """Package-merge's rows of items, each 1 if it is a sum and 0 if it is a leaf."""
    # An item is twice its weight, plus 1 for a sum, so that leaves come first among equal weights.
    doubled = [2 * weight for weight in leaves]
    row, rows = doubled, [[0] * len(leaves)]
    for _ in range(limit - 1):
        sums = [(first >> 1) + (second >> 1) for first, second in zip(row[::2], row[1::2], strict=False)]
        row = sorted([*doubled, *(2 * weight + 1 for weight in sums)])
        rows.append([item & 1 for item in row])
    return rows


def _reversed(code: int, length: int) -> int:
    return int(f"{code:b}".zfill(length)[::-1], 2)


def _split(symbols: torch.Tensor, streams: int) -> list[torch.Tensor]:
    """Views of each stream's symbols."""
    if streams < 1:
        raise ValueError(f"{streams} streams hold nothing; use at least 1")
    return [symbols[stream::streams] for stream in range(streams)]


def _stream(codes: torch.Tensor, lengths: torch.Tensor, longest: int) -> torch.Tensor:
    """The bits of all codes, one after the other."""
    place = torch.arange(longest, device=codes.device)
    return ((codes[:, None] >> place) & 1)[place < lengths[:, None]]


def _from_stream(packed: torch.Tensor, size: int, known: Table, count: int) -> torch.Tensor:
    """The `count` symbols of a stream of `size` bits."""
    stream = bits.unpack(packed[None], 1, 8 * len(packed))[0].cpu()
    _require(not bool(stream[size:].any()), "is longer than it says")
    symbols, sizes = known
    windows = _windows(stream[:size], len(symbols).bit_length() - 1)
    return symbols[windows[_chain(sizes[windows].tolist(), count)]]


def _windows(stream: torch.Tensor, width: int) -> torch.Tensor:
    """The next `width` bits at every place, and behind the last; zeros follow."""
    padded = torch.nn.functional.pad(stream, (0, width + 1))
    windows = torch.zeros(len(stream) + 1, dtype=torch.int64)
    for place in range(width):
        windows += padded[place : place + len(windows)] << place
    return windows


def _chain(steps: list[int], count: int) -> list[int]:
    """Where the `count` codes begin, if they end where the stream does."""
    places: list[int] = []
    place, end = 0, len(steps) - 1
    while len(places) < count and place <= end:
        places.append(place)
        place += steps[place]
    _require(place <= end, "is cut short")
    _require(place == end, "is longer than it says")
    return places


def _require_complete(lengths: Sequence[int]) -> None:
    longest = max(lengths, default=0)
    if min(lengths, default=-1) < 0 or sum(1 << longest - length for length in lengths) != 1 << longest:
        raise ValueError(
            f"the lengths {list(lengths)} are of no complete prefix code; use those of `lengths`"
        )


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)
