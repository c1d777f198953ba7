"""Crossover, whatever a training does around its steps: states, optimizers, frozen parameters, bad numbers."""

import copy
import gc
import os
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import laconic
from laconic import Crossover
from laconic.messages.crossover import Modular
from tests.support.gossiping import everybody, flat, gossiper, network, take_step
from tests.support.workers import WorkerError, run


def _rolled_back(technique, early):
    """A run that goes on from a state, and one that loads it in its midst, and the state as it was and is."""
    model, optimizer, attachment = gossiper(technique, lr=0.1)
    if not early:
        for step in range(2):
            take_step(model, optimizer, step)
    state = attachment.state_dict()
    kept, saved = copy.deepcopy(state), copy.deepcopy(model.module.state_dict())
    ends = []
    for _ in range(3):
        model.module.load_state_dict(saved)
        attachment.load_state_dict(state)
        for step in range(2, 6):
            take_step(model, optimizer, step)
        ends.append(flat(model).clone())  # with the last mixing still under way
    same = all(torch.equal(kept["codec"][name], value) for name, value in state["codec"].items())
    return ends, same


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("codec", [None, "int8"])
def test_a_state_may_be_loaded_while_a_mixing_is_under_way(codec, early):
    for ends, same in run(3, _rolled_back, Crossover(overlap=True, codec=codec), early):
        assert torch.equal(ends[0], ends[1])
        assert torch.equal(ends[0], ends[2])
        assert same


def _without_its_codec():
    model, optimizer, attachment = gossiper(Crossover(codec="int8"), lr=0.1)
    for step in range(3):
        take_step(model, optimizer, step)
    state = attachment.state_dict()
    attachment.detach()
    attachment = laconic.attach(model, Crossover(), optimizer=optimizer)
    attachment.load_state_dict(state)
    take_step(model, optimizer, 3)
    return attachment.step


def test_a_state_with_a_codec_may_go_on_without():
    assert run(2, _without_its_codec) == [4, 4]


class _Late(nn.Module):
    """A layer that is used from the second step on, declared before the other."""

    def __init__(self):
        super().__init__()
        self.late, self.early = nn.Linear(12, 5), nn.Linear(12, 5)

    def forward(self, x, both=True):
        return self.early(x) + (self.late(x) if both else 0)


def _late_state(overlap):
    torch.manual_seed(0)
    model = DistributedDataParallel(_Late(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0, momentum=0.9)
    technique = Crossover(segments=1, overlap=overlap, momentum="mixed")
    attachment = laconic.attach(model, technique, optimizer=optimizer)
    found = []
    for step in range(3):
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(step + 10 * dist.get_rank())
        model(torch.randn(4, 12, generator=generator), both=step > 0).square().mean().backward()
        optimizer.step()
        if step == 1:
            kept = optimizer.state[model.module.late.weight]["momentum_buffer"]
            found = [everybody(kept), everybody(model.module.late.weight.grad)]
    attachment.land()
    return found


def test_what_an_optimizer_keeps_may_appear_later():
    (kept, gradients) = run(2, _late_state, True)[0]
    assert torch.equal(kept, gradients)  # its first mixing is still under way
    (kept, gradients) = run(2, _late_state, False)[0]
    assert torch.allclose(kept, gradients.mean(0).expand_as(kept))


def _unfrozen():
    model = DistributedDataParallel(network().module, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.module[0].weight.requires_grad_(False)
    laconic.attach(model, Crossover(), optimizer=optimizer)
    take_step(model, optimizer, 0)
    model.module[0].weight.requires_grad_(True)
    take_step(model, optimizer, 1)


def test_a_parameter_that_nobody_would_hear_of_is_refused():
    with pytest.raises(WorkerError, match=r"0\.weight was frozen when Crossover was attached"):
        run(2, _unfrozen)


def _scaled():
    """Adam of a parameter with one number."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 5), _Scale()))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    laconic.attach(model, Crossover(segments=2, momentum="mixed"), optimizer=optimizer)
    for step in range(3):
        take_step(model, optimizer, step)
    return float(optimizer.state[model.module[1].scale]["step"])


class _Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return self.scale * x


def test_an_optimizers_count_of_steps_is_not_mixed():
    assert run(2, _scaled) == [3.0, 3.0]


def _masked():
    model, _, attachment = gossiper(Crossover())
    mask = torch.full((2, 2), torch.finfo(torch.float32).min)
    model.module.register_buffer("mask", mask)
    return torch.equal(attachment.average().mask, mask)


def _far_apart():
    model, optimizer, attachment = gossiper(Crossover(), lr=0.1)
    model.module.register_buffer("clock", torch.tensor([dist.get_rank() + 1e-12], dtype=torch.float64))
    take_step(model, optimizer, 0)
    average = attachment.average()
    return attachment.consensus(average), attachment.consensus(), float(average.clock)


def test_consensus_is_the_same_with_the_average_at_hand():
    for given, found, clock in run(3, _far_apart):
        assert given == pytest.approx(found, rel=1e-4) != 0
        assert clock == 1 + 1e-12  # in all its digits


def test_the_mean_of_equal_buffers_is_what_they_are():
    assert run(3, _masked) == [True] * 3


def _on_uneven_hosts():
    os.environ["LOCAL_WORLD_SIZE"] = "1" if dist.get_rank() else "3"
    gossiper(Crossover())


def test_workers_that_would_gossip_in_other_groups_are_told():
    with pytest.raises(WorkerError, match="1 of them gossiping"):
        run(3, _on_uneven_hosts)


def test_a_number_that_is_none_stays_with_whoever_has_it():
    own = torch.full((1, 512), 0.3)
    sender, receiver = (Modular.after(own, own + 1e-3) for _ in range(2))
    for bad in (float("nan"), float("inf")):
        values = own.clone()
        values[0, 0] = bad
        coded, _ = sender.encode(values)
        _change_nothing(receiver, own, coded)


@pytest.mark.parametrize("quantum", [0.0, -0.01, float("nan"), float("inf"), -float("inf"), 1e-45])
def test_a_block_with_a_quantum_that_cannot_be_is_left_as_it_is_and_the_next_is_read(quantum):
    own = torch.linspace(0.1, 0.3, 512).repeat(2, 1)
    sender, receiver = (Modular.after(own, own + 1e-3) for _ in range(2))
    coded, _ = sender.encode(own + 5e-4)
    coded.quanta[1] = quantum
    _, sent = receiver.encode(own)
    known = receiver.apart[1].clone()
    change, readable = receiver.decode(slice(None), sent, coded)
    assert readable.flatten().tolist() == [True, False]
    assert torch.allclose(change[0], torch.tensor(2.5e-4), atol=1e-4)
    assert not change[1].any()
    assert receiver.apart.isfinite().all()
    assert receiver.apart[1] >= known


def _change_nothing(receiver, own, coded):
    _, sent = receiver.encode(own)
    change, readable = receiver.decode(slice(None), sent, coded)
    assert not change.any()
    assert not readable.any()
    assert receiver.apart.isfinite().all()


def _ends_first(codec):
    """Worker 0 leaves, with a mixing under way; worker 1 comes to it later, and lands it."""
    model, optimizer, attachment = gossiper(Crossover(overlap=True, codec=codec), lr=0.1)
    for step in range(3):
        if step == 2 and dist.get_rank() == 1:
            time.sleep(1.0)
        take_step(model, optimizer, step)
    if dist.get_rank() == 1:
        attachment.detach()
    del model, optimizer, attachment
    gc.collect()


@pytest.mark.parametrize("codec", [None, "int8"])
def test_who_leaves_first_stays_until_others_have_what_they_need(codec):
    run(2, _ends_first, codec)
