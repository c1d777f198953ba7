"""Huffman codes of limited length, built from integer weights alone, so both ends that know them know the code.

Lengths are those of the best prefix code with no code longer than `limit` (package-merge: Larmore and Hirschberg
1990), with ties decided by the symbol:

    leaves are in order of weight, and of symbol among equal weights
    a row is the leaves, merged with the sums of the neighbors 1 and 2, 3 and 4, … of the row before; a leaf
    comes before a sum of equal weight; the first row has leaves only, and there are `limit` rows
    of the last row the first 2n - 2 are taken, and in the row before the two parts of every sum that was taken
    a symbol's length is how often its leaf was taken

The code is complete: 2^-length adds up to 1. So a symbol's share of all that could be said is 2^-length, and it
is written as ans.py writes shares. Codes are canonical there: in order of length, and of symbol among equals.
"""

from __future__ import annotations

from collections.abc import Sequence

from laconic.numerics.ans import SCALE


def shares(weights: Sequence[int]) -> tuple[int, ...]:
    """For every symbol 2^(11 - length) of the 2^11 parts that ans.py shares out."""
    return tuple(1 << SCALE - length for length in lengths(weights, SCALE))


def lengths(weights: Sequence[int], limit: int = SCALE) -> tuple[int, ...]:
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
