"""Small models, data and training loops that tests on worker processes share."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import laconic

BUCKET_MB = 0.03  # makes at least five buckets of `network()`


def network(dtype=torch.float32, width=96):
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.ReLU(), nn.Linear(width, width))]
    model = nn.Sequential(nn.Linear(32, width), *layers, nn.Linear(width, 7))
    for layer in model[::2]:
        nn.init.kaiming_normal_(layer.weight)  # so deep a chain learns nothing from PyTorch's default
    nn.init.kaiming_normal_(model[-1].weight, nonlinearity="linear")
    return model.to(dtype)


def parallel(model=None, **options):
    return DistributedDataParallel(model or network(), **{"bucket_cap_mb": BUCKET_MB, **options})


def batch(step, dtype=torch.float32, rows=32):
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    inputs = torch.randn(rows, 32, generator=generator)
    return inputs.to(dtype), inputs[:, :7].argmax(1)


def loss(model, step, dtype=torch.float32):
    inputs, targets = batch(step, dtype)
    return nn.functional.cross_entropy(model(inputs).float(), targets)


def train(model, steps, *, optimizer=None, dtype=torch.float32):
    """The losses of the given steps."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.02)
    losses = []
    for step in steps:
        optimizer.zero_grad()
        value = loss(model, step, dtype)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


def attached_losses(technique, steps, **options):
    model = parallel(**options)
    if technique is not None:
        laconic.attach(model, technique)
    return train(model, steps)


def flat(model):
    return torch.cat([parameter.detach().flatten().float() for parameter in model.parameters()])


def grads(model):
    return torch.cat([p.grad.flatten().float() for p in model.parameters() if p.grad is not None])
