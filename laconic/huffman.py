"""Huffman codes of limited length, built from integer weights alone, and messages in several streams.

Lengths are those of the best prefix code with no code longer than `limit` (package-merge: Larmore and Hirschberg
1990), with ties decided by the symbol, so both ends that know the weights know the code:

    leaves are in order of weight, and of symbol among equal weights
    a row is the leaves, merged with the sums of the neighbors 1 and 2, 3 and 4, … of the row before; a leaf
    comes before a sum of equal weight; the first row has leaves only, and there are `limit` rows
    of the last row the first 2n - 2 are taken, and in the row before the two parts of every sum that was taken
    a symbol's length is how often its leaf was taken

The code is complete: 2^-length adds up to 1.

A minifloat has many levels that hardly ever occur, and codes of limited length for them all would cost the others a
percent. So symbols of small weight have no code of their own: they are a common escape, and behind it the symbol in
eight bits. With them left out, 11 bits are enough for all others.

Codes are canonical: in order of length, and of symbol among equal lengths, the escape last, they count up from 0,
and a longer code goes on from the one before, plus one, with zeros appended. That is with the first bit as the
highest, and streams are read from the lowest on, so codes are reversed: the first bit is the lowest. The next `limit`
bits of a stream, as they lie there, are then an index into `table`.

A message has the symbols of one part after the other, each part in a code of its own. Symbol i of all is in stream
i mod S, so that a decoder has S chains that do not wait for each other:

    S fields of four bytes, the lowest first: how many bits stream 0, 1, … has
    stream 0, 1, …: the codes of its symbols in order, filling bytes from the lowest bit on; each stream begins with
    a new byte, and a last byte that is not full ends in zeros

How many symbols there are, and in which codes, the decoder must know. Each stream must end exactly where it says,
with its last symbol; that is all the redundancy there is, so a flipped bit may go unnoticed: check sums are the
caller's.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from laconic import bits

Table = tuple[torch.Tensor, torch.Tensor]

LIMIT = 11
"""Bits of the longest code: a table of 2^11 entries is quick to look up, and more bits would gain 0.02 %."""
RARE = 8
"""Symbols up to this weight, of 2^16, share the escape."""
RAW = 8
"""The bits of a symbol behind the escape."""
FIELD = 4
"""The bytes of a stream's size."""


class Code(NamedTuple):
    """The length of every symbol's own code, 0 where it has none, and of the escape, 0 where there is none."""

    lengths: tuple[int, ...]
    escape: int = 0


def code(weights: Sequence[int], limit: int = LIMIT, rare: int = RARE) -> Code:
    """The best code in which symbols of weight up to `rare` are escapes; weights have a 1 more than they mean."""
    common = [symbol for symbol, weight in enumerate(weights) if weight > rare]
    escaped = sum(weight - 1 for weight in weights if weight <= rare)
    found = lengths([*(weights[symbol] for symbol in common), max(1, escaped)], limit)
    own = dict(zip(common, found, strict=False))
    return Code(tuple(own.get(symbol, 0) for symbol in range(len(weights))), found[-1])


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
    """The canonical codes, the first bit lowest, 0 for a length of 0; others must be of a complete prefix code."""
    used = [length for length in lengths if length]
    longest = max(used, default=0)
    if sum(1 << longest - length for length in used) != 1 << longest:
        raise ValueError(f"the lengths {list(lengths)} are of no complete prefix code; use those of `code`")
    found, word, last = [0] * len(lengths), 0, 0
    for symbol in sorted(range(len(lengths)), key=lambda symbol: lengths[symbol]):
        if lengths[symbol]:
            word <<= lengths[symbol] - last
            last = lengths[symbol]
            found[symbol] = _reversed(word, last)
            word += 1
    return tuple(found)


def entries(code: Code) -> tuple[list[int], list[int]]:
    """For every symbol the bits that stand for it, the first one lowest, and how many they are."""
    *own, escape = codes([*code.lengths, code.escape])
    words = [
        word if length else escape | symbol << code.escape
        for symbol, (word, length) in enumerate(zip(own, code.lengths, strict=True))
    ]
    return words, [length or code.escape + RAW for length in code.lengths]


def table(code: Code, limit: int = LIMIT) -> Table:
    """For any next `limit` bits of a stream, which symbol they begin with, and how many bits that takes.

    The escape is the symbol behind the last.
    """
    all_lengths = [*code.lengths, code.escape]
    if max(all_lengths) > limit:
        raise ValueError(f"a code of {max(all_lengths)} bits is not within {limit}")
    symbols, sizes = torch.zeros(2, 1 << limit, dtype=torch.int64)
    for symbol, (word, length) in enumerate(zip(codes(all_lengths), all_lengths, strict=True)):
        if length:
            symbols[word :: 1 << length] = symbol
            sizes[word :: 1 << length] = length
    return symbols, sizes


def expected_bits(code: Code, weights: Sequence[float]) -> float:
    """The mean number of bits of symbols that are as frequent as the weights, or counts, say; 0 of none."""
    _, sizes = entries(code)
    return sum(size * weight for size, weight in zip(sizes, weights, strict=True)) / (sum(weights) or 1)


def encode(symbols: torch.Tensor, codes: Sequence[Code], counts: Sequence[int], streams: int) -> torch.Tensor:
    """The message of a vector of symbols, as bytes: counts[0] of them in codes[0], the next counts[1] in codes[1]."""
    words, sizes = zip(*(entries(code) for code in codes), strict=True)
    own = torch.repeat_interleave(torch.arange(len(codes)), torch.tensor(counts))
    width = max(map(len, words))
    word, size = (
        torch.tensor([[*row, *[0] * (width - len(row))] for row in rows]) for rows in (words, sizes)
    )
    symbols = symbols.long().cpu()
    if len(symbols) and not 0 <= int(symbols.min()) <= int(symbols.max()) < width:
        raise ValueError(f"symbols {int(symbols.min())} to {int(symbols.max())} are not 0 to {width - 1}")
    parts = [
        _stream(word[which, part], size[which, part])
        for which, part in zip(_split(own, streams), _split(symbols, streams), strict=True)
    ]
    fields = torch.tensor([[len(part) for part in parts]])
    return torch.cat([bits.pack(fields, 8 * FIELD)[0], *(bits.pack(part[None], 1)[0] for part in parts)])


def decode(message: torch.Tensor, codes: Sequence[Code], counts: Sequence[int], streams: int) -> torch.Tensor:
    """The symbols of a message, int64; a damaged message is a ValueError."""
    own = torch.repeat_interleave(torch.arange(len(codes)), torch.tensor(counts))
    symbols = torch.empty(len(own), dtype=torch.int64)
    parts = list(zip(_split(symbols, streams), _split(own, streams), strict=True))
    _require(len(message) >= FIELD * streams, "is cut short")
    sizes = bits.unpack(message[None, : FIELD * streams], 8 * FIELD, streams)[0].tolist()
    ends = list(itertools.accumulate((-(-size // 8) for size in sizes), initial=FIELD * streams))
    _require(ends[-1] <= len(message), "is cut short")
    _require(ends[-1] == len(message), "is longer than it says")
    for (part, which), (begin, end), size in zip(parts, itertools.pairwise(ends), sizes, strict=True):
        part.copy_(_from_stream(message[begin:end].cpu(), size, codes, which.tolist()))
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


def _reversed(word: int, length: int) -> int:
    return int(f"{word:b}".zfill(length)[::-1], 2)


def _split(symbols: torch.Tensor, streams: int) -> list[torch.Tensor]:
    """Views of each stream's symbols."""
    if streams < 1:
        raise ValueError(f"{streams} streams hold nothing; use at least 1")
    return [symbols[stream::streams] for stream in range(streams)]


def _stream(words: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """The bits of all codes, one after the other."""
    place = torch.arange(int(sizes.max()) if len(sizes) else 0)
    return ((words[:, None] >> place) & 1)[place < sizes[:, None]]


def _from_stream(packed: torch.Tensor, size: int, codes: Sequence[Code], which: list[int]) -> torch.Tensor:
    """The symbols of a stream of `size` bits, each in the code of that number."""
    stream = bits.unpack(packed[None], 1, 8 * len(packed))[0]
    _require(not bool(stream[size:].any()), "is longer than it says")
    width = max(max([*code.lengths, code.escape]) for code in codes)
    tables = [tuple(column.tolist() for column in table(code, width)) for code in codes]
    windows, found, place = _windows(stream[:size], width + RAW), [], 0
    for number in which:
        symbols, sizes = tables[number]
        window, escape = windows[place], len(codes[number].lengths)
        index = window & ((1 << width) - 1)
        symbol, place = symbols[index], place + sizes[index]
        if symbol == escape:
            symbol, place = window >> sizes[index] & ((1 << RAW) - 1), place + RAW
            _require(place > size or symbol < escape, "has a symbol that there is not")
        found.append(symbol)
        _require(place <= size, "is cut short")
    _require(place == size, "is longer than it says")
    return torch.tensor(found, dtype=torch.int64)


def _windows(stream: torch.Tensor, width: int) -> list[int]:
    """The next `width` bits at every place, and behind the last; zeros follow."""
    padded = torch.nn.functional.pad(stream, (0, width + 1))
    windows = torch.zeros(len(stream) + 1, dtype=torch.int64)
    for place in range(width):
        windows += padded[place : place + len(windows)] << place
    return windows.tolist()


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)
