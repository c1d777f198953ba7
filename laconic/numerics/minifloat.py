"""Floating-point numbers of four and eight bits: which levels there are, and which is nearest to a value.

A format [1, e, m] with a bias is a sign, e bits of exponent E and m bits of mantissa M (IEEE 754's layout):

    E = 0               M · 2^(1 - bias - m)                   zero and the subnormals
    0 < E < 2^e - 1     (2^m + M) · 2^(E - bias - m)
    E = 2^e - 1         infinities and NaN: not among the levels, in any of the three formats

So there are (2^e - 1) · 2^m magnitudes, and as +0 and -0 are one level, 2 · (2^e - 1) · 2^m - 1 levels:

    e5m2    bias 15    247 levels    2^-16 … 57344
    e4m3    bias 10    239 levels    2^-12 … 30
    fp4     bias 1      11 levels    0, ±.5, ±1, ±1.5, ±2, ±3

A code is a level's index in rising order, 0 … n - 1. Zero is code (n - 1) / 2 =: z, and code z ± k is the magnitude
that IEEE's bits E, M, read as one integer, call k.

Between two levels the nearer one is taken, and in the middle, IEEE's way, the one whose mantissa ends in 0, which is
the one with k even. Beyond the last level there is nothing nearer than it: values saturate. All levels and all edges
are exact in float32, so comparing float32 values with them is exact too.
"""
# ruff: noqa: A002 (a format is the field's word)

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Format:
    """A sign, bits of exponent and bits of mantissa; `bias` is the exponent of 1."""

    exponent: int
    mantissa: int
    bias: int

    @functools.cached_property
    def magnitudes(self) -> tuple[float, ...]:
        """The levels from zero up."""
        steps = 2**self.mantissa
        places = itertools.product(range(2**self.exponent - 1), range(steps))
        return tuple(
            math.ldexp(steps * (place > 0) + fraction, max(place, 1) - self.bias - self.mantissa)
            for place, fraction in places
        )

    @functools.cached_property
    def levels(self) -> torch.Tensor:
        """All levels in rising order, float32."""
        levels = [*(-level for level in self.magnitudes[:0:-1]), *self.magnitudes]
        return torch.tensor(levels, dtype=torch.float32)

    @functools.cached_property
    def edges(self) -> torch.Tensor:
        """Between neighbors, halfway: edge k is between the levels k and k + 1."""
        return (self.levels[1:] + self.levels[:-1]) / 2


E5M2 = Format(exponent=5, mantissa=2, bias=15)
E4M3 = Format(exponent=4, mantissa=3, bias=10)
FP4 = Format(exponent=2, mantissa=1, bias=1)
FORMATS = {"e5m2": E5M2, "e4m3": E4M3, "fp4": FP4}


def quantize(values: torch.Tensor, format: Format) -> torch.Tensor:
    """The codes of the nearest levels, int64. No value may be NaN; infinities saturate."""
    values, edges = values.float(), format.edges.to(values.device)
    below = torch.bucketize(values, edges)
    middle = values == edges[below.clamp(max=len(edges) - 1)]
    odd = (below - len(edges) // 2) % 2 == 1
    return below + (middle & odd)


def dequantize(codes: torch.Tensor, format: Format) -> torch.Tensor:
    """The levels that the codes stand for."""
    return format.levels.to(codes.device)[codes]
