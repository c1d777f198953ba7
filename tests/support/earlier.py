"""A small run that can be cut: what the version before this one saved of it is in tests/golden/states.pt."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import laconic

TECHNIQUES = {
    "dense": laconic.Dense(dtype="bf16", error_feedback=True),
    "thc": laconic.THC(block=16),
    "sign_vote": laconic.SignVote(0.2, weighting="agreement"),
    "gennorm": laconic.GenNorm(refit=2),
    "rank_dad": laconic.RankDAD(rank=2, two_way=True),
    "crossover": laconic.Crossover(segments=2, groups=2, codec="int8"),
}


def build(name):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 4))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    options = {"optimizer": optimizer} if name == "crossover" else {}
    return model, optimizer, laconic.attach(model, TECHNIQUES[name], **options)


def train(model, optimizer, steps):
    for step in steps:
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        inputs = torch.randn(3, 12, generator=generator)
        optimizer.zero_grad()
        model(inputs).square().sum().backward()
        optimizer.step()


def flat(model):
    return torch.cat([value.detach().flatten() for value in model.parameters()])


def saved(name):
    """After five steps the weights and the state, and after eight the weights."""
    model, optimizer, attachment = build(name)
    train(model, optimizer, range(5))
    state = attachment.state_dict()
    weights = {key: value.clone() for key, value in model.module.state_dict().items()}
    train(model, optimizer, range(5, 8))
    return {"state": state, "weights": weights, "later": flat(model)}
