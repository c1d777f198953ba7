"""Damaged messages of symbols: the native code understands or refuses them, and writes nowhere else.

Every message is changed in some bytes, cut or extended. It is then taken out by itself, and averaged beside a sound
one as GenNorm's, between canaries. Of every five hundredth the outcome is compared with the reference's.
"""

import functools
import random
from types import FunctionType
from typing import NamedTuple

import numpy as np
import torch

from laconic import kernels
from laconic.kernels import coding
from laconic.kernels import gennorm as ops
from laconic.numerics import ans, level_codes
from laconic.numerics.minifloat import FORMATS
from tests.fuzz.canary import fenced
from tests.fuzz.damage import damaged

REFERRED = 500
SMALL = 103
"""Of the counts; the others are a hundredth of all messages."""
COUNTS = [(n,) for n in range(100)] + [
    (),
    (0, 3, 0),
    (40, 1, 63, 64, 65),
    (5_000,),
    (8_200, 1),
    (131_072,),
    (131_000, 99),
]
"""Of the symbols of every part; from 131072 on there are 64 lanes."""


class Case(NamedTuple):
    format: str
    offset: int
    parts: np.ndarray
    spans: np.ndarray
    """As `gennorm_average` takes parts of two messages: one behind the other, and a silent one at the end."""
    books: np.ndarray
    message: bytes
    count: int


def fuzz(messages, seed=0):
    """How many of so many damaged messages were understood, and how many were refused."""
    source = random.Random(seed)
    understood = refused = 0
    for number in range(messages):
        which = source.randrange(SMALL) if number % 100 else source.randrange(SMALL, len(COUNTS))
        case = _case(which, source.randrange(6))
        message = damaged(case.message, source)
        alone, beside = _unsealed(kernels.native, case, message), _averaged(kernels.native, case, message)
        if number % REFERRED == 1 and case.count < 10_000:
            assert alone == _unsealed(_References, case, message)
            assert beside == _averaged(_References, case, message)
        known = alone is not None and max(alone, default=0) < len(FORMATS[case.format].levels)
        assert known == (beside is not None)
        understood, refused = understood + known, refused + (not known)
    return understood, refused


class _References:
    unseal = coding.unseal.reference
    gennorm_average = ops.gennorm_average.reference


@functools.cache
def _case(which, variety):
    """A sound message: of any format and coder, with levels as a prediction has them, or all alike."""
    rng = np.random.default_rng(which * 6 + variety)
    name = list(FORMATS)[variety % 3]
    counts, form = COUNTS[which], FORMATS[name]
    predictions = [
        level_codes.Prediction(
            *(int(rng.integers(end)) for end in (level_codes.ZEROS, level_codes.BETAS, level_codes.ALPHAS))
        )
        for _ in counts
    ]
    models = [
        level_codes.model(prediction, form, list(level_codes.CODERS)[variety // 3])
        for prediction in predictions
    ]
    books = np.stack([ans.book(model).numpy() for model in models] or [ans.book(ans.Model((2048,))).numpy()])
    symbols = [_symbols(model, count, rng) for model, count in zip(models, counts, strict=True)]
    symbols = np.concatenate([np.zeros(0, np.uint8), *symbols])
    parts, offset = (
        np.array([(count, k) for k, count in enumerate(counts)], np.int64).reshape(-1, 2),
        9 + which % 7,
    )
    message = np.zeros(coding.room(offset, len(symbols), ops.width(form)), np.uint8)
    size = kernels.native.seal(symbols, parts, books, ops.width(form), offset, message)
    starts = np.cumsum(parts[:, 0]) - parts[:, 0]
    spans = np.concatenate([np.stack([starts, *parts.T], axis=1), [[len(symbols), 3, -1]]])
    return Case(name, offset, parts, np.stack([spans] * 2), books, message[:size].tobytes(), len(symbols))


def _symbols(model, count, rng):
    shares = np.array(model.shares) + (0.1 if model.escape else 0)
    kept = rng.choice(len(shares), 1) if rng.random() < 0.2 and model.escape else len(shares)
    return rng.choice(kept, count, p=shares / shares.sum() if np.ndim(kept) == 0 else None).astype(np.uint8)


def _unsealed(module, case, message):
    """Symbols, or None."""
    arguments = [_array(message), case.parts, case.books, ops.width(FORMATS[case.format]), case.offset]
    with fenced(case.count, np.uint8) as symbols:
        return _outcome(module.unseal, arguments, symbols)


def _averaged(module, case, message):
    """The mean, as bytes, or None."""
    both = [_array(each) for each in (case.message, message)]
    inverses = np.full(case.spans.shape[:2], 0.5, np.float32)
    arguments = [both, case.offset, case.spans, inverses, case.books, case.format]
    with fenced(case.count + 3, np.float32) as mean:
        return _outcome(module.gennorm_average, arguments, mean)


def _array(message):
    return np.frombuffer(bytearray(message), np.uint8)


def _outcome(op, arguments, out):
    result = out
    if isinstance(op, FunctionType):  # the reference takes tensors
        arguments, result = _tensors(arguments), torch.from_numpy(out)
    try:
        op(*arguments, result)
    except ValueError:
        return None
    return out.tobytes()


def _tensors(value):
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    return [_tensors(each) for each in value] if isinstance(value, list) else value
