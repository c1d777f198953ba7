"""Crossover on real processes: the laws of mixing, what travels, groups, overlap, codes and resumed runs."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

import laconic
from laconic import Crossover
from laconic.messages.seals import SEAL
from laconic.numerics import topology
from tests.support.gossiping import everybody, flat, gossiper, network, take_step
from tests.support.workers import WorkerError, run

WORLDS = [2, 3, 4, 8]


def _perturb(model, step, size=0.1):
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += size * torch.randn(parameter.shape, generator=generator)


def _mixings(technique, steps, size=0.1):
    """Everybody's parameters before and after every step, in which optimizers do nothing."""
    model, optimizer, attachment = gossiper(technique)
    seen = []
    for step in range(steps):
        _perturb(model, step, size)
        before = everybody(flat(model))
        take_step(model, optimizer, step)
        seen.append((before, everybody(flat(model))))
    return seen, attachment.stats()


def _expected(before, technique, step):
    """What the mixing of `step` makes of everybody's parameters."""
    after = before.clone()
    for number, span in enumerate(topology.segments(before.shape[1], technique.segments)):
        sources = topology.sources(topology.partners(technique.seed, step, number, len(before)))
        after[:, span] = topology.mixed(before[:, span], before[sources][:, span])
    return after


@pytest.mark.parametrize("workers", WORLDS)
def test_workers_mix_as_the_simulator_does(workers):
    technique = Crossover(segments=7, seed=3)
    seen, stats = run(workers, _mixings, technique, 3)[0]
    for step, (before, after) in enumerate(seen):
        assert torch.equal(after, _expected(before, technique, step))
        assert torch.allclose(after.mean(0), before.mean(0), atol=1e-6)
        assert not torch.equal(after, before)
    model = 4 * seen[0][0].shape[1] + 7 * SEAL
    assert (stats.sent, stats.received, stats.steps) == (3 * model, 3 * model, 3)


@pytest.mark.parametrize("workers", [2, 4])
def test_an_overlapped_mixing_is_added_one_step_later(workers):
    technique = Crossover(segments=4, overlap=True)
    seen, _ = run(workers, _mixings, technique, 3)[0]
    assert torch.equal(seen[0][1], seen[0][0])
    for step in (1, 2):
        sent = seen[step - 1][1]  # it departed with these
        change = _expected(sent, technique, step - 1) - sent
        assert torch.allclose(seen[step][1], seen[step][0] + change, atol=1e-6)
        assert torch.allclose(seen[step][1].mean(0), seen[step][0].mean(0), atol=1e-6)


def test_a_mixing_comes_every_so_many_steps():
    seen, _ = run(2, _mixings, Crossover(segments=2, every=2), 4)[0]
    assert [torch.equal(before, after) for before, after in seen] == [True, False, True, False]


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_byte_a_parameter_mixes_nearly_as_well(workers, overlap):
    seen, stats = run(workers, _mixings, Crossover(segments=3, codec="int8", overlap=overlap), 12, 0.01)[0]
    for before, after in seen:
        assert torch.allclose(after.mean(0), before.mean(0), atol=1e-6)
    assert topology.consensus_distance(seen[-1][1]) < 2 * topology.consensus_distance(seen[1][0])
    raw = 4 * 1024  # 725 parameters in blocks of 512, once
    assert stats.sent == raw + 11 * 2 * (512 + 4) + 12 * 2 * SEAL
    assert stats.readings["unread"] == 0


def _consensus_alone(technique, steps):
    model, optimizer, attachment = gossiper(technique)
    _perturb(model, 0)
    found = [attachment.consensus()]
    for step in range(steps):
        take_step(model, optimizer, step)
        found.append(attachment.consensus())
    stacked = topology.consensus_distance(everybody(flat(model)))
    return found, stacked


@pytest.mark.parametrize("codec", [None, "int8"])
def test_without_gradients_workers_come_together(codec):
    found, stacked = run(4, _consensus_alone, Crossover(codec=codec), 12)[0]
    assert found[-1] == pytest.approx(stacked, rel=1e-3, abs=1e-12)
    expected = (0.5 * (1 - 1 / 3)) ** 12
    assert found[-1] < 100 * expected * found[0]


def _grouped(technique, steps=4):
    model, optimizer, _ = gossiper(technique, lr=0.1, momentum=0.9)
    for step in range(steps):
        take_step(model, optimizer, step)
    return everybody(flat(model))


def _plain(steps=4):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        take_step(model, optimizer, step)
    return everybody(flat(model))


@pytest.mark.parametrize("overlap", [False, True])
def test_a_group_is_one(overlap):
    rows = run(6, _grouped, Crossover(groups=3, segments=3, overlap=overlap))[0]
    assert torch.equal(rows[::2], rows[1::2])
    assert not torch.equal(rows[0], rows[2])


@pytest.mark.filterwarnings("ignore:all 3 workers are one group")
def test_one_group_is_plain_ddp():
    assert torch.allclose(run(3, _grouped, Crossover(groups=1))[0], run(3, _plain)[0], atol=1e-6)


def test_groups_take_any_technique():
    technique = Crossover(groups=2, inner=laconic.THC())
    rows = run(4, _grouped, technique)[0]
    assert torch.equal(rows[0], rows[1])


def _averaged():
    model, optimizer, attachment = gossiper(Crossover(), lr=0.1, normed=True)
    for step in range(3):
        take_step(model, optimizer, step)
    averaged = attachment.average()
    means = {
        name: everybody(value).mean(0)
        for name, value in model.module.state_dict().items()
        if value.is_floating_point()
    }
    own = {name: value.clone() for name, value in model.module.state_dict().items()}
    return averaged.state_dict(), means, own


def test_the_averaged_model_has_the_mean_of_parameters_and_buffers():
    averaged, means, own = run(3, _averaged)[1]
    assert {"1.running_mean", "1.running_var"} <= means.keys()
    for name, mean in means.items():
        assert torch.allclose(averaged[name], mean, atol=1e-6)
    assert not torch.equal(own["1.running_mean"], means["1.running_mean"])  # DDP has not made them equal


def _resumed(technique, at):
    model, optimizer, attachment = gossiper(technique, lr=0.1, momentum=0.9)
    for step in range(6):
        if step == at:
            saved = copy.deepcopy(
                (attachment.state_dict(), model.module.state_dict(), optimizer.state_dict())
            )
            attachment.detach()
            model, optimizer, attachment = gossiper(technique, lr=0.1, momentum=0.9)
            model.module.load_state_dict(saved[1])
            optimizer.load_state_dict(saved[2])
            attachment.load_state_dict(saved[0])
        if at is None and step == 3:
            attachment.land()  # as a checkpoint does
        take_step(model, optimizer, step)
    return flat(model)


@pytest.mark.parametrize(
    "technique",
    [
        Crossover(),
        Crossover(overlap=True),
        Crossover(codec="int8"),
        Crossover(groups=2, inner=laconic.Dense(dtype="bf16", error_feedback=True)),
        Crossover(momentum="mixed"),
    ],
    ids=["plain", "overlap", "int8", "groups", "mixed"],
)
def test_a_resumed_run_goes_on_exactly(technique):
    workers = 4
    straight, resumed = run(workers, _resumed, technique, None), run(workers, _resumed, technique, 3)
    for one, other in zip(straight, resumed, strict=True):
        assert torch.equal(one, other)


def _mixed_momentum(momentum):
    model, optimizer, attachment = gossiper(Crossover(momentum=momentum), lr=0.1, momentum=0.9)
    take_step(model, optimizer, 0)
    kept = torch.cat([optimizer.state[p]["momentum_buffer"].flatten() for p in model.parameters()])
    return everybody(kept), attachment.stats().sent


def test_momentum_stays_at_home_or_is_mixed():
    (local, once), (mixed, twice) = (run(2, _mixed_momentum, way)[0] for way in ("local", "mixed"))
    assert not torch.equal(local[0], local[1])
    assert torch.equal(mixed[0], mixed[1])  # of two workers both take the mean
    assert twice - 16 * SEAL == 2 * (once - 16 * SEAL)


def _detached():
    model, optimizer, attachment = gossiper(Crossover(overlap=True), lr=0.1)
    take_step(model, optimizer, 0)
    attachment.detach()
    state = copy.deepcopy(model.module.state_dict())
    dist.broadcast(state["0.weight"], 0)
    take_step(model, optimizer, 1)
    laconic.attach(model, laconic.Dense())
    return model.broadcast_buffers


def test_detached_is_plain_ddp():
    assert run(2, _detached) == [True, True]


def _listened():
    model, optimizer, attachment = gossiper(Crossover(), lr=0.1)
    heard = []
    attachment.on_step(lambda step, stats: heard.append((step, stats.sent, stats.steps)))
    for step in range(2):
        take_step(model, optimizer, step)
    return heard


def test_listeners_hear_of_every_step():
    assert run(2, _listened)[0] == [(0, 4 * 725 + 16 * SEAL, 1), (1, 4 * 725 + 16 * SEAL, 1)]


def _refused(technique, with_optimizer=True, **options):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    laconic.attach(model, technique, optimizer=optimizer if with_optimizer else None, **options)


@pytest.mark.parametrize(
    ("technique", "options", "sentence"),
    [
        (Crossover(), {"with_optimizer": False}, "mixes parameters after the optimizer's step; pass it"),
        (Crossover(), {"measure_error": True}, "exchanges no gradients"),
        (Crossover(segments=726), {}, "726 segments cannot be cut from 725 parameters"),
        (Crossover(groups=2), {}, "3 workers cannot be 2 groups of equal size"),
        (Crossover(inner=laconic.DAD()), {}, "cannot serve inside groups"),
    ],
)
def test_what_cannot_be_attached_is_refused(technique, options, sentence):
    def attach_refused():
        run(3, _refused, technique, *options.values()) if "measure_error" not in options else run(
            3, _measured, technique
        )

    with pytest.raises(WorkerError, match=sentence):
        attach_refused()


def _with_another_optimizer():
    laconic.attach(network(), Crossover(), optimizer=torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))


def test_the_optimizer_must_be_the_models():
    with pytest.raises(WorkerError, match=r"the optimizer does not train 0\.weight"):
        run(2, _with_another_optimizer)


def _measured(technique):
    _refused(technique, measure_error=True)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"segments": 0}, "segments is 0; use an integer, 1 or more"),
        ({"groups": 0}, "groups is 0; use an integer, 1 or more"),
        ({"every": 1.5}, "every is 1.5; use an integer, 1 or more"),
        ({"codec": "int3"}, "codec is 'int3'; use 'int8'"),
        ({"momentum": "global"}, "momentum is 'global'; use 'local' or 'mixed'"),
        ({"momentum": "mixed", "codec": "int8"}, "would round small second moments to nothing"),
    ],
)
def test_bad_options_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Crossover(**options)


def _alone():
    with pytest.warns(UserWarning, match="no peers in a world of one worker, and does nothing"):
        model, optimizer, attachment = gossiper(Crossover(), lr=0.1)
    before = flat(model).clone()
    take_step(model, optimizer, 0)
    return attachment.consensus(), attachment.stats().sent, bool((flat(model) != before).any())


def test_a_world_of_one_does_nothing_and_says_so():
    assert run(1, _alone) == [(0.0, 0, True)]


def _one_message_changed(technique, steps):
    """Worker 1 hears a segment with a bit flipped."""
    model, optimizer, attachment = gossiper(technique, lr=0.1)
    mixer = attachment.engine._mixer
    land = mixer._land

    def damaged(vector, leg):
        if dist.get_rank() == 1 and leg.step == 2 and leg.number == 1:
            leg.heard[5] ^= 16
        land(vector, leg)

    mixer._land = damaged
    try:
        for step in range(steps):
            take_step(model, optimizer, step)
    except laconic.DamagedMessage as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    "technique", [Crossover(segments=2), Crossover(segments=2, codec="int8", overlap=True)]
)
def test_a_flipped_bit_is_noticed(technique):
    assert (
        run(2, _one_message_changed, technique, 3 + technique.overlap)[1]
        == "the message of worker 0 is damaged: its seal is wrong"
    )
