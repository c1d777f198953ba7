import heapq
import itertools
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.numerics import ans, generalized_normal, huffman
from laconic.numerics.minifloat import FORMATS

FIBONACCI = [1, 1]
while len(FIBONACCI) < 60:
    FIBONACCI.append(FIBONACCI[-2] + FIBONACCI[-1])


def _cost(weights, lengths):
    return sum(weight * length for weight, length in zip(weights, lengths, strict=True))


def _kraft(lengths):
    return sum(2.0**-length for length in lengths)


def _unlimited(weights):
    """The cost and the depth of Huffman's own tree, the flattest of equal cost."""
    heap = [(weight, 0) for weight in weights]
    heapq.heapify(heap)
    cost = 0
    while len(heap) > 1:
        (first, one), (second, other) = heapq.heappop(heap), heapq.heappop(heap)
        cost += first + second
        heapq.heappush(heap, (first + second, 1 + max(one, other)))
    return cost, heap[0][1]


def _cheapest(weights, limit):
    """The least cost of any prefix code, by trying all."""
    falling = sorted(weights, reverse=True)
    choices = itertools.combinations_with_replacement(range(limit + 1), len(weights))
    return min(_cost(falling, lengths) for lengths in choices if _kraft(lengths) <= 1)


@settings(deadline=None)
@given(weights=st.lists(st.integers(0, 10**6), min_size=1, max_size=6), limit=st.integers(3, 5))
def test_no_code_of_limited_length_is_cheaper(weights, limit):
    assert _cost(weights, huffman.lengths(weights, limit)) == _cheapest(weights, limit)


@settings(deadline=None)
@given(weights=st.lists(st.integers(1, 10**9), min_size=1, max_size=300))
def test_a_limit_that_does_not_bind_gives_huffmans_code(weights):
    cost, depth = _unlimited(weights)
    assert _cost(weights, huffman.lengths(weights, max(depth, 1))) == cost


WEIGHTS = {
    "one": [7],
    "one of no weight": [0],
    "two": [1, 10**9],
    "Fibonacci": FIBONACCI,
    "Fibonacci falling": FIBONACCI[::-1],
    "equal": [3] * 512,
    "none": [0] * 247,
    "powers": [2**k for k in range(200)],
    "one of many": [1] * 300 + [2**60] + [1] * 211,
}


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("limit", [9, 11, 12, 15])
def test_every_code_is_complete_and_within_its_limit(weights, limit):
    lengths = huffman.lengths(weights, limit)
    assert len(lengths) == len(weights)
    assert max(lengths) <= limit
    assert _kraft(lengths) == 1


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
def test_shares_are_powers_of_two_that_add_up_to_all_parts(weights):
    shares = huffman.shares(weights)
    assert sum(shares) == ans.WHOLE
    assert [ans.WHOLE // share for share in shares] == [2**length for length in huffman.lengths(weights)]


@settings(deadline=None)
@given(weights=st.lists(st.integers(0, 2**40), min_size=1, max_size=200))
def test_heavier_symbols_have_no_longer_codes_and_of_equals_the_first_has_the_longest(weights):
    lengths = huffman.lengths(weights, 9)
    assert _kraft(lengths) == 1
    order = sorted(range(len(weights)), key=lambda symbol: (weights[symbol], symbol))
    assert [lengths[symbol] for symbol in order] == sorted(lengths, reverse=True)


def test_a_single_symbol_takes_no_bits_and_two_take_one():
    assert huffman.lengths([5]) == (0,)
    assert huffman.shares([5]) == (ans.WHOLE,)
    assert huffman.lengths([5, 0]) == (1, 1)
    assert huffman.shares([5, 0]) == (ans.WHOLE // 2,) * 2


def test_a_limit_at_its_narrowest_gives_all_symbols_equal_lengths():
    assert huffman.lengths(FIBONACCI[:16], 4) == (4,) * 16
    assert huffman.shares(range(ans.WHOLE)) == (1,) * ans.WHOLE


@pytest.mark.parametrize(("weights", "limit"), [([], 12), ([1] * 17, 4)])
def test_numbers_of_symbols_that_have_no_code_are_refused(weights, limit):
    with pytest.raises(ValueError, match=f"{len(weights)} symbols have no code of at most {limit} bits"):
        huffman.lengths(weights, limit)


def test_a_negative_weight_is_refused():
    with pytest.raises(ValueError, match="symbol 1 has the weight -2"):
        huffman.lengths([1, -2, 3])


def test_what_lengths_look_like_never_changes():
    assert huffman.lengths([1, 5, 1, 2]) == (3, 1, 3, 2)
    assert huffman.shares([1, 5, 1, 2]) == (256, 1024, 256, 512)
    assert huffman.lengths([1, 1, 1, 1, 1, 1]) == (3, 3, 3, 3, 2, 2)
    assert huffman.lengths(FIBONACCI[:8], 4) == (4, 4, 4, 4, 3, 3, 2, 2)
    laplace = generalized_normal.weights(
        generalized_normal.Shape(159, generalized_normal.ONE), FORMATS["fp4"]
    )
    assert huffman.lengths(laplace, 13) == (7, 6, 5, 4, 2, 2, 2, 4, 5, 5, 7)


@pytest.mark.parametrize(
    ("name", "golden"), [("e5m2", "1ce25223"), ("e4m3", "026a812c"), ("fp4", "c1eb3462")]
)
def test_the_256_codes_of_a_format_never_change_on_any_machine(name, golden):
    shapes = [generalized_normal.Shape(beta, 0) for beta in range(generalized_normal.BETAS)]
    lengths = [huffman.lengths(generalized_normal.weights(shape, FORMATS[name]), 13) for shape in shapes]
    assert f"{zlib.crc32(bytes(itertools.chain(*lengths))):08x}" == golden
