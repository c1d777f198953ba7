"""An ordinary training script, and what may go wrong in one: fails, lives on, skips a backward, loses a bit.

    torchrun --nproc-per-node 4 -m benchmarks.faults.script '{"technique": "thc", "steps": 40}'

Says on its standard output which step it has done, when it has done something wrong, and at the end what its
parameters are.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import laconic
from laconic.lab import contestants
from laconic.lab.worker import checksum, grouped

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMEOUT = 20.0
"""Seconds that the process group waits for a transfer; where nobody says, these are 1800."""
PATIENCE = 10.0
"""Seconds without a sign of life after which a worker is gone; where nobody says, these are 60."""
AT_STEP = 5
COMPARED = 10
"""Steps from one comparison of parameters to the next."""
PACE = 0.03
"""Seconds that a step takes at least, as if there were something to compute."""
LIVES_ON = 60.0
"""Seconds for which a program lives on in which a step has failed."""
SIZES = (128, 512, 256, 10)
BATCH = 16


class MishapError(Exception):
    """What a script itself may raise."""


def main(words: str) -> None:
    """This worker's training."""
    settings = json.loads(words)
    torch.set_num_threads(1)
    with grouped(timedelta(seconds=TIMEOUT)):
        _say("process", os.getpid())
        _train(settings, dist.get_rank())


def _train(settings: Mapping[str, Any], rank: int) -> None:
    model, optimizer = _model(settings["technique"])
    mishap = settings.get("mishap") if rank == settings.get("culprit") else None
    generator = torch.Generator().manual_seed(rank)
    for step in range(settings["steps"]):
        try:
            _step(model, optimizer, generator, mishap if step == AT_STEP else None)
        except MishapError:
            if mishap == "raises":
                raise
            time.sleep(LIVES_ON)
        _say("step", step)
    _say("parameters", checksum(model.module))


def _model(spec: str) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    """A model of several buckets, with the technique attached."""
    torch.manual_seed(0)
    layers = [layer for pair in itertools.pairwise(SIZES) for layer in (nn.Linear(*pair), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers[:-1]), bucket_cap_mb=0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    contestant = contestants.parse(spec)
    if isinstance(contestant, contestants.Attached):
        laconic.attach(
            model,
            contestant.technique,
            optimizer=optimizer,
            patience=PATIENCE,
            compare_every=COMPARED,
        )
    return model, optimizer


def _step(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
    mishap: str | None,
) -> None:
    """A step, and in the midst of it what is to go wrong."""
    inputs = torch.randn(BATCH, SIZES[0], generator=generator)
    targets = torch.randint(SIZES[-1], (BATCH,), generator=generator)
    time.sleep(PACE)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    if mishap is not None:
        _say("mishap", time.time())
    if mishap in ("raises", "lives on"):
        raise MishapError("this worker has had enough")
    if mishap != "skips":
        loss.backward()
    if mishap == "loses a bit":
        next(model.parameters()).data.view(torch.int32).view(-1)[7] ^= 1 << 20
    optimizer.step()


def _say(what: str, value: Any) -> None:
    print(what, value, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("settings")
    main(parser.parse_args().settings)
    sys.exit()
