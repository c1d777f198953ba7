from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import laconic
from laconic.layers.catalog import Layer
from laconic.numerics import lowrank
from laconic.techniques.dad import DAD, RankDAD
from laconic.techniques.dad_scheme import _readings
from tests.support.workers import WorkerError, run


class Tangle(nn.Module):
    """Norms, an embedding tied to the head, a layer called twice, leading dimensions, a convolution."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.norm = nn.LayerNorm(16)
        self.twice = nn.Linear(16, 16)
        self.wide = nn.Linear(16, 64)
        self.back = nn.Linear(64, 16, bias=False)
        self.mix = nn.Conv2d(1, 2, 3, padding=1)
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.norm(self.embedding(tokens))
        x = torch.tanh(self.twice(torch.relu(self.twice(x))))
        x = x + self.back(torch.relu(self.wide(x)))
        x = x + self.mix(x[:, None]).mean(1)
        return self.head(x)


def _tokens(step, rows=3):
    generator = torch.Generator().manual_seed(1000 * step + torch.distributed.get_rank())
    return torch.randint(20, (rows, 5), generator=generator)


def _trained(technique, steps, uneven=False, accumulate=1):
    torch.manual_seed(0)
    model = DistributedDataParallel(Tangle(), bucket_cap_mb=0.005)
    attachment = laconic.attach(model, technique) if technique is not None else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(accumulate):
            rows = 3 + torch.distributed.get_rank() * uneven
            tokens = _tokens(step * accumulate + part, rows)
            context = model.no_sync() if part + 1 < accumulate else torch.enable_grad()
            with context:
                loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
                loss.backward()
        optimizer.step()
        losses.append(float(loss))
    sent = attachment.stats().sent if attachment else None
    return torch.cat([p.detach().flatten() for p in model.parameters()]), losses, sent


def _both(technique, steps, options):
    return _trained(None, steps, **options), _trained(technique, steps, **options)


CASES = {"plain": {}, "uneven batches": {"uneven": True}, "accumulation": {"accumulate": 2}}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_dad_is_plain_ddp(options):
    for (plain, losses, _), (shared, ours, _) in run(3, _both, DAD(), 50, options):
        assert torch.allclose(plain, shared, atol=1e-4)
        assert losses == pytest.approx(ours, abs=1e-4)


def test_full_rank_is_plain_ddp():
    for two_way in (True, False):
        technique = RankDAD(rank=16, two_way=two_way, error_feedback=False)
        for (plain, _, _), (shared, _, _) in run(2, _both, technique, 10, {}):
            assert torch.allclose(plain, shared, atol=1e-3)


@pytest.mark.parametrize(
    "technique",
    [DAD(), RankDAD(2, two_way=True), RankDAD(2), RankDAD(3, energy=0.9, method="power")],
    ids=repr,
)
def test_replicas_stay_identical_bit_for_bit(technique):
    results = run(3, _trained, technique, 20)
    assert all(torch.equal(results[0][0], parameters) for parameters, _, _ in results)


def _after_a_discarded_backward(technique, to_none):
    torch.manual_seed(0)
    model = DistributedDataParallel(Tangle())
    if technique is not None:
        laconic.attach(model, technique)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        for part in range(2):
            optimizer.zero_grad(set_to_none=to_none)
            tokens = _tokens(2 * step + part)
            with model.no_sync() if part == 0 else torch.enable_grad():
                nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_were_cleared_are_not_shared(to_none):
    plain, shared = (run(2, _after_a_discarded_backward, one, to_none) for one in (None, DAD()))
    assert torch.allclose(plain[0], shared[0], atol=1e-5)


def _without_clearing(technique):
    model = DistributedDataParallel(Tangle())
    laconic.attach(model, technique)
    for step in range(3):
        tokens = _tokens(step)
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()


def test_gradients_that_were_exchanged_must_be_cleared():
    with pytest.raises(WorkerError, match=r"call zero_grad\(\) before the next backward"):
        run(2, _without_clearing, DAD())


LAYER = Layer("fc", "fc.weight", None, 8, 8)


def _read(sigma, rank, energy=None):
    """The shares that a layer with these singular values, and these columns, is read to have."""
    values = torch.tensor(sigma, dtype=torch.float64)
    columns = torch.zeros(8, rank)
    total = values.square().sum() if energy is None else torch.tensor(energy, dtype=torch.float64)
    found = lowrank.Factors(columns, columns, values, total)
    return {name: reading.amount / reading.of for name, reading in _readings(LAYER, found).items()}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("beyond", [1.0, 1.2], ids=["all values", "the first of them"])
def test_readings_are_the_spectrums(seed, beyond):
    generator = torch.Generator().manual_seed(seed)
    sigma = torch.rand(8, generator=generator, dtype=torch.float64).pow(2).sort(descending=True).values
    energy = beyond * sigma.square().sum()
    read = _read(sigma.tolist(), 3, energy.item())
    assert read.pop("rank fc") == lowrank.rank_by_energy(sigma, 0.95, energy)
    assert read.pop("kept fc") == pytest.approx(lowrank.kept_energy(sigma, 3, energy), rel=1e-12)
    assert read.pop("above fc") == (sigma > 0.1 * sigma[0]).sum()
    assert read == {f"sigma {place} fc": value for place, value in enumerate(sigma[:4].tolist(), 1)}


def test_a_layer_with_few_singular_values_has_as_many_readings_of_them():
    assert _read([3.0, 4e-1, 3e-1], 2).keys() == {
        *("rank fc", "kept fc", "above fc"),
        *("sigma 1 fc", "sigma 2 fc", "sigma 3 fc"),
    }
    assert _read([3.0, 4e-1, 3e-1], 2)["above fc"] == 2


def test_a_gradient_of_nothing_has_no_rank_and_all_of_it_is_kept():
    for sigma in ([], [0.0, 0.0]):
        read = _read(sigma, min(1, len(sigma)))
        assert (read["rank fc"], read["above fc"], read["kept fc"]) == (0, 0, 1.0)


def _readings_of_training():
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 80)))
    attachment = laconic.attach(model, RankDAD(rank=2))
    for _ in range(3):
        model.zero_grad()
        model(torch.randn(16, 64)).square().mean().backward()
    return attachment.stats().readings


def test_training_reads_the_spectrum_of_every_layer():
    for read in run(2, _readings_of_training):
        for layer in "02":
            top = [read[f"sigma {place} {layer}"] for place in range(1, 5)]
            assert top == sorted(top, reverse=True)
            assert 1 <= read[f"above {layer}"] <= 80
            assert read[f"kept {layer}"] <= 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (partial(RankDAD, rank=0), "rank is 0; use an integer, 1 or more"),
        (partial(RankDAD, rank=True), "rank is True; use an integer"),
        (partial(RankDAD, sweeps=0), "sweeps is 0; use an integer, 1 or more"),
        (partial(RankDAD, energy=0.0), r"energy is 0.0; use a share above 0, up to 1"),
        (partial(RankDAD, energy=1.5), r"energy is 1.5; use a share above 0, up to 1"),
        (partial(RankDAD, energy="much"), "energy is 'much'; use a number"),
        (partial(RankDAD, method="svd"), "method is 'svd'; use 'qr' or 'block' or 'power'"),
        (partial(RankDAD, private="encoder."), "private is 'encoder.'; use a tuple of beginnings of names"),
        (partial(DAD, private="encoder."), "private is 'encoder.'; use a tuple of beginnings of names"),
        (partial(DAD, private=("",)), "use a tuple of beginnings of names"),
        (partial(DAD, skip_inputs=1), "skip_inputs is 1; use True or False"),
    ],
)
def test_a_bad_setting_gets_one_sentence(make, said):
    with pytest.raises((TypeError, ValueError), match=said):
        make()
