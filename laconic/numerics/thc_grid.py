"""The exact lookup table for a grid of integers under a clipped normal (THC, Li et al., NSDI 2024, section 5).

A b-bit code k stands for the integer T[k] of a grid 0…g that spans ±t, t = Φ⁻¹(1 − p/2), so that a normal value
falls outside with probability p. Stochastic rounding between neighbours a < b errs by (b − x)(x − a) on average.
The table minimizes the sum of that over the normal density, with T[0] = 0 and T[2^b − 1] = g: a shortest path
over the nodes 0…g with 2^b − 1 edges, solved exactly by dynamic programming.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from statistics import NormalDist


def tail_threshold(tail: float) -> float:
    """Where a normal value's magnitude lies above with probability `tail`."""
    return _normal().inv_cdf(1 - tail / 2)


@functools.cache
def optimal_table(bits: int, granularity: int, tail: float) -> tuple[int, ...]:
    """The 2^bits integers from 0 to `granularity` with the least expected squared error."""
    costs = _edge_costs(granularity, tail)
    best, choices = costs[0].clone(), []
    for _ in range(2**bits - 2):
        totals = best.unsqueeze(1) + costs
        best, choice = totals.min(0)
        choices.append(choice)
    node, table = granularity, [granularity]
    for choice in reversed(choices):
        node = int(choice[node])
        table.append(node)
    return (*reversed([*table, 0]),)


def uniform_table(bits: int) -> tuple[int, ...]:
    """Every integer of the grid is a code."""
    return tuple(range(2**bits))


def rounding_error(table: tuple[int, ...], tail: float) -> float:
    """Expected squared error of stochastic rounding to `table`, for a normal value inside the threshold."""
    costs = _edge_costs(table[-1], tail)
    return sum(float(costs[a, b]) for a, b in itertools.pairwise(table))


def clamping_error(tail: float) -> float:
    """Expected squared error of clamping a normal value to the threshold."""
    t = tail_threshold(tail)
    return 2 * ((1 + t * t) * (1 - _normal().cdf(t)) - t * _normal().pdf(t))


@functools.cache
def _normal() -> NormalDist:
    """The standard normal; what it comes with takes a tenth of `import laconic`, so it is loaded when needed."""
    from statistics import NormalDist

    return NormalDist()


def _edge_costs(granularity: int, tail: float) -> torch.Tensor:
    """Entry (i, j), i < j: ∫ (b − x)(x − a) φ(x) dx between the grid's points a = q_i and b = q_j; else infinite."""
    t = tail_threshold(tail)
    points = [-t + 2 * t * node / granularity for node in range(granularity + 1)]
    q = torch.tensor(points, dtype=torch.float64)
    cdf = torch.tensor([_normal().cdf(point) for point in points], dtype=torch.float64)
    pdf = torch.tensor([_normal().pdf(point) for point in points], dtype=torch.float64)
    a, b = q.unsqueeze(1), q.unsqueeze(0)
    mass = cdf.unsqueeze(0) - cdf.unsqueeze(1)
    first = pdf.unsqueeze(1) - pdf.unsqueeze(0)
    second = mass + a * pdf.unsqueeze(1) - b * pdf.unsqueeze(0)
    costs = -second + (a + b) * first - a * b * mass
    return costs.masked_fill(torch.ones_like(costs).tril().bool(), torch.inf)
