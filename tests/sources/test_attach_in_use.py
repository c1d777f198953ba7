"""Gradients are exchanged as always, whatever a training does around its steps: states, types, graphs, defaults."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import laconic
from laconic import THC, Dense, GenNorm, RankDAD, SignVote
from tests.support.toys import batch, flat, network, parallel, train
from tests.support.workers import run

TECHNIQUES = [
    Dense(dtype="bf16", error_feedback=True),
    THC(block=1024),
    GenNorm(),
    GenNorm(memory=0),
    SignVote(density=0.1, entropy=True),
]


def _resumed_by_one(technique):
    model = parallel()
    attachment = laconic.attach(model, technique)
    if dist.get_rank() == 0:
        attachment.load_state_dict({**attachment.state_dict(), "step": 100})
    train(model, range(3))
    return flat(model), attachment.state_dict()["step"]


@pytest.mark.parametrize("technique", [THC(block=1024), SignVote(ties="random"), GenNorm()], ids=repr)
def test_a_worker_that_begins_where_another_resumes_counts_as_it_does(technique):
    (one, step), (other, same) = run(2, _resumed_by_one, technique)
    assert torch.equal(one, other)
    assert step == same == 103


def _by_default(technique, dtype):
    model, batches = parallel(network(torch.bfloat16)), [batch(step, torch.bfloat16) for step in range(3)]
    torch.set_default_dtype(dtype)
    laconic.attach(model, technique)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for inputs, targets in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs).float(), targets).backward()
        optimizer.step()
    return flat(model)


@pytest.mark.parametrize("technique", TECHNIQUES, ids=repr)
def test_torchs_default_type_does_not_matter(technique):
    usual = run(2, _by_default, technique, torch.float32)
    for one, other in zip(usual, run(2, _by_default, technique, torch.bfloat16), strict=True):
        assert torch.equal(one, other)


class _TwoTypes(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(32, 16), nn.Linear(16, 7).to(torch.bfloat16)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)).to(torch.bfloat16)).float()


def _static(static_graph):
    model = DistributedDataParallel(_TwoTypes(), static_graph=static_graph)
    attachment = laconic.attach(model, Dense(dtype="bf16", error_feedback=True))
    train(model, range(4))
    return flat(model), attachment.stats().steps, attachment.state_dict()["step"]


def test_a_static_graph_of_two_types_has_as_many_steps_as_any_other():
    for (one, *steps), (other, *same) in zip(run(2, _static, False), run(2, _static, True), strict=True):
        assert torch.equal(one, other)
        assert steps == same == [4, 4]


def _loaded_later(technique):
    model, hook = parallel(), laconic.Hook(technique)
    model.register_comm_hook(None, hook)
    train(model, range(2))
    hook.load_state_dict({**hook.state_dict(), "step": 50})
    return hook.state_dict()["step"]


def test_a_hooks_state_may_be_loaded_later():
    assert run(2, _loaded_later, THC(block=1024)) == [50, 50]


def _another_seats_beginning(technique):
    model = parallel()
    attachment = laconic.attach(model, technique)
    beginning = attachment.state_dict()
    train(model, range(2))
    attachment.load_state_dict({**beginning, "worker": 1 - dist.get_rank()})
    return any(value.any() for value in attachment.state_dict()["memory"].get("residual", {}).values())


def test_the_beginning_of_another_worker_is_a_beginning():
    assert run(2, _another_seats_beginning, THC(block=1024)) == [False, False]


class _WithABranch(nn.Module):
    """Its branch takes part, or is multiplied by zero, or is left out."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.branch, self.share = nn.Linear(32, 64), nn.Linear(32, 64), 1.0

    def forward(self, x):
        return self.trunk(x) + (self.share * self.branch(x) if self.share is not None else 0.0)


def _without_a_gradient(technique, share):
    """How far the branch moves in the last of some steps with it, and in the steps that follow, and what is owed."""
    model = DistributedDataParallel(_WithABranch(), find_unused_parameters=True)
    attachment = laconic.attach(model, technique)
    optimizer, moved, owed = torch.optim.SGD(model.parameters(), lr=0.1), [], []
    for step, model.module.share in enumerate([1.0] * 4 + [share] * 3):
        before = model.module.branch.weight.detach().clone()
        optimizer.zero_grad()
        model(batch(step, rows=8)[0]).square().mean().backward()
        optimizer.step()
        moved.append(float((model.module.branch.weight.detach() - before).norm()))
        (kept,) = [value for name, value in attachment.state_dict()["memory"].items() if name in OWED]
        owed.append(float(kept["branch.weight"].norm()))
    return moved[3:], owed[3:]


OWED = ("residual", "unsaid")
REMEMBER = [TECHNIQUES[0], THC(block=256), GenNorm(), SignVote(), RankDAD(2)]


def _with_zeros_and_unused(technique):
    return [_without_a_gradient(technique, share) for share in (0.0, None)]


@pytest.mark.parametrize("technique", REMEMBER, ids=repr)
def test_a_weight_whose_gradient_is_zero_moves_by_what_is_owed_and_one_that_nobody_used_stays(technique):
    for (zeros, owed), (unused, _) in run(2, _with_zeros_and_unused, technique):
        assert zeros[1] > 0
        assert sorted(owed, reverse=True) == owed
        assert unused[1:] == [0.0, 0.0, 0.0]
