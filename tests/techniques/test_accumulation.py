"""The conformance table for accumulation: whatever their style, layers that share have plain DDP's gradients."""

import contextlib
from dataclasses import dataclass, field
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _find_tensors
from torch.utils.checkpoint import checkpoint

import laconic
from laconic import DAD, EDAD, RankDAD
from tests.support.workers import run

WIDTH, RANK = 32, 8
TINY = {"bucket_cap_mb": 0.005}  # MB: a layer a bucket
SINGLE = 1e-5
"""Relative: sums of 80 rows through four layers, in another order."""


def _net():
    """Linear, so that of inputs of four directions gradients have no more than five."""
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.Identity())]
    return nn.Sequential(*layers[:-1])


class _Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.block, self.last = nn.Linear(WIDTH, WIDTH), _net(), nn.Linear(WIDTH, WIDTH)
        self.reentrant = reentrant

    def forward(self, x):
        return self.last(checkpoint(self.block, self.first(x), use_reentrant=self.reentrant))


def _no_sync(model, batches):
    for batch in batches[:-1]:
        with model.no_sync():
            _loss(model, batch).backward()
    _loss(model, batches[-1]).backward()


def _toggled(model, batches):
    """As nanoGPT does."""
    for number, batch in enumerate(batches, 1):
        model.require_backward_grad_sync = number == len(batches)
        _loss(model, batch).backward()


def _triggered(model, batches):
    """As Accelerate's `trigger_sync_in_backward` does, for whom the last forward has not known that it is."""
    for batch in batches[:-1]:
        with model.no_sync():
            _loss(model, batch).backward()
    with model.no_sync():
        loss = _loss(model, batches[-1])
    model.reducer.prepare_for_backward([*_find_tensors(loss)] if model.find_unused_parameters else [])
    loss.backward()


def _forwards_only(model, batches):
    losses = []
    for number, batch in enumerate(batches, 1):
        with model.no_sync() if number < len(batches) else contextlib.nullcontext():
            losses.append(_loss(model, batch))
        losses[-1].backward()


def _one_backward(model, batches):
    """The last two micro-steps have one."""
    for batch in batches[:-2]:
        with model.no_sync():
            _loss(model, batch).backward()
    with model.no_sync():
        before = sum(_loss(model, batch) for batch in batches[-2:-1])
    (before + _loss(model, batches[-1])).backward()


def _loss(model, batch):
    return model(batch).square().mean()


@dataclass(frozen=True)
class Case:
    """How many micro-steps the steps of a training have, and what else it does."""

    style: object = _no_sync
    counts: tuple = (2, 2, 2, 2, 2, 2)
    build: object = _net
    options: dict = field(default_factory=lambda: TINY)
    to_none: bool = True
    uneven: bool = False
    """Whether workers have other numbers of them."""


SEVERAL = (2, 4, 1, 3, 1, 1, 2)
CASES = [
    *(Case(style) for style in (_no_sync, _toggled, _triggered, _forwards_only, _one_backward)),
    Case(_toggled, SEVERAL),
    Case(_toggled, (1, 4, 1, 3, 2, 2)),
    Case(_toggled, SEVERAL, uneven=True),
    Case(counts=SEVERAL, to_none=False),
    Case(counts=SEVERAL, options={}),
    Case(counts=SEVERAL, options={**TINY, "gradient_as_bucket_view": True}),
    Case(counts=SEVERAL, options={**TINY, "gradient_as_bucket_view": True}, to_none=False),
    Case(counts=(1, 4, 1, 3, 2, 2), options={**TINY, "static_graph": True}),  # DDP's own first step has one
    Case(build=partial(_Checkpointed, True)),
    Case(build=partial(_Checkpointed, False)),
]


def _batches(case, step, rows):
    count = case.counts[(step + case.uneven * dist.get_rank()) % len(case.counts)]
    directions = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(0))
    seeds = [1000 * step + 10 * micro + dist.get_rank() for micro in range(count)]
    return [torch.randn(rows, 4, generator=torch.Generator().manual_seed(s)) @ directions for s in seeds]


def _gradients(technique, case, rows):
    torch.manual_seed(0)
    model = DistributedDataParallel(case.build(), **case.options)
    attachment = laconic.attach(model, technique) if technique is not None else None
    found = []
    for step in range(len(case.counts)):
        case.style(model, _batches(case, step, rows))
        found.append([parameter.grad.clone() for parameter in model.parameters()])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.05 * parameter.grad
        model.zero_grad(set_to_none=case.to_none)
    ways = {choice.way for choice in attachment.choices} if attachment is not None else set()
    return found, ways


def _apart(technique, rows, cases):
    """Of each case, how far gradients are apart at most, and how layers travel."""
    found = []
    for case in cases:
        (plain, _), (shared, ways) = _gradients(None, case, rows), _gradients(technique, case, rows)
        pairs = [pair for step in zip(plain, shared, strict=True) for pair in zip(*step, strict=True)]
        found.append((max(float((b - a).norm() / a.norm()) for a, b in pairs), ways))
    return found


FEW, MANY = 3, 40  # rows: fewer than layers are wide in any step, and more
FULL_RANK = 10 * SINGLE  # factoring adds its own roundings


@pytest.mark.parametrize(
    ("technique", "rows", "cases", "tolerance"),
    [
        (DAD(), FEW, CASES, SINGLE),
        (EDAD(), FEW, [case for case in CASES if case.build is _net], SINGLE),
        (RankDAD(RANK), MANY, CASES, FULL_RANK),
        (RankDAD(RANK), FEW, CASES[::4], FULL_RANK),
        (RankDAD(RANK, error_feedback=False, two_way=True), MANY, CASES[::4], FULL_RANK),
        (RankDAD(RANK, energy=1.0), MANY, CASES[1::4], FULL_RANK),
        (RankDAD(RANK, dtype="bf16"), MANY, CASES[2::4], 5 * 2**-8),  # through the weights of four layers
    ],
    ids=lambda value: "" if isinstance(value, list) else repr(value),
)
def test_accumulated_gradients_are_plain_ddps(technique, rows, cases, tolerance):
    for found in run(2, _apart, technique, rows, cases):
        for case, (apart, ways) in zip(cases, found, strict=True):
            assert ways - {"dense"}, case
            assert apart < tolerance, case
