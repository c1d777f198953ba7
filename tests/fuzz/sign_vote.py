"""Damaged messages of SignVote: the native code understands or refuses them, and writes nowhere else.

    python -m tests.fuzz.sign_vote 1000000

takes some minutes. Every message is changed in some bytes, cut or extended; it is then voted on beside a sound one,
and read as a reply, between canaries. Of every thousandth the outcome is compared with the reference's.
"""

import functools
import random
import sys

import numpy as np
import torch

from laconic import kernels
from laconic.kernels import sign_vote as ops
from laconic.numerics import ternary

CANARY, MARGIN = 171, 64
MARK = bytes([CANARY]) * MARGIN
LENGTHS = (*range(400), 7_679, 7_681, 15_365, 20_000)
"""Of vectors; the native code counts 7680 coordinates at a time."""


def fuzz(messages, seed=0):
    """How many of so many damaged messages were understood, and how many were refused."""
    source = random.Random(seed)
    understood = refused = 0
    for number in range(messages):
        numel = source.choice(LENGTHS)
        message, sound = _damaged(source.choice(_sound(numel)), source), source.choice(_sound(numel))
        outcomes = [
            _combined(kernels.native.sign_combine, [_array(sound), _array(message)], numel),
            _decoded(kernels.native.sign_decode, _array(message), numel),
        ]
        if number % 1000 == 0:
            tensors = [torch.from_numpy(_array(each)) for each in (sound, message)]
            assert outcomes[0] == _combined(ops.sign_combine.reference, tensors, numel)
            assert outcomes[1] == _decoded(ops.sign_decode.reference, tensors[1], numel)
        refused += isinstance(outcomes[0], str)
        understood += not isinstance(outcomes[0], str)
    return understood, refused


@functools.cache
def _sound(numel):
    """Messages of vectors of any density."""
    generator = torch.Generator().manual_seed(numel)
    vectors = torch.rand(8, numel, generator=generator) < torch.logspace(-2.5, 0, 8)[:, None]
    places = [vector.nonzero().flatten() for vector in vectors]
    signs = [torch.randint(2, (len(each),), generator=generator) for each in places]
    packed = [ternary.pack((2 * p + s).int(), numel) for p, s in zip(places, signs, strict=True)]
    return [bytes(message.tolist()) for message in packed]


def _damaged(message, source):
    """Bytes changed, bits flipped, the end cut off or more put behind it; often several of these."""
    message = bytearray(message)
    for _ in range(source.randrange(1, 4)):
        place, kind = source.randrange(len(message) or 1), source.randrange(4)
        if kind == 0 and message:
            message[place] = source.randrange(256)
        elif kind == 1 and message:
            message[place] ^= 1 << source.randrange(8)
        elif kind == 2:
            del message[place:]
        else:
            message += source.randbytes(source.randrange(9))
    return bytes(message)


def _array(message):
    return np.frombuffer(bytearray(message), dtype=np.uint8)


def _combined(op, messages, numel):
    held = np.full(ternary.room(numel) + 2 * MARGIN, CANARY, dtype=np.uint8)
    counts, weights = np.zeros(4 + 2 * len(messages), dtype=np.int64), np.ones(len(messages), dtype=np.int64)
    inside, written = held[MARGIN:-MARGIN], 0
    if isinstance(messages[0], torch.Tensor):
        inside, counts, weights = map(torch.from_numpy, (inside, counts, weights))
    try:
        written = op(messages, weights, numel, None, inside, counts)
    except ValueError as error:
        return str(error)
    finally:
        assert held[:MARGIN].tobytes() == MARK
        assert held[-MARGIN:].tobytes() == MARK
    return held[MARGIN : MARGIN + written].tobytes(), counts.tolist()


def _decoded(op, message, numel):
    held = np.full(numel + 2 * MARGIN, CANARY, dtype=np.float32)
    inside = held[MARGIN:-MARGIN]
    try:
        op([message], numel, torch.from_numpy(inside) if isinstance(message, torch.Tensor) else inside)
    except ValueError as error:
        return str(error)
    finally:
        assert (held[:MARGIN] == CANARY).all()
        assert (held[-MARGIN:] == CANARY).all()
    return str(inside.tolist())  # as text, NaN is equal to NaN


if __name__ == "__main__":
    understood, refused = fuzz(int(sys.argv[1]))
    print(f"{understood} understood, {refused} refused, none harmful")
