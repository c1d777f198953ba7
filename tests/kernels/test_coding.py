"""Sealing in C++ gives the reference's bytes, on every instruction set, and refuses what it refuses."""

import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laconic import kernels
from laconic.kernels import coding
from laconic.numerics import ans, generalized_normal, huffman
from laconic.numerics.ans import WHOLE, Model
from laconic.numerics.minifloat import E5M2, FP4

pytestmark = pytest.mark.skipif(kernels.native is None, reason="needs the native extension")
SETS = kernels.native.instruction_sets() if kernels.native else []
OFFSET = 14

WIDE = generalized_normal.weights(generalized_normal.Shape(159, generalized_normal.ONE), E5M2)
NARROW = generalized_normal.weights(generalized_normal.Shape(159, generalized_normal.ONE), FP4)
MODELS = {
    "huffman": ans.model(WIDE, huffman.shares),
    "rans": ans.model(WIDE, ans.proportional),
    "huffman without escapes": ans.model(WIDE, huffman.shares, rare=0),
    "rans without escapes": ans.model(WIDE, ans.proportional, rare=0),
    "huffman, few symbols": ans.model(NARROW, huffman.shares),
    "rans, few symbols": ans.model(NARROW, ans.proportional),
    "huffman, many escapes": ans.model(NARROW, huffman.shares, rare=6000),
    "rans, many escapes": ans.model(NARROW, ans.proportional, rare=6000),
    "one symbol": Model((0, 0, WHOLE)),
    "escapes alone": Model((0,) * 247, escape=WHOLE),
    "an escape of one part": Model((WHOLE - 1, *(0,) * 246), escape=1),
    "shares of one": Model((WHOLE - 246, *(1,) * 246)),
    "shares of one and of whole bits": Model((1024, 512, 256, 128, *(1,) * 127), escape=1),
    "all shares are eight": Model((8,) * 255, escape=8),
}


@pytest.fixture(params=SETS, autouse=True)
def _every_instruction_set(request):
    chosen = kernels.native.chosen()
    kernels.native.choose(request.param)
    yield
    kernels.native.choose(chosen)


def _drawn(model, count, seed=0):
    """Symbols as frequent as their shares say, and one in fifty any that can be said."""
    rng = np.random.default_rng(seed)
    shares = np.array([*model.shares]) / WHOLE
    shares += model.escape / WHOLE / max(1, (shares == 0).sum()) * (shares == 0)
    symbols = rng.choice(len(shares), count, p=shares / shares.sum())
    anything = rng.choice(np.flatnonzero(shares), count)
    return torch.from_numpy(np.where(rng.random(count) < 0.02, anything, symbols).astype(np.uint8))


def _sealed(op, symbols, parts, books, width):
    message = torch.full((coding.room(OFFSET, len(symbols), width),), 9, dtype=torch.uint8)
    size = op(symbols, parts, books, width, OFFSET, message)
    return message[:size]


@functools.cache
def _case(names, counts, width):
    """Symbols, parts and books, and the reference's message."""
    models = [MODELS[name] for name in names]
    drawn = [
        _drawn(model, count, seed) for seed, (model, count) in enumerate(zip(models, counts, strict=True))
    ]
    symbols = torch.cat([torch.zeros(0, dtype=torch.uint8), *drawn])
    parts = torch.tensor([(count, k) for k, count in enumerate(counts)], dtype=torch.int64).reshape(-1, 2)
    books = torch.stack([ans.book(model) for model in models] or [ans.book(MODELS["rans"])])
    return symbols, parts, books, _sealed(coding.seal.reference, symbols, parts, books, width)


def _check(names, counts, width=8):
    symbols, parts, books, expected = _case(names, counts, width)
    message = _sealed(coding.seal, symbols, parts, books, width)
    assert torch.equal(message, expected)
    assert not coding.is_lost(message)
    out = torch.full_like(symbols, 77)
    coding.unseal(message, parts, books, width, OFFSET, out)
    assert torch.equal(out, symbols)
    return message


SIZES = [0, 1, 2, 3, 4, 5, 63, 64, 65, 1000, 4096, 4099]
LARGE = [131_072, 131_072 + 64 * 3 + 37]


@pytest.mark.parametrize("name", MODELS)
def test_messages_are_the_references_for_any_number_of_symbols(name):
    for size in SIZES:
        _check((name,), (size,))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("size", LARGE)
def test_messages_on_64_lanes_are_the_references(name, size):
    _check((name,), (size,))


@pytest.mark.parametrize("size", [20_000, 40_000, 70_000])
@pytest.mark.parametrize("name", ["huffman", "rans, many escapes"])
def test_messages_on_8_to_32_lanes_are_the_references(name, size):
    _check((name,), (size,))


@pytest.mark.parametrize(
    "counts", [(), (0, 0), (0, 5, 0), (1, 64, 63, 65, 7), (4_000, 1, 90, 100), (65_500, 1, 0, 63, 65_508, 5)]
)
def test_every_part_has_a_book_of_its_own(counts):
    names = ("huffman", "rans, few symbols", "one symbol", "rans", "huffman, many escapes", "shares of one")
    _check(names[: len(counts)], counts)


@pytest.mark.parametrize("size", [1, 2, 3, 1001, 5000])
def test_four_bits_are_the_references(size):
    for name in ("huffman, few symbols", "rans, few symbols", "one symbol"):
        _check((name,), (size,), 4)


@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize("size", [1, 2, 1001, 131_072])
def test_symbols_that_codes_would_make_longer_travel_raw(width, size):
    symbols = torch.arange(size).remainder(11).to(torch.uint8)
    book = ans.book(Model((0,) * 11, escape=WHOLE) if width == 4 else Model((0, WHOLE - 11, *(1,) * 11)))
    arguments = symbols, torch.tensor([[size, 0]]), book[None], width
    if width == 8:
        symbols.copy_(torch.arange(size).remainder(11) + 2)  # eleven bits each
    message = _sealed(coding.seal, *arguments)
    assert torch.equal(message, _sealed(coding.seal.reference, *arguments))
    assert message[0] == coding.RAW
    assert len(message) == OFFSET + coding.raw_bytes(size, width)
    out = torch.empty_like(symbols)
    coding.unseal(message, *arguments[1:], OFFSET, out)
    assert torch.equal(out, symbols)


def test_no_message_is_longer_than_raw_symbols():
    for name in MODELS:
        for size in SIZES:
            assert len(_check((name,), (size,))) <= OFFSET + size


@pytest.mark.parametrize("size", [1, 4_096, 131_072 + 5])
@pytest.mark.parametrize("shares", [(1024, 1024), (1025, 1023)])
def test_a_symbol_without_a_share_is_not_sealed_if_there_is_no_escape(size, shares):
    symbols = torch.zeros(size, dtype=torch.uint8)
    symbols[size // 2] = 2
    for op in (coding.seal, coding.seal.reference):
        with pytest.raises(
            ValueError, match=r"a symbol that there is not|has no share, and there is no escape"
        ):
            _sealed(op, symbols, torch.tensor([[size, 0]]), ans.book(Model(shares))[None], 8)


def test_a_message_of_what_was_not_finite_says_so_and_has_no_symbols():
    assert coding.is_lost(coding.lost())
    out = torch.zeros(3, dtype=torch.uint8)
    for op in (coding.unseal, coding.unseal.reference):
        with pytest.raises(ValueError, match="the message is of no known kind"):
            op(coding.lost(), torch.tensor([[3, 0]]), ans.book(MODELS["rans"])[None], 8, coding.HEAD, out)


# Damage that no seal was asked about.


def _outcome(op, message, parts, books, width):
    symbols = torch.full((int(parts[:, 0].sum()),), 77, dtype=torch.uint8)
    try:
        op(message, parts, books, width, OFFSET, symbols)
    except ValueError as error:
        return str(error)
    return symbols.tolist()


DAMAGED = ["huffman", "rans", "huffman, many escapes", "rans, many escapes", "one symbol", "escapes alone"]


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(DAMAGED),
    st.sampled_from([(0,), (1,), (40,), (0, 9, 1)]),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=3),
    st.integers(-6, 6),
)
def test_a_damaged_message_is_understood_or_refused_as_by_the_reference(name, counts, changes, more):
    _, parts, books, message = _case((name,) * len(counts), counts, 8)
    message = message[:more].clone() if more < 0 else torch.cat([message, message.new_zeros(more)])
    for place, byte in changes:
        message[place % len(message)] = byte
    ours, theirs = (_outcome(op, message, parts, books, 8) for op in (coding.unseal, coding.unseal.reference))
    # of two faults in a row of symbols, they may name either
    assert ours == theirs or (isinstance(ours, str) and isinstance(theirs, str))


@pytest.mark.parametrize("name", ["huffman", "rans", "rans, many escapes"])
@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda m: m[: OFFSET - 1], "is cut short"),
        (lambda m: m[: OFFSET + 100], "is cut short"),
        (lambda m: m[:-2], "is cut short"),
        (lambda m: m[:-1], "ends within a word"),
        (lambda m: torch.cat([m, m[:2]]), "is longer than it says"),
        (lambda m: torch.cat([m[:1] * 0 + 3, m[1:]]), "is of no known kind"),
        (lambda m: torch.cat([m[:1] * 0 + 1, m[1:]]), "is cut short"),
    ],
)
def test_a_damaged_message_of_64_lanes_is_refused_as_by_the_reference(name, damage, sentence):
    _, parts, books, message = _case((name,), (LARGE[1],), 8)
    assert _outcome(coding.unseal, damage(message), parts, books, 8) == f"the message {sentence}"


# What no caller should ask for.


def test_books_parts_and_sizes_that_cannot_be_are_refused():
    book, symbols = ans.book(MODELS["rans"])[None], torch.zeros(10, dtype=torch.uint8)
    message, parts = torch.zeros(600, dtype=torch.uint8), torch.tensor([[10, 0]])
    wrong = book.clone()
    wrong[0, 0, 120] += 1
    outside = book.clone()
    outside[0, 1, 120] = WHOLE
    for arguments in (
        (symbols, parts, wrong, 8, 14, message),
        (symbols, parts, outside, 8, 14, message),
        (symbols, parts, book[:, :1], 8, 14, message),
        (symbols, parts, book, 7, 14, message),
        (symbols, parts, book, 8, 0, message),
        (symbols, parts, book, 8, 14, message[:100]),
        (symbols, torch.tensor([[9, 0]]), book, 8, 14, message),
        (symbols, torch.tensor([[11, 0]]), book, 8, 14, message),
        (symbols, torch.tensor([[11, 0], [-1, 0]]), book, 8, 14, message),
        (symbols, torch.tensor([[10, 1]]), book, 8, 14, message),
        (symbols, torch.tensor([[10, -1]]), book, 8, 14, message),
    ):
        with pytest.raises(ValueError, match=r"book|share|symbol|part|header|room"):
            coding.seal(*arguments)
