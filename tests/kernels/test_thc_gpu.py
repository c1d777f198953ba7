"""THC's Triton kernels give the reference's bits: on a CUDA device, and without one in Triton's interpreter.

The interpreter is chosen before Triton is loaded, so these tests have a process of their own where there is no
device.
"""

import pytest
import torch

from laconic.techniques.thc import THC
from tests.support.interpreted import DEVICE, INTERPRETED, MARKS, interpret, on_a_device, without_a_device
from tests.support.thc_work import Work, check, reference

LARGEST = 1024 if INTERPRETED else 4096
"""Of most tests' blocks; that they may have any size is a test of its own."""

pytestmark = MARKS


@without_a_device
@pytest.mark.timeout(450)
def test_the_interpreter_gives_the_references_bits():
    interpret(__file__)


def _kernel(name):
    from laconic.kernels.thc import launch

    return getattr(launch, name)


def _work(technique, *options, sizes=(LARGEST + 1034, 24, 1), **more):
    return Work(technique, *options, sizes=sizes, device=DEVICE, **more)


def _check(work):
    check(work, _kernel, _nearly if INTERPRETED else torch.equal)


def _nearly(ours, theirs):
    """Equal but for bf16: the interpreter drops the bits that a device rounds."""
    return (
        torch.allclose(ours, theirs, rtol=2**-7)
        if ours.dtype == torch.bfloat16
        else torch.equal(ours, theirs)
    )


@on_a_device
@pytest.mark.parametrize("workers", [1, 4])
def test_several_workers_and_blocks_of_many_sizes(workers):
    _check(_work(THC(block=LARGEST), workers))


@on_a_device
def test_one_small_block():
    _check(_work(THC(), 1, sizes=(1,)))


@on_a_device
def test_blocks_that_start_anywhere():
    _check(_work(THC(block=LARGEST), sizes=(13, LARGEST + 3, 1, 700)))


@on_a_device
@pytest.mark.parametrize(("sizes", "lane"), [((40,), 8), ((LARGEST, 300), 8), ((300, 9), 9)])
def test_shards_much_smaller_than_a_block(sizes, lane):
    _check(_work(THC(lane=lane, block=LARGEST), 17, sizes=sizes))


@on_a_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("error_feedback", [True, False])
def test_every_format_with_and_without_a_residual(dtype, error_feedback):
    _check(_work(THC(block=1024, error_feedback=error_feedback), 2, sizes=(1024, 1100, 10), dtype=dtype))


@on_a_device
@pytest.mark.parametrize("block", [8, 64, 512, 8192, 32768])
def test_every_size_of_block(block):
    _check(_work(THC(block=block), 2, sizes=(block + 24,)))


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
    _check(_work(THC(bits=bits, lane=lane, granularity=granularity, block=512), sizes=(700, 9)))


@on_a_device
def test_integers_beyond_those_of_fp32():
    _check(_work(THC(granularity=1023, lane=16, block=32768), sizes=(32768, 40)))


@on_a_device
def test_sums_that_start_within_a_word():
    work = _work(THC(block=512), sizes=(1000, 24))
    norms = work.norms(reference).amax(0)
    replies = work.replies(reference, norms, range(3))
    for shift in range(4):
        moved = torch.empty(replies.numel() + shift, dtype=torch.uint8, device=DEVICE)[shift:]
        moved = moved.view_as(replies).copy_(replies)
        assert torch.equal(work.decode(_kernel, moved, norms), work.decode(reference, replies, norms))


@on_a_device
@pytest.mark.parametrize("scale", [0.0, 1e-36, 1e-28, 1e15])
def test_values_of_any_size(scale):
    _check(_work(THC(block=512), sizes=(600, 9), scale=scale))


@on_a_device
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_a_bad_value_makes_a_block_infinite_and_the_result_not_finite(bad):
    work = _work(THC(block=512), sizes=(1000, 24))
    work.grad[1, 17] = bad
    norms = work.norms(_kernel)
    assert norms.isinf().nonzero().tolist() == [[1, 0]]
    norms = norms.amax(0)
    messages = [work.encode(_kernel, norms, worker)[0] for worker in range(3)]
    assert torch.equal(messages[1], work.encode(reference, norms, 1)[0])
    replies = torch.stack([work.combine(_kernel, shard) for shard in torch.stack(messages, dim=1)])
    grad = work.decode(_kernel, replies, norms)
    assert not grad[:512].isfinite().any()
    assert grad[512:].isfinite().all()


@on_a_device
def test_a_missing_worker_is_not_counted():
    work = _work(THC(block=512), sizes=(1000, 24))
    norms = work.norms(reference).amax(0)
    replies = work.replies(_kernel, norms, range(2))
    assert torch.equal(work.decode(_kernel, replies, norms), work.decode(reference, replies, norms))


@on_a_device
def test_shards_with_different_contributors_give_no_number():
    work = _work(THC(block=512), sizes=(1000, 24))
    norms = work.norms(reference).amax(0)
    replies = work.replies(reference, norms, range(3))
    replies[1, -4] = 2
    grad = work.decode(_kernel, replies, norms)
    assert grad[:512].isnan().all()


@on_a_device
@pytest.mark.parametrize("count", [0, 4])
def test_contributors_that_cannot_be_give_no_number(count):
    work = _work(THC(block=512), sizes=(1000, 24))
    norms = work.norms(reference).amax(0)
    replies = work.replies(reference, norms, range(3))
    replies[:, -4] = count
    assert work.decode(_kernel, replies, norms).isnan().all()


@on_a_device
def test_more_messages_than_a_byte_counts():
    work = _work(THC(bits=2, lane=16, block=64), workers=300, sizes=(64,))
    packed = work.piece.width * 2 // 8
    messages = torch.randint(0, 256, (300, packed), generator=torch.Generator().manual_seed(0))
    messages = messages.to(DEVICE, torch.uint8)
    assert torch.equal(work.combine(_kernel, messages), work.combine(reference, messages))
