"""Symbols as bytes, close to their entropy, on 1 to 64 stacks that do not wait for each other.

Asymmetric numeral systems (Duda, arXiv 1311.2540): of 2^11 =: M parts each symbol has a share f, and with its parts
in a row, from `start` on, a number x takes a symbol up and gives it back:

    push    x → (x div f) · M + start + x mod f            which makes x about M/f times as large, log2(M/f) bits
    pop     slot = x mod M; its symbol is the one whose parts it is among; x → f · (x div M) + slot - start

A share that is a power of two moves whole bits, and with such shares for all symbols this is a prefix code: push
writes log2(M/f) bits, pop reads them. So Huffman's codes (huffman.py) and those of `proportional` differ in how
they share out M, and are one format with one decoder.

Numbers are kept from 2^16 to 2^32 - 1: before a push that would go beyond, the lower 16 bits go to the message as a
word, and after a pop that goes below, the next word comes in. There is exactly one way to do that, as 2^16 is the
ratio of the bounds: whoever pops what was pushed, in reverse order, finds the words in the order in which they lie.

A level of a minifloat that hardly ever occurs would cost others a share, so symbols of small weight have none: they
are a common escape, which is symbol 255, and behind it the symbol in eight bits (a push with f = 1 and M = 256).

    lanes       W numbers at work at once: the largest power of two up to count/2048, from 1 to 64
    rows        a message has the symbols of one part after the other, each part in a model of its own. The symbols of
                a part are in rows of W, the last one maybe short; symbol i of a row is that of lane i
    order       within a row, lanes with i mod 4 = 0 first, then those with 1, 2 and 3: these are vectors, in four
                registers, whose symbols lie side by side. First all lanes pop a symbol, then those that met an
                escape pop their eight bits
    message     W numbers of four bytes, the lowest byte first; then words of two bytes

A decoder knows how many symbols there are, and in which models. It must end with all words used and all numbers at
2^16, where the encoder began.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

SCALE = 11
"""M = 2^11: tables of M entries are quick to look up, and 2^12 would gain 0.03 %."""
WHOLE = 1 << SCALE
LOWEST = 1 << 16
WORD = 16
ESCAPE = 255
RAW = 8
"""The bits of a symbol behind the escape."""
RARE = 8
"""Symbols up to this weight, of 2^16, share the escape."""
MOST_LANES, PER_LANE = 64, 2048
NUMBER_BYTES, WORD_BYTES = 4, 2
SPARE = 512

Integers = NDArray[np.int64]
Divide = Callable[[Sequence[int]], Sequence[int]]
"""From weights to shares of M."""


class Model(NamedTuple):
    """The share of every symbol, 0 where it has none of its own, and of the escape, 0 where there is none."""

    shares: tuple[int, ...]
    escape: int = 0


def model(weights: Sequence[int], divide: Divide, rare: int = RARE) -> Model:
    """Shares by `divide`, with symbols of weight up to `rare` as escapes; weights have a 1 more than they mean."""
    if not 1 <= len(weights) <= ESCAPE:
        raise ValueError(f"there are {len(weights)} symbols; have 1 to {ESCAPE}")
    common = [symbol for symbol, weight in enumerate(weights) if weight > rare]
    escaped = [weight - 1 for weight in weights if weight <= rare]
    found = divide([*(weights[symbol] for symbol in common), *[max(1, sum(escaped))][: len(escaped)]])
    own = dict(zip(common, found, strict=False))
    return Model(tuple(own.get(symbol, 0) for symbol in range(len(weights))), found[-1] if escaped else 0)


def proportional(weights: Sequence[int]) -> tuple[int, ...]:
    """Shares of M in proportion to the weights, at least 1 each.

    Everybody has 1, and each of the others goes to the largest weight/(2 · share + 1), the first among equals: a
    part more saves about weight/(share + 1/2). All that go at a quotient of Σ weights/(2 · (M - symbols)) or more
    are given at once, which M has room for; the few others follow one by one.
    """
    if not 1 <= len(weights) <= WHOLE:
        raise ValueError(f"{len(weights)} symbols cannot share {WHOLE} parts; have 1 to {WHOLE}")
    whole, total = 2 * (WHOLE - len(weights)), max(1, sum(weights))
    shares = [max(1, (weight * whole + total) // (2 * total)) for weight in weights]
    pairs = zip(weights, shares, strict=True)
    heap = [(_need(weight, share), symbol) for symbol, (weight, share) in enumerate(pairs)]
    heapq.heapify(heap)
    for _ in range(WHOLE - sum(shares)):
        symbol = heap[0][1]
        shares[symbol] += 1
        heapq.heapreplace(heap, (_need(weights[symbol], shares[symbol]), symbol))
    return tuple(shares)


def expected_bits(model: Model, weights: Sequence[float]) -> float:
    """The mean number of bits of symbols that are as frequent as the weights, or counts, say; 0 of none."""
    bits = (SCALE - math.log2(share or model.escape) + (0 if share else RAW) for share in model.shares)
    return sum(bit * weight for bit, weight in zip(bits, weights, strict=True)) / (sum(weights) or 1)


@functools.lru_cache(maxsize=4096)
def book(model: Model) -> torch.Tensor:
    """The shares of the symbols 0 to 255, the last being the escape, and where they start, (2, 256) in int32.

    They are in order of share, the largest first, and of symbol among equals: powers of two are then multiples of
    themselves.
    """
    shares = np.zeros(ESCAPE + 1, np.int64)
    shares[: len(model.shares)], shares[ESCAPE] = model.shares, model.escape
    if shares.min() < 0 or shares.sum() != WHOLE:
        raise ValueError(f"shares of {shares.sum()} in all are not of {WHOLE}; use those of `model`")
    order = np.argsort(-shares, kind="stable")
    starts = np.empty_like(shares)
    starts[order] = np.cumsum(shares[order]) - shares[order]
    return torch.from_numpy(np.stack([shares, starts * (shares > 0)]).astype(np.int32))


def lanes(count: int) -> int:
    """How many lanes a message of `count` symbols has."""
    return 1 << min(max(count // PER_LANE, 1), MOST_LANES).bit_length() - 1


def room(count: int) -> int:
    """The bytes that encoding `count` symbols may use: two words for each, and some for a last row."""
    return 2 * WORD_BYTES * count + SPARE


def encode(symbols: torch.Tensor, books: Sequence[torch.Tensor], counts: Sequence[int]) -> torch.Tensor:
    """The message of a vector of symbols: counts[0] of them in the model of books[0], the next in books[1]'s."""
    values = symbols.cpu().numpy().astype(np.int64)
    numbers, words = np.full(lanes(len(values)), LOWEST), []
    for which, place, active in reversed(list(_rows(counts, len(numbers)))):
        share, start = books[which].numpy().astype(np.int64)
        own = values[place + active]
        if len(own) and not 0 <= own.min() <= own.max() < ESCAPE:
            raise ValueError(f"symbols {own.min()} to {own.max()} are not 0 to {ESCAPE - 1}")
        rare = share[own] == 0
        if rare.any() and not share[ESCAPE]:
            raise ValueError(f"symbol {own[rare][0]} has no share, and there is no escape")
        words.append(_push(numbers, active[rare], np.ones_like(own[rare]), own[rare], RAW))
        own[rare] = ESCAPE
        words.append(_push(numbers, active, share[own], start[own], SCALE))
    stream = np.concatenate([np.zeros(0, np.int64), *reversed(words)])
    message = numbers.astype("<u4").tobytes() + stream.astype("<u2").tobytes()
    return torch.frombuffer(bytearray(message), dtype=torch.uint8)


def decode(message: torch.Tensor, books: Sequence[torch.Tensor], counts: Sequence[int]) -> torch.Tensor:
    """The symbols of a message, uint8; a damaged message is a ValueError."""
    values = np.empty(sum(counts), np.int64)
    width = NUMBER_BYTES * lanes(len(values))
    require(len(message) >= width, "is cut short")
    require((len(message) - width) % WORD_BYTES == 0, "ends within a word")
    content = message.cpu().numpy()
    numbers = content[:width].view("<u4").astype(np.int64)
    words = _Words(content[width:].copy().view("<u2").astype(np.int64))
    tables = [_table(own) for own in books]
    for which, place, active in _rows(counts, len(numbers)):
        share, start = books[which].numpy().astype(np.int64)
        slots = numbers[active] % WHOLE
        own = tables[which][slots]
        numbers[active] = share[own] * (numbers[active] >> SCALE) + slots - start[own]
        words.refill(numbers, active)
        escaped = own == ESCAPE
        own[escaped] = numbers[active[escaped]] % (1 << RAW)
        require(not np.any(share[own[escaped]]), "has a symbol that there is not")
        numbers[active[escaped]] >>= RAW
        words.refill(numbers, active[escaped])
        values[place + active] = own
    require(words.left() == 0, "is longer than it says")
    require(bool(np.all(numbers == LOWEST)), "does not end as it began")
    return torch.from_numpy(values.astype(np.uint8))


def require(holds: bool, what: str) -> None:
    """Holds, or is an error that says what a message is or has."""
    if not holds:
        raise ValueError(what)


class _Words:
    """The words of a message, taken in order."""

    def __init__(self, words: Integers) -> None:
        self._words, self._place = words, 0

    def refill(self, numbers: Integers, active: Integers) -> None:
        """The active numbers that are too low have taken a word."""
        low = active[numbers[active] < LOWEST]
        require(len(low) <= self.left(), "is cut short")
        numbers[low] = numbers[low] << WORD | self._words[self._place : self._place + len(low)]
        self._place += len(low)

    def left(self) -> int:
        """How many there still are."""
        return len(self._words) - self._place


def _need(weight: int, share: int) -> int:
    """Less than another's if a further part is better given here."""
    return -(weight << 32) // (2 * share + 1)


def _rows(counts: Sequence[int], width: int) -> Iterator[tuple[int, int, Integers]]:
    """For every row its part, its first symbol, and its lanes in their order."""
    every = np.arange(width)
    order = every[np.argsort(every % 4, kind="stable")]
    begin = 0
    for which, count in enumerate(counts):
        for place in range(0, count, width):
            yield which, begin + place, order[order < count - place]
        begin += count


def _push(numbers: Integers, active: Integers, share: Integers, start: Integers, scale: int) -> Integers:
    """The words that leave while the active numbers take up symbols."""
    full = active[numbers[active] >= share << 2 * WORD - scale]
    words = numbers[full] % LOWEST
    numbers[full] >>= WORD
    numbers[active] = (numbers[active] // share << scale) + start + numbers[active] % share
    return words


def _table(book: torch.Tensor) -> Integers:
    """For every slot its symbol."""
    share, start = book.numpy().astype(np.int64)
    order = np.argsort(start[share > 0])
    return np.repeat(np.flatnonzero(share)[order], share[share > 0][order])
