"""Gossip over fair random topologies, as pure functions: who hears whom, and what it makes of it.

Crossover-SGD (docs/crossover.md): after its own optimizer step, every worker

1. cuts its parameters into segments of equal size (`segments`),
2. for each segment sends it to one peer and hears one (`partners`, `sources`), drawn anew in every step, and
3. takes the mean of its own and what it heard (`mixed`).

Partners are a permutation, so every worker is heard exactly once: the matrix of a round has rows and columns that
add up to one, and the mean over workers stays. They come from (seed, step, segment) alone (`rng`), so all workers
agree with nothing sent and nothing saved. Simulated and real workers call the same functions.

In every step workers stand in a circle in a new random order, and each segment goes so many places on: as many as no
other segment goes, until all distances have been taken. So every pair is as likely as any other, and all of a
worker's connections carry the same number of segments, to within one.

W: workers. D: parameters of one worker, flat.
"""

from __future__ import annotations

from itertools import pairwise

import torch

from laconic.numerics import rng

TOPOLOGY = rng.number("partners")
"""Keeps these streams apart from others of the same seed and step."""


def segments(numel: int, count: int) -> list[slice]:
    """So many contiguous runs, in order, of equal size to within one coordinate."""
    if not 1 <= count <= numel:
        raise ValueError(
            f"{count} segments cannot be cut from {numel} parameters; use at least 1 and at most {numel}"
        )
    bounds = [number * numel // count for number in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(bounds)]


def partners(seed: int, step: int, segment: int, workers: int) -> torch.Tensor:
    """Whom each worker sends the segment to: a permutation without fixed points; empty for one worker."""
    if workers < 1:
        raise ValueError(f"{workers} workers cannot have partners; use at least 1")
    if workers == 1:
        return torch.empty(0, dtype=torch.int64)
    time, distance = divmod(segment, workers - 1)
    circle = _shuffled(rng.shared(seed, step, TOPOLOGY), workers)
    distances = 1 + _shuffled(rng.shared(seed, step, time, TOPOLOGY), workers - 1)
    to = torch.empty_like(circle)
    to[circle] = circle.roll(-int(distances[distance]))
    return to


def _shuffled(key: int, count: int) -> torch.Tensor:
    """0 to count - 1 in a random order."""
    return rng.words(key, count).argsort(stable=True)


def sources(partners: torch.Tensor) -> torch.Tensor:
    """Whom each worker hears: the inverse permutation."""
    return partners.argsort()


def mixed(own: torch.Tensor, heard: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """The mean of both, in `out` if given, which may be either; rounded once, so that both orders give equal bits."""
    return torch.add(own, heard, out=out).mul_(0.5)


def consensus_distance(parameters: torch.Tensor) -> float:
    """How far apart the rows of [W, D] are: the mean over workers of |own - mean|², over |mean|².

    0 is agreement; at 1, workers differ as much as the mean is long. Sums are in float64.
    """
    mean = parameters.mean(dim=0, dtype=torch.float64)
    apart = torch.stack([(row - mean).square().sum() for row in parameters])  # by rows: float64 takes room
    return sum(apart.tolist()) / len(parameters) / float(mean.square().sum())
