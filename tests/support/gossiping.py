"""A small model that gossips, for tests on worker processes."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import laconic


def network(normed=False):
    torch.manual_seed(0)
    layers = [nn.Linear(12, 40), nn.BatchNorm1d(40)] if normed else [nn.Linear(12, 40)]
    return DistributedDataParallel(nn.Sequential(*layers, nn.Tanh(), nn.Linear(40, 5)))


def flat(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def everybody(values):
    rows = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, values)
    return torch.stack(rows)


def take_step(model, optimizer, step, rows=6):
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    optimizer.zero_grad()
    model(torch.randn(rows, 12, generator=generator)).square().mean().backward()
    optimizer.step()


def gossiper(technique, lr=0.0, momentum=0.0, normed=False):
    model = network(normed)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    return model, optimizer, laconic.attach(model, technique, optimizer=optimizer)
