import heapq
import itertools
import math
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from laconic import density, huffman
from laconic.minifloat import FORMATS, quantize

ALL = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
FIBONACCI = [1, 1]
while len(FIBONACCI) < 60:
    FIBONACCI.append(FIBONACCI[-2] + FIBONACCI[-1])


def _encode(symbols, lengths, streams):
    return huffman.encode(symbols, [huffman.Code(lengths)], [len(symbols)], streams)


def _decode(message, lengths, count, streams):
    return huffman.decode(message, [huffman.Code(lengths)], [count], streams)


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
@pytest.mark.parametrize("limit", [9, 12, 13, 15])
def test_every_code_is_complete_and_within_its_limit(weights, limit):
    lengths = huffman.lengths(weights, limit)
    assert len(lengths) == len(weights)
    assert max(lengths) <= limit
    assert _kraft(lengths) == 1


@settings(deadline=None)
@given(weights=st.lists(st.integers(0, 2**40), min_size=1, max_size=200))
def test_heavier_symbols_have_no_longer_codes_and_of_equals_the_first_has_the_longest(weights):
    lengths = huffman.lengths(weights, 9)
    assert _kraft(lengths) == 1
    order = sorted(range(len(weights)), key=lambda symbol: (weights[symbol], symbol))
    assert [lengths[symbol] for symbol in order] == sorted(lengths, reverse=True)


def test_a_single_symbol_takes_no_bits_and_two_take_one():
    assert huffman.lengths([5]) == (0,)
    assert huffman.lengths([5, 0]) == (1, 1)


@pytest.mark.parametrize(("weights", "limit"), [([], 12), ([1] * 17, 4)])
def test_numbers_of_symbols_that_have_no_code_are_refused(weights, limit):
    with pytest.raises(ValueError, match=f"{len(weights)} symbols have no code of at most {limit} bits"):
        huffman.lengths(weights, limit)


def test_a_negative_weight_is_refused():
    with pytest.raises(ValueError, match="symbol 1 has the weight -2"):
        huffman.lengths([1, -2, 3])


@pytest.mark.parametrize("lengths", [(), (1,), (1, 2), (1, 1, 1), (-1, 1), (0, 0)])
def test_lengths_of_no_complete_code_are_refused(lengths):
    with pytest.raises(ValueError, match="no complete prefix code"):
        huffman.codes(lengths)


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
def test_any_next_bits_begin_with_one_code_and_the_table_knows_which(weights):
    weights = weights if len(weights) > 1 else [*weights, 1]  # of a single symbol there is no need to speak
    lengths = huffman.lengths(weights)
    codes = torch.tensor(huffman.codes(lengths))
    symbols, sizes = huffman.table(huffman.Code(lengths))
    assert len(symbols) == len(sizes) == 1 << huffman.LIMIT
    assert torch.equal(sizes, torch.tensor(lengths)[symbols])
    nexts = torch.arange(1 << huffman.LIMIT)
    assert torch.equal(nexts & ((1 << sizes) - 1), codes[symbols])
    assert sorted(set(symbols.tolist())) == list(range(len(weights)))


def test_canonical_codes_count_up_when_read_from_their_first_bit():
    lengths = huffman.lengths(FIBONACCI[:20])
    pairs = zip(lengths, range(20), huffman.codes(lengths), strict=True)
    words = [f"{code:0{length}b}"[::-1] for length, _, code in sorted(pairs)]
    assert words == sorted(words)


def test_a_table_too_small_for_its_codes_is_refused():
    with pytest.raises(ValueError, match="a code of 3 bits is not within 2"):
        huffman.table(huffman.Code((1, 2, 3, 3)), 2)


def test_expected_bits_are_the_mean_length():
    assert huffman.expected_bits(huffman.Code((1, 2, 2)), (2, 1, 1)) == 1.5
    assert huffman.expected_bits(huffman.Code((1, 2, 2)), (0, 0, 0)) == 0


def _round_trip(symbols, lengths, streams):
    message = _encode(symbols, lengths, streams)
    assert torch.equal(_decode(message, lengths, len(symbols), streams), symbols)
    return message


@ALL
@pytest.mark.parametrize("numel", [0, 1, 2, 3, 4, 5, 1001])
@pytest.mark.parametrize("streams", [1, 4, 8])
def test_levels_of_every_format_come_back(form, numel, streams):
    values = stats.gennorm.rvs(0.5, size=numel, random_state=numel)
    shape = density.fit(
        float(np.abs(values).sum() / max(numel, 1)), float(np.square(values).sum() / max(numel, 1))
    )
    codes = quantize(torch.tensor(values, dtype=torch.float32) * density.scale(shape, form), form)
    _round_trip(codes, huffman.lengths(density.weights(shape, form), 13), streams)


@ALL
@pytest.mark.parametrize(
    "shape", [density.Shape(0, 0), density.Shape(120, density.ONE), density.Shape(255, 1)]
)
def test_values_the_density_never_expected_come_back(form, shape):
    lengths = huffman.lengths(density.weights(shape, form), 13)
    _round_trip(torch.arange(len(lengths)).repeat(3), lengths, 4)
    for symbol in (0, len(lengths) // 2, len(lengths) - 1):
        message = _round_trip(torch.full((100,), symbol), lengths, 4)
        assert len(message) == 4 * huffman.FIELD + 4 * math.ceil(25 * lengths[symbol] / 8)


@settings(deadline=None)
@given(
    weights=st.lists(st.integers(0, 2**40), min_size=2, max_size=40),
    symbols=st.lists(st.integers(0, 39), max_size=100),
    streams=st.integers(1, 9),
    limit=st.integers(6, 15),
)
def test_any_symbols_come_back_in_any_code(weights, symbols, streams, limit):
    tensor = torch.tensor([symbol % len(weights) for symbol in symbols], dtype=torch.int64)
    _round_trip(tensor, huffman.lengths(weights, limit), streams)


def test_symbols_of_one_byte_are_the_same_symbols():
    lengths = huffman.lengths([1] * 247)
    symbols = torch.arange(247)
    assert torch.equal(_encode(symbols.to(torch.uint8), lengths, 4), _encode(symbols, lengths, 4))


@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_symbol_without_a_code_is_refused(wrong):
    with pytest.raises(ValueError, match="are not 0 to 2"):
        _encode(torch.tensor([0, wrong]), (1, 2, 2), 1)


def test_no_streams_are_refused():
    with pytest.raises(ValueError, match="use at least 1"):
        _encode(torch.tensor([0]), (1, 1), 0)
    with pytest.raises(ValueError, match="use at least 1"):
        _decode(torch.zeros(0, dtype=torch.uint8), (1, 1), 0, 0)


LENGTHS = (3, 1, 3, 2)
"""Codes 110, 0, 111 and 10, the first bit first."""
SYMBOLS = torch.tensor([0, 1, 2, 3, 1, 1, 3, 0, 2, 2, 2])
# Stream 0 is 110 111 0 10 111 111 and stream 1 is 0 10 0 110 111, if symbols alternate between two.


def test_what_lengths_and_codes_look_like_never_changes():
    assert huffman.lengths([1, 5, 1, 2]) == LENGTHS
    assert huffman.codes(LENGTHS) == (0b011, 0b0, 0b111, 0b01)
    assert huffman.lengths([1, 1, 1, 1, 1, 1]) == (3, 3, 3, 3, 2, 2)
    assert huffman.lengths(FIBONACCI[:8], 4) == (4, 4, 4, 4, 3, 3, 2, 2)
    laplace = density.weights(density.Shape(159, density.ONE), FORMATS["fp4"])
    assert huffman.lengths(laplace, 13) == (7, 6, 5, 4, 2, 2, 2, 4, 5, 5, 7)


@pytest.mark.parametrize(
    ("name", "golden"), [("e5m2", "1ce25223"), ("e4m3", "026a812c"), ("fp4", "c1eb3462")]
)
def test_the_256_codes_of_a_format_never_change_on_any_machine(name, golden):
    shapes = [density.Shape(beta, 0) for beta in range(density.BETAS)]
    lengths = [huffman.lengths(density.weights(shape, FORMATS[name]), 13) for shape in shapes]
    assert f"{zlib.crc32(bytes(itertools.chain(*lengths))):08x}" == golden


@pytest.mark.parametrize(
    ("streams", "golden"),
    [(1, [25, 0, 0, 0, 243, 104, 255, 1]), (2, [15, 0, 0, 0, 10, 0, 0, 0, 187, 126, 178, 3])],
)
def test_what_a_message_looks_like_never_changes(streams, golden):
    message = _encode(SYMBOLS, LENGTHS, streams)
    assert message.tolist() == golden
    assert torch.equal(_decode(message, LENGTHS, len(SYMBOLS), streams), SYMBOLS)


def _changed(message, place, value):
    changed = message.clone()
    changed[place] = value
    return changed


@pytest.mark.parametrize(
    ("damage", "count", "sentence"),
    [
        (lambda m: m[:0], 11, "is cut short"),
        (lambda m: m[:7], 11, "is cut short"),
        (lambda m: m[:8], 11, "is cut short"),
        (lambda m: m[:-1], 11, "is cut short"),
        (lambda m: torch.cat([m, m.new_tensor([0])]), 11, "is longer than it says"),
        (lambda m: m, 13, "is cut short"),
        (lambda m: m, 9, "is longer than it says"),
        (lambda m: m, 0, "is longer than it says"),
        (lambda m: m, 10**6, "is cut short"),
        (lambda m: _changed(m, 0, m[0] + 1), 11, "is longer than it says"),
        (lambda m: _changed(m, 0, m[0] - 1), 11, "(is cut short|is longer than it says)"),
        (lambda m: _changed(m, 3, 255), 11, "is cut short"),
        (lambda m: _changed(m, -1, m[-1] + 128), 11, "is longer than it says"),
    ],
)
def test_a_damaged_message_is_refused(damage, count, sentence):
    message = _encode(SYMBOLS, LENGTHS, 2)
    with pytest.raises(ValueError, match=sentence):
        _decode(damage(message), LENGTHS, count, 2)


@settings(deadline=None)
@given(content=st.binary(max_size=40), count=st.integers(0, 60), streams=st.integers(1, 3))
def test_any_bytes_are_refused_or_are_the_message_of_their_symbols(content, count, streams):
    message = torch.tensor(list(content), dtype=torch.uint8)
    try:
        symbols = _decode(message, LENGTHS, count, streams)
    except ValueError:
        return
    assert torch.equal(_encode(symbols, LENGTHS, streams), message)


@settings(deadline=None)
@given(place=st.integers(0, 8 * 12 - 1))
def test_a_flipped_bit_is_refused_or_gives_as_many_symbols(place):
    message = _encode(SYMBOLS, LENGTHS, 2)
    flipped = _changed(message, place // 8, int(message[place // 8]) ^ (1 << place % 8))
    try:
        symbols = _decode(flipped, LENGTHS, len(SYMBOLS), 2)
    except ValueError:
        return
    assert len(symbols) == len(SYMBOLS)
    assert not torch.equal(symbols, SYMBOLS)


@ALL
def test_rare_symbols_are_escapes(form):
    weights = density.weights(density.Shape(159, density.ONE), form)
    code = huffman.code(weights)
    rare = [symbol for symbol, weight in enumerate(weights) if weight <= huffman.RARE]
    assert [symbol for symbol, length in enumerate(code.lengths) if not length] == rare
    assert _kraft([length for length in code.lengths if length] + [code.escape]) == 1
    symbols = torch.arange(len(weights)).repeat(3)
    message = huffman.encode(symbols, [code], [len(symbols)], 4)
    assert torch.equal(huffman.decode(message, [code], [len(symbols)], 4), symbols)


def test_an_escape_to_no_symbol_is_refused():
    code = huffman.Code((1, 0, 0), escape=1)
    message = huffman.encode(torch.tensor([2]), [code], [1], 1)
    assert huffman.decode(message, [code], [1], 1).tolist() == [2]
    with pytest.raises(ValueError, match="has a symbol that there is not"):
        huffman.decode(_changed(message, 4, message[4] + 2), [code], [1], 1)


@settings(deadline=None)
@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    streams=st.integers(1, 5),
    seed=st.integers(0, 100),
)
def test_every_part_has_a_code_of_its_own(counts, streams, seed):
    generator = torch.Generator().manual_seed(seed)
    codes = [
        huffman.code(torch.randint(1, 99, (9 + k,), generator=generator).tolist()) for k in range(len(counts))
    ]
    symbols = torch.cat([torch.randint(9 + k, (n,), generator=generator) for k, n in enumerate(counts)])
    message = huffman.encode(symbols, codes, counts, streams)
    assert torch.equal(huffman.decode(message, codes, counts, streams), symbols)


def test_a_message_takes_what_its_code_is_expected_to():
    form = FORMATS["e5m2"]
    values = stats.gennorm.rvs(0.5, size=40_000, random_state=0)
    shape = density.fit(float(np.abs(values).mean()), float(np.square(values).mean()))
    symbols = quantize(torch.from_numpy(values).float() * density.scale(shape, form), form)
    code = huffman.code(density.weights(shape, form))
    counts = torch.bincount(symbols, minlength=len(code.lengths)).tolist()
    expected = len(symbols) * huffman.expected_bits(code, counts) / 8
    message = huffman.encode(symbols, [code], [len(symbols)], 4)
    assert torch.equal(huffman.decode(message, [code], [len(symbols)], 4), symbols)
    assert 0 <= len(message) - 4 * huffman.FIELD - expected < 4
