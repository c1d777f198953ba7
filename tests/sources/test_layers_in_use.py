"""Whatever a training does around its steps, layers that share have the gradients that plain DDP gives."""

import copy
import io
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import laconic
from laconic import DAD, EDAD, RankDAD
from tests.support.workers import WorkerError, run

STEPS = 7  # layers leave before their buckets from the fourth on
TINY = 0.00005  # MB: every parameter has a bucket of its own


def _inputs(step, shape=(3, 24)):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))


def _stepped(model, _step, inputs):
    model(inputs).square().mean().backward()


def _gradients(technique, build, stepped=_stepped, options=(), shape=(3, 24), steps=STEPS):
    """All gradients of every step, None where there is none."""
    torch.manual_seed(0)
    model = DistributedDataParallel(build(), **dict(options))
    if technique is not None:
        laconic.attach(model, technique)
    found = []
    for step in range(steps):
        model.zero_grad()
        stepped(model, step, _inputs(step, shape))
        found.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.05 * parameter.grad
    return found


def _both(technique, *arguments, **named):
    return _gradients(None, *arguments, **named), _gradients(technique, *arguments, **named)


def _check(technique, *arguments, **named):
    for plain, shared in run(2, partial(_both, **named), technique, *arguments):
        for expected, found in zip(plain, shared, strict=True):
            for one, other in zip(expected, found, strict=True):
                assert (one is None) == (other is None)
                assert one is None or torch.allclose(one, other, atol=1e-5)


def _perceptron():
    return nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, 32), nn.Tanh(), nn.Linear(32, 30))


class Normed(nn.Module):
    """A norm between layers that only some workers use."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.head = nn.Linear(24, 32), nn.LayerNorm(24), nn.Linear(32, 30)

    def forward(self, x, normed=True):
        return self.head(torch.relu(self.a(self.norm(x) if normed else x)))


def _normed_by_some(model, step, inputs):
    model(inputs, normed=dist.get_rank() == 0 or step % 3 == 0).square().mean().backward()


@pytest.mark.parametrize("technique", [DAD(), RankDAD(24, error_feedback=False)], ids=repr)
def test_workers_that_use_different_parameters_say_the_same_in_the_same_order(technique):
    _check(technique, Normed, _normed_by_some, {"find_unused_parameters": True, "bucket_cap_mb": TINY})


def _attacked(model, _step, inputs):
    model.module(inputs + 1).square().mean().backward()
    model.zero_grad()
    _stepped(model, _step, inputs)


def _added(model, _step, inputs):
    model.module(inputs + 1).square().mean().backward()
    _stepped(model, _step, inputs)


def _forward_inside(model, _step, inputs):
    with model.no_sync():
        first = model(inputs + 1)
    first.square().mean().backward()
    _stepped(model, _step, inputs)


def _backward_inside(model, _step, inputs):
    outputs = model(inputs)
    with model.no_sync():
        outputs.square().mean().backward()


def _saliency(model, step, inputs):
    if step > 1:
        asked = (inputs + 1).requires_grad_()
        torch.autograd.grad(model.module(asked).sum(), asked)
    _stepped(model, step, inputs)
    if step > 2:  # with the gradients of this step still there
        asked = (inputs + 2).requires_grad_()
        torch.autograd.grad(model.module(asked).sum(), asked)


@pytest.mark.parametrize("technique", [DAD(), EDAD(), RankDAD(24, error_feedback=False)], ids=repr)
@pytest.mark.parametrize("stepped", [_attacked, _added, _forward_inside, _backward_inside, _saliency])
def test_backwards_that_ddp_does_not_exchange_are_as_always(technique, stepped):
    _check(technique, _perceptron, stepped)


def _convolutions(layout):
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 12, 3), nn.Flatten(), nn.Linear(12 * 64, 5)
    )
    return net.to(memory_format=layout)


def _in_both_layouts(options):
    layouts = (torch.contiguous_format, torch.channels_last)
    made = [partial(_convolutions, layout) for layout in layouts]
    return [_gradients(RankDAD(2), build, _stepped, options, (2, 3, 12, 12)) for build in made]


@pytest.mark.parametrize("bucket_view", [False, True])
def test_convolutions_may_lie_in_memory_as_they_like(bucket_view):
    for usual, other in run(2, _in_both_layouts, {"gradient_as_bucket_view": bucket_view}):
        for expected, found in zip(usual, other, strict=True):
            for one, another in zip(expected, found, strict=True):
                assert torch.allclose(one, another, atol=1e-4)


def _saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "copied": lambda model: copy.deepcopy(model.module),
    "saved": lambda model: _saved(model.module),
    "copied with DDP": lambda model: copy.deepcopy(model).module,
    "saved with DDP": lambda model: _saved(model).module,
}


def _copied(technique):
    """Copies, made while attached, have gradients of their own, and their use changes nothing of the original's."""
    model = DistributedDataParallel(_perceptron())
    laconic.attach(model, technique)
    for step in range(STEPS):
        model.zero_grad()
        copies = {how: copied(model) for how, copied in COPIES.items()}
        for each in copies.values():
            each(_inputs(step)).square().mean().backward()
        _stepped(model, step, _inputs(step))
    means = {how: [each[n].weight.grad.clone() for n in (0, 2)] for how, each in copies.items()}
    for gradient in (one for mean in means.values() for one in mean):
        dist.all_reduce(gradient)
        gradient /= 2
    return means, [model.module[n].weight.grad for n in (0, 2)]


@pytest.mark.parametrize("technique", [DAD(), EDAD(), RankDAD(24, error_feedback=False)], ids=repr)
def test_a_model_may_be_copied_and_saved_whole(technique):
    for means, found in run(2, _copied, technique):
        for how, mean in means.items():
            for one, another in zip(mean, found, strict=True):
                assert torch.allclose(one, another, atol=1e-5), how


def _transposed():
    net = _perceptron()
    net[2].weight = nn.Parameter(net[2].weight.detach().T.contiguous().T)
    return net


def test_linear_layers_may_be_transposed():
    _check(DAD(), _transposed)


class Checkpointed(nn.Module):
    """A block that is computed again in backward."""

    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.a, self.block, self.head = (
            nn.Linear(24, 40),
            nn.Sequential(nn.Linear(40, 32), nn.Tanh()),
            nn.Linear(32, 30),
        )

    def forward(self, x):
        return self.head(checkpoint(self.block, torch.relu(self.a(x)), use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("technique", [DAD(), RankDAD(24, error_feedback=False)], ids=repr)
def test_blocks_may_be_checkpointed(technique, reentrant):
    _check(technique, partial(Checkpointed, reentrant))


class Twice(nn.Module):
    """A layer in two checkpoints, as only a static graph may have it."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 30)

    def forward(self, x):
        x = torch.relu(self.a(x))
        for _ in range(2):
            x = checkpoint(lambda y: torch.tanh(self.b(y)), x, use_reentrant=True)
        return self.head(x)


def test_a_layer_may_be_in_two_checkpoints_of_a_static_graph():
    _check(DAD(), Twice, _stepped, {"static_graph": True})


@pytest.mark.parametrize("options", [{}, {"bucket_cap_mb": TINY}])
@pytest.mark.parametrize(
    "build", [partial(nn.Linear, 24, 32, bias=False), _perceptron], ids=["one layer", "several"]
)
def test_a_layer_may_be_alone_in_its_first_bucket(build, options):
    _check(RankDAD(24), build, _stepped, options)


class Two(nn.Module):
    """Two outputs, of which a loss may use one."""

    def __init__(self):
        super().__init__()
        self.trunk, self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)

    def forward(self, x):
        x = torch.relu(self.trunk(x))
        return self.a(x), self.b(x)


def _first_of_two(model, _step, inputs):
    model(inputs)[0].square().mean().backward()


class TwoHeads(nn.Module):
    """The same of linear layers."""

    def __init__(self):
        super().__init__()
        self.trunk, self.a, self.b = nn.Linear(24, 24), nn.Linear(24, 20), nn.Linear(24, 20)

    def forward(self, x):
        x = torch.relu(self.trunk(x))
        return self.a(x), self.b(x)


@pytest.mark.parametrize(
    ("technique", "build", "shape"),
    [
        (RankDAD(36, error_feedback=False), Two, (2, 3, 16, 16)),
        (RankDAD(24, error_feedback=False), TwoHeads, (3, 24)),
        (DAD(), TwoHeads, (3, 24)),
    ],
)
def test_an_output_that_no_loss_uses_has_no_gradient(technique, build, shape):
    _check(technique, build, _first_of_two, {"find_unused_parameters": True}, shape=shape)


def _penalized(technique):
    def stepped(model, step, inputs):
        penalty = model.module[2].weight.square().sum() if step > 4 else 0
        (model(inputs).square().mean() + penalty).backward()

    _gradients(technique, _perceptron, stepped)


def test_a_penalty_that_begins_later_is_refused():
    with pytest.raises(
        WorkerError, match=r"2\.weight has a gradient that does not come from its layer's rows"
    ):
        run(2, _penalized, DAD())


def _resumed_by_one(technique):
    model = DistributedDataParallel(_perceptron())
    attachment = laconic.attach(model, technique)
    for step in range(3):
        model.zero_grad()
        _stepped(model, step, _inputs(step))
    weights, state = copy.deepcopy(model.module), attachment.state_dict()
    found = []
    for chosen in (None, technique):
        again = DistributedDataParallel(copy.deepcopy(weights))
        if chosen is not None:
            attached = laconic.attach(again, chosen)
            if dist.get_rank() == 0:
                attached.load_state_dict(state)
        for step in range(STEPS):
            again.zero_grad()
            _stepped(again, step, _inputs(step))
        found.append(torch.cat([p.grad.flatten() for p in again.parameters()]))
    return found


def test_one_worker_may_resume_where_another_begins():
    for plain, shared in run(2, _resumed_by_one, DAD()):
        assert torch.allclose(plain, shared, atol=1e-5)


def _taken_back(technique, early):
    """A state from the beginning, or from later, is loaded into a model that goes on."""
    model = DistributedDataParallel(_perceptron())
    attachment = laconic.attach(model, technique)
    states = []
    for step in range(5):
        states.append(attachment.state_dict())
        model.zero_grad()
        _stepped(model, step, _inputs(step))
    attachment.load_state_dict(states[0 if early else 4])
    plain = DistributedDataParallel(copy.deepcopy(_clean(model.module)))
    for step in range(STEPS):
        for each in (model, plain):
            each.zero_grad()
            _stepped(each, step, _inputs(step))
    return [torch.cat([p.grad.flatten() for p in each.parameters()]) for each in (plain, model)]


def _clean(module):
    net = _perceptron()
    net.load_state_dict(module.state_dict())
    return net


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("technique", [DAD(), RankDAD(24)], ids=repr)
def test_a_state_may_be_loaded_in_the_middle_of_a_run(technique, early):
    for plain, shared in run(2, _taken_back, technique, early):
        assert torch.allclose(plain, shared, atol=1e-5)


def _autocast_around(model, _step, inputs):
    with torch.autocast("cpu", torch.bfloat16):
        model(inputs).square().mean().backward()


def _rounded(technique):
    return _both(technique, _perceptron, _autocast_around)


@pytest.mark.parametrize("technique", [DAD(), EDAD(), RankDAD(24, error_feedback=False)], ids=repr)
def test_backward_may_be_inside_an_autocast(technique):
    for plain, shared in run(2, _rounded, technique):
        for expected, found in zip(plain, shared, strict=True):
            for one, other in zip(expected, found, strict=True):
                assert (one - other).norm() < 0.05 * one.norm() + 1e-4  # of 8 bits, and some steps apart


def _kept(technique, rows):
    """Rows that are kept after a forward and backward under no_sync, by layer."""
    model = DistributedDataParallel(_perceptron())
    attachment = laconic.attach(model, technique)
    for step in range(3):
        model.zero_grad()
        _stepped(model, step, _inputs(step, (rows, 24)))
    model.zero_grad()
    with model.no_sync():
        _stepped(model, 3, _inputs(3, (rows, 24)))
    ways = {choice.layer.name: choice.way for choice in attachment.choices}
    taps = attachment.source._taps
    return ways, {
        name: [call.rows.inputs.numel() for call in calls] for name, calls in taps._calls.items() if calls
    }


def test_nothing_is_kept_of_layers_that_travel_dense():
    ways, kept = run(2, _kept, DAD(), 60)[0]
    assert set(ways.values()) == {"dense"}
    assert kept == {}


def test_of_gradients_that_are_factored_as_they_are_only_the_bias_is_kept():
    ways, kept = run(2, _kept, RankDAD(2), 60)[0]
    assert set(ways.values()) == {"one way"}
    assert kept == {name: [0] for name in ways}
