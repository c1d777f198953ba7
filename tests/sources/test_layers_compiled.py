"""Layers share in compiled models as they do in others, also where there is to be one graph."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import laconic
from laconic import DAD, EDAD, RankDAD
from tests.support.workers import WorkerError, run

WIDTH, STEPS = 32, 4


def _chain():
    torch.manual_seed(0)
    layers = (nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH), nn.Tanh())
    return nn.Sequential(nn.Sequential(*layers), nn.Linear(WIDTH, WIDTH))


def _whole(backend):
    return DistributedDataParallel(torch.compile(_chain(), backend=backend, fullgraph=True))


def _part():
    model = _chain()
    model[0] = torch.compile(model[0], backend="eager", fullgraph=True)
    return DistributedDataParallel(model)


def _around():
    return torch.compile(DistributedDataParallel(_chain()), backend="eager")


FORMS = {"whole, with its backward": partial(_whole, "aot_eager"), "a part": _part, "DDP": _around}
CASES = [
    *((DAD(), form) for form in FORMS),
    (EDAD(), "whole, with its backward"),
    (RankDAD(8, error_feedback=False), "a part"),
]


def _gradients(model):
    """Of several steps, of two micro-steps each, the first without exchange."""
    ddp, found = getattr(model, "_orig_mod", model), []
    for step in range(STEPS):
        model.zero_grad()
        for micro in (1, 2):
            ddp.require_backward_grad_sync = micro == 2
            seed = torch.Generator().manual_seed(100 * step + 10 * micro + dist.get_rank())
            model(torch.randn(2, WIDTH, generator=seed)).square().mean().backward()
        found.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    return torch.stack(found)


def _compiled(technique, build):
    torch._dynamo.reset()
    model = build()
    attachment = laconic.attach(model, technique)
    gradients = _gradients(model)
    attachment.detach()
    return gradients, {choice.layer.name: choice.way for choice in attachment.choices}


def _all_of_them():
    return _gradients(DistributedDataParallel(_chain())), {
        (repr(technique), form): _compiled(technique, FORMS[form]) for technique, form in CASES
    }


def test_compiled_models_share_what_others_do():
    for expected, found in run(2, _all_of_them, seconds=150):
        for what, (gradients, ways) in found.items():
            assert {*ways.values()} & {"rows", "one way"}, what
            assert not any("_orig_mod" in name for name in ways), what
            assert torch.allclose(gradients, expected, atol=1e-6), what


def _attached_late():
    model = _whole("eager")
    model(torch.ones(2, WIDTH)).sum().backward()
    model.zero_grad()
    laconic.attach(model, DAD())
    _gradients(model)


def test_a_model_that_was_compiled_before_it_is_attached_is_refused():
    with pytest.raises(WorkerError, match="called before this one was attached"):
        run(1, _attached_late)
