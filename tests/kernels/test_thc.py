"""THC's ops give the reference's bits on every instruction set."""

import pytest
import torch

from laconic import kernels
from laconic.kernels import thc as ops
from laconic.techniques.thc import THC
from tests.support.thc_work import Work, check, dispatched, reference

SETS = kernels.native.instruction_sets() if kernels.native else []
FORMATS = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(params=SETS, autouse=True)
def instruction_set(request):
    before = kernels.native.chosen()
    kernels.native.choose(request.param)
    yield request.param
    kernels.native.choose(before)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8, 30])
def test_any_number_of_workers(workers):
    check(Work(THC(), workers), dispatched)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("error_feedback", [True, False])
def test_every_format_with_and_without_a_residual(dtype, error_feedback):
    check(Work(THC(error_feedback=error_feedback), dtype=dtype), dispatched)


@pytest.mark.parametrize("sizes", [(40,), (4096,), (300, 9)])
def test_shards_much_smaller_than_a_block(sizes):
    check(Work(THC(), workers=17, sizes=sizes), dispatched)


@pytest.mark.parametrize("block", [8, 16, 64, 256, 512, 1024, 2048, 8192, 32768])
def test_every_size_of_block(block):
    check(Work(THC(block=block), sizes=(70001, 24)), dispatched)


@pytest.mark.parametrize(
    ("bits", "lane"),
    [(b, lane) for b in (2, 3, 4, 5, 6, 8) for lane in (8, 9, 11, 12, 16) if 3 * (2**b - 1) < 2**lane],
)
def test_every_width_of_codes_and_sums(bits, lane):
    check(Work(THC(bits=bits, lane=lane)), dispatched)


@pytest.mark.parametrize("tail", [0.9989, 0.5, 1 / 1024])
def test_uniform_tables_and_other_tails(tail):
    check(Work(THC(uniform=True, tail=tail)), dispatched)


@pytest.mark.parametrize("scale", [0.0, 1e-36, 1e-28, 1e-20, 1e15])
def test_values_of_any_size(scale):
    check(Work(THC(), scale=scale), dispatched)
    check(Work(THC(tail=0.99), workers=1, scale=scale), dispatched)


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_a_bad_value_makes_a_block_infinite_and_the_result_not_finite(bad):
    work = Work(THC())
    work.grad[1, 17] = bad
    norms = work.norms(dispatched)
    assert norms.isinf().nonzero().tolist() == [[1, 0]]
    norms = norms.amax(0)
    for worker in range(3):
        codes, _, _ = work.encode(dispatched, norms, worker)
    replies = torch.stack([work.combine(dispatched, shard) for shard in torch.stack([codes] * 3, dim=1)])
    grad = work.decode(dispatched, replies, norms)
    assert not grad[:4096].isfinite().any()
    assert grad[4096:].isfinite().all()


def test_a_missing_worker_is_not_counted():
    work = Work(THC())
    norms = work.norms(reference).amax(0)
    replies = work.replies(dispatched, norms, range(2))
    assert torch.equal(work.decode(dispatched, replies, norms), work.decode(reference, replies, norms))


def test_shards_with_different_contributors_are_refused():
    work = Work(THC())
    norms = work.norms(reference).amax(0)
    shards = torch.stack([work.encode(reference, norms, worker)[0] for worker in range(3)], dim=1)
    replies = torch.stack([work.combine(reference, shard[: 3 - (k == 1)]) for k, shard in enumerate(shards)])
    for backend in (reference, dispatched):
        with pytest.raises(ValueError, match="different numbers of contributors"):
            work.decode(backend, replies, norms)


@pytest.mark.parametrize("count", [0, 256 // 85 + 1, 255, 2**16, 2**31])
def test_contributors_that_cannot_be_are_refused(count):
    work = Work(THC())
    assert work.grid.granularity == 85
    norms = work.norms(reference).amax(0)
    replies = work.replies(reference, norms, range(3))
    replies[:, -4:] = torch.tensor(list(count.to_bytes(4, "little")), dtype=torch.uint8)
    for backend in (reference, dispatched):
        with pytest.raises(ValueError, match="contributors have no sums"):
            work.decode(backend, replies, norms)


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
    norms = work.norms(reference).amax(0)
    work.chart = _spoiled(work.chart, column, value)
    with pytest.raises(ValueError, match="block"):
        work.encode(dispatched, norms)


@pytest.mark.parametrize(("bits", "table"), [(0, [0, 1]), (4, []), (4, [0, 1]), (9, range(512))])
def test_codes_without_their_table_are_refused(bits, table):
    messages, reply = torch.zeros(2, 8, dtype=torch.uint8), torch.zeros(20, dtype=torch.uint8)
    with pytest.raises(ValueError, match="a table has"):
        ops.thc_combine(messages, torch.tensor(list(table), dtype=torch.long), bits, 8, reply)


def test_sums_beyond_their_lanes_are_refused():
    work = Work(THC())
    messages = torch.zeros(4, work.piece.width // 2, dtype=torch.uint8)
    with pytest.raises(ValueError, match="do not fit"):
        work.combine(dispatched, messages)
