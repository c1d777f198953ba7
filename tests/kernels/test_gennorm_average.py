"""The mean of messages in C++ is the reference's, on every instruction set, and damaged messages are refused."""

import functools

import pytest
import torch

from laconic import kernels
from laconic.kernels import coding
from laconic.kernels import gennorm as ops
from laconic.numerics import ans, level_codes
from laconic.numerics.minifloat import FORMATS
from tests.support.gennorm_work import (
    OFFSET,
    SIZES,
    averaged,
    message_of,
    numel_of,
    parts_of,
    quantized,
    random_values,
    scale_of,
    scale_pairs,
    together,
)

pytestmark = pytest.mark.skipif(kernels.native is None, reason="needs the native extension")
SETS = kernels.native.instruction_sets() if kernels.native else []
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(params=SETS, autouse=True)
def _every_instruction_set(request):
    chosen = kernels.native.chosen()
    kernels.native.choose(request.param)
    yield
    kernels.native.choose(chosen)


def _check_mean(told, name, dtype=torch.float32):
    ours, theirs = (
        averaged(op, told, name, dtype) for op in (ops.gennorm_average, ops.gennorm_average.reference)
    )
    assert torch.equal(ours, theirs)
    return ours


SAID = (300, 0, 1, 37, 2_049, 5, 64)


@functools.cache
def _expected(sizes, name, coder, workers, dtype=torch.float32):
    told = [message_of(sizes, name, coder, seed) for seed in range(workers)]
    return told, averaged(ops.gennorm_average.reference, told, name, dtype)


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("coder", level_codes.CODERS)
def test_means_are_the_references(workers, name, coder):
    told, expected = _expected(SAID, name, coder, workers)
    mean = averaged(ops.gennorm_average, told, name)
    assert torch.equal(mean, expected)
    inside = [mean[start : start + numel] for start, numel, _ in told[0][1].tolist()]
    assert (torch.cat(inside) != 0).sum() > 1_000
    assert (mean[:3] == 7).all()
    assert (mean[-5:] == 7).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FORMATS)
def test_means_in_any_precision_are_the_references(dtype, name):
    told, expected = _expected(SAID, name, "rans", 3, dtype)
    assert torch.equal(averaged(ops.gennorm_average, told, name, dtype), expected)


@pytest.mark.parametrize("coder", level_codes.CODERS)
@pytest.mark.parametrize("name", ["e5m2", "fp4"])
def test_means_of_messages_on_64_lanes_are_the_references(name, coder):
    told, expected = _expected((70_000, 2_049, 1, 5, 66_000), name, coder, 2)
    assert torch.equal(averaged(ops.gennorm_average, told, name), expected)


def test_a_single_message_says_what_its_sender_did_not_keep():
    name, spans = "e5m2", parts_of(SIZES)
    grad = random_values(numel_of(spans), 0)
    message = message_of(SIZES, name, "rans", 0)
    mean = averaged(ops.gennorm_average, [message], name)
    scales = scale_pairs([scale_of(name) if book >= 0 else 0.0 for book in message[1][:, 2].tolist()])
    new = quantized(ops.gennorm_quantize, grad, None, 0.0, spans, scales, name)[3]
    for start, numel in spans.tolist():
        part = slice(start, start + numel)
        # what is left is rounded once, to 2^-24 of itself, and is no more than t, as zero is a level too
        error = mean[part].double() + new[part].double() - grad[part].double()
        assert (error.abs() <= 2**-24 * grad[part].double().abs()).all()


def test_raw_and_coded_messages_are_averaged_alike():
    sizes, name = (700, 1, 33), "fp4"
    wide = message_of(sizes, name, "rans", 1, spread=40.0)
    told = [_raw(sizes, name), message_of(sizes, name, "huffman", 0), wide]
    assert told[0][0][0] == coding.RAW
    assert told[1][0][0] == coding.CODED
    _check_mean(told, name)


def _raw(sizes, name):
    """Levels that no model expected, so they travel as they are."""
    form, spans = FORMATS[name], parts_of(sizes)
    symbols = torch.arange(sum(sizes)).remainder(len(form.levels)).to(torch.uint8)
    book = ans.book(ans.Model((0,) * len(form.levels), escape=ans.WHOLE))[None]
    message = torch.zeros(coding.room(OFFSET, len(symbols), ops.width(form)), dtype=torch.uint8)
    rows = torch.tensor([(numel, 0) for numel in sizes])
    size = coding.seal.reference(symbols, rows, book, ops.width(form), OFFSET, message)
    parts = torch.cat([spans, torch.zeros(len(sizes), 1, dtype=torch.int64)], 1)
    return message[:size], parts, torch.full((len(sizes),), 0.25), book


def test_workers_that_are_all_silent_say_zero():
    parts = torch.tensor([[2, 30, -1], [32, 0, -1]])
    message = torch.zeros(OFFSET, dtype=torch.uint8)
    message[0] = coding.RAW
    told = [(message, parts, torch.zeros(2), ans.book(ans.Model((ans.WHOLE,)))[None])] * 2
    mean = _check_mean(told, "e5m2")
    assert (mean[2:32] == 0).all()


@pytest.mark.parametrize("wrong", range(3))
@pytest.mark.parametrize("damage", ["cut", "extended", "kind"])
def test_the_error_says_whose_message_is_damaged(wrong, damage):
    told = [message_of((40, 3, 100), "e5m2", "rans", seed) for seed in range(3)]
    message = told[wrong][0]
    changed = {"cut": message[:-2], "extended": torch.cat([message, message[:2]]), "kind": message.clone()}[
        damage
    ]
    if damage == "kind":
        changed[0] = 7
    told[wrong] = (changed, *told[wrong][1:])
    sentence = {"cut": "is cut short", "extended": "is longer than it says", "kind": "is of no known kind"}[
        damage
    ]
    for op in (ops.gennorm_average, ops.gennorm_average.reference):
        with pytest.raises(ValueError, match=f"^the message of worker {wrong} {sentence}$"):
            averaged(op, told, "e5m2")


@pytest.mark.parametrize("name", FORMATS)
def test_a_raw_level_that_there_is_not_is_refused(name):
    message, *rest = _raw((700, 1, 33), name) if name == "fp4" else _wide(name)
    changed = message.clone()
    changed[OFFSET + 20] = 255
    for op in (ops.gennorm_average, ops.gennorm_average.reference):
        with pytest.raises(ValueError, match="the message of worker 0 has a symbol that there is not"):
            averaged(op, [(changed, *rest)], name)
    _check_mean([(message, *rest)], name)


def _wide(name):
    """Levels of eight bits that no model expected, each an escape of more bits than it has itself."""
    form, sizes = FORMATS[name], (700, 33)
    book = ans.book(ans.Model((ans.WHOLE - 1, *(0,) * (len(form.levels) - 1)), escape=1))[None]
    symbols = torch.arange(sum(sizes)).remainder(len(form.levels) - 1).to(torch.uint8) + 1
    message = torch.zeros(coding.room(OFFSET, len(symbols), 8), dtype=torch.uint8)
    size = coding.seal.reference(symbols, torch.tensor([(n, 0) for n in sizes]), book, 8, OFFSET, message)
    assert message[0] == coding.RAW
    parts = torch.cat([parts_of(sizes), torch.zeros(2, 1, dtype=torch.int64)], 1)
    return message[:size], parts, torch.full((2,), 0.25), book


def test_messages_that_are_not_about_the_same_parts_are_refused():
    told = [message_of((40,), "fp4", "rans", seed) for seed in range(2)]
    messages, parts, inverses, books = together(told)
    shifted = parts.clone()
    shifted[1, 0, 0] += 1
    unknown = parts.clone()
    unknown[1, 0, 2] = len(books)
    for wrong in ((messages[:1], parts), (messages, shifted), (messages, unknown), ([], parts[:0])):
        with pytest.raises(ValueError, match=r"message|parts|book"):
            ops.gennorm_average(wrong[0], OFFSET, wrong[1], inverses, books, "fp4", torch.zeros(60))
