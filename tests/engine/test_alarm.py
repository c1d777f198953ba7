"""Who fails, or is gone, is known to all at once and by name; nobody waits for what cannot come."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

import laconic
from laconic.engine.alarm import PeerError
from tests.support.gossiping import gossiper, take_step
from tests.support.toys import parallel, train
from tests.support.workers import run

CULPRIT = 1
SOON = 12.0
"""Seconds, on a busy machine: a tick, a roll call, or the grace in which a program may go on."""


def _sentence(step):
    """What this worker hears of the step, and after how many seconds; without whose step fails here."""
    begun = time.monotonic()
    try:
        step()
    except RuntimeError as error:
        assert time.monotonic() - begun < SOON
        return str(error).removeprefix(f"worker {dist.get_rank()} of {dist.get_world_size()}: ")
    return None


def _told(sentences, what):
    """All but the culprit were told this of it."""
    others = [sentence for worker, sentence in enumerate(sentences) if worker != CULPRIT]
    assert all(f"worker {CULPRIT} of 3 failed {what}" in str(sentence) for sentence in others), sentences


def _catches(step):
    """The culprit's program lives on in the handler of what its step raises; the others wait for it."""
    if dist.get_rank() != CULPRIT:
        return _sentence(step)
    try:
        step()
    except ArithmeticError:
        time.sleep(SOON / 2)
    return None


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ArithmeticError("too much")


class _Model(torch.nn.Module):
    """Fails on the culprit: in its forward, or in backward when some gradients have left."""

    def __init__(self, where):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 600), torch.nn.Linear(600, 600)
        self.where = where

    def forward(self, x):
        fails = self.where if dist.get_rank() == CULPRIT else None
        if fails == "forward":
            raise ArithmeticError("too much")
        hidden = self.first(x)
        return self.second(_Fails.apply(hidden) if fails == "backward" else hidden)


def _fails_in(where):
    model = torch.nn.parallel.DistributedDataParallel(_Model("nowhere"), bucket_cap_mb=0.1)
    laconic.attach(model, laconic.THC())

    def step():
        model(torch.randn(2, 4)).sum().backward()

    step()
    model.module.where = where
    return _catches(step)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_step_that_fails_is_told_although_its_program_lives_on(where):
    _told(run(3, _fails_in, where), "at step 1: ArithmeticError: too much")


def _leaves_the_handler():
    model = torch.nn.parallel.DistributedDataParallel(_Model("nowhere"), bucket_cap_mb=0.1)
    laconic.attach(model, laconic.THC())
    model(torch.randn(2, 4)).sum().backward()
    model.module.where = "backward"

    def step():
        model(torch.randn(2, 4)).sum().backward()

    if dist.get_rank() != CULPRIT:
        return _sentence(step)
    with pytest.raises(ArithmeticError):
        step()
    time.sleep(SOON / 2)
    return None


def test_also_where_its_program_has_forgotten_the_error_in_the_midst_of_a_step():
    _told(run(3, _leaves_the_handler), "at step 1: StepError: backward has ended in the midst of a step")


def _recovers():
    """One worker's forward fails; it takes another batch at once."""
    model = torch.nn.parallel.DistributedDataParallel(_Model("nowhere"), bucket_cap_mb=0.1)
    laconic.attach(model, laconic.THC())
    for number in range(4):
        model.module.where = "forward" if number == 2 else "nowhere"
        try:
            model(torch.randn(2, 4)).sum().backward()
        except ArithmeticError:
            model.module.where = "nowhere"
            model(torch.randn(2, 4)).sum().backward()
    return True


def test_who_goes_on_at_once_has_not_failed():
    assert all(run(3, _recovers))


def _gossips_and_fails():
    model, optimizer, attachment = gossiper(laconic.Crossover(segments=1, overlap=True), lr=0.1)
    for number in range(2):
        take_step(model, optimizer, number)
    if dist.get_rank() == CULPRIT:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)

    def steps():
        for number in range(2, 40):
            take_step(model, optimizer, number)

    heard = _sentence(steps)
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match="a step has failed, so there is no state to save"):
        attachment.state_dict()
    with pytest.raises(PeerError):
        attachment.land()
    attachment.detach()
    assert time.monotonic() - begun < SOON
    return heard


def _average_without_one():
    def averages():  # others may still attach when the culprit is gone
        _model, _optimizer, attachment = gossiper(laconic.Crossover(segments=1), lr=0.1)
        if dist.get_rank() == CULPRIT:
            os.kill(os.getpid(), signal.SIGKILL)
        attachment.average()

    return _sentence(averages)


@pytest.mark.parametrize("function", [_gossips_and_fails, _average_without_one])
def test_a_peer_that_is_killed_is_named_in_gossip(function):
    for sentence in _survivors(3, function):
        assert f"worker {CULPRIT} of 3 is gone (" in sentence


def _trains_until_one_is_killed(technique):
    model = parallel()
    laconic.attach(model, technique)
    train(model, range(2))
    if dist.get_rank() == CULPRIT:
        os.kill(os.getpid(), signal.SIGKILL)
    return _sentence(lambda: train(model, range(2, 40)))


@pytest.mark.parametrize("technique", [laconic.Dense(), laconic.RankDAD(rank=2)], ids=["dense", "rank_dad"])
def test_a_worker_that_is_killed_is_named(technique):
    for sentence in _survivors(3, _trains_until_one_is_killed, technique):
        assert f"worker {CULPRIT} of 3 is gone (connection closed, seen by worker " in sentence


def _survivors(workers, function, *arguments):
    """What all but the culprit returned."""
    heard = run(workers, function, *arguments, lost=(CULPRIT,))
    return [answer for worker, answer in enumerate(heard) if worker != CULPRIT]


def _no_ddp_model(model):
    return model.module, laconic.THC()


def _no_technique(model):
    return model, laconic.THC


def _attaches(what):
    model = parallel()
    if dist.get_rank() == CULPRIT:
        with pytest.raises((TypeError, ValueError)):
            laconic.attach(*what(model))
        return None
    return _sentence(lambda: laconic.attach(model, laconic.THC()))


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (_no_ddp_model, "TypeError: Sequential is not a Dist"),
        (_no_technique, "TypeError: "),
    ],
    ids=["model", "technique"],
)
def test_who_cannot_attach_tells_the_others(wrong, error):
    _told(run(3, _attaches, wrong), f"when it was attached: {error}")
