import torch
import torch.distributed as dist

from laconic import Dense
from laconic.core.place import Traffic
from laconic.core.technique import Bucket, Setting
from laconic.engine.reducer import Reducer
from laconic.places.peers import Peers
from tests.support.owners import OwnerRounds
from tests.support.workers import run

CPU = torch.device("cpu")
BUCKETS = [Bucket(("a",), (1000,), torch.float32), Bucket(("b", "c"), (7, 3), torch.float32)]


def _reducer(technique=None):
    scheme = (technique or Dense()).bind(Setting(dist.get_world_size()))
    post = Peers().open(dist.group.WORLD, CPU, Traffic(scheme.routes, scheme.surveys))
    return Reducer(scheme, post, CPU)


def _grads(step):
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    return [torch.randn(bucket.numel, generator=generator) for bucket in BUCKETS]


def _one_step():
    reducer = _reducer()
    grads = _grads(0)
    kept = [grad.clone() for grad in grads]
    futures = [reducer.reduce(g, b, last=b is BUCKETS[-1]) for g, b in zip(grads, BUCKETS, strict=True)]
    results = [future.wait() for future in futures]
    in_place = all(result.data_ptr() == grad.data_ptr() for result, grad in zip(results, grads, strict=True))
    return kept, results, in_place, reducer.step, reducer.meter.stats().steps


def test_a_bucket_becomes_the_mean_in_place():
    answers = run(3, _one_step)
    for index in range(len(BUCKETS)):
        mean = torch.stack([kept[index] for kept, *_ in answers]).mean(0)
        for _, results, in_place, step, steps in answers:
            assert torch.allclose(results[index], mean, atol=1e-6)
            assert in_place
            assert step == steps == 1


def _memory_after(bad_bucket, technique, kind):
    """The memory of one kind after a step in which one bucket is bad on worker 1."""
    reducer = _reducer(technique)
    grads = _grads(0)
    if bad_bucket is not None and dist.get_rank() == 1:
        grads[bad_bucket][0] = float("nan")
    for grad, bucket in zip(grads, BUCKETS, strict=True):
        reducer.reduce(grad, bucket, last=bucket is BUCKETS[-1]).wait()
    return reducer.memory.values()[kind]


def test_a_bad_value_in_any_bucket_keeps_the_whole_step_out_of_memory():
    feedback = (Dense(dtype="bf16", error_feedback=True), "residual")
    for good in run(2, _memory_after, None, *feedback):
        assert [bool(good[name].any()) for name in ("a", "b", "c")] == [True] * 3
    for bad_bucket in range(len(BUCKETS)):
        for bad in run(2, _memory_after, bad_bucket, *feedback):
            assert [bool(bad[name].any()) for name in ("a", "b", "c")] == [False] * 3


def test_a_bad_value_keeps_the_step_out_of_what_aggregators_keep():
    for bad_bucket, steps in ((None, 3), (0, 0), (1, 0)):  # one slice a parameter
        kept = run(2, _memory_after, bad_bucket, OwnerRounds(), "steps")
        assert sum(int(value.sum()) for values in kept for value in values.values()) == steps


def _two_at_once():
    """Two attachments in one process, used in turn, each on channels of its own."""
    first, second = _reducer(), _reducer(Dense(dtype="bf16"))
    sums = []
    for step in range(5):
        for reducer in (first, second):
            (grad, _), bucket = _grads(step), BUCKETS[0]
            sums.append(reducer.reduce(grad, bucket, last=True).wait().sum().item())
    first.closer()
    second.closer()
    return sums


def test_two_attachments_do_not_disturb_each_other():
    first, second = run(2, _two_at_once)
    assert first == second
