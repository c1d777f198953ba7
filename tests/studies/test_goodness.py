import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from laconic.numerics import generalized_normal, huffman
from laconic.numerics.minifloat import FP4, quantize
from laconic.studies import goodness
from laconic.studies.goodness import CODES, FAMILIES, FORMATS, MEASURES, Fit

BETAS = (generalized_normal.Shape(0, 0).exponent, 0.3, 0.5, 1, 2, 4)


def _drawn(beta, size, seed=0):
    return torch.from_numpy(stats.gennorm.rvs(beta, scale=1e-3, size=size, random_state=seed)).float()


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("count", [1, 2, 3, 10, 30_000])
def test_quantiles_are_scipys(beta, count):
    expected = stats.gennorm.ppf((np.arange(count) + 0.5) / count, beta)
    expected[np.abs(expected) < 1e-12] = 0  # the median, which scipy has but for rounding
    np.testing.assert_allclose(goodness.quantiles(count, beta), expected, rtol=2e-5)


@pytest.mark.parametrize("beta", BETAS)
def test_the_last_of_many_quantiles_is_scipys(beta):
    count = 3_000_000
    expected = stats.gennorm.isf(0.5 / count, beta)
    assert goodness.quantiles(count, beta)[-1] == pytest.approx(expected, rel=2e-5)


@given(count=st.integers(1, 300), beta=st.sampled_from(BETAS))
def test_quantiles_rise_and_mirror(count, beta):
    found = goodness.quantiles(count, beta)
    assert (np.diff(found) > 0).all()
    np.testing.assert_array_equal(found, -found[::-1])


@pytest.mark.parametrize("beta", [0.5, 1, 2])
def test_values_drawn_from_a_density_come_near_to_it(beta):
    fit = Fit(beta, 1e-3)
    few, many = (
        goodness.distance(np.sort(_drawn(beta, size).double().numpy()), fit) for size in (300, 300_000)
    )
    deviation = stats.gennorm.std(beta, scale=1e-3)
    assert many < few / 4  # as the root of the size for the normal, by a factor of 32; slower for heavy tails
    assert many < 0.03 * deviation


def test_the_distance_of_a_scaled_density_is_what_is_missing():
    ordered = 2 * goodness.quantiles(100_000, 2)
    # W2 of N(0, σ²) and N(0, 4σ²) is σ; the half of a 10⁻⁵th beyond the last quantile is missing
    assert goodness.distance(ordered, Fit(2, 1)) == pytest.approx(math.sqrt(0.5), rel=1e-3)


@pytest.mark.parametrize(
    ("beta", "nearest"), [(0.5, {"gennorm"}), (1, {"gennorm", "laplace"}), (2, {"gennorm", "normal"})]
)
def test_the_right_family_is_nearest_and_takes_the_fewest_bits(beta, nearest):
    found = goodness.measure(_drawn(beta, 300_000))
    assert found["beta"] == pytest.approx(beta, rel=0.03)
    for prefix, slack in (("w2", 0.01), ("e5m2", 0.005), ("fp4", 0.005)):  # sampling, and steps of β
        least = min(found[f"{prefix}_{family}"] for family in FAMILIES)
        best = {family for family in FAMILIES if found[f"{prefix}_{family}"] <= least + slack}
        assert best == nearest


# The rates that were computed for this density; see also those of test_density.
@pytest.mark.parametrize(
    ("beta", "entropy", "gennorm", "laplace", "normal"),
    [(0.5, 1.82, 1.90, 1.93, 2.32), (1, 2.78, 2.84, 2.84, 2.89), (2, 3.25, 3.28, 3.32, 3.28)],
)
def test_bits_in_fp4_are_those_of_the_table(beta, entropy, gennorm, laplace, normal):
    found = goodness.measure(_drawn(beta, 300_000))
    expected = {"entropy": entropy, "gennorm": gennorm, "laplace": laplace, "normal": normal}
    assert {code: found[f"fp4_{code}"] for code in expected} == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("name", FORMATS)
@given(values=st.lists(st.floats(-1e3, 1e3, width=32), min_size=1).filter(any))
def test_no_code_is_below_entropy_and_the_histograms_own_is_within_a_bit(name, values):
    found = goodness.measure(torch.tensor(values))
    entropy = found[f"{name}_entropy"]
    assert all(found[f"{name}_{code}"] >= entropy - 1e-9 for code in CODES)
    assert found[f"{name}_huffman"] < entropy + 1


def test_the_fitted_code_is_the_one_that_travels():
    values = _drawn(0.4, 20_000)
    shape = generalized_normal.fit(
        float(values.double().abs().mean()), float(values.double().square().mean())
    )
    codes = quantize(values * generalized_normal.scale(shape, FP4), FP4)
    counts = torch.bincount(codes, minlength=len(FP4.levels)).tolist()
    expected = goodness._bits(generalized_normal.weights(shape, FP4), counts)
    assert goodness.measure(values)["fp4_gennorm"] == pytest.approx(expected, rel=1e-3)


@given(
    counts=st.lists(st.integers(0, 10_000), min_size=2, max_size=40).filter(lambda c: sum(map(bool, c)) > 1)
)
def test_huffman_bits_are_those_of_package_merge(counts):
    used = [count for count in counts if count]
    lengths = huffman.lengths(used, limit=len(used))
    expected = sum(length * count for length, count in zip(lengths, used, strict=True)) / sum(used)
    assert goodness.huffman_bits(counts) == pytest.approx(expected)


@pytest.mark.parametrize("size", [1, 10, 100_000])
@pytest.mark.parametrize("value", [1e-45, 1e-30, -0.5, 3e38])
def test_constant_values_have_all_measures(value, size):
    found = goodness.measure(torch.full((size,), value))
    assert tuple(found) == MEASURES
    assert all(map(math.isfinite, found.values()))
    assert found["beta"] == 4
    assert found["e5m2_huffman"] == found["e5m2_entropy"] == 0


@pytest.mark.parametrize("size", [1, 1000])
def test_zeros_have_no_shape(size):
    assert goodness.measure(torch.zeros(size)) == {}


def test_a_scale_changes_no_measure():
    values = _drawn(0.7, 10_000)
    one, other = goodness.measure(values), goodness.measure(values * 2.0**-40)
    assert one == pytest.approx(other, rel=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_values_that_are_not_finite_are_refused(bad):
    with pytest.raises(ValueError, match="no finite values"):
        goodness.measure(torch.tensor([1.0, bad]))


def test_every_format_has_every_code():
    assert set(MEASURES) >= {f"{name}_{code}" for name in ("e5m2", "fp4") for code in CODES}
