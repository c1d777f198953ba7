"""An ordinary DDP script with the one new line; run it with `torchrun --nproc-per-node 2 examples/ddp.py`."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import laconic

dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
model = DistributedDataParallel(net)
attachment = laconic.attach(model, laconic.THC())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

data = torch.Generator().manual_seed(dist.get_rank())
for step in range(100):
    inputs = torch.randn(32, 64, generator=data)
    loss = nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 and dist.get_rank() == 0:
        print(f"step {step:3d}  loss {loss.item():.3f}")

if dist.get_rank() == 0:
    stats = attachment.stats()
    print(
        f"{stats.steps} steps, {stats.sent / 1e6:.1f} MB sent, {stats.seconds['waiting']:.2f} s spent waiting"
    )
dist.destroy_process_group()
