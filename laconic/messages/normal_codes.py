"""How often THC's codes, and sums of what they stand for, are to be expected.

A block's coordinates are about normal once they are rotated. THC clamps them to its grid, -1…1 in the unit of its
threshold, and rounds them to a neighbor in the table T, up with a probability that grows linearly between the two.
With q = 2T/g - 1, and the coordinates normal with mean m and deviation s:

    P(code ≤ k) = (G(z_k+1) - G(z_k)) / (z_k+1 - z_k)        z = (q - m)/s, G(z) = zΦ(z) + φ(z), whose slope is Φ(z)

Blocks are scaled by the largest norm of all workers, so they differ in s. A worker's coordinates have m = 0; but
workers share a part of what they say, and given that part c the others are independent, so that with P_c for m = c

    P(sum) = Σ_c P(c) · (P_c * P_c * … * P_c)(sum)            as many factors as there are workers

A model is one of

    width      s = 2^(i/4 - 7), from 2^-7 to 2^1.75
    common     ρ, the share of s² that is common to all workers; c lies on a grid of some points

Both ends build codes from the weights, so these are from IEEE 754's basic operations alone, as in
generalized_normal.py, to which the square root belongs.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

from laconic.messages.coded_runs import TOTAL, Family
from laconic.numerics import generalized_normal
from laconic.numerics.generalized_normal import Doubles

WIDTHS, PER_OCTAVE, NARROWEST = 36, 4, -7
COMMON = (0.0, 0.06, 0.15, 0.3, 0.5, 0.75, 0.93)
FARTHEST, STEP, APART = 3.2, 0.4, 1.5
"""Of the grid of c in deviations of c; and how far apart its points are at most in those of the sum given c."""
RUN = 4096
"""Blocks have their own lengths, and most are as large as this."""
SQRT_HALF = 0.70710678118654752440
PEAK = 0.39894228040143267794
"""φ(0)."""


@functools.lru_cache(maxsize=64)
def of_codes(table: tuple[int, ...]) -> Family:
    """Models of the codes of one worker."""
    return Family(_sums(table, 1)[:, table].copy(), (RUN,))


@functools.lru_cache(maxsize=64)
def of_sums(table: tuple[int, ...], workers: int) -> Family:
    """Models of the sums of so many workers' integers, from 0 to 255 at most."""
    return Family(_sums(table, workers), (RUN,))


def _sums(table: tuple[int, ...], workers: int) -> NDArray[np.int64]:
    """A row of weights for every model: all widths for the first share in common, then for the next."""
    widths = [generalized_normal.power_of_two(i + NARROWEST * PER_OCTAVE, PER_OCTAVE) for i in range(WIDTHS)]
    common = COMMON if workers > 1 else COMMON[:1]
    rows = [_chances(table, workers, np.array(widths), share) for share in common]
    return 1 + np.floor(np.concatenate(rows) * TOTAL).astype(np.int64)


def _chances(table: tuple[int, ...], workers: int, widths: Doubles, share: float) -> Doubles:
    """For every width how probable each sum is, if that share of s² is common."""
    points = _grid(share, workers)
    means = points[:, None] * (math.sqrt(share) * widths)
    deviations = np.broadcast_to(math.sqrt(1 - share) * widths, means.shape)
    sums = _folded(_codes(table, means.ravel(), deviations.ravel()), table, workers)
    total, expected = 0.0, np.zeros((len(widths), sums.shape[1]))
    for height, given in zip(_density(points), sums.reshape(len(points), *expected.shape), strict=True):
        expected += height * given  # one by one: numpy.sum adds in an order of its own
        total += height
    return expected / total


def _grid(share: float, workers: int) -> Doubles:
    """Points at which what is common is considered, if it is that share."""
    if not share:
        return np.zeros(1)
    step = min(STEP, APART * math.sqrt((1 - share) / (share * workers)))
    last = math.floor(FARTHEST / step)
    return np.array([step * j for j in range(-last, last + 1)])


def _codes(table: tuple[int, ...], means: Doubles, deviations: Doubles) -> Doubles:
    """For every mean and deviation how probable each code is."""
    levels = 2 * np.array(table) / table[-1] - 1
    z = (levels - means[:, None]) / deviations[:, None]
    integral = z * _mass_below(z) + _density(z)
    below = np.clip((integral[:, 1:] - integral[:, :-1]) / (z[:, 1:] - z[:, :-1]), 0.0, 1.0)
    edges = np.ones((len(z), 1))
    return np.maximum(
        np.concatenate([below, edges], axis=1) - np.concatenate([0 * edges, below], axis=1), 0.0
    )


def _folded(codes: Doubles, table: tuple[int, ...], workers: int) -> Doubles:
    """How probable each sum of `workers` independent codes' integers is."""
    sums = np.ones((len(codes), 1))
    for _ in range(workers):
        longer = np.zeros((len(codes), sums.shape[1] + table[-1]))
        for level, chance in zip(table, codes.T, strict=True):
            longer[:, level : level + sums.shape[1]] += chance[:, None] * sums
        sums = longer
    return sums


def _mass_below(z: Doubles) -> Doubles:
    """Φ(z)."""
    return (1 + np.sign(z) * _within(z, 0)) / 2


def _density(z: Doubles) -> Doubles:
    """φ(z): what E|x| still has beyond |z|."""
    return PEAK * (1 - _within(z, 1))


def _within(z: Doubles, moment: int) -> Doubles:
    """The part of a standard normal's E|x|^moment that is nearer to zero than z."""
    distances = np.maximum(np.abs(z) * SQRT_HALF, 1e-30)
    return generalized_normal.mass_within(distances.ravel(), 2.0, moment).reshape(z.shape)
