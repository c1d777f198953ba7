"""How well a generalized normal describes values, against Laplace's density and the normal: distance and bits.

    fits         all three by moments and about zero: GenNorm by E|x| and E[x²] (density.fit), Laplace by E|x|,
                 Normal by E[x²]
    distance     Wasserstein-2: in one dimension, how far the quantiles of the values are from those of the density,
                 as a root of the mean square; here in units of the root of E[x²], which is σ about zero
    bits         values are scaled by GenNorm's fit and rounded to a minifloat; then the bits that a level takes in
                 the code that travels with GenNorm (level_codes.py), in those that Laplace and Normal predict, in the
                 Huffman code of the levels' own histogram (less its table, which would have to travel), and their
                 entropy

Of n values the i-th smallest is compared with the density's quantile at (i + ½)/n. No value is left out and none are
grouped, so the tail counts with what it has of E[x²]; beyond 1 - 1/2n, where there are no values, the density's own
tail does not count.
"""
# ruff: noqa: A002 (a format is the field's word)

from __future__ import annotations

import functools
import heapq
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from laconic.numerics import ans, generalized_normal, huffman, level_codes, minifloat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from laconic.numerics.generalized_normal import Doubles, Shape
    from laconic.numerics.minifloat import Format

FAMILIES = ("gennorm", "laplace", "normal")
CODES = (*FAMILIES, "huffman", "entropy")
FORMATS = {"e5m2": minifloat.E5M2, "fp4": minifloat.FP4}
MEASURES = (
    "beta",
    *(f"w2_{family}" for family in FAMILIES),
    *(f"{name}_{code}" for name in FORMATS for code in CODES),
)
"""What `measure` gives: β, distances over σ, and bits per value."""

GRID = 4096
"""Distances for which a density's mass is known; quantiles between them are right to 2e-5."""


class Fit(NamedTuple):
    """A generalized normal about zero; β = 1 is Laplace's density, and β = 2 the normal with σ = α/√2."""

    beta: float
    alpha: float


def measure(values: torch.Tensor) -> dict[str, float]:
    """A number for each of MEASURES; none of values that are all zero, as they have no shape."""
    values = values.detach().flatten().float().cpu()
    ordered = np.sort(values.double().numpy())
    mean_abs, mean_square = float(np.abs(ordered).mean()), float(np.square(ordered).mean())
    shape = generalized_normal.fit(mean_abs, mean_square)
    if mean_abs == 0:
        return {}
    fitted = fits(shape, mean_abs, mean_square)
    found = {
        f"w2_{family}": distance(ordered, fit) / math.sqrt(mean_square) for family, fit in fitted.items()
    }
    for name, form in FORMATS.items():
        bits = rates(values, generalized_normal.scale(shape, form), fitted, form)
        found |= {f"{name}_{code}": bits[code] for code in CODES}
    return {"beta": shape.exponent, **found}


def fits(shape: Shape, mean_abs: float, mean_square: float) -> dict[str, Fit]:
    """For each family the density of values with this shape and these means of |x| and x²."""
    return {
        "gennorm": Fit(shape.exponent, shape.width),
        "laplace": Fit(1.0, mean_abs),
        "normal": Fit(2.0, math.sqrt(2 * mean_square)),
    }


def distance(ordered: Doubles, fit: Fit) -> float:
    """Wasserstein-2 from rising values to the density."""
    apart = ordered - fit.alpha * quantiles(len(ordered), fit.beta)
    return math.sqrt(float(np.square(apart).mean()))


def quantiles(count: int, beta: float) -> Doubles:
    """The quantiles at (i + ½)/count of the density with α = 1, for all i in 0 … count - 1."""
    twice = np.arange(1 - count, count, 2)  # 2i + 1 - count: of the mass, |twice|/count is nearer to zero
    inside = np.maximum(np.abs(twice), 0.5)
    odds = np.log(inside / (count - np.abs(twice)))
    return np.sign(twice) * np.exp(np.interp(odds, *_known(beta)))


def rates(values: torch.Tensor, scale: float, fitted: Mapping[str, Fit], format: Format) -> dict[str, float]:
    """Bits per value in each of CODES, all for the same levels."""
    counts = _counts(values * scale, format)
    prediction = level_codes.Prediction(*level_codes.fit(np.array([counts]), format)[0].tolist())
    predicted = {
        family: _bits(generalized_normal.level_weights(fit.beta, fit.alpha * scale, format), counts)
        for family, fit in fitted.items()
    }
    return {
        **predicted,
        "gennorm": _bits(level_codes.weights(prediction, format), counts),
        "huffman": huffman_bits(counts),
        "entropy": entropy(counts),
    }


def huffman_bits(counts: Sequence[int]) -> float:
    """The mean bits of a symbol in the best prefix code for these counts; 0 where there is but one symbol."""
    heap = [count for count in counts if count]
    heapq.heapify(heap)
    total = 0
    while len(heap) > 1:  # whatever is merged gets one bit longer
        merged = heapq.heappop(heap) + heapq.heappop(heap)
        total += merged
        heapq.heappush(heap, merged)
    return total / sum(counts)


def entropy(counts: Sequence[int]) -> float:
    """The entropy of symbols with these counts, in bits."""
    shares = np.array([count for count in counts if count]) / sum(counts)
    return float(-(shares * np.log2(shares)).sum()) + 0.0


def _counts(scaled: torch.Tensor, format: Format) -> list[int]:
    """How often each level is the nearest."""
    return torch.bincount(minifloat.quantize(scaled, format), minlength=len(format.levels)).tolist()


def _bits(weights: Sequence[int], counts: Sequence[int]) -> float:
    """The mean bits of symbols with these counts in the code that both ends build from the weights."""
    return ans.expected_bits(ans.model(weights, huffman.shares), counts)


@functools.lru_cache(maxsize=generalized_normal.BETAS)
def _known(beta: float) -> tuple[Doubles, Doubles]:
    """For rising distances the logarithms of the odds that a value is nearer to zero, and of the distances.

    Between them a line is nearly exact: near zero the two differ by a constant, and far out odds grow like e^(y^β).
    They go from a mass of 1e-11 inside to 1e-12 outside, where `mass_within` has one digit left.
    """
    logarithms = np.linspace(
        math.lgamma(1 / beta + 1) - 25, math.log(generalized_normal.FARTHEST) / beta, GRID
    )  # of the distances: near zero the mass inside is y/Γ(1/β + 1)
    inside = generalized_normal.mass_within(np.exp(logarithms), beta)
    known = inside < 1 - 1e-12
    return np.log(inside[known] / (1 - inside[known])), logarithms[known]
