"""Damaged codes and sums of THC: codes are added whatever they are, sums are decoded or refused, between canaries.

Their sizes are fixed, so nothing is cut. Of every five hundredth the outcome is compared with the reference's.
"""

import functools
import random
from typing import NamedTuple

import numpy as np
import torch

from laconic import kernels
from laconic.core.blocks import block_pieces
from laconic.core.technique import Bucket
from laconic.kernels import thc as ops
from laconic.techniques.thc import THC
from tests.fuzz.canary import fenced

REFERRED, WORKERS = 500, 3
TECHNIQUES = (
    THC(),
    THC(block=512),
    THC(bits=2, block=64),
    THC(bits=8, block=8),
    THC(lane=12, block=256),
    THC(lane=16, block=1024),
)
SIZES = ((1500, 40), (7,), (600,), (1040,))


class Case(NamedTuple):
    technique: THC
    chart: np.ndarray
    numel: int
    codes: np.ndarray
    replies: np.ndarray


def fuzz(messages, seed=0):
    """How many of so many damaged replies were decoded, and how many were refused; damaged codes are all added."""
    source = random.Random(seed)
    understood = refused = 0
    for number in range(messages):
        case = _case(source.randrange(len(TECHNIQUES)), source.randrange(len(SIZES)))
        codes, replies = _changed(case.codes, source), _changed(case.replies, source)
        said = _decoded(kernels.native.thc_decode, case, replies)
        sums = _combined(kernels.native.thc_combine, case, codes)
        if number % REFERRED == 0:
            assert sums == _combined(ops.thc_combine.reference, case, torch.from_numpy(codes))
            if said is None or _possible(case, replies):
                assert said == _decoded(ops.thc_decode.reference, case, torch.from_numpy(replies))
        understood, refused = understood + (said is not None), refused + (said is None)
    return understood, refused


@functools.cache
def _case(which, sizes):
    technique, sizes = TECHNIQUES[which], SIZES[sizes]
    grid = technique.grid(WORKERS)
    bucket = Bucket(tuple(map(str, range(len(sizes)))), sizes, torch.float32)
    (piece,) = block_pieces(bucket, WORKERS, block=technique.block, width=1 << 20)
    size = WORKERS, WORKERS, piece.width * technique.bits // 8
    codes = np.random.default_rng(which).integers(256, size=size, dtype=np.uint8)
    rows = [torch.from_numpy(codes[:, shard].copy()) for shard in range(WORKERS)]
    replies = torch.empty(WORKERS, piece.width * grid.lane // 8 + ops.COUNT_BYTES, dtype=torch.uint8)
    for row, reply in zip(rows, replies, strict=True):
        ops.thc_combine(row, torch.tensor(grid.table), technique.bits, grid.lane, reply)
    return Case(
        technique, piece.chart(torch.device("cpu")).numpy(), piece.numel, rows[0].numpy(), replies.numpy()
    )


def _changed(messages, source):
    """Some bytes are others, every other time one of the number of contributors, which is at a row's end."""
    changed = messages.copy()
    for _ in range(source.randrange(1, 4)):
        row, size = source.randrange(len(changed)), changed.shape[1]
        place = source.randrange(max(0, size - ops.COUNT_BYTES) if source.randrange(2) else 0, size)
        changed[row, place] = source.randrange(256) if source.random() < 0.5 else source.randrange(4)
    if source.randrange(4) == 0:  # all say the same
        changed[:, -ops.COUNT_BYTES :] = changed[0, -ops.COUNT_BYTES :]
    return changed


def _possible(case, replies):
    """Whether so many contributors can have such sums; fast ways have no room for others."""
    grid, contributors = case.technique.grid(WORKERS), int.from_bytes(replies[0, -4:].tobytes(), "little")
    bits = np.unpackbits(replies[:, : -ops.COUNT_BYTES], axis=1, bitorder="little")
    sums = bits.reshape(-1, grid.lane) @ (1 << np.arange(grid.lane))
    return int(sums.max()) <= contributors * grid.granularity


def _combined(op, case, codes):
    grid = case.technique.grid(WORKERS)
    table = np.array(grid.table)
    with fenced(case.replies.shape[1], np.uint8) as reply:
        out = reply
        if isinstance(codes, torch.Tensor):
            table, out = torch.from_numpy(table), torch.from_numpy(reply)
        op(codes, table, case.technique.bits, grid.lane, out)
        return reply.tobytes()


def _decoded(op, case, replies):
    """The gradient, or None."""
    grid, norms = case.technique.grid(WORKERS), np.ones(len(case.chart), np.float32)
    with fenced(case.numel, np.float32) as grad:
        arrays = norms, case.chart, grad
        if isinstance(replies, torch.Tensor):
            arrays = map(torch.from_numpy, arrays)
        inside, chart, out = arrays
        try:
            op(replies, inside, chart, grid.granularity, grid.threshold, 77, grid.lane, out)
        except ValueError:
            return None
        assert np.isfinite(grad).all()
        return grad.tobytes()
