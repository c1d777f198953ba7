"""THC's Triton kernels give the reference's bits: on a CUDA device, and without one in Triton's interpreter.

The interpreter is chosen before Triton is loaded, so these tests have a process of their own where there is no
device.
"""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from laconic.blocks import block_pieces
from laconic.kernels import thc as ops
from laconic.technique import Bucket
from laconic.thc import THC

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
SHARED, OWN = 0x9E3779B9, 0xFFFFFF00  # beyond an int32

pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the interpreter's NumPy, of infinities
]
on_a_device = pytest.mark.skipif(
    DEVICE.type == "cpu" and not INTERPRETED, reason="runs in the interpreter's process"
)


@pytest.mark.skipif(DEVICE.type == "cuda" or INTERPRETED, reason="the device runs the kernels themselves")
def test_the_interpreter_gives_the_references_bits():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stdout


class Work:
    """One piece with everything that the ops take."""

    def __init__(self, technique, workers=3, sizes=(5130, 24, 1), dtype=torch.float32, scale=1.0):
        generator = torch.Generator().manual_seed(0)
        bucket = Bucket(tuple(f"p{i}" for i in range(len(sizes))), tuple(sizes), dtype)
        (piece,) = block_pieces(bucket, workers, block=technique.block, width=1 << 20)
        self.technique, self.piece, self.grid = technique, piece, technique.grid(workers)
        self.chart = piece.chart(DEVICE)
        self.table = torch.tensor(self.grid.table, device=DEVICE)
        self.grad = (scale * torch.randn(workers, piece.numel, generator=generator)).to(DEVICE, dtype)
        self.residual = None
        if technique.error_feedback:
            self.residual = (0.3 * scale * torch.randn(workers, piece.numel, generator=generator)).to(DEVICE)

    def old(self, worker):
        return None if self.residual is None else self.residual[worker]

    def norms(self, backend):
        rows = torch.empty(len(self.grad), len(self.chart), device=DEVICE)
        for worker, row in enumerate(rows):
            backend("thc_norms")(self.grad[worker], self.old(worker), self.chart, row)
        return rows

    def encode(self, backend, norms, worker=0):
        packed = self.piece.width * self.technique.bits // 8
        codes = torch.zeros(self.piece.shards, packed, dtype=torch.uint8, device=DEVICE)
        new = None if self.residual is None else torch.full_like(self.residual[0], 7.0)
        quality = torch.empty(len(self.chart), 3, device=DEVICE)
        backend("thc_encode")(
            self.grad[worker],
            self.old(worker),
            norms,
            self.chart,
            self.table,
            self.grid.granularity,
            self.grid.threshold,
            SHARED,
            OWN + worker,
            self.technique.bits,
            codes,
            new,
            quality,
        )
        return codes, new, quality

    def combine(self, backend, messages):
        reply = self.piece.width * self.grid.lane // 8 + ops.COUNT_BYTES
        reply = torch.empty(reply, dtype=torch.uint8, device=DEVICE)
        backend("thc_combine")(messages, self.table, self.technique.bits, self.grid.lane, reply)
        return reply

    def decode(self, backend, replies, norms):
        grad, grid = torch.full_like(self.grad[0], 7.0), self.grid
        backend("thc_decode")(
            replies, norms, self.chart, grid.granularity, grid.threshold, SHARED, grid.lane, grad
        )
        return grad


def _reference(name):
    return getattr(ops, name).reference


def _kernel(name):
    from laconic.kernels import gpu

    return getattr(gpu, name)


def _check(work):
    """Every kernel equals its reference, each on what the reference gave so far."""
    norms = work.norms(_reference)
    assert torch.allclose(work.norms(_kernel), norms, rtol=1e-5)
    norms = norms.amax(0)
    messages = []
    for worker in range(len(work.grad)):
        codes, new, quality = work.encode(_reference, norms, worker)
        ours, our_new, our_quality = work.encode(_kernel, norms, worker)
        assert torch.equal(ours, codes)
        assert (new is None and our_new is None) or torch.equal(our_new, new)
        assert torch.allclose(our_quality, quality, rtol=1e-4)
        messages.append(codes)
    shards = torch.stack(messages, dim=1)
    replies = torch.stack([work.combine(_reference, shard) for shard in shards])
    assert torch.equal(torch.stack([work.combine(_kernel, shard) for shard in shards]), replies)
    ours, theirs = work.decode(_kernel, replies, norms), work.decode(_reference, replies, norms)
    if INTERPRETED and ours.dtype == torch.bfloat16:  # the interpreter drops the bits that a device rounds
        assert torch.allclose(ours, theirs, rtol=2**-7)
    else:
        assert torch.equal(ours, theirs)


@on_a_device
@pytest.mark.parametrize("workers", [1, 4])
def test_several_workers_and_blocks_of_many_sizes(workers):
    _check(Work(THC(), workers))


@on_a_device
def test_one_small_block():
    _check(Work(THC(), 1, (1,)))


@on_a_device
def test_blocks_that_start_anywhere():
    _check(Work(THC(), sizes=(13, 4099, 1, 700)))


@on_a_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("error_feedback", [True, False])
def test_every_format_with_and_without_a_residual(dtype, error_feedback):
    _check(Work(THC(block=1024, error_feedback=error_feedback), 2, (1024, 1100, 10), dtype))


@on_a_device
@pytest.mark.parametrize("block", [8, 64, 512, 8192, 32768])
def test_every_size_of_block(block):
    _check(Work(THC(block=block), 2, (block + 24,)))


@on_a_device
@pytest.mark.parametrize(
    ("bits", "lane", "granularity"),
    [
        (2, 8, None),
        (3, 8, 63),
        (4, 9, None),
        (4, 16, 1023),
        (5, 8, None),
        (5, 12, 99),
        (7, 11, 150),
        (8, 10, 300),
    ],
)
def test_every_width_of_codes_and_sums(bits, lane, granularity):
    _check(Work(THC(bits=bits, lane=lane, granularity=granularity, block=512), sizes=(700, 9)))


@on_a_device
def test_integers_beyond_those_of_fp32():
    _check(Work(THC(granularity=1023, lane=16, block=32768), sizes=(32768, 40)))


@on_a_device
def test_sums_that_start_within_a_word():
    work = Work(THC(block=512), sizes=(1000, 24))
    norms = work.norms(_reference).amax(0)
    shards = torch.stack([work.encode(_reference, norms, worker)[0] for worker in range(3)], dim=1)
    replies = torch.stack([work.combine(_reference, shard) for shard in shards])
    for shift in range(4):
        moved = torch.empty(replies.numel() + shift, dtype=torch.uint8, device=DEVICE)[shift:]
        moved = moved.view_as(replies).copy_(replies)
        assert torch.equal(work.decode(_kernel, moved, norms), work.decode(_reference, replies, norms))


@on_a_device
@pytest.mark.parametrize("scale", [0.0, 1e-36, 1e-28, 1e15])
def test_values_of_any_size(scale):
    _check(Work(THC(block=512), sizes=(600, 9), scale=scale))


@on_a_device
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_a_bad_value_makes_a_block_infinite_and_the_result_not_finite(bad):
    work = Work(THC(block=512), sizes=(1000, 24))
    work.grad[1, 17] = bad
    norms = work.norms(_kernel)
    assert norms.isinf().nonzero().tolist() == [[1, 0]]
    norms = norms.amax(0)
    messages = [work.encode(_kernel, norms, worker)[0] for worker in range(3)]
    assert torch.equal(messages[1], work.encode(_reference, norms, 1)[0])
    replies = torch.stack([work.combine(_kernel, shard) for shard in torch.stack(messages, dim=1)])
    grad = work.decode(_kernel, replies, norms)
    assert not grad[:512].isfinite().any()
    assert grad[512:].isfinite().all()


@on_a_device
def test_a_missing_worker_is_not_counted():
    work = Work(THC(block=512), sizes=(1000, 24))
    norms = work.norms(_reference).amax(0)
    shards = torch.stack([work.encode(_reference, norms, worker)[0] for worker in range(2)], dim=1)
    replies = torch.stack([work.combine(_kernel, shard) for shard in shards])
    assert torch.equal(work.decode(_kernel, replies, norms), work.decode(_reference, replies, norms))


@on_a_device
def test_more_messages_than_a_byte_counts():
    work = Work(THC(bits=2, lane=16, block=64), workers=300, sizes=(64,))
    packed = work.piece.width * 2 // 8
    messages = torch.randint(0, 256, (300, packed), generator=torch.Generator().manual_seed(0))
    messages = messages.to(DEVICE, torch.uint8)
    assert torch.equal(work.combine(_kernel, messages), work.combine(_reference, messages))
