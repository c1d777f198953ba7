"""What a technique says about a parameter, and how long its kernels take for it: its own code, on a sample.

The sample is two tensors of about a million numbers each, which lie like a gradient's. A few workers rehearse with it
(engine/rehearsal.py), however many there are; the first one's bytes and seconds count.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from laconic.core.place import Shards
from laconic.core.slices import ALIGN, CHUNK, SMALL
from laconic.core.technique import Bucket, Setting
from laconic.engine.rehearsal import Rehearsal
from laconic.places.peers import Peers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from laconic.core.meter import Stats
    from laconic.core.technique import Scheme, Technique

BETA = 0.7
"""The shape of the sample's generalized normal: 2 is the normal, 1 Laplace's, gradients are mostly below."""
ENCODERS = 4
TENSORS = 2
ROUNDS = 4
"""Steps that are taken; the first ones fill residuals and caches, and each phase's best time counts."""
MOST_WORKERS = CHUNK // SMALL
"""Beyond them the sample would not be cut."""
PHASES = ("encode", "combine", "decode", "seal")


@dataclass(frozen=True)
class Rates:
    """Of one parameter: bytes that a worker sends, as many as it receives, and seconds of its kernels.

    `hops` is how often a piece waits for the link's latency.
    """

    sent: float
    encode: float
    combine: float
    decode: float
    seal: float
    hops: int

    @property
    def seconds(self) -> float:
        """Of all kernels."""
        return self.encode + self.combine + self.decode + self.seal


@functools.lru_cache(maxsize=ENCODERS)
def gradient(numel: int, seed: int, beta: float = BETA) -> torch.Tensor:
    """Independent draws from a generalized normal; not to be written to."""
    rng = np.random.default_rng(seed)
    sizes = rng.gamma(1 / beta, size=numel) ** (1 / beta)
    return torch.from_numpy((sizes * rng.choice([-1, 1], numel)).astype(np.float32))


def measure(technique: Technique, workers: int, device: torch.device, rounds: int = ROUNDS) -> Rates:
    """The rates of `technique` among so many workers, its kernels on `device`, or on one thread of a CPU."""
    whole = ALIGN * workers
    tensor = CHUNK // whole * whole  # so that all shards are of one size
    names = tuple(f"sample {number}" for number in range(TENSORS))
    bucket = Bucket(names, TENSORS * (tensor,), torch.float32)
    rehearsal = Rehearsal(technique, Setting(workers), device, ENCODERS)
    grads = [gradient(bucket.numel, worker).to(device) for worker in range(min(workers, ENCODERS))]
    steps = timed(rehearsal, lambda: rehearsal.reduce(bucket, grads), rounds)
    each = {phase: best(steps, phase) / bucket.numel for phase in PHASES}
    return Rates(steps[-1].sent / bucket.numel, **each, hops=_hops(rehearsal.scheme, workers))


def timed(rehearsal: Rehearsal, step: Callable[[], object], rounds: int = ROUNDS) -> list[Stats]:
    """What the first worker's meter says of each of so many steps, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return list(_steps(rehearsal, step, rounds))
    finally:
        torch.set_num_threads(threads)


def best(steps: list[Stats], phase: str) -> float:
    """The fewest seconds that a phase took in a step."""
    return min(step.seconds.get(phase, 0.0) for step in steps)


def _steps(rehearsal: Rehearsal, step: Callable[[], object], rounds: int) -> Iterator[Stats]:
    before = rehearsal.meters[0].stats()
    for _ in range(rounds):
        step()
        now = rehearsal.meters[0].stats()
        yield now.since(before)
        before = now


def _hops(scheme: Scheme, workers: int) -> int:
    """One up, and around a ring down; as many for sizes that travel ahead; and those of a survey."""
    around = workers - 1
    survey = (1 if workers <= Peers.direct else 2 * around) * scheme.surveys
    return (1 + around) * (1 + (Shards(vary=True) in scheme.routes)) + survey


def best_seconds(run: Callable[[], object], device: torch.device, rounds: int = ROUNDS) -> float:
    """The shortest that `run` took, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return min(_each(run, device, rounds))
    finally:
        torch.set_num_threads(threads)


def _each(run: Callable[[], object], device: torch.device, rounds: int) -> Iterator[float]:
    for _ in range(rounds):
        start = _now(device)
        run()
        yield _now(device) - start


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
