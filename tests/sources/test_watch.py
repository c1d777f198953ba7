"""What optimizers do with gradients: scalers are found, residuals follow their scale, clipping is noticed."""

import functools
import gc
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks as hooks

import laconic
from laconic import THC, Crossover, Dense, GenNorm, RankDAD, SignVote
from tests.support.toys import flat, loss, parallel, train
from tests.support.workers import run

IN_UNITS = [SignVote(0.1), GenNorm("e4m3", memory=0, scale=2.0**10)]
"""Those to whose first result a scale matters; others have nothing in its unit by then."""
REMEMBER = [
    Dense(dtype="bf16", error_feedback=True),
    THC(block=256),
    GenNorm(),
    GenNorm("e5m2", refit=3),
    RankDAD(2, two_way=True),
]
BAD, STEPS = 6, 10


def _scaler():
    """Its scale doubles every two steps, and is halved by a bad one."""
    return torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)


def _attached(technique, scaler=None):
    return laconic.attach(model := parallel(), technique, scaler=scaler), model


def _hooked(technique, scaler=None):
    hook, model = laconic.Hook(technique, scaler=scaler), parallel()
    model.register_comm_hook(None, hook)
    return hook, model


def _trained(model, scaler, steps=range(STEPS)):
    """The scale of every step; one of them is bad."""
    optimizer, scales = torch.optim.SGD(model.parameters(), lr=0.02), []
    for step in steps:
        optimizer.zero_grad()
        scale = float("inf") if step == BAD and dist.get_rank() == 1 else 1.0
        scaler.scale(loss(model, step) * scale).backward()
        if scaler.is_enabled() or torch.isfinite(model.module[0].weight.grad).all():
            scaler.step(optimizer)
        scales.append(scaler.get_scale())
        scaler.update()
    return scales


def _ways(technique, plain, *scaled):
    """The weights without a scaler, and with one; and the scales."""
    model = plain(technique, None)
    _trained(model, torch.amp.GradScaler("cpu", enabled=False))
    return flat(model), [_scaled(technique, way) for way in scaled]


def _scaled(technique, way):
    scaler = _scaler()
    model = way(technique, scaler)
    scales = _trained(model, scaler)
    return flat(model), scales


def _found(technique, _):
    return _attached(technique)[1]


def _found_by_hook(technique, _):
    return _hooked(technique)[1]


def _given(technique, scaler):
    return _attached(technique, scaler)[1]


def _given_to_hook(technique, scaler):
    return _hooked(technique, scaler)[1]


@pytest.mark.parametrize(
    ("technique", "ways"),
    [
        *((technique, [_found, _found, _given]) for technique in REMEMBER),
        *((technique, [_given, _given]) for technique in IN_UNITS),
        (THC(block=256), [_found_by_hook, _found_by_hook, _given_to_hook]),
    ],
    ids=lambda value: value[0].__name__ if isinstance(value, list) else repr(value),
)
def test_a_run_whose_loss_is_scaled_goes_as_one_whose_loss_is_not(technique, ways):
    for plain, scaled in run(2, _ways, technique, *ways):
        for weights, scales in scaled:
            assert scales[: BAD + 2] == [2.0**power for power in (8, 8, 9, 9, 10, 10, 11, 10)]
            if isinstance(technique, RankDAD):  # factors of the same product are rounded otherwise
                assert torch.allclose(weights, plain, rtol=1e-4, atol=1e-5)
            else:
                assert torch.equal(weights, plain)


def _what_was_sent_and_what_is_kept(technique, rows):
    """Of one worker: what gradients were together, what the weights have moved by, and what is owed."""
    torch.manual_seed(0)
    net = nn.Linear(8, 8, bias=False)
    start, model, scaler = net.weight.detach().clone(), parallel(net), _scaler()
    attachment = laconic.attach(model, technique)
    optimizer, gradients = torch.optim.SGD(net.parameters(), lr=1.0), torch.zeros(8, 8)
    for step in range(9):
        inputs, deltas = torch.randn(2, rows, 8)
        optimizer.zero_grad()
        scaler.scale((model(inputs) * deltas).sum() * (float("nan") if step in (3, 4) else 1.0)).backward()
        gradients += deltas.T @ inputs if step not in (3, 4) else 0.0
        scaler.step(optimizer)
        scaler.update()
    kept = attachment.state_dict()["memory"]
    return gradients, start - net.weight.detach(), [_owed(kept.get(name, {})) for name in RESIDUALS]


RESIDUALS = ("residual", "reply residual")


def _owed(kept):
    """What is kept of the weight, which of RankDAD's factors is their product."""
    values = kept.get("weight", torch.zeros(64))
    if values.numel() == 64:
        return values.view(8, 8)
    columns = values.view(-1, 16)
    return columns[:, :8].T @ columns[:, 8:]


@pytest.mark.parametrize(
    ("technique", "rows"),
    [
        (Dense(dtype="bf16", error_feedback=True), 3),
        (THC(bits=2, tail=0.1, block=64), 3),
        (GenNorm("e5m2"), 3),  # of fp4, what is beyond the last level is not kept
        (GenNorm("e5m2", refit=3), 3),
        (RankDAD(1), 3),
        (RankDAD(1, two_way=True), 3),
        (RankDAD(1, two_way=True), 12),  # of so many, a gradient is factored as it is
    ],
    ids=repr,
)
def test_what_was_not_sent_counts_once_whatever_the_scale_does(technique, rows):
    ((gradients, moved, owed),) = run(1, _what_was_sent_and_what_is_kept, technique, rows)
    assert any(kept.abs().max() > 1e-3 for kept in owed)
    assert torch.allclose(moved + sum(owed), gradients, rtol=1e-4, atol=1e-4)


def _interrupted(technique):
    """The weights of a run under a scaler, and of one that went on from its state in the middle."""
    ways = []
    for cut in (False, True):
        scaler = _scaler()
        attachment, model = _attached(technique, scaler)
        _trained(model, scaler, range(5))
        if cut:
            state, counted = attachment.state_dict(), scaler.state_dict()
            attachment.detach()
            scaler = _scaler()
            attachment = laconic.attach(model := parallel(model.module), technique, scaler=scaler)
            attachment.load_state_dict(state)
            scaler.load_state_dict(counted)
        _trained(model, scaler, range(5, STEPS))
        ways.append(flat(model))
    return ways


@pytest.mark.parametrize("technique", [THC(block=256), GenNorm(refit=2)], ids=repr)
def test_a_resumed_run_has_what_it_remembered_in_the_scale_that_it_goes_on_with(technique):
    assert all(torch.equal(*ways) for ways in run(2, _interrupted, technique))


def _states(technique):
    """What is kept after four steps without a scaler, with one, and of the earlier version, loaded in a scale."""
    kept = []
    for scaler in (torch.amp.GradScaler("cpu", enabled=False), _scaler()):
        attachment, model = _attached(technique)
        _trained(model, scaler, range(4))
        kept.append(attachment.state_dict())
    earlier = {name: value for name, value in kept[1].items() if name != "scale"}
    attachment, model = _attached(technique, scaler)
    attachment.load_state_dict(earlier)
    attachment.engine._settle()
    return [state["memory"]["residual"] for state in kept], attachment.state_dict()["memory"]["residual"]


def test_a_state_is_of_a_loss_that_nothing_multiplies_and_an_earlier_one_of_the_scale_at_hand():
    ((plain, scaled), loaded), _ = run(2, _states, THC(block=256))
    for name in plain:
        assert torch.equal(plain[name], scaled[name])
        assert torch.equal(loaded[name], scaled[name] / 2.0**10)


def _said(act):
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def _left_out():
    said = []
    for technique in (THC(block=256), Dense()):
        attachment, model = _attached(technique)
        scaler = _scaler()
        _trained(model, scaler, range(3))
        said.append(_said(functools.partial(train, model, range(3, 4))))
        state = attachment.state_dict()
        attachment.detach()
        attachment = laconic.attach(model, technique)
        attachment.load_state_dict(state)
        train(model, range(4, 6))
    return said


def test_a_scaler_that_is_left_out_from_some_step_on_is_an_error_where_something_is_in_its_scale():
    remembering, other = run(2, _left_out)[0]
    assert remembering.startswith("RuntimeError: a GradScaler took the steps before this one")
    assert other == "nothing was raised"


def _with_crossover():
    optimizer = torch.optim.SGD((model := parallel()).parameters(), lr=0.02)
    technique, off = Crossover(segments=2, groups=2), torch.amp.GradScaler("cpu", enabled=False)
    given = _said(lambda: laconic.attach(model, technique, optimizer=optimizer, scaler=_scaler()))
    laconic.attach(model, technique, optimizer=optimizer, scaler=off)
    scaler = _scaler()
    before = flat(model)
    scaler.scale(loss(model, 0)).backward()
    found = _said(lambda: scaler.step(optimizer))
    moved = not torch.equal(before, flat(model))
    off.scale(loss(model, 0)).backward()
    return given, found, moved, _said(lambda: off.step(optimizer))


def test_crossover_refuses_a_scaler_before_a_step_is_taken():
    for given, found, moved, switched_off in run(2, _with_crossover):
        assert given == found
        assert given.startswith(
            "ValueError: Crossover's workers share no gradients, so a GradScaler may skip"
        )
        assert not moved
        assert switched_off == "nothing was raised"


def _clipped(technique, clip):
    """What was said while training, step by step."""
    _, model = _attached(technique)
    optimizer, said = torch.optim.SGD(model.parameters(), lr=1e-4), []
    for step in range(4):
        optimizer.zero_grad()
        loss(model, step).backward()
        clip(model.parameters())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.step()
        said.append([str(warning.message) for warning in caught])
    return said


def _by_norm(parameters):
    torch.nn.utils.clip_grad_norm_(parameters, 0.25)


def _by_value(parameters):
    torch.nn.utils.clip_grad_value_(parameters, 1.0)


def test_clipping_a_direction_is_said_once_with_its_factor_and_a_remedy():
    for (first,), *others in run(2, _clipped, SignVote(0.1), _by_norm):
        factor = float(first.split("multiplied by ")[1].split(",")[0])
        assert 0 < factor < 0.25
        assert "max_grad_norm=0" in first
        assert others == [[], [], []]


@pytest.mark.parametrize(("technique", "clip"), [(SignVote(0.1), _by_value), (THC(block=256), _by_norm)])
def test_a_direction_that_is_one_and_a_gradient_that_is_clipped_are_nothing_to_speak_of(technique, clip):
    assert run(2, _clipped, technique, clip) == [[[], [], [], []]] * 2


def _hooks_left():
    before = len(hooks)
    attachment, model = _attached(THC(block=256))
    there = len(hooks)
    attachment.detach()
    detached = len(hooks)
    attachment, model = _attached(THC(block=256))
    del attachment, model
    gc.collect()
    return there - before, detached - before, len(hooks) - before


def test_the_hook_goes_with_its_attachment():
    assert run(1, _hooks_left) == [(1, 0, 0)]


def _compiled_step():
    _, model = _attached(Dense())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    loss(model, 0).backward()
    before = flat(model)
    torch.compile(optimizer.step, backend="eager")()
    return torch.equal(before, flat(model))


def test_a_compiled_step_is_taken():
    assert run(1, _compiled_step) == [False]
