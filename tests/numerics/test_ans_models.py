"""What share of all parts each symbol has: `ans.model`, `ans.proportional` and `ans.book`."""

import heapq
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.numerics import ans, generalized_normal, huffman, level_codes
from laconic.numerics.ans import ESCAPE, WHOLE, Model
from laconic.numerics.minifloat import FORMATS

CODERS = pytest.mark.parametrize("divide", level_codes.CODERS.values(), ids=level_codes.CODERS)
FIBONACCI = [1, 1]
while len(FIBONACCI) < 60:
    FIBONACCI.append(FIBONACCI[-2] + FIBONACCI[-1])

LAPLACE = generalized_normal.weights(generalized_normal.Shape(159, generalized_normal.ONE), FORMATS["e5m2"])
NARROW = generalized_normal.weights(generalized_normal.Shape(159, generalized_normal.ONE), FORMATS["fp4"])


@CODERS
@settings(deadline=None)
@given(weights=st.lists(st.integers(1, 2**16), min_size=1, max_size=ESCAPE), rare=st.integers(0, 500))
def test_shares_of_any_weights_add_up_and_those_of_rare_symbols_are_the_escapes(divide, weights, rare):
    model = ans.model(weights, divide, rare)
    assert sum(model.shares) + model.escape == WHOLE
    assert [share > 0 for share in model.shares] == [weight > rare for weight in weights]
    assert (model.escape > 0) == any(weight <= rare for weight in weights)
    assert ans.book(model)[0].sum() == WHOLE


@pytest.mark.parametrize("count", [0, ESCAPE + 1])
def test_numbers_of_symbols_that_bytes_cannot_tell_from_the_escape_are_refused(count):
    with pytest.raises(ValueError, match=f"there are {count} symbols; have 1 to 255"):
        ans.model([1] * count, ans.proportional)


@pytest.mark.parametrize("count", [0, WHOLE + 1])
def test_more_symbols_than_parts_are_refused(count):
    with pytest.raises(ValueError, match=f"{count} symbols cannot share 2048 parts"):
        ans.proportional([1] * count)


def _best(weights):
    """The shares of least cost, found part by part, which is exact as each further part saves less than the last."""
    shares = [1] * len(weights)
    heap = [(-weight * math.log2(2), symbol) for symbol, weight in enumerate(weights)]
    heapq.heapify(heap)
    for _ in range(WHOLE - len(weights)):
        symbol = heap[0][1]
        shares[symbol] += 1
        heapq.heapreplace(heap, (-weights[symbol] * math.log2(1 + 1 / shares[symbol]), symbol))
    return shares


def _bits(weights, shares):
    return ans.expected_bits(Model(tuple(shares)), weights)


def _entropy(weights):
    p = np.array([weight for weight in weights if weight], dtype=np.float64)
    return float(-(p / p.sum() * np.log2(p / p.sum())).sum())


LOSS = (2 - np.euler_gamma - 2 * math.log(2)) / math.log(2)
"""Bits: `proportional` takes 1/(s + 1/2) for log(1 + 1/s), and all the differences add up to this, .053."""
MANY = {
    "one": [7],
    "two": [1, 2**40],
    "Fibonacci": FIBONACCI,
    "equal": [3] * 247,
    "no weight": [0] * 247,
    "one of many": [1] * 100 + [2**60] + [1] * 146,
    "Laplace": LAPLACE,
    "Laplace in fp4": NARROW,
    "all that there may be": [1] * WHOLE,
}


@pytest.mark.parametrize("weights", MANY.values(), ids=MANY)
def test_proportional_shares_add_up_and_cost_hardly_more_than_the_best(weights):
    shares = ans.proportional(weights)
    assert sum(shares) == WHOLE
    assert min(shares) >= 1
    assert _bits(weights, shares) <= _bits(weights, _best(weights)) + LOSS


@settings(deadline=None, max_examples=50)
@given(weights=st.lists(st.integers(0, 2**40), min_size=1, max_size=250))
def test_proportional_shares_are_near_the_entropy(weights):
    shares = ans.proportional(weights)
    assert sum(shares) == WHOLE
    assert min(shares) >= 1
    # n symbols with weights of p could have 1 + floor(p (M - n)) parts, so at least p (M - n) each.
    room = math.log2(WHOLE / (WHOLE - len(weights)))
    assert _bits(weights, shares) <= _entropy(weights) + room + LOSS + 1e-9


@settings(deadline=None, max_examples=50)
@given(weights=st.lists(st.integers(0, 100), min_size=1, max_size=40))
def test_of_equal_weights_the_first_have_no_less_and_heavier_ones_no_fewer(weights):
    shares = ans.proportional(weights)
    order = sorted(range(len(weights)), key=lambda symbol: (-weights[symbol], symbol))
    assert [shares[symbol] for symbol in order] == sorted(shares, reverse=True)


@pytest.mark.parametrize("weights", [LAPLACE, NARROW])
def test_proportional_shares_of_a_density_take_less_than_huffmans_code(weights):
    whole, any_share = (ans.model(weights, divide) for divide in level_codes.CODERS.values())
    # At most half a part is lost in a share: with every symbol above 8/2^16 that is little against the bits saved.
    assert _entropy(weights) <= ans.expected_bits(any_share, weights) < ans.expected_bits(whole, weights)


def test_expected_bits_count_eight_more_behind_an_escape():
    model = Model((1024, 512, 0), escape=512)
    assert ans.expected_bits(model, (2, 1, 1)) == (2 * 1 + 2 + 2 + 8) / 4
    assert ans.expected_bits(model, (0, 0, 0)) == 0


@pytest.mark.parametrize(
    "model", [Model(()), Model((1,)), Model((WHOLE, 1)), Model((WHOLE + 1, -1)), Model((1024,), escape=1023)]
)
def test_a_book_of_shares_that_do_not_add_up_is_refused(model):
    with pytest.raises(ValueError, match="use those of `model`"):
        ans.book(model)


@CODERS
def test_a_book_gives_every_part_to_one_symbol_and_powers_of_two_start_at_their_multiples(divide):
    model = ans.model(LAPLACE, divide)
    shares, starts = ans.book(model).tolist()
    assert tuple(shares[: len(LAPLACE)]) == model.shares
    assert shares[ESCAPE] == model.escape
    parts = [range(start, start + share) for share, start in zip(shares, starts, strict=True)]
    assert sorted(part for own in parts for part in own) == list(range(WHOLE))
    if divide is huffman.shares:
        assert not any(start % share for share, start in zip(shares, starts, strict=True) if share)


def test_what_models_and_books_look_like_never_changes():
    small = ans.model([1, 5, 1, 2], huffman.shares, rare=0)
    assert small == Model((256, 1024, 256, 512))
    assert ans.model([1, 50, 11, 20, 9], ans.proportional) == Model((0, 1125, 248, 450, 203), escape=22)
    assert ans.book(small)[:, :5].tolist() == [[256, 1024, 256, 512, 0], [1536, 0, 1792, 1024, 0]]
