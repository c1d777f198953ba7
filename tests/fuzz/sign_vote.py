"""Damaged messages of SignVote: the native code understands or refuses them, and writes nowhere else.

Every message is changed in some bytes, cut or extended; it is then voted on beside a sound one, and read as a reply,
between canaries. Of every thousandth the outcome is compared with the reference's.
"""

import functools
import random

import numpy as np
import torch

from laconic import kernels
from laconic.kernels import sign_vote as ops
from laconic.numerics import ternary
from tests.fuzz.canary import fenced
from tests.fuzz.damage import damaged

SHORT, LONG = range(400), (7_679, 7_681, 15_365, 20_000)
"""Lengths of vectors, of which a hundredth are long; the native code counts 7680 coordinates at a time."""


def fuzz(messages, seed=0):
    """How many of so many damaged messages were understood, and how many were refused."""
    source = random.Random(seed)
    understood = refused = 0
    for number in range(messages):
        numel = source.choice(SHORT if number % 100 else LONG)
        message, sound = damaged(source.choice(_sound(numel)), source), source.choice(_sound(numel))
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


def _array(message):
    return np.frombuffer(bytearray(message), dtype=np.uint8)


def _combined(op, messages, numel):
    counts, weights = np.zeros(4 + 2 * len(messages), np.int64), np.ones(len(messages), np.int64)
    with fenced(ternary.room(numel), np.uint8) as reply:
        arguments = reply, counts, weights
        if isinstance(messages[0], torch.Tensor):
            arguments = map(torch.from_numpy, arguments)
        inside, counted, weighted = arguments
        try:
            written = op(messages, weighted, numel, None, inside, counted)
        except ValueError as error:
            return str(error)
        return reply[:written].tobytes(), counts.tolist()


def _decoded(op, message, numel):
    with fenced(numel, np.float32) as grad:
        try:
            op([message], numel, torch.from_numpy(grad) if isinstance(message, torch.Tensor) else grad)
        except ValueError as error:
            return str(error)
        return np.where(np.isnan(grad), 2, grad).tobytes()  # any NaN is as good
