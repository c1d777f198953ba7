"""The conformance table: what every technique must do, on real processes. A new technique adds a row."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist

import laconic
from laconic.core.technique import Bucket
from laconic.techniques.dad import DAD, RankDAD
from laconic.techniques.edad import EDAD
from laconic.techniques.gennorm import GenNorm
from laconic.techniques.sign_vote import SignVote
from laconic.techniques.thc import THC
from tests.support.by_hand import Group
from tests.support.toys import flat, grads, loss, parallel, train
from tests.support.workers import run


def near_mean(error):
    """|result - mean| is at most `error` · |mean|, or where the mean nearly cancels, of a gradient's length."""

    def judge(result, gradients):
        mean, scale = gradients.mean(0), gradients.norm() / len(gradients) ** 0.5
        assert (result - mean).norm() <= error * max(mean.norm(), scale)

    return judge


def majority(result, gradients):
    """Whoever spoke was right about itself: no coordinate moves against all workers' gradients."""
    assert set(result.unique().tolist()) <= {-1.0, 0.0, 1.0}
    assert (result.bool() | (gradients == 0).all()).any()
    assert (((gradients * result) > 0).any(0) | (result == 0)).all()


def vote(result, gradients):
    """Everybody spoke everywhere: the majority of signs."""
    assert torch.equal(result, gradients.sign().sum(0).sign())


@dataclass(frozen=True)
class Row:
    """A technique and what its first result is for the workers' gradients, one a row."""

    technique: object
    judge: Callable[[torch.Tensor, torch.Tensor], None]
    many: bool = False
    """Whether its first result is looked at among eight workers, too: one row for each way that messages go."""


ROWS = [
    Row(laconic.Dense(), near_mean(1e-6), many=True),
    Row(
        laconic.Dense(dtype="bf16"), near_mean(2**-7)
    ),  # one rounding up, one down, each half a unit of 8 bits
    Row(laconic.Dense(dtype="fp16"), near_mean(2**-9)),
    Row(laconic.Dense(dtype="bf16", error_feedback=True), near_mean(2**-7)),
    # √(rounding + clamping) is 0.14 for one worker, and blocks of 7 are not normal
    Row(THC(block=256), near_mean(0.25), many=True),
    Row(THC(bits=2, lane=9, uniform=True, error_feedback=False), near_mean(0.6)),
    Row(THC(entropy=True, block=256), near_mean(0.25)),
    Row(SignVote(0.1, weighting="agreement"), majority),
    Row(SignVote(1.0, memory=0), vote),
    Row(SignVote(0.4, ties="random"), majority, many=True),
    Row(SignVote(1.0, memory=0, entropy=True), vote),
    # the levels next to each other are a third apart at most, and all but 2 % of the energy is not below the first
    Row(GenNorm(), near_mean(0.5), many=True),
    Row(GenNorm("e5m2", coder="rans", refit=3), near_mean(0.25)),  # two roundings by an eighth at most
    Row(GenNorm("e4m3", memory=0, scale=4.0), near_mean(0.15)),
]
LAYERS = [  # in their first step all are Dense
    Row(DAD(), near_mean(1e-5)),
    Row(EDAD(), near_mean(1e-5), many=True),
    Row(RankDAD(2), near_mean(1e-5)),
    Row(RankDAD(2, two_way=True, dtype="bf16"), near_mean(0.01), many=True),
]
every_technique = pytest.mark.parametrize("row", ROWS + LAYERS, ids=lambda row: repr(row.technique))
every_technique_for_gradients = pytest.mark.parametrize("row", ROWS, ids=lambda row: repr(row.technique))


def _result_and_own(technique):
    model = parallel()
    with model.no_sync():
        loss(model, 0).backward()
    own = grads(model)
    model = parallel()
    laconic.attach(model, technique)
    loss(model, 0).backward()
    return grads(model), own


@pytest.mark.parametrize(
    ("row", "workers"),
    [(row, workers) for row in ROWS + LAYERS for workers in ((1, 3, 8) if row.many else (1, 3))],
    ids=lambda value: repr(value.technique) if isinstance(value, Row) else str(value),
)
def test_the_result_is_what_it_should_be_and_the_same_on_all_workers(row, workers):
    results, gradients = zip(*run(workers, _result_and_own, row.technique), strict=True)
    assert all(torch.equal(result, results[0]) for result in results)
    row.judge(results[0], torch.stack(gradients))


@pytest.mark.parametrize("numel", [1, 2, 7, 64, 1000, 4097])
@pytest.mark.parametrize("workers", [1, 3, 8])
@every_technique_for_gradients
def test_any_number_of_coordinates_is_served(row, workers, numel):
    gradients = torch.randn(workers, numel, generator=torch.Generator().manual_seed(numel))
    bucket = Bucket(("w",), (numel,), torch.float32)
    row.judge(Group(row.technique, workers).reduce(bucket, list(gradients)), gradients)


@every_technique_for_gradients
def test_zero_gradients_give_zeros(row):
    bucket = Bucket(("w",), (100,), torch.float32)
    assert Group(row.technique, 3).reduce(bucket, [torch.zeros(100)] * 3).abs().max() == 0


def _bad_batches(technique):
    """What two bad batches change, the losses of the steps between and behind them, and the replica in the end."""
    model = parallel()
    attachment = laconic.attach(model, technique)
    losses = train(model, range(3))
    seen = []
    for bad_value, step in ((float("inf"), 3), (float("nan"), 6)):
        seen.append(_bad_batch(model, attachment, bad_value, step))
        losses += train(model, range(step + 1, step + 3))
    return seen, losses, flat(model)


def _bad_batch(model, attachment, bad_value, step):
    before = attachment.state_dict()["memory"]
    value = loss(model, step)
    if dist.get_rank() == 1:
        value = value * bad_value
    model.zero_grad()
    value.backward()
    bad, after = grads(model), attachment.state_dict()["memory"]
    unchanged = all(torch.equal(before[k][n], after[k][n]) for k in before for n in before[k])
    return bool(torch.isfinite(bad).all()), unchanged


@every_technique
def test_replicas_stay_equal_to_the_bit_and_a_bad_batch_gives_no_finite_result_and_changes_no_state(row):
    results = run(3, _bad_batches, row.technique)
    for seen, losses, replica in results:
        assert seen == [(False, True)] * 2
        assert torch.isfinite(torch.tensor(losses)).all()
        assert torch.equal(replica, results[0][2])


def _scaled_training(technique, bad_step):
    model = parallel()
    laconic.attach(model, technique)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=1000)
    moved = []
    for step in range(8):
        before = flat(model)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            value = loss(model, step)
        if step == bad_step and dist.get_rank() == 1:
            value = value * float("inf")
        scaler.scale(value).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        moved.append(not torch.equal(before, flat(model)))
    return moved, scaler.get_scale(), flat(model)


@every_technique
def test_grad_scaler_skips_exactly_the_bad_step_on_all_workers(row):
    results = run(3, _scaled_training, row.technique, 4)
    for moved, scale, weights in results:
        assert moved == [True, True, True, True, False, True, True, True]
        assert scale == 2.0**7
        assert torch.equal(weights, results[0][2])


def _uninterrupted(technique):
    model = parallel()
    laconic.attach(model, technique)
    return train(model, range(8), optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


def _interrupted(technique, directory):
    path = f"{directory}/worker{dist.get_rank()}.pt"
    model = parallel()
    attachment = laconic.attach(model, technique)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = train(model, range(5), optimizer=optimizer)
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**state, "laconic": attachment.state_dict()}, path)
    attachment.detach()

    model = parallel()
    attachment = laconic.attach(model, technique)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = torch.load(path, weights_only=True)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    attachment.load_state_dict(state["laconic"])
    return losses + train(model, range(5, 8), optimizer=optimizer)


def _both_ways(technique, directory):
    return _uninterrupted(technique), _interrupted(technique, directory)


@every_technique
def test_a_resumed_run_has_the_losses_of_an_uninterrupted_one(row, tmp_path):
    assert all(straight == resumed for straight, resumed in run(2, _both_ways, row.technique, str(tmp_path)))


def _memory_by_name(technique, buckets):
    model = torch.nn.parallel.DistributedDataParallel(parallel().module, bucket_cap_mb=buckets)
    attachment = laconic.attach(model, technique)
    train(model, range(3))
    return attachment.state_dict()["memory"]


def _memory_with_few_and_many_buckets(technique):
    return [_memory_by_name(technique, buckets) for buckets in (25, 0.05)]


@every_technique
def test_memory_belongs_to_parameters_whatever_the_buckets(row):
    (few, many), _ = run(2, _memory_with_few_and_many_buckets, row.technique)
    for kind in few:
        assert few[kind].keys() == many[kind].keys()
        assert all(torch.allclose(few[kind][n], many[kind][n], atol=1e-6) for n in few[kind])
        assert any(value.any() for value in few[kind].values())
