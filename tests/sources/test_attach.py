import copy
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import laconic
from laconic import Dense
from tests.support.toys import flat, grads, loss, network, parallel, train
from tests.support.workers import run

TOLERANCE = 1e-5  # fp32 sums in another order, over a few dozen steps


def _losses(make, technique, steps=12, dtype=torch.float32):
    model = make()
    if technique is not None:
        laconic.attach(model, technique)
    return train(model, range(steps), dtype=dtype)


def _both(make, **options):
    return _losses(make, None, **options), _losses(make, Dense(), **options)


def _as_bucket_views():
    return parallel(gradient_as_bucket_view=True)


def _static_graph():
    return parallel(static_graph=True)


def _frozen():
    model = network()
    for parameter in model[2].parameters():
        parameter.requires_grad_(False)
    return parallel(model)


class _SometimesUnused(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.used, self.unused = nn.Linear(32, 7), nn.Linear(32, 7)
        self.sometimes = nn.Linear(32, 7)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.used(x) + (self.sometimes(x) if self.calls % 2 else 0.0)


def _unused():
    return DistributedDataParallel(_SometimesUnused(), find_unused_parameters=True, bucket_cap_mb=0.0005)


def _compiled():
    # torch.compile wants buckets of at least a mebibyte; these layers fill six of them
    return torch.compile(parallel(network(width=512), bucket_cap_mb=1), backend="aot_eager")


def _compiled_inside():
    return parallel(torch.compile(network(width=512), backend="aot_eager"), bucket_cap_mb=1)


@pytest.mark.parametrize(
    "make", [parallel, _as_bucket_views, _static_graph, _frozen, _unused, _compiled, _compiled_inside]
)
def test_dense_trains_like_plain_ddp(make):
    for plain, dense in run(2, _both, make):
        assert dense == pytest.approx(plain, rel=TOLERANCE)


def _mixed_precision_parameters():
    model = network()
    for layer in (2, 4):
        model[layer].to(torch.bfloat16)
        model[layer].register_forward_pre_hook(lambda _, inputs: (inputs[0].bfloat16(),))
        model[layer].register_forward_hook(lambda *args: args[-1].float())
    return parallel(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_parameters_train_like_plain_ddp(dtype):
    for plain, dense in run(2, _narrow, dtype):
        # two roundings to the format's precision a step, here at most a few units apart
        assert dense == pytest.approx(plain, rel=20 * torch.finfo(dtype).eps)


def _narrow(dtype):
    return _both(lambda: parallel(network(dtype)), dtype=dtype)


def test_parameters_of_mixed_types_train_like_plain_ddp():
    for plain, dense in run(2, _both, _mixed_precision_parameters):
        assert dense == pytest.approx(plain, rel=20 * torch.finfo(torch.bfloat16).eps)


def _accumulated(technique):
    model = parallel()
    attachment = laconic.attach(model, technique)
    with model.no_sync():
        loss(model, 0).backward()
    silent = attachment.stats().sent
    loss(model, 1).backward()
    plain = parallel()
    with plain.no_sync():
        loss(plain, 0).backward()
    loss(plain, 1).backward()
    return silent, grads(model), grads(plain)


def test_nothing_is_sent_under_no_sync_and_accumulated_gradients_are_averaged():
    for silent, accumulated, plain in run(2, _accumulated, Dense()):
        assert silent == 0
        assert torch.allclose(accumulated, plain, atol=1e-6)


def _in_subgroups():
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    group = groups[dist.get_rank() % 2]
    model = parallel(process_group=group)
    laconic.attach(model, Dense())
    losses = train(model, range(5))
    return losses, flat(model)


def test_a_subgroup_averages_among_its_own_workers():
    results = run(4, _in_subgroups)
    weights = [weights for _, weights in results]
    assert torch.equal(weights[0], weights[2])
    assert torch.equal(weights[1], weights[3])
    assert not torch.equal(weights[0], weights[1])


def _detached():
    model = parallel()
    attachment = laconic.attach(model, Dense())
    losses = train(model, range(3))
    attachment.detach()
    sent = attachment.stats().sent
    losses += train(model, range(3, 6))
    silent = attachment.stats().sent == sent
    attachment = laconic.attach(model, Dense())
    losses += train(model, range(6, 9))
    return losses, silent, attachment.stats().sent, _losses(parallel, None, steps=9)


def test_detach_restores_plain_ddp_and_allows_another_attach():
    for losses, silent, sent, plain in run(2, _detached):
        assert losses == pytest.approx(plain, rel=TOLERANCE)
        assert silent
        assert sent > 0


def _uneven_inputs():
    model = parallel()
    laconic.attach(model, Dense())
    plain = parallel()
    for trained in (model, plain):
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
        with trained.join():
            for step in range(3 + dist.get_rank()):
                optimizer.zero_grad()
                loss(trained, step).backward()
                optimizer.step()
    return flat(model), flat(plain)


def test_workers_may_have_uneven_inputs_under_join():
    for weights, plain in run(2, _uneven_inputs):
        assert torch.allclose(weights, plain, atol=1e-5)


def _copied():
    model = parallel()
    laconic.attach(model, Dense())
    train(model, range(2))
    copied = copy.deepcopy(model)
    attachment = laconic.attach(copied, Dense(dtype="bf16"))
    train(copied, range(2, 4))
    return attachment.stats().steps


def test_a_copied_model_takes_an_attachment_of_its_own():
    assert run(2, _copied) == [2, 2]


def _buckets_by_step():
    model = parallel()
    attachment = laconic.attach(model, Dense())
    steps, reduce = [[]], attachment.source.reduce

    def watch(bucket):
        steps[-1].append(bucket.buffer().numel())
        if bucket.is_last():
            steps.append([])
        return reduce(bucket)

    attachment.source.reduce = watch
    train(model, range(3))
    return steps[:3]


def test_the_test_model_has_five_buckets_and_ddp_rebuilds_them():
    (steps,) = run(1, _buckets_by_step)
    assert steps[0] != steps[1] == steps[2]
    assert len(steps[1]) >= 5


def _profiled():
    model = parallel()
    laconic.attach(model, Dense())
    every_thread = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, experimental_config=every_thread) as profile:
        loss(model, 0).backward()
    return {event.key for event in profile.key_averages()}


def test_phases_show_in_the_profiler():
    (names,) = run(1, _profiled)
    assert {"laconic.encode", "laconic.combine", "laconic.decode"} <= names


def _measured_error(technique):
    model = parallel()
    attachment = laconic.attach(model, technique, measure_error=True)
    errors = []
    attachment.on_step(lambda step, stats: errors.append((step, stats.readings["error"])))
    train(model, range(3))
    return errors, attachment.stats().sent


def test_the_error_against_the_exact_mean_is_measured_when_asked():
    narrow, exact = run(2, _measured_error, Dense(dtype="bf16"))[0], run(2, _measured_error, Dense())[0]
    assert [step for step, _ in narrow[0]] == [0, 1, 2]
    # a rounding to 8 bits has relative error uniform in ±2^-9, twice: 2·(2^-9)²/3 and a little more
    assert all(1e-7 < error < 1e-5 for _, error in narrow[0])
    assert all(error < 1e-12 for _, error in exact[0])
    assert exact[1] == pytest.approx(2 * narrow[1], rel=1e-3)  # but for seals


def _dropped_models():
    """Lanes and parameters that are left after models were attached and dropped."""
    import gc
    import threading

    for detaches in (True, False):
        model = parallel()
        attachment = laconic.attach(model, Dense())
        train(model, range(1))
        if detaches:
            attachment.detach()
        del model, attachment
    gc.collect()
    lanes = [thread for thread in threading.enumerate() if thread.name == "laconic-lane"]
    for lane in lanes:
        lane.join(10)
    return sum(lane.is_alive() for lane in lanes), sum(
        isinstance(thing, nn.Parameter) for thing in gc.get_objects()
    )


def test_a_dropped_model_is_freed_with_its_lane():
    assert run(1, _dropped_models) == [(0, 0)]


def _gloo_threads():
    """Those that hold what was sent last until something else is sent, or their group is gone."""
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    return sum("runloop" in name for name in names)


def _threads_after_detaching(technique):
    model = parallel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = _gloo_threads()
    attachment = laconic.attach(model, technique, optimizer=optimizer)
    train(model, range(2), optimizer=optimizer)
    during = _gloo_threads()
    attachment.detach()
    return during > before, _gloo_threads() - before


@pytest.mark.parametrize("technique", [Dense(), laconic.THC(), laconic.Crossover()])
def test_detaching_ends_the_threads_of_its_groups(technique):
    """A program may end at once, and one that lets go of a tensor then ends it by a signal."""
    assert run(2, _threads_after_detaching, technique) == [(True, 0)] * 2


def _old_attachment_detached_again():
    model = parallel()
    old = laconic.attach(model, Dense())
    old.detach()
    new = laconic.attach(model, Dense())
    old.detach()
    train(model, range(2))
    return new.stats().steps


def test_detaching_twice_does_not_touch_a_newer_attachment():
    assert run(1, _old_attachment_detached_again) == [2]


def _empty_parameter():
    model = nn.ModuleDict({"layer": nn.Linear(3, 3)})
    model.register_parameter("empty", nn.Parameter(torch.zeros(0, dtype=torch.bfloat16)))
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    attachment = laconic.attach(ddp, Dense())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            _Through(ddp)(torch.ones(1, 3)).sum().backward()
    return attachment.stats().steps


class _Through:
    def __init__(self, ddp):
        self.ddp = ddp
        ddp.module.forward = lambda x: ddp.module["layer"](x) + ddp.module.empty.sum()

    def __call__(self, x):
        return self.ddp(x)


def test_a_parameter_without_coordinates_holds_nothing_up():
    assert run(2, _empty_parameter, seconds=30) == [2, 2]


def _frozen_after_wrapping():
    model = parallel(find_unused_parameters=True)
    model.module[0].weight.requires_grad_(False)
    laconic.attach(model, Dense())
    return len(train(model, range(2)))


def test_a_parameter_may_be_frozen_after_ddp_was_built():
    assert run(2, _frozen_after_wrapping) == [2, 2]
