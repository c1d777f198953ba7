from itertools import combinations, pairwise

import pytest
import torch

from laconic.numerics import rng
from laconic.numerics.thc_grid import (
    clamping_error,
    optimal_table,
    rounding_error,
    tail_threshold,
    uniform_table,
)

# Published in the THC paper's code for (bits, granularity, tail).
PUBLISHED_DEFAULT = (0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30)


@pytest.mark.parametrize(
    ("tail", "threshold"),
    [(32, 2.1539), (64, 2.4176), (128, 2.6601), (256, 2.8856), (512, 3.0973), (1024, 3.2972)],
)
def test_thresholds_are_the_normal_quantiles(tail, threshold):
    assert tail_threshold(1 / tail) == pytest.approx(threshold, abs=5e-5)


@pytest.mark.parametrize(
    ("tail", "rounding", "clamping"),
    [(32, 0.0131, 0.00727), (64, 0.0162, 0.00315), (128, 0.0191, 0.00139), (512, 0.0229, 0.00028)],
)
def test_errors_are_those_of_the_paper_for_its_default_granularity(tail, rounding, clamping):
    assert rounding_error(optimal_table(4, 30, 1 / tail), 1 / tail) == pytest.approx(rounding, rel=0.01)
    assert clamping_error(1 / tail) == pytest.approx(clamping, rel=0.02)


def test_the_default_table_beats_the_published_one_by_a_little():
    ours, theirs = optimal_table(4, 30, 1 / 32), PUBLISHED_DEFAULT
    assert rounding_error(theirs, 1 / 32) == pytest.approx(0.013075, abs=1e-6)
    assert rounding_error(ours, 1 / 32) == pytest.approx(0.013063, abs=1e-6)


@pytest.mark.parametrize("tail", [1 / 8, 1 / 32, 1 / 1024])
@pytest.mark.parametrize(("bits", "granularity"), [(1, 1), (1, 5), (2, 3), (2, 11), (3, 9), (3, 12)])
def test_no_other_table_is_better(bits, granularity, tail):
    best = min(
        rounding_error((0, *inner, granularity), tail)
        for inner in combinations(range(1, granularity), 2**bits - 2)
    )
    assert rounding_error(optimal_table(bits, granularity, tail), tail) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize(("bits", "granularity"), [(2, 3), (4, 15), (4, 63), (8, 255), (8, 1000)])
def test_a_table_climbs_from_zero_to_the_granularity(bits, granularity):
    table = optimal_table(bits, granularity, 1 / 32)
    assert len(table) == 2**bits
    assert (table[0], table[-1]) == (0, granularity)
    assert all(a < b for a, b in pairwise(table))


def test_with_no_choice_the_table_is_uniform():
    assert optimal_table(4, 15, 1 / 32) == uniform_table(4)


def test_the_error_law_holds_for_drawn_values():
    tail, table = 1 / 32, optimal_table(4, 30, 1 / 32)
    t, count = tail_threshold(tail), 1 << 20
    x = torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    levels = torch.tensor(table, dtype=torch.float64) * (2 * t / table[-1]) - t
    z = x.clamp(-t, t)
    above = torch.searchsorted(levels, z).clamp(1, len(table) - 1)
    low, high = levels[above - 1], levels[above]
    rounded = torch.where((rng.halves(1, count) + 0.5) / 2**16 < (z - low) / (high - low), high, low)
    measured = (rounded - x).square().mean().item()
    assert measured == pytest.approx(rounding_error(table, tail) + clamping_error(tail), rel=0.02)
    assert (rounded - z).mean().abs() < 5 * (rounding_error(table, tail) / count) ** 0.5
