"""Which code the levels of a minifloat are to have, known from two bytes.

A gradient is no sample of one density: units that were silent leave exact zeros, and rows differ in size. So the
share of level zero is known by itself, and all other levels are to be as frequent as those of a generalized normal:

    zero     its odds, 2^(3/16 · (i - 64)): 7 bits
    beta     4 · 2^((i - 15)/3), from 1/8 to 4: 4 bits
    alpha    2^((i - 20)/4) times what a scale aims at with this β (density.spread), from -5 to 2¾ octaves: 5 bits

`fit` takes those of greatest likelihood for a histogram of levels, of which the counts of k and -k are added up. The
scale by which values became levels comes from moments, before there are levels; this comes after. Weights are
integers from IEEE 754's basic operations alone, as in generalized_normal.py, so both ends build equal codes on any
machine.
"""
# ruff: noqa: A002 (a format is the field's word)

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from laconic.numerics import ans, generalized_normal, huffman
from laconic.numerics.generalized_normal import LARGEST_BETA, TOTAL, Doubles
from laconic.numerics.minifloat import Format

ZEROS, BETAS, ALPHAS = 128, 16, 32
EVEN, OWN = 64, 20
"""The indices of even odds, and of the α that a scale aims at."""
CODERS = {"huffman": huffman.shares, "rans": ans.proportional}


class Prediction(NamedTuple):
    """What travels, as three indices."""

    zero: int
    beta: int
    alpha: int


def pack(predictions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of indices as integers of 16 bits."""
    return predictions @ np.array([1, ZEROS, ZEROS * BETAS])


def unpack(packed: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows of `pack`."""
    return np.stack([packed % ZEROS, packed // ZEROS % BETAS, packed // (ZEROS * BETAS)], axis=-1)


def fit(counts: NDArray[np.int64], format: Format) -> NDArray[np.int64]:
    """For every row of counts, one for each level, the prediction under which it is most likely."""
    middle = len(format.levels) // 2
    zeros, total = counts[:, middle], counts.sum(1)
    sizes = counts[:, middle + 1 :] + counts[:, :middle][:, ::-1]
    best = (sizes @ _surprise(format).T).argmin(1)
    odds = np.log2((zeros + 0.5) / (total - zeros + 0.5)) * 16 / 3 + EVEN
    zero = np.clip(np.rint(odds), 0, ZEROS - 1).astype(np.int64)
    return np.stack([zero, best // ALPHAS, best % ALPHAS], axis=-1)


@functools.lru_cache(maxsize=4096)
def weights(prediction: Prediction, format: Format) -> tuple[int, ...]:
    """How often each level is to be expected among about TOTAL, at least once each."""
    odds = generalized_normal.power_of_two(3 * (prediction.zero - EVEN), 16)
    zero = min(max(int(TOTAL * odds / (1 + odds)), 1), TOTAL - 1)
    sizes = _sizes(prediction.beta, format)[prediction.alpha]
    upper = [1 + int(size) * (TOTAL - zero) // TOTAL for size in sizes]
    return (*upper[::-1], zero, *upper)


@functools.lru_cache(maxsize=4096)
def model(prediction: Prediction, format: Format, coder: str) -> ans.Model:
    """The code."""
    return ans.model(weights(prediction, format), CODERS[coder])


@functools.lru_cache(maxsize=3 * BETAS)
def _sizes(beta: int, format: Format) -> NDArray[np.int64]:
    """For every α, of TOTAL values that are not level zero how many have each positive level."""
    exponent = LARGEST_BETA * generalized_normal.power_of_two(beta - (BETAS - 1), 3)
    spreads = np.array([generalized_normal.power_of_two(alpha - OWN, 4) for alpha in range(ALPHAS)])
    spreads *= generalized_normal.spread(exponent, format)
    levels = np.array(format.magnitudes)
    edges = (levels[1:] + levels[:-1]) / 2
    within = generalized_normal.mass_within((edges / spreads[:, None]).ravel(), exponent).reshape(ALPHAS, -1)
    above = np.maximum(np.diff(within, axis=1, append=1.0), 0.0)
    total = np.zeros(ALPHAS)
    for column in above.T:  # numpy.sum adds in an order of its own
        total += column
    above[total == 0, 0] = total[total == 0] = 1.0  # next to nothing is beyond zero: the nearest level
    return np.floor(above / total[:, None] * (TOTAL / 2)).astype(np.int64)


@functools.cache
def _surprise(format: Format) -> Doubles:
    """For every pair of β and α, in order, the bits of each size of a level, if codes were ideal."""
    sizes = np.concatenate([_sizes(beta, format) for beta in range(BETAS)])
    return np.asarray(-np.log2((sizes + 0.5) / (sizes + 0.5).sum(1, keepdims=True)))
