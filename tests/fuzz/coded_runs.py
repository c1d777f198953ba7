"""Damaged messages in runs, of THC's codes and sums and of SignVote's replies: understood or refused."""

import functools
import random

import torch

from laconic.core.blocks import block_pieces
from laconic.core.technique import Bucket
from laconic.kernels import thc as kernels
from laconic.messages import sign_vote
from laconic.messages.thc import CodedSums
from laconic.numerics import ternary
from laconic.techniques.thc import THC
from tests.fuzz.damage import as_tensor, damaged

NUMEL, WORKERS = 600, 4
NARROW = THC(bits=2), THC(), THC(bits=8, lane=8, granularity=255)
"""Of two, four and eight bits; the last have sums and codes of 256 symbols, for one worker."""


def fuzz(messages, seed=0):
    """How many of so many damaged messages were understood, and how many were refused."""
    source = random.Random(seed)
    understood = refused = 0
    for _ in range(messages):
        message, read = source.choice(_cases())
        try:
            read(as_tensor(damaged(message, source)))
        except ValueError:
            refused += 1
        else:
            understood += 1
    return understood, refused


@functools.cache
def _cases():
    """Sound messages, each with who reads it."""
    return [
        *_of_thc(NARROW[0], WORKERS),
        *_of_thc(NARROW[1], WORKERS),
        *_of_thc(NARROW[2], 1),
        *_of_sign_vote(),
    ]


def _of_thc(technique, workers):
    grid = technique.grid(workers)
    bucket = Bucket(("w",), (NUMEL,), torch.float32)
    (piece,) = block_pieces(bucket, 1, block=64, width=1 << 20)
    coded = CodedSums(grid.table, technique.bits, grid.lane, piece)
    generator, last = torch.Generator().manual_seed(0), len(grid.table) - 1
    codes = torch.randn(piece.width, generator=generator).mul(last / 8).add(last / 2).round().clamp(0, last)
    codes[:64] = torch.randint(2, (64,), generator=generator) * last  # both ends
    row = kernels.packing.pack(codes.long()[None], technique.bits)
    (message,) = coded.seal_codes(row)

    def codes_of(changed):
        found = coded._codes(changed, NUMEL)
        assert len(found) == NUMEL
        assert int(found.max()) < len(grid.table)

    def sums_of(changed):
        assert coded.unseal_sums([changed]).shape == (1, coded._row)

    reply = coded.add([message] * workers, 0)
    return [(message.numpy().tobytes(), codes_of), (reply.numpy().tobytes(), sums_of)]


def _of_sign_vote():
    """A reply in which rows differ."""
    votes = [2 * place + place % 7 % 2 for place in range(NUMEL) if place % 100 < 30]
    reply = sign_vote.coded(ternary.pack(torch.tensor(votes, dtype=torch.int32), NUMEL), NUMEL)
    assert int(reply[0]) == sign_vote.CODED * ternary.FORM

    def direction_of(changed):
        opened, grad = sign_vote.opened(changed, NUMEL), torch.empty(NUMEL)
        sign_vote.kernels.sign_decode([opened], NUMEL, grad)

    return [(reply.numpy().tobytes(), direction_of)]
