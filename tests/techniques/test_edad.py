import functools
import re

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import laconic
from laconic.messages.seals import SEAL
from laconic.sources.explain import explain
from laconic.techniques.edad import EDAD, ChainTaps
from tests.support.workers import WorkerError, run

ACTIVATIONS = [
    nn.ReLU(),
    nn.ReLU(inplace=True),
    nn.Sigmoid(),
    nn.Tanh(),
    nn.GELU(),
    nn.GELU("tanh"),
    nn.Identity(),
]


def _chain(*activations):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(24, 40),
        *activations,
        nn.Sequential(nn.Linear(40, 32, bias=False), nn.Tanh(), nn.Dropout(0.0)),
        nn.Linear(32, 32),
        nn.Sequential(nn.Linear(32, 30), nn.Identity()),
    )


def _deep():
    return _chain(nn.GELU(), nn.ReLU(inplace=True))


def _found(technique, model):
    public = {
        name: value
        for name, value in model.named_parameters()
        if value.requires_grad and not name.startswith(technique.private)
    }
    [(chain, _)] = technique.find(model, public).items()
    return chain


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
def test_both_ends_of_a_chain_give_all_gradients(activation):
    model = _chain(activation)
    chain = _found(EDAD(), model)
    taps = ChainTaps(chain)
    model(torch.randn(5, 4, 6)).square().mean().backward()
    products = chain.products(taps.take(chain.name))
    assert set(products) == set(chain.parameters) == {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        product = torch.empty_like(parameter)
        products[name].into(product)
        assert torch.allclose(product, parameter.grad, rtol=1e-4, atol=1e-6)


def _loss(model, step, rows=3):
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    inputs, targets = (
        torch.randn(rows, 24, generator=generator),
        torch.randint(30, (rows,), generator=generator),
    )
    return nn.functional.cross_entropy(model(inputs), targets)


def _uneven(model, step):
    return _loss(model, step, 1 + dist.get_rank() + step % 2)


def _autocast(model, step):
    with torch.autocast("cpu", torch.bfloat16):
        return _loss(model, step)


def _partly_frozen():
    model = _deep()
    for name in ("1.weight", "5.weight", "6.0.bias"):
        model.get_parameter(name).requires_grad_(False)
    return model


def _trained(technique, build=_deep, loss=_loss, options=(), accumulate=1):
    torch.manual_seed(0)
    model = DistributedDataParallel(build(), **dict(options))
    attachment = laconic.attach(model, technique) if technique is not None else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(20):
        optimizer.zero_grad()
        for part in range(accumulate - 1):
            with model.no_sync():
                loss(model, 100 * (1 + part) + step).backward()
        before = attachment.stats() if attachment else None
        loss(model, step).backward()
        optimizer.step()
    values = {name: parameter.detach() for name, parameter in model.module.named_parameters()}
    return (
        values,
        attachment and attachment.choices[0].way,
        attachment and attachment.stats().since(before).sent,
    )


def _both(technique, *arguments):
    return _trained(None, *arguments), _trained(technique, *arguments)


CASES = {
    "plain": (),
    "uneven": (_deep, _uneven),
    "autocast": (_deep, _autocast),
    "frozen": (_partly_frozen,),
    "tiny buckets": (_deep, _loss, {"bucket_cap_mb": 0.0005}),
    "bucket views, static graph": (_deep, _loss, {"gradient_as_bucket_view": True, "static_graph": True}),
    "accumulation": (_deep, _loss, {}, 3),
}


@pytest.mark.parametrize("case", CASES)
def test_edad_is_plain_ddp(case):
    results = run(2, _both, EDAD(), *CASES[case])
    for (plain, _, _), (shared, way, _) in results:
        assert way == "rows"
        # bf16 has 8 bits, and 20 steps of rate .1 move a parameter by about 1
        atol = 2**-6 if case == "autocast" else 1e-4
        assert all(torch.allclose(plain[name], shared[name], atol=atol) for name in plain)
        assert all(torch.equal(results[0][1][0][name], shared[name]) for name in plain)


def test_only_both_ends_travel():
    workers, rows = 3, 3
    sent = [sent for _, _, sent in run(workers, _trained, EDAD())]
    size = 8  # of an integer ahead of each message
    assert sent == [(workers - 1) * (4 * rows * (24 + 30) + SEAL + size)] * workers


def test_many_rows_travel_as_gradients():
    table = explain(_deep(), EDAD(), rows=1000, workers=4)
    assert table.splitlines()[1].split() == ["1", "…", "6.0", "30×24", "dense", "8,652", "8,652", "1.0×"]
    assert "rows" in explain(_deep(), EDAD(), rows=3, workers=4)


def test_a_chain_begins_after_what_is_private():
    (mine, way, _), (theirs, _, _) = run(2, _trained, EDAD(private=("1.",)))
    assert way == "rows"
    assert {name for name in mine if not torch.equal(mine[name], theirs[name])} == {"1.weight", "1.bias"}


def test_a_chain_begins_at_the_second_layer_if_inputs_are_skipped():
    assert _found(EDAD(skip_inputs=True), _deep()).links[0].path == "4.0"
    for (plain, _, _), (shared, way, _) in run(2, _both, EDAD(skip_inputs=True)):
        assert way == "rows"
        assert all(torch.allclose(plain[name], shared[name], atol=1e-4) for name in plain)


def _tied():
    model = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 24))
    model[2].weight = model[0].weight
    return model


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.LayerNorm(4))),
            r"and 1.0 \(LayerNorm\) is neither; use DAD",
        ),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Linear(4, 4)), r"and 0 \(Conv2d\) is neither; use DAD"),
        (
            nn.Sequential(nn.Linear(4, 4), nn.Flatten(), nn.Linear(4, 4)),
            r"and 1 \(Flatten\) is neither; use DAD",
        ),
        (
            nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)),
            r"and 1 \(Dropout\(p=0.5, inplace=False\)\) is neither; use DAD",
        ),
        (Residual(nn.Linear(4, 4)), r"and the model \(Residual\) is neither; use DAD"),
        (
            nn.Sequential(nn.Linear(4, 4), Residual(nn.Linear(4, 4))),
            r"and 1 \(Residual\) is neither; use DAD",
        ),
        (_tied(), "0 shares parameters with another layer"),
        (nn.Sequential(nn.Flatten()), "no linear layer of this model can share"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_chain_is_refused(model, said):
    with pytest.raises(ValueError, match=said):
        explain(model, EDAD(), rows=4, workers=2)


def _called_in_part(technique):
    model = DistributedDataParallel(_deep())
    laconic.attach(model, technique)
    model.module[5:](torch.randn(3, 32)).sum().backward()


def test_a_chain_that_is_called_in_part_is_refused():
    with pytest.raises(WorkerError, match=r"the end of 1 … 6.0 was called without its beginning"):
        run(1, _called_in_part, EDAD())


def _changed_on_the_way():
    model = _deep()
    model[2].register_forward_hook(lambda module, arguments, output: 2 * output)
    return model


def _refusal(technique, build):
    with pytest.raises(ValueError, match="the gradient of") as refused:
        _trained(technique, build)
    return str(refused.value)


def test_a_chain_that_does_something_else_is_refused_by_name():
    for said in run(2, _refusal, EDAD(), _changed_on_the_way):
        assert re.match(r"the gradient of .*weight is not the product", said)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            functools.partial(EDAD, private="encoder."),
            "private is 'encoder.'; use a tuple of beginnings of names",
        ),
        (functools.partial(EDAD, skip_inputs="yes"), "skip_inputs is 'yes'; use True or False"),
    ],
)
def test_a_bad_setting_gets_one_sentence(make, said):
    with pytest.raises(TypeError, match=said):
        make()
