"""The generalized normal, known from three bytes, and what it says about the levels of a minifloat.

    f(x) = β / (2αΓ(1/β)) · exp(-(|x|/α)^β)        β = 2 is the normal, β = 1 Laplace, gradients are often below

    fit        β and α by moments: ρ = (E|x|)²/E[x²] = Γ(2/β)²/(Γ(1/β)Γ(3/β)) grows with β; E|x| = αΓ(2/β)/Γ(1/β)
    Shape      both as integers: β in steps of 1/48 of an octave from .1007 to 4, so that .5, 1 and 2 are among them,
               and α in steps of 1/64; an error of α is one of the scale, so it costs squared error or bits
    spread     α in the unit of the levels, from β: where a generalized normal is to lie in a format
    scale      the factor from values to levels, spread/α
    weights    how often each level is to be expected, as integers: with such a scale a matter of β alone, so there
               are 256 codes for a format

Both ends of a wire build a code from `weights`, so these must be equal on any machine to the last bit, and a
library's exp, log, pow and Γ are not: they differ between versions of libm and between vector units. What IEEE 754
does fix is the sum, difference, product and quotient of two doubles, comparisons, and scaling by powers of two
(frexp, ldexp), so here is nothing else, in an order written down: NumPy only element by element, and sums as loops,
because the order within numpy.sum is not fixed. (In C++, -ffp-contract=off.)

The mass within a distance y·α is that of a gamma distribution, P(1/β, u) with u = y^β, by its power series

    P(a, u) = u^a e^-u / Γ(a + 1) · (1 + u/(a + 1) + u²/((a + 1)(a + 2)) + …)

which has no cancellation, as all terms are positive. For a ≤ 20 and u ≤ 90, 200 terms leave out less than 1e-18, and
beyond u = 90 there is less than 1e-18 of the mass. With rounding, P is right to 1e-13.
"""
# ruff: noqa: A002 (a format is the field's word)

from __future__ import annotations

import functools
import itertools
import math
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from laconic.numerics.minifloat import FP4, Format

Doubles = NDArray[np.float64]
Real = TypeVar("Real", float, Doubles)

BETAS, BETAS_PER_OCTAVE = 256, 48
LARGEST_BETA = 4.0
ALPHAS, ALPHAS_PER_OCTAVE = 1 << 16, 64
ONE = ALPHAS // 2
"""The index of α = 1; 512 octaves on both sides are far more than the means of float32 values need."""
TOTAL = 1 << 16
"""The sum of the weights."""
STEPS = 64
"""A standard deviation in steps of the smallest level, for the formats of eight bits."""
MOST_OCTAVES = 126
"""A scale is between 2^-126 and 2^126, so that both it and its inverse are normal numbers of float32."""

LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
LN2 = LN2_HIGH + LN2_LOW
HALF_LN_2PI = 0.91893853320467274178
FARTHEST = 90.0
TERMS = 200


class Shape(NamedTuple):
    """A generalized normal, as it travels: `beta` takes 8 bits, `alpha` 16; all-zero values have (0, 0)."""

    beta: int
    alpha: int

    @property
    def exponent(self) -> float:
        """β."""
        return grid_beta(self.beta)

    @property
    def width(self) -> float:
        """α."""
        return power_of_two(self.alpha - ONE, ALPHAS_PER_OCTAVE)


def fit(mean_abs: float, mean_square: float) -> Shape:
    """The generalized normal of values with these means of |x| and x², to be summed in double precision."""
    return Shape(*fit_all(np.array([mean_abs]), np.array([mean_square]))[0].tolist())


def fit_all(mean_abs: Doubles, mean_square: Doubles) -> NDArray[np.int64]:
    """The same for many, as rows of β's and α's integers."""
    finite = np.isfinite(mean_abs) & np.isfinite(mean_square) & (mean_abs >= 0) & (mean_square >= 0)
    if not finite.all():
        worst = int(np.argmin(finite))
        raise ValueError(
            f"the means {mean_abs[worst]} of |x| and {mean_square[worst]} of x² are of no finite values"
        )
    some = mean_abs > 0
    means = np.where(some, mean_abs, 1.0)
    ratio = np.where(mean_square > 0, means * (means / np.where(mean_square > 0, mean_square, 1.0)), 1.0)
    beta = np.searchsorted(_ratios(), ratio)
    ln_alpha = _log(means) + _ln_widths()[beta]
    alpha = np.clip(np.floor(ALPHAS_PER_OCTAVE * ln_alpha / LN2 + 0.5) + ONE, 0, ALPHAS - 1)
    return np.where(some[:, None], np.stack([beta, alpha.astype(np.int64)], axis=-1), 0)


def scale(shape: Shape, format: Format) -> float:
    """The factor from values to levels, exact in float32; at its bounds, values below 1e-36 may all become zeros."""
    return float(scales(np.array([shape]), format)[0])


def scales(shapes: NDArray[np.int64], format: Format) -> NDArray[np.float32]:
    """The same for many shapes, given as rows of integers."""
    betas, which = np.unique(shapes[:, 0], return_inverse=True)
    spreads = np.array([spread(grid_beta(int(beta)), format) for beta in betas])[which.reshape(-1)]
    octave, phase = np.divmod(shapes[:, 1] - ONE, ALPHAS_PER_OCTAVE)
    widths = np.ldexp(_phases()[phase], octave.astype(np.int32))
    widest = math.ldexp(1.0, MOST_OCTAVES)
    return np.clip(spreads / widths, 1 / widest, widest).astype(np.float32)


def weights(shape: Shape, format: Format) -> tuple[int, ...]:
    """How often each level is to be expected among TOTAL values that were scaled, at least once each."""
    return level_weights(shape.exponent, spread(shape.exponent, format), format)


@functools.cache
def spread(beta: float, format: Format) -> float:
    """The α, in the unit of the levels, that a scale aims at.

    For fp4 it is that of least squared error: the authors' polynomial for the β it was made for, which is within 5 %
    of the best and adds under 1 % to the error, and a search for all others. For the formats of eight bits a standard
    deviation is 64 steps of the smallest level: what these steps add to the squared error is under 2 % of it
    (for β ≥ .2), steps half as wide would cost bits (for β = .5 a fifth of one), and less than 1e-6 of the mass is
    beyond the last level.
    """
    if format != FP4:
        return float(STEPS * format.magnitudes[1] / _exp(_ln_deviation(beta)))
    if 0.5 <= beta <= 2:
        return max(0.0009, 0.46 + beta * (-2.85 + beta * (5.37 + beta * (-2.85 + beta * 0.52))))
    return best_spread(beta, format)


def best_spread(beta: float, format: Format) -> float:
    """The α, in the unit of the levels, of least squared error, to half a percent.

    With σ the standard deviation at α = 1, candidates are 2^(j/64)/σ. With rising values 0 = v_0, v_1, … to choose
    from, the squared error is E[x²] - 2 Σ (v_k+1 - v_k) E[max(|x| - e_k, 0)], where e_k is halfway between the two.
    """
    levels = np.array(format.magnitudes)
    spreads = _exp(np.arange(-640, 129) / 64 * LN2 - _ln_deviation(beta))
    mean = _exp(_ln_moment(beta, 1) - _ln_moment(beta, 0))
    gain = np.zeros_like(spreads)
    for lower, upper in itertools.pairwise(levels):
        edge, gap = (lower + upper) / 2 / spreads, (upper - lower) / spreads
        gain += gap * (mean * (1 - mass_within(edge, beta, 1)) - edge * (1 - mass_within(edge, beta)))
    return float(spreads[np.argmax(gain)])


@functools.lru_cache(maxsize=3 * BETAS)
def level_weights(beta: float, spread: float, format: Format) -> tuple[int, ...]:
    """The same for any β, and any α in the unit of the levels as `spread`.

    Every level has 1, and of the rest what its mass makes, rounded down; what that leaves of TOTAL goes, 1 each, to
    the levels with the largest remainders, the first among equals.
    """
    levels = np.array(format.magnitudes)
    within = mass_within((levels[1:] + levels[:-1]) / 2 / spread, beta)
    upper = np.maximum(np.append(within[1:], 1.0) - within, 0.0) / 2
    masses = np.concatenate([upper[::-1], within[:1], upper])
    shares = masses * (TOTAL - len(masses))
    whole = np.floor(shares)
    left = TOTAL - len(masses) - int(whole.astype(np.int64).sum())
    whole[np.argsort(whole - shares, kind="stable")[:left]] += 1
    return tuple(1 + int(count) for count in whole)


def mass_within(distances: Doubles, beta: float, moment: int = 0) -> Doubles:
    """The part of E|x|^moment that values of α = 1 nearer to zero than each of these distances > 0 have."""
    order = (moment + 1) / beta
    u = _exp(np.minimum(np.maximum(beta * _log(distances), -700.0), _log(FARTHEST)))
    term, total = np.ones_like(u), np.ones_like(u)
    for n in range(1, TERMS):
        term *= u
        term /= order + n
        total += term
    for _ in range(moment + 1):  # u^order = y^(moment + 1)
        total = total * distances
    return np.minimum(total * _exp(-u - _ln_gamma(order + 1)), 1.0)


@functools.cache
def _ratios() -> Doubles:
    """ρ halfway between the grid's β, on the logarithmic scale."""
    halves = (grid_beta(index + 0.5) for index in range(BETAS - 1))
    return np.array([_exp(2 * _ln_moment(b, 1) - _ln_moment(b, 0) - _ln_moment(b, 2)) for b in halves])


@functools.cache
def _ln_widths() -> Doubles:
    """For every β the logarithm of α where E|x| is 1."""
    betas = (grid_beta(index) for index in range(BETAS))
    return np.array([_ln_moment(beta, 0) - _ln_moment(beta, 1) for beta in betas])


@functools.cache
def _phases() -> Doubles:
    """The α within an octave from 1 on."""
    return np.array([power_of_two(phase, ALPHAS_PER_OCTAVE) for phase in range(ALPHAS_PER_OCTAVE)])


def grid_beta(index: float) -> float:
    """The β of an index."""
    return LARGEST_BETA * power_of_two(index - (BETAS - 1), BETAS_PER_OCTAVE)


@functools.lru_cache(maxsize=4096)
def power_of_two(steps: float, per_octave: int) -> float:
    """2^(steps/per_octave), exact for whole octaves."""
    octave, phase = divmod(steps, per_octave)
    return math.ldexp(_exp(phase / per_octave * LN2), int(octave))


@functools.cache
def _ln_moment(beta: float, moment: int) -> float:
    """The logarithm of Γ((moment + 1)/β); over Γ(1/β), that is E|x|^moment at α = 1."""
    return _ln_gamma((moment + 1) / beta)


def _ln_deviation(beta: float) -> float:
    """The logarithm of the standard deviation at α = 1."""
    return (_ln_moment(beta, 2) - _ln_moment(beta, 0)) / 2


def _ln_gamma(x: float) -> float:
    """Stirling's series at x + n > 16, and Γ(x + n) = x(x + 1)…(x + n - 1) · Γ(x)."""
    product = 1.0
    while x < 16:
        product, x = product * x, x + 1
    i = 1 / (x * x)
    series = (1 / 12 - i * (1 / 360 - i * (1 / 1260 - i * (1 / 1680 - i * (1 / 1188))))) / x
    return float((x - 0.5) * _log(x) - x + HALF_LN_2PI + series - _log(product))


def _exp(x: Real) -> Real:
    """e^x for |x| < 700, to a few units in the last place: Taylor's polynomial within half an octave of 1."""
    k = np.floor(x / LN2 + 0.5)
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    total = r * 0.0 + 1.0
    for n in range(13, 0, -1):
        total = total * r / n + 1.0
    return np.ldexp(total, k.astype(np.int32))


def _log(x: Real) -> Real:
    """The natural logarithm of x > 0: twice the series of artanh t, t = (m - 1)/(m + 1), m between √½ and √2."""
    m, k = np.frexp(x)
    low = m < 0.7071
    m, k = m * (1 + low), k - low
    t = (m - 1) / (m + 1)
    square, total = t * t, t * 0.0
    for n in range(25, 0, -2):
        total = total * square + 1 / n
    return k * LN2_HIGH + (k * LN2_LOW + 2 * t * total)
