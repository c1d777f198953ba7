"""Symbols in messages, in runs that each have the model of a family under which they are most likely.

What a symbol's neighbors are says how frequent it is: blocks of a gradient differ in length, rows in how often they
matter. So the family is known to both ends, and of every run it is said which of its models it is in. Behind the
head that all coded messages have (kernels/coding):

    side       whatever the technique has to say, of a length that both ends know
    form       one byte: the binary logarithm of a run's length, plus 32 if codes are Huffman's; or PLAIN
    models     one byte for every run
    ends       where a family has 256 symbols, of which a code has only 255: 255 is sent as 0, which is as frequent,
               and here is how many of both there are, in four bytes, and in a bit each which of the two it is
    symbols    as ans.py writes them

A PLAIN message has, in place of all behind the form, what the technique sends without any code: so none is longer
than that by more than the head, the side and the form. Codes are Huffman's where these take hardly more bits than
others, as they take less time.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from laconic.kernels import coding, packing
from laconic.numerics import ans, huffman

PLAIN = 255
TOTAL = 1 << 16
LAST = packing.SYMBOLS - 1
END_BYTES = 4
BITS = 8
"""Of a byte, which is what a symbol and the number of a model take."""
FORM = 32
CODERS = (ans.proportional, huffman.shares)
RANS, HUFFMAN = range(2)
NEARLY = 1.01
"""So many times the bits of the best codes is what Huffman's may take."""
WORTH = 1 - 1 / 64
"""Codes that would save less are not worth their time."""
NO_BOOKS = torch.empty(0, 2, packing.SYMBOLS, dtype=torch.int32)


@dataclass(frozen=True, eq=False)
class Family:
    """Models as rows of weights, which add up to about TOTAL and are at least 1, for symbols from 0 on.

    Runs have one of the `lengths`, powers of two; each is a multiple of the first.
    """

    weights: NDArray[np.int64]
    lengths: tuple[int, ...]

    @functools.cached_property
    def surprise(self) -> NDArray[np.float32]:
        """The bits of every symbol in every model."""
        shares = self.weights / self.weights.sum(1, keepdims=True)
        return np.asarray(-np.log2(shares), dtype=np.float32)

    @property
    def width(self) -> int:
        """The bits of a symbol that is not coded, as `coding.seal` takes them."""
        return 4 if self.weights.shape[1] <= 1 << 4 else BITS

    @property
    def folded(self) -> bool:
        """Whether the last of 256 symbols is sent as the first."""
        return self.weights.shape[1] == packing.SYMBOLS

    def code(self, model: int, coder: int) -> ans.Model:
        """The shares of the model's symbols."""
        if (model, coder) not in self._codes:
            weights = self.weights[model].tolist()
            if self.folded:
                weights[0] += weights.pop()
            self._codes[model, coder] = ans.model(weights, CODERS[coder])
        return self._codes[model, coder]

    @functools.cached_property
    def _codes(self) -> dict[tuple[int, int], ans.Model]:
        return {}


NONE = Family(np.ones((0, 1), np.int64), ())
"""No model: everything is plain."""


class Opened(NamedTuple):
    """What a message says: the side, and either symbols or what would be sent without any code."""

    side: bytes
    symbols: torch.Tensor | None
    plain: torch.Tensor | None


class Fit(NamedTuple):
    """About how many bits symbols take, with which models of runs of which length, in which coder's codes."""

    bits: float
    length: int
    models: NDArray[np.integer]
    coder: int


def longest(plain: int, side: int = 0) -> int:
    """The bytes of a message of so many that are plain, and so many of side, at most."""
    return coding.HEAD + side + 1 + plain


def seal(family: Family, symbols: torch.Tensor, plain: torch.Tensor, side: bytes = b"") -> torch.Tensor:
    """The message of the symbols, in codes or as `plain` has them, whichever is shorter."""
    as_it_is = side + bytes([PLAIN])
    fit = _fit(family, symbols) if family.lengths else None
    if fit is None or fit.bits >= WORTH * BITS * len(plain):
        return _sealed(as_it_is, plain)
    form = fit.length.bit_length() - 1 + FORM * fit.coder
    head = side + bytes([form]) + fit.models.astype(np.uint8).tobytes()
    if family.folded:
        head += _ends(symbols)
        symbols = symbols.masked_fill(symbols == LAST, 0)
    offset = coding.HEAD + len(head)
    message = _begun(head, coding.room(offset, len(symbols), family.width))
    size = coding.seal(symbols, *_parts(family, fit, len(symbols)), family.width, offset, message)
    return message[:size] if size < coding.HEAD + len(as_it_is) + len(plain) else _sealed(as_it_is, plain)


def unseal(family: Family, message: torch.Tensor, count: int, side: int = 0) -> Opened:
    """What a message of `count` symbols and `side` bytes of side says; a damaged one is a ValueError."""
    ans.require(not coding.is_lost(message), "is of no known kind")
    reading = _Reading(message)
    told, form = reading.take(side), reading.take(1)[0]
    if form == PLAIN:
        return Opened(told, None, message[reading.at :])
    coder, length = form // FORM, 1 << form % FORM
    ans.require(coder < len(CODERS) and length in family.lengths, "is of no known form")
    models = np.frombuffer(reading.take(-(-count // length)), np.uint8)
    ans.require(bool((models < len(family.weights)).all()), "has a model that there is not")
    ends = reading.take_bits() if family.folded else None
    symbols = torch.empty(count, dtype=torch.uint8)
    parts, books = _parts(family, Fit(0.0, length, models, coder), count)
    try:
        coding.unseal(message, parts, books, family.width, reading.at, symbols)
    except ValueError as error:
        raise ValueError(str(error).removeprefix("the message ")) from None
    if ends is not None:
        _set_ends(symbols, ends)
    return Opened(told, symbols, None)


def _fit(family: Family, symbols: torch.Tensor) -> Fit:
    """How symbols and their models take the fewest bits; Huffman's codes are faster, and as good if nearly so."""
    first = family.lengths[0]
    counts = torch.empty(-(-len(symbols) // first), packing.SYMBOLS, dtype=torch.int32)
    packing.count_runs(symbols, first, counts)
    known = counts[:, : family.surprise.shape[1]].numpy()
    bits = known.astype(np.float32) @ family.surprise.T
    fits = [_fit_runs(bits, length, length // first) for length in family.lengths]
    best = min(fits, key=lambda fit: fit.bits)
    least, quick = (_expected_bits(family, known, best, coder) for coder in (RANS, HUFFMAN))
    return best._replace(coder=HUFFMAN if quick <= NEARLY * least else RANS)


def _fit_runs(bits: NDArray[np.float32], length: int, joined: int) -> Fit:
    """The best models of runs, from the bits of parts of which so many make a run."""
    together = np.add.reduceat(bits, np.arange(0, len(bits), joined)) if len(bits) else bits
    models = together.argmin(1)
    return Fit(float(together.min(1).sum(dtype=np.float64)) + BITS * len(models), length, models, RANS)


def _expected_bits(family: Family, counts: NDArray[np.int32], fit: Fit, coder: int) -> float:
    """The bits of symbols that are as frequent as the rows of counts, one for every run of the first length, say."""
    models = np.repeat(fit.models, fit.length // family.lengths[0])[: len(counts)]
    total = 0.0
    for model in np.unique(models).tolist():
        frequent = counts[models == model].sum(0)
        frequent = frequent[: ans.ESCAPE]  # the ends are as frequent as each other
        total += ans.expected_bits(family.code(model, coder), frequent.tolist()) * float(frequent.sum())
    return total


def _parts(family: Family, fit: Fit, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The parts of `coding.seal`, runs with one model being one part, and their books."""
    begins = np.flatnonzero(np.diff(fit.models.astype(np.int64), prepend=-1))
    sizes = np.diff(np.append(begins * fit.length, count))
    distinct, which = np.unique(fit.models[begins], return_inverse=True)
    books = [ans.book(family.code(int(model), fit.coder)) for model in distinct]
    parts = torch.from_numpy(np.stack([sizes, which.reshape(-1)], axis=-1).astype(np.int64))
    return parts, torch.stack(books) if books else NO_BOOKS


def _sealed(head: bytes, plain: torch.Tensor) -> torch.Tensor:
    """The message of no symbols, with what is plain as a part of its header."""
    begin = coding.HEAD + len(head)
    offset = begin + len(plain)
    message = _begun(head, coding.room(offset, 0, BITS))
    message[begin:offset] = plain
    nothing = torch.empty(0, 2, dtype=torch.int64)
    return message[: coding.seal(plain[:0], nothing, NO_BOOKS, BITS, offset, message)]


def _begun(head: bytes, room: int) -> torch.Tensor:
    """A message with its header."""
    message = torch.empty(room, dtype=torch.uint8)
    message[coding.HEAD : coding.HEAD + len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
    return message


def _ends(symbols: torch.Tensor) -> bytes:
    """How many symbols are the first or the last, and which of them are the last."""
    values = symbols.numpy()
    last = values[(values == 0) | (values == LAST)] == LAST
    return len(last).to_bytes(END_BYTES, "little") + np.packbits(last, bitorder="little").tobytes()


def _set_ends(symbols: torch.Tensor, last: NDArray[np.bool_]) -> None:
    """Those of the symbols 0 that are the last one become it."""
    places = np.flatnonzero(symbols.numpy() == 0)
    ans.require(len(places) == len(last), "has other ends than it says")
    symbols.numpy()[places[last]] = LAST


class _Reading:
    """A message's header, taken in order."""

    def __init__(self, message: torch.Tensor) -> None:
        self._message, self.at = message, coding.HEAD

    def take(self, count: int) -> bytes:
        """The next bytes."""
        self.at += count
        ans.require(len(self._message) >= self.at, "is cut short")
        return self._message[self.at - count : self.at].numpy().tobytes()

    def take_bits(self) -> NDArray[np.bool_]:
        """As many bits as the next four bytes say, which begin behind these."""
        count = int.from_bytes(self.take(END_BYTES), "little")
        packed = np.frombuffer(self.take(-(-count // 8)), np.uint8)
        return np.unpackbits(packed, count=count, bitorder="little").astype(bool)
