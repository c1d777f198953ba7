import math
import zlib
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic.numerics import ans, generalized_normal, huffman, level_codes
from laconic.numerics.ans import ESCAPE, LOWEST, PER_LANE, WHOLE, Model
from laconic.numerics.minifloat import FORMATS

CODERS = pytest.mark.parametrize("divide", level_codes.CODERS.values(), ids=level_codes.CODERS)
FIBONACCI = [1, 1]
while len(FIBONACCI) < 60:
    FIBONACCI.append(FIBONACCI[-2] + FIBONACCI[-1])

LAPLACE = generalized_normal.weights(generalized_normal.Shape(159, generalized_normal.ONE), FORMATS["e5m2"])
NARROW = generalized_normal.weights(generalized_normal.Shape(159, generalized_normal.ONE), FORMATS["fp4"])


def _drawn(model, count, seed=0):
    """As many symbols, as frequent as their shares say, escapes to any symbol that has none."""
    rng = np.random.default_rng(seed)
    shares = np.array([*model.shares, model.escape]) / WHOLE
    drawn = rng.choice(len(shares), count, p=shares)
    rare = np.flatnonzero(np.array(model.shares) == 0)
    escaped = drawn == len(model.shares)
    drawn[escaped] = rng.choice(rare, int(escaped.sum())) if len(rare) else 0
    return torch.from_numpy(drawn)


def _round_trip(symbols, models, counts):
    books = [ans.book(model) for model in models]
    message = ans.encode(symbols, books, counts)
    assert message.dtype == torch.uint8
    assert len(message) <= ans.room(len(symbols))
    decoded = ans.decode(message, books, counts)
    assert decoded.dtype == torch.uint8
    assert torch.equal(decoded.long(), symbols.long())
    return message


def _words(message, count):
    """The numbers that end a message's stacks, and how many words there are."""
    width = ans.NUMBER_BYTES * ans.lanes(count)
    return message[:width].numpy().view("<u4").astype(np.int64), (len(message) - width) // ans.WORD_BYTES


EDGES = [0, 1, 2, 3, 4, 5, 63, 64, 65, 127, 128, 129, 1001, 2 * PER_LANE - 1, 2 * PER_LANE, 2 * PER_LANE + 1]


@CODERS
@pytest.mark.parametrize("count", EDGES)
def test_any_number_of_symbols_comes_back(divide, count):
    model = ans.model(LAPLACE, divide)
    _round_trip(_drawn(model, count), [model], [count])


def test_lanes_are_a_power_of_two_with_2048_symbols_each_up_to_64():
    for power in range(7):
        assert ans.lanes(PER_LANE << power) == 1 << power
        assert ans.lanes((PER_LANE << power + 1) - 1) == 1 << power
    assert ans.lanes(0) == ans.lanes(1) == 1
    assert ans.lanes(10**9) == 64


@CODERS
@pytest.mark.parametrize("power", range(7))
@pytest.mark.parametrize("more", [0, 37])
def test_on_any_number_of_lanes_symbols_come_back(divide, power, more):
    count = (PER_LANE << power) + more
    model = ans.model(NARROW, divide, rare=1000)
    assert model.escape > 0
    message = _round_trip(_drawn(model, count), [model], [count])
    assert len(_words(message, count)[0]) == 1 << power


@CODERS
@settings(deadline=None)
@given(counts=st.lists(st.integers(0, 40), min_size=1, max_size=5), seed=st.integers(0, 100))
def test_every_part_has_a_model_of_its_own(divide, counts, seed):
    rng = np.random.default_rng(seed)
    models = [ans.model(rng.integers(1, 99, 9 + k).tolist(), divide) for k in range(len(counts))]
    symbols = torch.cat([torch.from_numpy(rng.integers(0, 9 + k, count)) for k, count in enumerate(counts)])
    _round_trip(symbols, models, counts)


def test_parts_that_end_within_a_row_of_many_lanes_come_back():
    counts = [1, 0, 8_200, 63, 4_096, 0, 3]
    assert ans.lanes(sum(counts)) == 4
    models = [
        ans.model(LAPLACE[k : k + 200], divide) for k in range(4) for divide in level_codes.CODERS.values()
    ]
    models = models[: len(counts)]
    symbols = [
        _drawn(model, count, seed) for seed, (model, count) in enumerate(zip(models, counts, strict=True))
    ]
    _round_trip(torch.cat(symbols), models, counts)


@pytest.mark.parametrize("count", [1, 1000, 2 * PER_LANE + 5])
def test_equal_symbols_that_have_all_parts_take_no_words(count):
    model = Model((0, WHOLE, 0))
    message = _round_trip(torch.ones(count, dtype=torch.int64), [model], [count])
    assert message.tolist() == [0, 0, 1, 0] * ans.lanes(count)


ADVERSARIAL = {
    "Fibonacci": (ans.model(FIBONACCI, huffman.shares, rare=0), range(60)),
    "Fibonacci's rarest": (ans.model(FIBONACCI, huffman.shares, rare=0), [0, 1]),
    "Fibonacci in proportion": (ans.model(FIBONACCI, ans.proportional, rare=0), range(60)),
    "shares of one": (Model((WHOLE - 200, *[1] * 200)), range(1, 201)),
    "one part is not the other's": (Model((WHOLE - 1, 1)), [0, 0, 0, 1]),
    "nothing but escapes": (Model((0,) * ESCAPE, escape=WHOLE), range(ESCAPE)),
    "the narrowest escape": (Model((0, WHOLE - 1, 0), escape=1), [0, 1, 2, 2, 1]),
    "a narrow escape, much used": (Model((WHOLE - 1, *[0] * 254), escape=1), range(1, ESCAPE)),
}


@pytest.mark.parametrize(("model", "said"), ADVERSARIAL.values(), ids=ADVERSARIAL)
def test_symbols_come_back_however_unlikely_they_were(model, said):
    symbols = torch.tensor(said).repeat(-(-600 // len(said)))
    _round_trip(symbols, [model], [len(symbols)])


def test_escapes_on_all_lanes_come_back():
    count = 64 * PER_LANE + 7
    model = ans.model(NARROW, huffman.shares, rare=3000)
    rare = [symbol for symbol, share in enumerate(model.shares) if not share]
    _round_trip(torch.tensor(rare).repeat(count)[:count], [model], [count])


def test_symbols_of_one_byte_are_the_same_symbols():
    book = ans.book(ans.model([1] * 247, ans.proportional, rare=0))
    symbols = torch.arange(247)
    assert torch.equal(ans.encode(symbols.to(torch.uint8), [book], [247]), ans.encode(symbols, [book], [247]))


# Sizes.


def _length(model, symbols):
    counts = torch.bincount(symbols, minlength=len(model.shares)).tolist()
    return len(symbols) * ans.expected_bits(model, counts)


@pytest.mark.parametrize("count", [1, 100, 5_000, 20_000])
@pytest.mark.parametrize("weights", [LAPLACE, NARROW])
def test_huffmans_code_takes_the_bits_it_is_expected_to_exactly(weights, count):
    model = ans.model(weights, huffman.shares)
    symbols = _drawn(model, count)
    numbers, words = _words(_round_trip(symbols, [model], [count]), count)
    # A push makes a number longer by its code; the first one has 17 bits, and all that left are in words of 16.
    bits = sum(int(number).bit_length() - LOWEST.bit_length() for number in numbers) + 16 * words
    assert bits == round(_length(model, symbols))


@pytest.mark.parametrize("count", [1, 2, 7, 60, ans.WHOLE - 1, ans.WHOLE])
@pytest.mark.parametrize("most", [1, 3, 1000, 10**12])
def test_shares_are_those_that_are_given_one_by_one(count, most):
    weights = [int(weight) for weight in np.random.default_rng(count).integers(1, most + 1, count)]
    shares = [1] * count
    for _ in range(ans.WHOLE - count):
        shares[max(range(count), key=lambda i: (Fraction(weights[i], 2 * shares[i] + 1), -i))] += 1
    assert ans.proportional(weights) == tuple(shares)


@pytest.mark.parametrize("count", [100, 5_000, 20_000])
@pytest.mark.parametrize("weights", [LAPLACE, NARROW])
def test_any_shares_take_the_bits_they_are_expected_to(weights, count):
    model = ans.model(weights, ans.proportional)
    symbols = _drawn(model, count)
    numbers, words = _words(_round_trip(symbols, [model], [count]), count)
    bits = np.log2(numbers / LOWEST).sum() + 16 * words
    # Before a push x is at least 32 f: what the quotient and a word leave out is below 1/32 of x each, and as the
    # logarithm of x is about even over 16 octaves, 1/(32 · 16 ln 2) on average.
    assert abs(bits - _length(model, symbols)) <= count * 2 * math.log2(1 + 1 / (32 * 16 * math.log(2))) + 1


@CODERS
@pytest.mark.parametrize("count", [1, 5_000, 20_000])
def test_a_message_takes_its_bits_and_up_to_four_bytes_a_lane(divide, count):
    model = ans.model(LAPLACE, divide)
    symbols = _drawn(model, count)
    message = ans.encode(symbols, [ans.book(model)], [count])
    # A number of 32 bits says what is 0 to 16 bits over the first one's 17; shares: as above.
    more = 8 * len(message) - _length(model, symbols)
    slack = 0 if divide is huffman.shares else 0.009 * count + 1
    assert 16 * ans.lanes(count) - slack <= more <= 32 * ans.lanes(count) + slack


# Refusals.


@pytest.mark.parametrize("wrong", [-1, ESCAPE, 300])
def test_what_is_no_symbol_is_refused(wrong):
    book = ans.book(Model((1024,), escape=1024))
    with pytest.raises(ValueError, match="are not 0 to 254"):
        ans.encode(torch.tensor([0, wrong]), [book], [2])


def test_a_symbol_without_a_share_is_refused_if_there_is_no_escape():
    with pytest.raises(ValueError, match="symbol 2 has no share, and there is no escape"):
        ans.encode(torch.tensor([0, 2]), [ans.book(Model((1024, 1024, 0)))], [2])


SMALL = ans.model([1, 5, 1, 2], huffman.shares, rare=0)
SHARED = ans.model([1, 50, 11, 20, 9], ans.proportional)
SYMBOLS = torch.tensor([0, 1, 2, 3, 1, 1, 3, 0, 2, 2, 2] * 3)


def _changed(message, place, value):
    changed = message.clone()
    changed[place] = value
    return changed


@pytest.mark.parametrize(
    ("damage", "count", "sentence"),
    [
        (lambda m: m[:0], 33, "is cut short"),
        (lambda m: m[:3], 33, "is cut short"),
        (lambda m: m[:4], 33, "is cut short"),
        (lambda m: m[:-1], 33, "ends within a word"),
        (lambda m: m[:-2], 33, "is cut short"),
        (lambda m: torch.cat([m, m[:1]]), 33, "ends within a word"),
        (lambda m: torch.cat([m, m[:2]]), 33, "is longer than it says"),
        (lambda m: m, 32, "does not end as it began"),
        (lambda m: m, 34, "is cut short"),
        (lambda m: m, 10**4, "is cut short"),
        (lambda m: m, 0, "is longer than it says"),
        (lambda m: _changed(m, -1, int(m[-1]) ^ 2), 33, "does not end as it began"),
    ],
)
def test_a_damaged_message_is_refused(damage, count, sentence):
    book = ans.book(SMALL)
    message = ans.encode(SYMBOLS, [book], [33])
    with pytest.raises(ValueError, match=sentence):
        ans.decode(damage(message), [book], [count])


def test_an_escape_to_a_symbol_that_has_a_share_or_to_another_escape_is_refused():
    book = ans.book(Model((1024, 0, 0), escape=1024))

    def forged(symbol):
        behind = (LOWEST << ans.RAW) + symbol
        number = (behind // 1024 << ans.SCALE) + 1024 + behind % 1024  # the escape's parts begin at 1024
        return torch.tensor(list(number.to_bytes(4, "little")), dtype=torch.uint8)

    assert torch.equal(forged(2), ans.encode(torch.tensor([2]), [book], [1]))
    for symbol in (0, ESCAPE):
        with pytest.raises(ValueError, match="has a symbol that there is not"):
            ans.decode(forged(symbol), [book], [1])


@settings(deadline=None, max_examples=300)
@given(content=st.binary(max_size=40), count=st.integers(0, 30), model=st.sampled_from([SMALL, SHARED]))
def test_any_bytes_are_refused_or_are_the_message_of_their_symbols(content, count, model):
    message = torch.tensor(list(content), dtype=torch.uint8)
    book = ans.book(model)
    try:
        symbols = ans.decode(message, [book], [count])
    except ValueError:
        return
    first = int.from_bytes(content[:4], "little")
    assert first < LOWEST or torch.equal(ans.encode(symbols, [book], [count]), message)


@settings(deadline=None, max_examples=200)
@given(
    model=st.sampled_from([SMALL, SHARED]),
    flips=st.lists(st.integers(0, 10**6), min_size=1, max_size=3),
    more=st.integers(-6, 6),
)
def test_a_changed_message_is_refused_or_gives_as_many_symbols(model, flips, more):
    book = ans.book(model)
    message = ans.encode(SYMBOLS, [book], [len(SYMBOLS)])
    message = message[:more] if more < 0 else torch.cat([message, message[:more]])
    for flip in flips:
        place = flip // 8 % len(message)
        message[place] ^= 1 << flip % 8
    try:
        symbols = ans.decode(message, [book], [len(SYMBOLS)])
    except ValueError:
        return
    assert len(symbols) == len(SYMBOLS)


@pytest.mark.parametrize("model", [SMALL, SHARED])
def test_no_flipped_bit_leaves_the_symbols_as_they_were(model):
    book = ans.book(model)
    message = ans.encode(SYMBOLS, [book], [len(SYMBOLS)])
    for place in range(8 * len(message)):
        try:
            flipped = _changed(message, place // 8, int(message[place // 8]) ^ (1 << place % 8))
            assert not torch.equal(ans.decode(flipped, [book], [len(SYMBOLS)]).long(), SYMBOLS)
        except ValueError:
            continue


# What never changes. Symbols come from integers alone, so that no generator's version matters.


def _fixed(model, count):
    numbers = np.arange(1, count + 1, dtype=np.int64)
    slots = (numbers * numbers * 2654435761).astype(np.uint64) >> np.uint64(9)
    slots = slots.astype(np.int64)
    symbols = np.searchsorted(np.cumsum(model.shares), slots % WHOLE, side="right")
    rare = np.array([symbol for symbol, share in enumerate(model.shares) if not share] or [0])
    return torch.from_numpy(np.where(symbols < len(model.shares), symbols, rare[slots % len(rare)]))


GOLDEN_BYTES = {"huffman": "7f5e020200f8", "rans": "f62f010000410de55d5e"}


@pytest.mark.parametrize("name", ["huffman", "rans"])
def test_what_a_message_looks_like_never_changes(name):
    model = {"huffman": SMALL, "rans": SHARED}[name]
    message = ans.encode(SYMBOLS[:11], [ans.book(model)], [11])
    assert bytes(message.tolist()).hex() == GOLDEN_BYTES[name]
    forever = torch.tensor(list(bytes.fromhex(GOLDEN_BYTES[name])), dtype=torch.uint8)
    assert torch.equal(ans.decode(forever, [ans.book(model)], [11]).long(), SYMBOLS[:11])


@pytest.mark.parametrize(
    ("name", "lanes", "golden"),
    [
        ("huffman", 1, "1d5bbc2e"),
        ("huffman", 4, "6b779e1e"),
        ("huffman", 64, "13031cfa"),
        ("rans", 1, "4393b7e5"),
        ("rans", 4, "b50565af"),
        ("rans", 64, "40fef01b"),
    ],
)
def test_what_longer_messages_look_like_never_changes(name, lanes, golden):
    model = ans.model(LAPLACE, level_codes.CODERS[name])
    counts = [lanes * PER_LANE - 99, 140, 0, 9]
    models = [model, ans.model(NARROW, level_codes.CODERS[name], rare=3000), model, model]
    symbols = torch.cat([_fixed(own, count) for own, count in zip(models, counts, strict=True)])
    message = _round_trip(symbols, models, counts)
    assert len(_words(message, sum(counts))[0]) == lanes
    assert f"{zlib.crc32(message.numpy().tobytes()):08x}" == golden
