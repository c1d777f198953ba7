"""Layers that share rows need no gradient of their own: results are the same, and everything else is as always."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import laconic
from laconic.layers.bypass import Bypass
from laconic.sources.layers import SharedLayers
from tests.support.workers import run


def _model(inplace=True, **options):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(40, 60), nn.ReLU(inplace), nn.Linear(60, 50), nn.ReLU(inplace), nn.Linear(50, 7)
    )
    return DistributedDataParallel(net, **options)


def _inputs(step, rows=4):
    return torch.randn(
        rows, 40, generator=torch.Generator().manual_seed(10 * step + torch.distributed.get_rank())
    )


def _stepped(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        model(_inputs(step)).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def _trained(technique, spared, steps=6, oldest_torch=False):
    if not spared:
        Bypass.spare = lambda self, modules: None
    if oldest_torch:
        vars(torch._C._autograd).pop("_top_saved_tensors_default_hooks", None)
    model = _model()
    laconic.attach(model, technique)
    return _stepped(model, steps)


@pytest.mark.parametrize("technique", [laconic.DAD(), laconic.RankDAD(rank=2), laconic.EDAD()])
def test_what_is_learned_is_the_same_to_the_bit(technique):
    for with_it, without in zip(
        run(2, _trained, technique, True)[0], run(2, _trained, technique, False)[0], strict=True
    ):
        assert torch.equal(with_it, without)


def test_a_torch_that_does_not_say_who_saves_tensors_learns_the_same():
    known, unknown = (
        run(2, _trained, laconic.DAD(), True)[0],
        run(2, _trained, laconic.DAD(), True, 6, True)[0],
    )
    for one, other in zip(known, unknown, strict=True):
        assert torch.equal(one, other)


def _spared_gradients(bucket_view):
    """Whether the layers' own gradients were there before the exchange, in each of the first steps."""
    model, seen = _model(gradient_as_bucket_view=bucket_view), []
    laconic.attach(model, laconic.DAD())
    reducing = SharedLayers.reduce

    def reduce(self, bucket):
        seen.append(model.module[2].weight.grad is not None)
        return reducing(self, bucket)

    SharedLayers.reduce = reduce
    _stepped(model, 5)
    return seen, model.module[2].weight.grad.clone()


@pytest.mark.parametrize("bucket_view", [False, True])
def test_it_is_not_multiplied_once_layers_have_agreed(bucket_view):
    before, after = run(2, _spared_gradients, bucket_view)[0]
    assert before[0]
    assert not any(before[2:])
    assert after.any()


def _watched(register):
    """What a user's hook sees of the middle layer's gradient, step by step, and of plain DDP's."""
    found = []
    for technique in (laconic.DAD(), None):
        model, seen = _model(), []
        weight = model.module[2].weight
        getattr(weight, register)(lambda given, seen=seen: seen.append(_gradient(given).clone()))
        if technique:
            laconic.attach(model, technique)
        _stepped(model, 5)
        found.append(seen)
    return found


def _gradient(given):
    return given.grad if isinstance(given, nn.Parameter) else given


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_users_hook_sees_the_gradient(register):
    with_it, without = run(2, _watched, register)[0]
    assert len(with_it) == len(without) == 5
    for seen, expected in zip(with_it, without, strict=True):
        torch.testing.assert_close(seen, expected)


def _kept():
    """A user keeps gradients, as they are and detached, while training goes on."""
    model, kept, copies = _model(), [], []
    laconic.attach(model, laconic.RankDAD(rank=2))
    for step in range(6):
        model.zero_grad()
        model(_inputs(step)).square().mean().backward()
        for parameter in model.parameters():
            kept += [parameter.grad, parameter.grad.detach().flatten()]
            copies += [parameter.grad.clone(), parameter.grad.flatten().clone()]
    return all(torch.equal(*pair) for pair in zip(kept, copies, strict=True))


def test_gradients_that_a_user_keeps_stay():
    assert run(2, _kept)[0]


def _where_gradients_lie():
    """Whether DDP found gradients where results are: in the same memory, one after the other."""
    model, memories = _model(), []
    laconic.attach(model, laconic.DAD())
    for step in range(5):
        model.zero_grad()
        model(_inputs(step)).square().mean().backward()
        memories.append(len({model.module[i].weight.grad.untyped_storage().data_ptr() for i in (2, 4)}))
    return memories


def test_ddp_need_not_copy_what_backward_left_out():
    assert run(2, _where_gradients_lie)[0] == [2, 2, 1, 1, 1]


def _elsewhere():
    model = _model()
    laconic.attach(model, laconic.DAD())
    _stepped(model, 4)
    twin = _model()
    twin.load_state_dict(model.state_dict())
    found = []
    for way in ("bare", "no_sync"):
        grads = []
        for each in (model, twin):
            each.zero_grad()
            if way == "bare":
                each.module(_inputs(9)).square().mean().backward()
            else:
                with each.no_sync():
                    each(_inputs(9)).square().mean().backward()
            grads.append([parameter.grad.clone() for parameter in each.parameters()])
        found.append(all(torch.equal(*pair) for pair in zip(*grads, strict=True)))
    return found


def test_a_bare_module_and_no_sync_have_gradients_of_their_own():
    assert run(2, _elsewhere)[0] == [True, True]


def _fail(*_):
    raise RuntimeError("on purpose")


def _copied_and_broken():
    model = _model()
    attachment = laconic.attach(model, laconic.DAD())
    _stepped(model, 4)
    twin = copy.deepcopy(model.module)
    twin(_inputs(1)).sum().backward()
    copied = bool(twin[2].weight.grad.any())
    fails = model.module[2].register_forward_pre_hook(_fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        model(_inputs(0))
    fails.remove()
    kept = all(isinstance(parameter, nn.Parameter) for parameter in model.module.parameters())
    names = [name for name, _ in model.module.named_parameters()]
    attachment.detach()
    hooks = sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks)
        for module in (model, *model.module.modules())
    )
    return copied, kept, len(names), hooks


def test_a_copy_a_failed_forward_and_a_detached_model_are_whole():
    assert run(2, _copied_and_broken)[0] == (True, True, 6, 0)
