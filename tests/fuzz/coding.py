"""Damaged messages of GenNorm: the native code understands or refuses them, and writes nowhere else.

    python -m tests.fuzz.coding 100000

takes some minutes; tests/fuzz/coding.cpp does millions, under sanitizers. Every message is changed in some bytes, cut
or extended; nobody looks at its checksum. It is then taken out by itself, and averaged beside a sound one, between
canaries. Of every fiftieth the outcome is compared with the reference's.
"""

import functools
import random
import sys
from types import FunctionType
from typing import NamedTuple

import numpy as np
import torch

from laconic import kernels
from laconic.kernels import coding
from laconic.kernels import gennorm as ops
from laconic.numerics import ans, level_codes
from laconic.numerics.minifloat import FORMATS

CANARY, MARGIN = 171, 64
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
    books: np.ndarray
    message: bytes

    @property
    def count(self):
        return int(self.parts[:, 0].sum())

    @property
    def spans(self):
        """As `gennorm_average` takes parts: one behind the other, and a silent one at the end."""
        starts = np.cumsum(self.parts[:, 0]) - self.parts[:, 0]
        spoken = np.stack([starts, *self.parts.T], axis=1)
        return np.concatenate([spoken, [[self.count, 3, -1]]])


def fuzz(messages, seed=0):
    """How many of so many damaged messages were understood, and how many were refused."""
    source = random.Random(seed)
    understood = refused = 0
    for number in range(messages):
        case = _case(source.randrange(len(COUNTS)), source.randrange(6))
        message = _damaged(case.message, source)
        alone, beside = _unsealed(kernels.native, case, message), _averaged(kernels.native, case, message)
        if number % 50 == 0 and case.count < 10_000:
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
    return Case(name, offset, parts, books, message[:size].tobytes())


def _symbols(model, count, rng):
    shares = np.array(model.shares) + (0.1 if model.escape else 0)
    kept = rng.choice(len(shares), 1) if rng.random() < 0.2 and model.escape else len(shares)
    return rng.choice(kept, count, p=shares / shares.sum() if np.ndim(kept) == 0 else None).astype(np.uint8)


def _damaged(message, source):
    """Bytes changed, bits flipped, the end cut off or more put behind it; often several of these."""
    message = bytearray(message)
    for _ in range(source.randrange(1, 4)):
        early = source.randrange(3) == 0
        place, kind = source.randrange(min(len(message), 40) if early else len(message)), source.randrange(4)
        if kind == 0:
            message[place] = source.randrange(256)
        elif kind == 1:
            message[place] ^= 1 << source.randrange(8)
        elif kind == 2 and place:
            del message[-min(place, source.randrange(1, 9)) if source.randrange(2) else place :]
        else:
            message += source.randbytes(source.randrange(9))
    return bytes(message)


def _unsealed(module, case, message):
    """Symbols, or None."""
    held = np.full(case.count + 2 * MARGIN, CANARY, np.uint8)
    arguments = [np.frombuffer(bytearray(message), np.uint8), case.parts, case.books]
    return _outcome(module.unseal, [*arguments, ops.width(FORMATS[case.format]), case.offset], held)


def _averaged(module, case, message):
    """The mean, as bytes, or None."""
    held = np.full(case.count + 3 + 2 * MARGIN, CANARY, np.float32)
    both = [np.frombuffer(bytearray(each), np.uint8) for each in (case.message, message)]
    inverses = np.full((2, len(case.spans)), 0.5, np.float32)
    arguments = [both, case.offset, np.stack([case.spans] * 2), inverses, case.books, case.format]
    return _outcome(module.gennorm_average, arguments, held)


def _outcome(op, arguments, held):
    inside = held[MARGIN:-MARGIN]
    if isinstance(op, FunctionType):  # the reference takes tensors
        arguments, inside = _tensors(arguments), torch.from_numpy(inside)
    try:
        op(*arguments, inside)
    except ValueError:
        return None
    finally:
        assert (held[:MARGIN] == CANARY).all()
        assert (held[-MARGIN:] == CANARY).all()
    return held[MARGIN:-MARGIN].tobytes()


def _tensors(value):
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    return [_tensors(each) for each in value] if isinstance(value, list) else value


if __name__ == "__main__":
    understood, refused = fuzz(int(sys.argv[1]))
    print(f"{understood} understood, {refused} refused, none harmful")
