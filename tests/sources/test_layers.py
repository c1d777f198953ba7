import time
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import laconic
from laconic.lab import tasks
from laconic.messages.seals import SEAL
from laconic.techniques.dad import DAD, RankDAD
from laconic.techniques.dad_scheme import DADScheme, LayerPiece
from tests.support.workers import WorkerError, run

TINY = 0.0005  # MB: every parameter has a bucket of its own


def _perceptron(**_):
    return nn.Sequential(
        nn.Linear(24, 40), nn.ReLU(inplace=True), nn.Linear(40, 32), nn.Tanh(), nn.Linear(32, 30)
    )


class Optional(nn.Module):
    """A layer that only some workers use in some steps, and that is frozen in part."""

    def __init__(self):
        super().__init__()
        self.first, self.extra, self.last = nn.Linear(24, 32), nn.Linear(32, 32), nn.Linear(32, 30)

    def forward(self, x, extra=True):
        x = torch.relu(self.first(x))
        return self.last(torch.relu(self.extra(x)) if extra else x)


def _frozen():
    model = Optional()
    model.first.weight.requires_grad_(False)
    model.extra.bias.requires_grad_(False)
    return model


def _batch(step, shape=(3,)):
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(*shape, 24, generator=generator), torch.randint(30, shape, generator=generator)


def _loss(model, step, shape=(3,), ignore=False, **arguments):
    inputs, targets = _batch(step, shape)
    if ignore:
        targets[inputs[..., 0] > 0] = -100
        targets.view(-1)[0] = 1
    outputs = model(inputs, **arguments)
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def _partly_unused(model, step):
    return _loss(model, step, extra=dist.get_rank() == 0 or step % 3 == 1)


def _autocast(model, step):
    with torch.autocast("cpu", torch.bfloat16):
        return _loss(model, step)


def _uneven(model, step):
    return _loss(model, step, (1 + dist.get_rank() + step % 2,))


def _trained(technique, build, loss=_loss, steps=6, options=(), lr=0.1):
    torch.manual_seed(0)
    model = DistributedDataParallel(build(), **dict(options))
    attachment = laconic.attach(model, technique) if technique is not None else None
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        loss(model, step).backward()
        optimizer.step()
    return _values(model), _ways(attachment)


def _values(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def _ways(attachment):
    return {choice.layer.name: choice.way for choice in attachment.choices} if attachment else {}


def _both(technique, *arguments):
    return _trained(None, *arguments), _trained(technique, *arguments)


CASES = {
    "plain": (_perceptron,),
    "four dimensions": (_perceptron, partial(_loss, shape=(1, 2, 2))),
    "autocast": (_perceptron, _autocast),
    "padding": (_perceptron, partial(_loss, shape=(3, 2), ignore=True)),
    "one row": (_perceptron, partial(_loss, shape=(1,))),
    "uneven": (_perceptron, _uneven),
    "a bucket a parameter": (_perceptron, _loss, 6, {"bucket_cap_mb": TINY}),
    "bucket views": (_perceptron, _loss, 6, {"gradient_as_bucket_view": True, "bucket_cap_mb": TINY}),
    "static graph": (_perceptron, _loss, 6, {"static_graph": True, "bucket_cap_mb": TINY}),
    "unused": (Optional, _partly_unused, 8, {"find_unused_parameters": True, "bucket_cap_mb": TINY}),
    "unused, one bucket": (Optional, _partly_unused, 8, {"find_unused_parameters": True}),
    "frozen": (_frozen,),
}


def _tolerance(case):
    # bf16 has 8 bits, and six steps of rate .1 move a parameter by less than 1
    return 2**-7 if case == "autocast" else 1e-5


@pytest.mark.parametrize("case", CASES)
def test_rows_give_what_plain_ddp_gives(case):
    for (plain, _), (shared, ways) in run(2, _both, DAD(), *CASES[case]):
        assert "rows" in ways.values()
        assert torch.allclose(plain, shared, atol=_tolerance(case))


def _plain_and_factored(*arguments):
    both = {"two ways": RankDAD(12, two_way=True), "one way": RankDAD(12)}
    return _trained(None, *arguments), {way: _trained(one, *arguments) for way, one in both.items()}


@pytest.mark.parametrize("case", ["plain", "padding", "uneven", "unused", "frozen"])
def test_factors_of_full_rank_give_what_plain_ddp_gives(case):
    for (plain, _), factored in run(2, _plain_and_factored, *CASES[case]):
        for way, (shared, ways) in factored.items():
            assert way in ways.values()
            assert torch.allclose(plain, shared, atol=1e-4)


def _digits(technique):
    task = tasks.load("digits")
    model = DistributedDataParallel(task.model(0))
    attachment = laconic.attach(model, technique) if technique is not None else None
    batches = task.batches(dist.get_rank(), 2, batch=16, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        loss = task.loss(model, next(batches))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, _ways(attachment)


def _digits_both(technique):
    return _digits(None), _digits(technique)


def test_dad_learns_digits_as_plain_ddp_does():
    for (plain, _), (shared, ways) in run(2, _digits_both, DAD()):
        assert ways == {"0": "rows", "2": "rows", "4": "dense"}
        assert shared == pytest.approx(plain, abs=1e-3)


class _Normed(nn.Module):
    """Layers that share, and in DDP's last bucket a few numbers that do not."""

    def __init__(self):
        super().__init__()
        self.norm, self.layers = nn.LayerNorm(24), _perceptron()

    def forward(self, inputs):
        return self.layers(self.norm(inputs))


def _failing():
    """In the fifth step, what is no layer's cannot be encoded, while layers wait for a slow worker's."""
    torch.manual_seed(0)
    model = DistributedDataParallel(_Normed())
    attachment = laconic.attach(model, DAD())
    encode = DADScheme.encode

    def fail(self, turn, grad):
        if not isinstance(turn.piece, LayerPiece) and turn.step == 4:
            raise OSError("on purpose")
        if turn.step == 4 and turn.worker == 1:
            time.sleep(0.5)
        return encode(self, turn, grad)

    DADScheme.encode = fail
    for step in range(4):
        model.zero_grad()
        _loss(model, step).backward()
    model.zero_grad()
    with pytest.raises(RuntimeError, match="on purpose"):
        _loss(model, 4).backward()
    return set(_ways(attachment).values())


def test_a_failure_is_told_while_layers_are_under_way():
    assert all("rows" in ways for ways in run(2, _failing))


def _degenerate(technique):
    return [_degenerate_gradient(technique, scale) for scale in (1.0, 0.0)]


def _degenerate_gradient(technique, scale):
    torch.manual_seed(0)
    model = DistributedDataParallel(_perceptron())
    laconic.attach(model, technique)
    for step in range(4):
        model.zero_grad()
        (_loss(model, step, (1,)) * scale).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize(
    "technique",
    [DAD(), RankDAD(50, two_way=True), RankDAD(50), RankDAD(50, method="power"), RankDAD(50, energy=0.9)],
    ids=repr,
)
def test_one_row_and_no_loss_give_numbers(technique):
    for first, second in zip(*run(2, _degenerate, technique), strict=True):
        assert first.isfinite().all()
        assert torch.equal(first, second)


def _privately(technique):
    model, _ = _trained(technique, _perceptron)
    return model.split([25 * 40, model.numel() - 25 * 40])


@pytest.mark.parametrize("technique", [DAD(private=("0.",)), RankDAD(private=("0.",))], ids=repr)
def test_private_parameters_stay_local(technique):
    (private, public), (other, same) = run(2, _privately, technique)
    assert torch.equal(public, same)
    assert not torch.allclose(private, other, atol=1e-3)


@pytest.mark.parametrize("technique", [DAD(skip_inputs=True), RankDAD(skip_inputs=True)], ids=repr)
def test_what_is_given_the_data_travels_as_a_gradient_if_inputs_are_skipped(technique):
    for _, ways in run(2, _trained, technique, _perceptron):
        assert ways["0"] == "dense"
        assert ways["2"] != "dense"


class Elsewhere(nn.Module):
    """Its first weight is used once more, by a function."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(24, 24), nn.Linear(24, 30)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)) + nn.functional.linear(x, self.first.weight))


def _refusal(technique, *arguments):
    with pytest.raises(ValueError, match="the gradient of") as refused:
        _trained(technique, *arguments)
    return str(refused.value)


def _penalized(model, step):
    """Two hundredths of the gradient are a weight's own."""
    weight = model.module[2].weight
    loss = _loss(model, step)
    (grad,) = torch.autograd.grad(loss, weight, retain_graph=True)
    return loss + 0.02 * (weight / weight.norm()).detach().mul(weight).sum() * grad.norm()


def test_a_weight_that_is_used_elsewhere_is_refused_by_name():
    for said in run(2, _refusal, DAD(), Elsewhere):
        assert said.startswith("the gradient of first.weight is not the product")


def test_a_penalty_on_a_weight_is_refused_by_name():
    for said in run(2, _refusal, DAD(), _perceptron, _penalized):
        assert said.startswith("the gradient of 2.weight is not the product")


def test_a_weight_that_is_used_elsewhere_may_be_private():
    run(2, _trained, DAD(private=("first.",)), Elsewhere)


@pytest.mark.parametrize(
    ("technique", "build", "said"),
    [
        (
            DAD(private=("encoder.",)),
            _perceptron,
            "private has 'encoder.', but no trained parameter's name begins so",
        ),
        (DAD(), partial(nn.Conv2d, 1, 2, 3), "no linear layer of this model can share; use laconic.Dense"),
        (RankDAD(), partial(nn.LayerNorm, 4), "no linear layer or convolution of this model can share"),
    ],
)
def test_what_has_nothing_to_share_is_refused(technique, build, said):
    with pytest.raises(WorkerError, match=said):
        run(1, _trained, technique, build)


def _detached():
    torch.manual_seed(0)
    model = DistributedDataParallel(_perceptron(), bucket_cap_mb=TINY)
    attachment = laconic.attach(model, RankDAD(rank=1))
    for step in range(3):
        model.zero_grad()
        _loss(model, step).backward()
    attachment.detach()
    model.zero_grad()
    _loss(model, 3).backward()
    after = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    with model.no_sync():
        model.zero_grad()
        _loss(model, 3).backward()
    own = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    return after, own, any(module._forward_hooks for module in model.modules())


def test_a_detached_model_is_plain_ddp():
    results = run(2, _detached)
    mean = sum(own for _, own, _ in results) / 2
    for after, _, hooked in results:
        assert torch.allclose(after, mean, atol=1e-6)
        assert not hooked


def _sent(technique):
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, 30, bias=False))
    )
    attachment = laconic.attach(model, technique)
    for step in range(3):
        model.zero_grad()
        before = attachment.stats()
        _loss(model, step, (8,)).backward()
    return attachment.stats().since(before).sent


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("two_way", [True, False])
@pytest.mark.parametrize(("dtype", "share"), [("fp32", 1), ("bf16", 0.5)])
def test_what_is_sent_is_what_the_formula_says(dtype, share, two_way, workers):
    numbers = share * 2 * (24 + 40) + 40 + share * 2 * (40 + 30)
    messages = 2 * (workers - 1) if two_way else workers * (workers - 1)
    sent = sum(run(workers, _sent, RankDAD(rank=2, two_way=two_way, dtype=dtype)))
    seals = SEAL * (2 if two_way else 1)  # of each layer, or of both that travel together
    assert sent == messages * (4 * numbers + seals)


def _accumulated(technique):
    """Passes without exchange, of which some are dropped."""
    torch.manual_seed(0)
    model = DistributedDataParallel(_perceptron(), bucket_cap_mb=TINY)
    if technique is not None:
        laconic.attach(model, technique)
    grads = []
    for step in range(4):
        with model.no_sync():
            _loss(model, 10 + step).backward()
            model.zero_grad()
            _loss(model, 20 + step).backward()
        _loss(model, step).backward()
        grads.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
        model.zero_grad()
    return torch.stack(grads)


def test_rows_accumulate_as_gradients_do():
    plain, shared = run(2, _accumulated, None), run(2, _accumulated, DAD())
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(plain, shared, strict=True))


def _error(technique):
    torch.manual_seed(0)
    model = DistributedDataParallel(_perceptron())
    attachment = laconic.attach(model, technique, measure_error=True)
    for step in range(3):
        model.zero_grad()
        _loss(model, step).backward()
    return attachment.stats().readings["error"]


def test_the_error_of_layers_is_measured():
    assert max(run(2, _error, DAD())) < 1e-10
    assert 0.01 < max(run(2, _error, RankDAD(rank=1))) < 1
