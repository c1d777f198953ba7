"""THC's ops give the reference's bits on every instruction set."""

import pytest
import torch

from laconic import kernels
from laconic.blocks import block_pieces
from laconic.kernels import thc as ops
from laconic.technique import Bucket
from laconic.thc import THC

SETS = kernels.native.instruction_sets() if kernels.native else []
FORMATS = [torch.float32, torch.bfloat16, torch.float16]
SHARED, OWN = 123456789, 0xFFFFFF00


@pytest.fixture(params=SETS, autouse=True)
def instruction_set(request):
    before = kernels.native.chosen()
    kernels.native.choose(request.param)
    yield request.param
    kernels.native.choose(before)


class Work:
    """One piece with everything that the ops take."""

    def __init__(self, technique, workers=3, sizes=(5130, 24, 1, 9000), dtype=torch.float32, scale=1.0):
        generator = torch.Generator().manual_seed(0)
        bucket = Bucket(tuple(f"p{i}" for i in range(len(sizes))), tuple(sizes), dtype)
        (piece,) = block_pieces(bucket, workers, block=technique.block, width=1 << 20)
        self.technique, self.piece, self.grid = technique, piece, technique.grid(workers)
        self.chart = piece.chart(torch.device("cpu"))
        self.table = torch.tensor(self.grid.table)
        self.grad = (scale * torch.randn(workers, piece.numel, generator=generator)).to(dtype)
        self.residual = None
        if technique.error_feedback:
            self.residual = 0.3 * scale * torch.randn(workers, piece.numel, generator=generator)

    def old(self, worker):
        return None if self.residual is None else self.residual[worker]

    def norms(self, reference):
        rows = torch.empty(len(self.grad), len(self.chart))
        for worker, row in enumerate(rows):
            _op(ops.thc_norms, reference)(self.grad[worker], self.old(worker), self.chart, row)
        return rows

    def encode(self, reference, norms, worker=0):
        codes = torch.zeros(self.piece.shards, self.piece.width * self.technique.bits // 8, dtype=torch.uint8)
        new = None if self.residual is None else torch.full_like(self.residual[0], 7.0)
        quality = torch.empty(len(self.chart), 3)
        grid, grad = self.grid, self.grad[worker]
        _op(ops.thc_encode, reference)(
            grad,
            self.old(worker),
            norms,
            self.chart,
            self.table,
            grid.granularity,
            grid.threshold,
            SHARED,
            OWN + worker,
            self.technique.bits,
            codes,
            new,
            quality,
        )
        return codes, new, quality

    def combine(self, reference, messages):
        reply = torch.empty(self.piece.width * self.grid.lane // 8 + ops.COUNT_BYTES, dtype=torch.uint8)
        _op(ops.thc_combine, reference)(messages, self.table, self.technique.bits, self.grid.lane, reply)
        return reply

    def decode(self, reference, replies, norms):
        grad, grid = torch.full_like(self.grad[0], 7.0), self.grid
        _op(ops.thc_decode, reference)(
            replies, norms, self.chart, grid.granularity, grid.threshold, SHARED, grid.lane, grad
        )
        return grad


def _op(op, reference):
    return op.reference if reference else op


def _check(work):
    """Every op equals its reference, each on what the reference gave so far."""
    norms = work.norms(reference=True)
    assert torch.allclose(work.norms(reference=False), norms, rtol=1e-5)
    norms = norms.amax(0)
    messages = []
    for worker in range(len(work.grad)):
        codes, new, quality = work.encode(True, norms, worker)
        ours, our_new, our_quality = work.encode(False, norms, worker)
        assert torch.equal(ours, codes)
        assert (new is None and our_new is None) or torch.equal(our_new, new)
        assert torch.allclose(our_quality, quality, rtol=1e-4)
        messages.append(codes)
    shards = torch.stack(messages, dim=1)
    replies = torch.stack([work.combine(True, shard) for shard in shards])
    assert torch.equal(torch.stack([work.combine(False, shard) for shard in shards]), replies)
    assert torch.equal(work.decode(False, replies, norms), work.decode(True, replies, norms))


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8, 30])
def test_any_number_of_workers(workers):
    _check(Work(THC(), workers))


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("error_feedback", [True, False])
def test_every_format_with_and_without_a_residual(dtype, error_feedback):
    _check(Work(THC(error_feedback=error_feedback), dtype=dtype))


@pytest.mark.parametrize("block", [8, 16, 64, 256, 512, 1024, 2048, 8192, 32768])
def test_every_size_of_block(block):
    _check(Work(THC(block=block), sizes=(70001, 24)))


@pytest.mark.parametrize(
    ("bits", "lane"),
    [(b, lane) for b in (2, 3, 4, 5, 6, 8) for lane in (8, 9, 11, 12, 16) if 3 * (2**b - 1) < 2**lane],
)
def test_every_width_of_codes_and_sums(bits, lane):
    _check(Work(THC(bits=bits, lane=lane)))


@pytest.mark.parametrize("tail", [0.99999, 0.5, 1 / 1024])
def test_uniform_tables_and_other_tails(tail):
    _check(Work(THC(uniform=True, tail=tail)))


@pytest.mark.parametrize("scale", [0.0, 1e-36, 1e-28, 1e-20, 1e15])
def test_values_of_any_size(scale):
    _check(Work(THC(), scale=scale))


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_a_bad_value_makes_a_block_infinite_and_the_result_not_finite(bad):
    work = Work(THC())
    work.grad[1, 17] = bad
    norms = work.norms(reference=False)
    assert norms.isinf().nonzero().tolist() == [[1, 0]]
    norms = norms.amax(0)
    for worker in range(3):
        codes, _, _ = work.encode(False, norms, worker)
    replies = torch.stack([work.combine(False, shard) for shard in torch.stack([codes] * 3, dim=1)])
    grad = work.decode(False, replies, norms)
    assert not grad[:4096].isfinite().any()
    assert grad[4096:].isfinite().all()


def test_a_missing_worker_is_not_counted():
    work = Work(THC())
    norms = work.norms(reference=True).amax(0)
    shards = torch.stack([work.encode(True, norms, worker)[0] for worker in range(2)], dim=1)
    replies = torch.stack([work.combine(False, shard) for shard in shards])
    assert torch.equal(work.decode(False, replies, norms), work.decode(True, replies, norms))


def _spoiled(chart, column, value):
    chart = chart.clone()
    chart[0, column] = value
    return chart


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (ops.START, -1),
        (ops.START, 14_000),
        (ops.NUMEL, 5000),
        (ops.SIZE, 100),
        (ops.SIZE, 1 << 16),
        (ops.AT, 1 << 20),
    ],
)
def test_a_block_outside_its_piece_is_refused_before_memory_is_touched(column, value):
    work = Work(THC())
    norms = work.norms(reference=True).amax(0)
    work.chart = _spoiled(work.chart, column, value)
    with pytest.raises(ValueError, match="block"):
        work.encode(False, norms)


def test_sums_beyond_their_lanes_are_refused():
    work = Work(THC())
    messages = torch.zeros(4, work.piece.width // 2, dtype=torch.uint8)
    with pytest.raises(ValueError, match="do not fit"):
        work.combine(False, messages)
