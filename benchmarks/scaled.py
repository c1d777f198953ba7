"""Whether a GradScaler costs accuracy: python -m benchmarks.scaled [--steps 500 --seeds 2 --techniques ddp thc …].

`fashion`, its small network, 4 workers on this machine: every technique in float32, and under fp16 autocast with a
GradScaler that doubles its scale every so many steps and halves it when something overflows. Prints each technique's
accuracy both ways, the mean of the seeds with the lowest and the highest, and how often the scale grew and shrank.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.nn.parallel import DistributedDataParallel

from laconic.lab import contestants, tasks

WORKERS, BATCH = 4, 32
INTERVAL = 50


class Outcome(NamedTuple):
    """Of one training."""

    accuracy: float
    grew: int
    shrank: int


def main() -> None:
    """A line for every technique."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--techniques", nargs="+", default=["ddp", "thc", "gennorm", "rank_dad"])
    with tempfile.TemporaryDirectory() as directory:
        store = str(Path(directory) / "store")
        multiprocessing.spawn(_work, (store, parser.parse_args()), nprocs=WORKERS)


def _work(rank: int, store: str, asked: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORKERS)
    for spec in asked.techniques:
        told = [spec]
        for scaled in (False, True):
            outcomes = [_train(spec, seed, scaled, asked) for seed in range(asked.seeds)]
            told.append(("fp16 and GradScaler " if scaled else "fp32 ") + _told(outcomes))
        if rank == 0:
            print(" | ".join(told), flush=True)
    dist.barrier()
    os._exit(0)  # torch with gloo aborts now and then while Python shuts down


def _train(spec: str, seed: int, scaled: bool, asked: argparse.Namespace) -> Outcome:
    task, contestant = tasks.load("fashion", size="small"), contestants.parse(spec)
    model = DistributedDataParallel(task.model(seed), **contestant.ddp_options)
    optimizer = torch.optim.SGD(model.parameters(), lr=asked.lr, momentum=0.9)
    attachment = contestant.apply(model, optimizer)
    scaler = torch.amp.GradScaler("cpu", growth_interval=INTERVAL, enabled=scaled)
    batches = task.batches(dist.get_rank(), WORKERS, batch=BATCH, seed=seed, split=tasks.parse_split("iid"))
    scales = [scaler.get_scale()]
    for step, batch in enumerate(itertools.islice(batches, asked.steps)):
        for group in optimizer.param_groups:
            group["lr"] = asked.lr * 0.5 * (1 + math.cos(math.pi * step / asked.steps))
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=scaled):
            loss = task.loss(model, batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    if attachment is not None:
        attachment.detach()
    pairs = [*itertools.pairwise(scales)]
    grew, shrank = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
    return Outcome(task.evaluate(model.module)["accuracy"], grew, shrank)


def _told(outcomes: list[Outcome]) -> str:
    values = [100 * outcome.accuracy for outcome in outcomes]
    spread = f"{sum(values) / len(values):.2f} % ({min(values):.2f} to {max(values):.2f})"
    changes = [f"+{outcome.grew} -{outcome.shrank}" for outcome in outcomes]
    return f"{spread}, scale {', '.join(changes)}"


if __name__ == "__main__":
    main()
