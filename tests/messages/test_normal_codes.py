import hashlib
from statistics import NormalDist

import numpy as np
import pytest
import torch

from laconic.messages import normal_codes
from laconic.messages.coded_runs import TOTAL
from laconic.messages.normal_codes import COMMON, WIDTHS
from laconic.techniques.thc import THC

BITS = range(2, 9)
TABLE = (0, 3, 5, 7, 9, 11, 13, 14, 15, 17, 19, 21, 23, 25, 27, 30)


def _width(index):
    return 2 ** (index / 4 - 7)


def _simulated(table, workers, width, common, draws=400_000):
    """Sums of codes of values that are normal, as THC makes them, as shares."""
    rng = np.random.default_rng(0)
    shared, own = rng.standard_normal(draws), rng.standard_normal((workers, draws))
    values = width * (common**0.5 * shared + (1 - common) ** 0.5 * own)
    levels, granularity = np.array(table), table[-1]
    y = np.clip((values + 1) * granularity / 2, 0, granularity)
    below = np.clip(np.searchsorted(levels, y, side="right") - 1, 0, len(levels) - 2)
    up = rng.random(y.shape) < (y - levels[below]) / (levels[below + 1] - levels[below])
    return np.bincount(levels[below + up].sum(0), minlength=workers * granularity + 1) / draws


@pytest.mark.parametrize("bits", BITS)
def test_codes_have_the_shares_that_an_integral_over_their_neighbors_gives(bits):
    table = THC(bits=bits).grid(2).table
    weights = normal_codes.of_codes(table).weights
    levels = 2 * np.array(table) / table[-1] - 1
    for index in (4, 15, 24, 30):
        x = np.linspace(-1, 1, 200_001)
        density = np.exp(-((x / _width(index)) ** 2) / 2)
        tail = NormalDist().cdf(-1 / _width(index))
        density *= (1 - 2 * tail) / density.sum()
        hats = [np.interp(x, levels, np.eye(len(levels))[k]) @ density for k in range(len(levels))]
        hats[0] += tail
        hats[-1] += tail
        # a weight is rounded down and has one more; the sum over x is right to 1e-5
        assert np.abs(weights[index] - 0.5 - np.array(hats) * TOTAL).max() < 0.5 + 1e-5 * TOTAL


@pytest.mark.parametrize(("bits", "workers"), [(2, 4), (3, 3), (4, 2), (4, 8)])
@pytest.mark.parametrize("common", range(len(COMMON)))
def test_sums_are_as_frequent_as_in_a_simulation(bits, workers, common):
    table = THC(bits=bits).grid(workers).table
    weights = normal_codes.of_sums(table, workers).weights[common * WIDTHS + 23]
    seen = _simulated(table, workers, _width(23), COMMON[common])
    surprise = -np.log2(weights / weights.sum())
    entropy = -(seen[seen > 0] * np.log2(seen[seen > 0])).sum()
    assert seen @ surprise < entropy + 0.01  # the grid of what is common costs some of it, chance 1e-3


@pytest.mark.parametrize("bits", BITS)
def test_a_width_between_two_models_costs_next_to_nothing(bits):
    table = THC(bits=bits).grid(1).table
    family = normal_codes.of_codes(table)
    seen = _simulated(table, 1, _width(23.5), 0)[list(table)]
    entropy = -(seen[seen > 0] * np.log2(seen[seen > 0])).sum()
    assert (family.surprise @ seen).min() < entropy + 0.02  # (ln 2 / 8)² nats for a normal, 0.011 bits


def test_models_are_equal_on_any_machine():
    """If this fails on some machine, its workers build other codes than others do."""
    digest = hashlib.sha256()
    for table, workers in ((TABLE, 4), (TABLE, 8), ((0, 9, 22, 31), 3)):
        for family in (normal_codes.of_codes(table), normal_codes.of_sums(table, workers)):
            digest.update(family.weights.astype("<i8").tobytes())
    assert digest.hexdigest()[:16] == "abc488a98a125a0b"


def test_every_model_has_a_code():
    table = THC().grid(4).table
    family = normal_codes.of_sums(table, 4)
    for model in range(0, len(family.weights), 17):
        for coder in range(2):
            code = family.code(model, coder)
            assert sum(code.shares) + code.escape == 1 << 11


def test_symmetric_tables_have_symmetric_models():
    weights = torch.from_numpy(normal_codes.of_codes(tuple(range(16))).weights)
    assert (weights - weights.flip(1)).abs().max() <= 1  # rounding
