import math

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from laconic.lab import datasets, tasks
from laconic.lab.datasets import Batch
from laconic.numerics import topology
from laconic.studies import simulate
from laconic.studies.simulate import METHODS, Cell, Nodes

DIGITS = tasks.load("digits")
installed = pytest.mark.skipif(
    not datasets.DEBIAN_FASHION.exists(), reason="Debian's package dataset-fashion-mnist is not installed"
)
GOSSIP = ("crossover", "sgp", "one_segment", "unfair")
SMALL = {"groups": 2, "segments": 4, "batch": 4, "steps": 3, "lr": 0.1, "momentum": 0.9, "seed": 0}


def cell(method, workers, **options):
    return simulate.cell(DIGITS, "default", method, workers=workers, **{**SMALL, **options})


def trained(method, workers, task=DIGITS, **options):
    """All nodes after the run."""
    run = cell(method, workers, **options)
    nodes = Nodes(task, run.seed, run.nodes)
    for step, batch in zip(range(1, run.steps + 1), simulate._batches(run, task, "cpu"), strict=False):
        nodes.descend(batch, run.lr * 0.5 * (1 + math.cos(math.pi * (step - 1) / run.steps)), run.momentum)
        if run.nodes > 1:
            METHODS[method](nodes, run, step)
    return nodes


def alone(workers, task=DIGITS, **options):
    """What torch's own SGD makes of all workers' batches together."""
    run = cell("allreduce", workers, **options)
    model = task.model(run.seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=run.lr, momentum=run.momentum)
    streams = [task.batches(worker, workers, batch=run.batch, seed=run.seed) for worker in range(workers)]
    for step in range(run.steps):
        optimizer.param_groups[0]["lr"] = run.lr * 0.5 * (1 + math.cos(math.pi * step / run.steps))
        optimizer.zero_grad()
        task.loss(model, Batch(*map(torch.cat, zip(*map(next, streams), strict=True)))).backward()
        optimizer.step()
    return parameters_to_vector(model.parameters()).detach()


def scattered(count, seed=0):
    """Nodes that are far apart."""
    nodes = Nodes(DIGITS, 0, count)
    nodes.values += torch.randn(nodes.values.shape, generator=torch.Generator().manual_seed(seed))
    return nodes


def rounds(method, nodes, count, **options):
    run = cell(method, len(nodes.values), **options)
    for step in range(1, count + 1):
        METHODS[method](nodes, run, step)


def near(one, other):
    """Equal but for the order of additions of a few steps in float32, of parameters below 1."""
    return torch.allclose(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_allreduce_is_plain_sgd_on_all_batches_together(workers):
    nodes = trained("allreduce", workers, steps=10)
    assert len(nodes.values) == 1
    assert near(nodes.values[0], alone(workers, steps=10))


@pytest.mark.parametrize("method", GOSSIP)
def test_one_worker_trains_as_plain_sgd_does(method):
    assert near(trained(method, 1, steps=10).values[0], alone(1, steps=10))


@pytest.mark.parametrize("task", [DIGITS, tasks.load("text", size="small")], ids=["digits", "text"])
def test_a_node_has_the_batches_of_its_workers_one_after_the_other(task):
    run = simulate.cell(task, "small", "hierarchical", workers=4, **SMALL)
    streams = [task.batches(worker, 4, batch=run.batch, seed=run.seed) for worker in range(4)]
    for _, batch in zip(range(3), simulate._batches(run, task, "cpu"), strict=False):
        expected = Batch(*map(torch.cat, zip(*map(next, streams), strict=True)))
        for drawn, theirs in zip(batch, expected, strict=True):
            assert len(drawn) == 2
            assert torch.equal(drawn.flatten(0, 1), theirs)


def test_one_group_is_allreduce():
    assert torch.equal(trained("hierarchical", 6, groups=1).values, trained("allreduce", 6).values)


def test_groups_of_one_worker_are_crossover():
    assert torch.equal(trained("hierarchical", 6, groups=6).values, trained("crossover", 6).values)


def test_a_group_descends_as_its_workers_would_together():
    """Two groups of three contiguous workers, before any round."""
    run = cell("hierarchical", 6, steps=1)
    nodes = Nodes(DIGITS, 0, 2)
    nodes.descend(next(simulate._batches(run, DIGITS, "cpu")), 0.1, 0.9)
    for group, values in enumerate(nodes.values):
        model = DIGITS.model(0)
        members = range(3 * group, 3 * group + 3)
        losses = [DIGITS.loss(model, next(DIGITS.batches(w, 6, batch=4, seed=0))) for w in members]
        torch.stack(losses).mean().backward()
        grads = parameters_to_vector([parameter.grad for parameter in model.parameters()])
        assert near(values, parameters_to_vector(model.parameters()).detach() - 0.1 * grads)


@pytest.mark.parametrize("at_once", [1, 7, 12, 512])
@pytest.mark.parametrize("name", ["digits", pytest.param("fashion", marks=installed), "text"])
def test_gradients_of_all_nodes_are_those_of_a_loop(name, at_once, monkeypatch):
    monkeypatch.setitem(simulate.AT_ONCE, "cpu", at_once)
    task = tasks.load(name, size=tasks.smallest(name))
    nodes, count = Nodes(task, 0, 3), 4
    nodes.values += 0.01 * torch.randn(nodes.values.shape, generator=torch.Generator().manual_seed(0))
    before = nodes.values.clone()
    batches = [next(task.batches(worker, 3, batch=count, seed=0)) for worker in range(3)]
    loss = nodes.descend(Batch(*map(torch.stack, zip(*batches, strict=True))), 0.5, 0.9)
    model, losses = task.model(0), []
    for row, batch in enumerate(batches):
        torch.nn.utils.vector_to_parameters(before[row], model.parameters())
        model.zero_grad()
        losses.append(task.loss(model, batch))
        losses[-1].backward()
        grads = parameters_to_vector([parameter.grad for parameter in model.parameters()])
        assert near(nodes.velocity[row], grads)
        assert near(nodes.values[row], before[row] - 0.5 * grads)
    assert loss.item() == pytest.approx(torch.stack(losses).mean().item(), rel=1e-5)


def test_momentum_stays_with_its_node():
    nodes = scattered(4)
    nodes.velocity.copy_(nodes.values)
    before = nodes.velocity.clone()
    for method in GOSSIP:
        rounds(method, nodes, 2)
    assert torch.equal(nodes.velocity, before)


@pytest.mark.parametrize("workers", [2, 3, 8, 64])
def test_a_round_of_crossover_is_what_real_workers_do(workers):
    nodes = scattered(workers)
    before = nodes.values.clone()
    rounds("crossover", nodes, 1, seed=5)
    for number, part in enumerate(topology.segments(before.shape[1], 4)):
        to = topology.partners(5, 1, number, workers).tolist()
        for sender, receiver in enumerate(to):
            heard = topology.mixed(before[receiver, part], before[sender, part])
            assert torch.equal(nodes.values[receiver, part], heard)


@pytest.mark.parametrize("method", ["crossover", "one_segment", "sgp"])
@pytest.mark.parametrize("workers", [2, 3, 8, 64])
def test_gossip_keeps_the_mean(method, workers):
    nodes = scattered(workers)
    before = nodes.values.double().mean(0)
    rounds(method, nodes, 10)
    # ten roundings of values below 6, each of at most 2^-24 of them
    assert (nodes.values.double().mean(0) - before).abs().max() < 10 * 6 * 2**-24


def test_unfair_peers_do_not_keep_the_mean_but_still_agree():
    nodes = scattered(8)
    before = nodes.values.mean(0)
    rounds("unfair", nodes, 30)
    assert (nodes.values.mean(0) - before).abs().max() > 0.1
    assert topology.consensus_distance(nodes.values) < 1e-4


def test_unfair_peers_are_never_oneself_and_sometimes_heard_twice():
    """A node that mixed with itself would keep what it has."""
    fair = True
    for seed in range(5):
        nodes = scattered(8)
        before = nodes.values.clone()
        rounds("unfair", nodes, 1, seed=seed, segments=1)
        assert not (nodes.values == before).all(1).any()
        heard = torch.cdist(2 * nodes.values - before, before).argmin(1)
        fair = fair and len(heard.unique()) == 8
    assert not fair


@pytest.mark.parametrize("workers", [2, 3, 5, 8, 16, 64])
def test_push_sum_keeps_its_mass_and_agrees_on_the_weighted_mean(workers):
    nodes = scattered(workers)
    nodes.weights.copy_(torch.linspace(0.5, 1.5, workers))
    agreed = nodes.average()
    mass = nodes.weights.sum().item()
    for count in range(40):
        rounds("sgp", nodes, 1 + count % 7)
        assert nodes.weights.sum().item() == pytest.approx(mass, rel=1e-6)
    assert mass == pytest.approx(workers)
    assert torch.allclose(nodes.debiased(), agreed.expand_as(nodes.values), rtol=0, atol=1e-4)


@pytest.mark.parametrize("workers", [2, 4, 8, 64])
def test_the_exponential_graph_averages_a_power_of_two_in_its_logarithm(workers):
    nodes = scattered(workers)
    rounds("sgp", nodes, workers.bit_length() - 2)
    assert topology.consensus_distance(nodes.debiased()) > 0.1 or workers == 2
    nodes = scattered(workers)
    rounds("sgp", nodes, workers.bit_length() - 1)
    assert topology.consensus_distance(nodes.debiased()) < 1e-10


def test_push_sum_descends_at_the_debiased_parameters():
    nodes, plain = scattered(2), scattered(2)
    nodes.values *= 2
    nodes.weights *= 2
    assert near(nodes.average(), plain.average())
    batch = next(simulate._batches(cell("sgp", 2), DIGITS, "cpu"))
    for each in (nodes, plain):
        each.descend(batch, 0.1, 0.9)
    assert torch.equal(nodes.velocity, plain.velocity)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_learns_repeats_itself_and_is_looked_at(method):
    run = cell(method, 8, groups=4, steps=60, batch=8)
    steps = []
    result = simulate.simulate(run, DIGITS, tell=steps.append)
    assert result.average["accuracy"] > 0.8
    assert result.one["accuracy"] > 0.8
    assert steps == list(range(1, 61))
    assert result.moments[0].step == 1
    assert result.moments[-1].step == 60
    assert result.moments[-1].loss < result.moments[0].loss
    assert all((moment.consensus > 0) == (run.nodes > 1) for moment in result.moments)
    again = simulate.simulate(run, DIGITS)
    assert again._replace(seconds=0) == result._replace(seconds=0)


def test_seeds_differ():
    results = [simulate.simulate(cell("crossover", 4, seed=seed), DIGITS) for seed in (0, 1)]
    assert results[0].moments != results[1].moments


def test_a_run_that_diverges_ends_early():
    result = simulate.simulate(cell("crossover", 4, lr=1e30, steps=200), DIGITS)
    assert result.moments[-1].step < 20
    assert result.average["accuracy"] < 0.3


def test_options_that_a_method_does_not_heed_make_no_difference():
    assert cell("allreduce", 8) == cell("allreduce", 8, groups=3, segments=9)
    assert cell("sgp", 8) == cell("sgp", 8, groups=3, segments=9)
    assert cell("one_segment", 8) == cell("one_segment", 8, groups=3, segments=9)
    assert cell("crossover", 8) == cell("crossover", 8, groups=3)
    expected = Cell("digits", "default", "hierarchical", 8, 2, 4, 4, 3, 0.1, 0.9, 0)
    assert cell("hierarchical", 8) == expected


def test_groups_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match=r"^3 groups do not divide 8 workers; use a divisor of 8$"):
        cell("hierarchical", 8, groups=3)
