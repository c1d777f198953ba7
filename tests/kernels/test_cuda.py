"""The spine on a CUDA device: gloo carries messages through the host, NCCL leaves the order to streams."""

import pytest
import torch
import torch.distributed as dist

import laconic
from laconic import DAD, THC, Crossover, Dense, GenNorm, RankDAD, SignVote
from laconic.core.technique import Setting
from tests.support.toys import flat, loss, network, parallel, train
from tests.support.workers import run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
TECHNIQUES = [
    Dense(),
    Dense(dtype="bf16", error_feedback=True),
    THC(block=1024),
    GenNorm("e4m3"),
    GenNorm("e5m2", coder="rans", refit=3),
]
PHASES = {"encode", "seal", "up", "combine", "down", "decode", "waiting"}


def _both(technique, group):
    torch.cuda.set_device(0)
    if group == "nccl":
        dist.destroy_process_group()
        dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29581", rank=0, world_size=1)
    losses, weights = [], []
    for chosen in (None, technique):
        model = parallel(_OnDevice())
        attachment = laconic.attach(model, chosen) if chosen else None
        losses.append(train(model, range(20)))
        weights.append(flat(model).cpu())
    stats = attachment.stats()
    return losses, weights, stats, attachment.state_dict()["memory"]


class _OnDevice(torch.nn.Module):
    """The test network on the GPU, fed from the host."""

    def __init__(self):
        super().__init__()
        self.network = network().cuda()

    def forward(self, inputs):
        return self.network(inputs.cuda()).cpu()


@pytest.mark.parametrize(("group", "workers"), [("gloo", 2), ("gloo", 3), ("nccl", 1)])
@pytest.mark.parametrize("technique", TECHNIQUES, ids=repr)
def test_a_device_trains_like_plain_ddp(technique, group, workers):
    results = run(workers, _both, technique, group)
    for (plain, ours), (_, weights), stats, memory in results:
        tolerance = 1e-4 if technique == Dense() else 0.05  # rounded messages, 20 steps
        assert ours == pytest.approx(plain, rel=tolerance)
        assert torch.equal(weights, results[0][1][1])
        assert stats.steps == 20
        assert set(stats.seconds) == PHASES | (
            {"agree"} if technique.bind(Setting(workers)).surveys else set()
        )
        assert all(seconds > 0 for seconds in stats.seconds.values())
        assert all(
            value.is_cuda
            for kind in technique.bind(Setting(workers)).memory
            if kind in ("residual", "unsaid")
            for value in memory[kind].values()
        )


def _voted(group):
    torch.cuda.set_device(0)
    if group == "nccl":
        dist.destroy_process_group()
        dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29583", rank=0, world_size=1)
    model = parallel(_OnDevice())
    attachment = laconic.attach(model, SignVote(0.1, weighting="agreement", ties="random"))
    losses = train(model, range(40), optimizer=torch.optim.SGD(model.parameters(), lr=1e-3))
    return losses, flat(model).cpu(), attachment.stats().readings


@pytest.mark.parametrize(("group", "workers"), [("gloo", 2), ("gloo", 3), ("nccl", 1)])
def test_a_device_votes(group, workers):
    results = run(workers, _voted, group)
    for losses, weights, readings in results:
        assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
        assert torch.equal(weights, results[0][1])
        assert 0.3 < readings["bits up"] < 1.5  # small tensors: headers, and one of every bias


@pytest.mark.parametrize("technique", [DAD(), RankDAD(rank=64)], ids=repr)
@pytest.mark.parametrize(("group", "workers"), [("gloo", 2), ("nccl", 1)])
def test_layers_share_on_a_device(technique, group, workers):
    """Of factors of full rank, too, the average is what plain DDP has."""
    results = run(workers, _both, technique, group)
    for (plain, ours), (_, weights), stats, _ in results:
        assert ours == pytest.approx(plain, rel=1e-3)
        assert torch.equal(weights, results[0][1][1])
        assert stats.steps == 20


class _Normed(torch.nn.Module):
    """Layers that share, and in DDP's last bucket a few numbers that do not."""

    def __init__(self, device):
        super().__init__()
        self.device = device
        self.norm = torch.nn.LayerNorm(32, device=device)
        self.network = network().to(device)

    def forward(self, inputs):
        return self.network(self.norm(inputs.to(self.device))).cpu()


def _shared(technique, device):
    torch.cuda.set_device(0)
    model = parallel(_Normed(device))
    attachment = laconic.attach(model, technique)
    losses = train(model, range(20))
    return losses, flat(model).cpu(), {choice.way for choice in attachment.choices}


@pytest.mark.parametrize(
    "technique",
    [
        DAD(),
        RankDAD(4),
        RankDAD(4, two_way=True),
        RankDAD(4, dtype="bf16"),
        RankDAD(4, error_feedback=False),
    ],
    ids=repr,
)
@pytest.mark.parametrize("workers", [2, 3])
def test_layers_share_on_a_device_as_on_a_host(technique, workers):
    ours, host = (run(workers, _shared, technique, device) for device in ("cuda", "cpu"))
    for (losses, weights, ways), (expected, _, known) in zip(ours, host, strict=True):
        assert losses == pytest.approx(expected, rel=0.01)
        assert torch.equal(weights, ours[0][1])
        assert ways == known
    if workers == 2 or not isinstance(technique, DAD):
        assert known != {"dense"}


def _gossiped(technique, device):
    torch.cuda.set_device(0)
    model = parallel(_OnDevice() if device == "cuda" else network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    attachment = laconic.attach(model, technique, optimizer=optimizer)
    losses = train(model, range(20), optimizer=optimizer)
    attachment.state_dict()
    return losses, attachment.consensus()


@pytest.mark.parametrize(
    "technique", [Crossover(), Crossover(overlap=True), Crossover(codec="int8")], ids=repr
)
def test_a_device_gossips_as_a_host_does(technique):
    for (ours, apart), (host, expected) in zip(
        run(3, _gossiped, technique, "cuda"), run(3, _gossiped, technique, "cpu"), strict=True
    ):
        assert ours == pytest.approx(host, rel=0.02)
        assert apart == pytest.approx(expected, rel=0.1)


def _bad_batch(technique, group):
    torch.cuda.set_device(0)
    if group == "nccl":
        dist.destroy_process_group()
        dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29582", rank=0, world_size=1)
    model = parallel(_OnDevice())
    attachment = laconic.attach(model, technique)
    train(model, range(3))
    before = attachment.state_dict()["memory"]
    (loss(model, 3) * float("inf")).backward()
    after = attachment.state_dict()["memory"]
    return all(torch.equal(before[k][n], after[k][n]) for k in before for n in before[k])


@pytest.mark.parametrize(("group", "workers"), [("gloo", 2), ("nccl", 1)])
@pytest.mark.parametrize("technique", TECHNIQUES[1:], ids=repr)
def test_a_bad_batch_changes_no_state_on_a_device(technique, group, workers):
    assert all(run(workers, _bad_batch, technique, group))


def _scaled():
    torch.cuda.set_device(0)
    model = parallel(_OnDevice())
    laconic.attach(model, TECHNIQUES[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8)
    moved = []
    for step in range(6):
        before = flat(model)
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            value = loss(model, step)
        if step == 3 and dist.get_rank() == 1:
            value = value * float("inf")
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()
        moved.append(not torch.equal(before, flat(model)))
    return moved


def test_grad_scaler_skips_one_step_on_a_device():
    assert run(2, _scaled) == [[True, True, True, False, True, True]] * 2
