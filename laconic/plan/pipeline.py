"""In how many pieces a technique's messages travel, one behind the other, and how full they keep a link.

Techniques cut a bucket themselves. gloo's ring cuts what it reduces into segments of at most a mebibyte, at least two
for each worker. PowerSGD sums one side of a bucket's factors, then the other, and waits for each; buckets are beside
each other. Layers leave one by one, or small ones together. Crossover's segments leave as they are ready and are
mixed as they are heard; with `overlap` each then goes on at once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from laconic.core.place import Traffic
from laconic.core.technique import Bucket, Setting, Technique
from laconic.engine.reducer import wire_for
from laconic.lab.contestants import Attached, Fp16, PowerSGD
from laconic.places.peers import channels
from laconic.plan.cost import LANE, RELAYED, RING, SCATTERED
from laconic.sources.layers import TOGETHER
from laconic.techniques.crossover import Crossover

if TYPE_CHECKING:
    from collections.abc import Iterable

    from laconic.lab.contestants import Contestant
    from laconic.lab.records import Travel

SEGMENT = 1 << 20
"""Bytes of gloo's segments, at most."""
FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20
"""Bytes of DDP's buckets, at most."""


def pieces(contestant: Contestant, parameters: int, workers: int) -> int:
    """Of a bucket with so many parameters, at least one; for layers, see `departures`."""
    if isinstance(contestant, Attached):
        return _cut(contestant.technique, parameters, workers)
    if isinstance(contestant, PowerSGD):
        return buckets(parameters)
    size = 2 if isinstance(contestant, Fp16) else 4
    return max(2 * workers, size * parameters // SEGMENT)


def buckets(parameters: int) -> int:
    """Those of DDP, at most: the first one is small."""
    return 1 + math.ceil(max(0, 4 * parameters - FIRST_BUCKET) / BUCKET)


def departures(layers: Iterable[Travel], workers: int, size: int = 4) -> int:
    """How often layers leave, at least once, with numbers of `size` bytes.

    Factors that go one way wait for others until there is enough to send; whatever else is shared leaves at once.
    """
    count, waiting = 0, 0.0
    for layer in reversed([layer for layer in layers if layer.way != "dense"]):
        waiting += size * layer.numbers / workers
        if waiting >= TOGETHER or layer.way != "one way":
            count, waiting = count + 1, 0.0
    return max(1, count + (waiting > 0))


def used(contestant: Contestant, workers: int) -> float:
    """The share of its time that a link is in use; between two, gossip has nobody else to wait for."""
    if not isinstance(contestant, Attached):
        return RING
    if isinstance(contestant.technique, Crossover) and workers > 2:
        return RELAYED if contestant.technique.overlap else SCATTERED
    return LANE


def _cut(technique: Technique, parameters: int, workers: int) -> int:
    if isinstance(technique, Crossover):
        return technique.segments
    if technique.reads == "layers":
        return 1
    bucket, scheme = Bucket(("all",), (parameters,), torch.float32), technique.bind(Setting(workers))
    wire = wire_for(channels(Traffic(scheme.routes, scheme.surveys)))
    return max(1, len(scheme.cut(bucket, wire)))
