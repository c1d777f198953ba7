"""Who aggregates which coordinates of a parameter, whatever bucket it travels in.

An aggregator that remembers something of the coordinates it serves must serve the same ones in every step, though
DDP rebuilds its buckets after the first and a resumed job may bucket differently. So ownership is a function of a
parameter's name, its number of coordinates and the number of workers:

    chunks   runs of 2^20 coordinates, the last may be short
    slices   one a worker of every chunk, nearly equal; a small chunk is one slice
    owners   workers in turn, beginning where the parameter's name says

A bucket travels in pieces of whole chunks; a shard of a piece is all slices of one owner.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from laconic.core.place import Shards
from laconic.core.technique import Bucket, Piece
from laconic.numerics import rng

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK = 1 << 20
SMALL = 1 << 10
"""Coordinates a worker, below which a chunk is not worth cutting."""
ALIGN = 64
"""Coordinates of which a slice has a multiple, unless it is a chunk's last."""


class Slice(NamedTuple):
    """`numel` coordinates of a parameter from `start` on, and the worker that aggregates them."""

    start: int
    numel: int
    owner: int


@functools.cache
def slices(name: str, numel: int, workers: int) -> tuple[Slice, ...]:
    """The slices of a parameter, in order; together they cover it, and none is empty."""
    return tuple(
        Slice(start, stop - start, owner)
        for chunk in range(-(-numel // CHUNK))
        for start, stop, owner in _chunk_slices(name, chunk, min(CHUNK, numel - chunk * CHUNK), workers)
    )


def owned(name: str, numel: int, worker: int, workers: int) -> int:
    """How many coordinates of a parameter `worker` owns."""
    return sum(one.numel for one in slices(name, numel, workers) if one.owner == worker)


def noted(name: str, numel: int, worker: int, workers: int) -> int:
    """How many slices of a parameter `worker` owns."""
    return sum(one.owner == worker for one in slices(name, numel, workers))


class _Share(NamedTuple):
    parts: torch.Tensor
    owned: slice
    noted: slice


@dataclass(frozen=True)
class SlicePiece(Piece):
    """A piece of whole chunks; shard k is what worker k owns of it, at most `width` coordinates."""

    def parts(self, worker: int) -> torch.Tensor:
        """The worker's slices in order, a row each, as int64.

        A row has the slice's start in the piece, its number of coordinates, its parameter's place in `bucket.names`,
        and which of the worker's slices of that parameter it is.
        """
        return self._share(worker).parts

    def owned(self, worker: int) -> slice:
        """The piece's span of what the worker keeps of the bucket, where it keeps a value a coordinate it owns."""
        return self._share(worker).owned

    def noted(self, worker: int) -> slice:
        """The piece's span of what the worker keeps of the bucket, where it keeps a value a slice it owns."""
        return self._share(worker).noted

    def _share(self, worker: int) -> _Share:
        if worker not in self._shares:
            chart = _charts(self.bucket, self.shards)[worker]
            span = _span(chart, self.start, self.stop)
            before, inside = int(chart[: span.start, 1].sum()), int(chart[span, 1].sum())
            parts = chart[span] - torch.tensor([self.start, 0, 0, 0], device="cpu")
            self._shares[worker] = _Share(parts, slice(before, before + inside), span)
        return self._shares[worker]

    @functools.cached_property
    def _shares(self) -> dict[int, _Share]:
        return {}


def slice_pieces(bucket: Bucket, workers: int, *, numel: int) -> list[SlicePiece]:
    """Pieces that cover `bucket`, nearly equal, of about `numel` coordinates, and of whole chunks."""
    sizes = list(_chunk_sizes(bucket))
    count = max(1, round(bucket.numel / max(numel, *sizes, 1)))
    bounds = itertools.pairwise([0, *_stops(sizes, count)])
    return [_piece(bucket, start, stop, workers) for start, stop in bounds]


def _chunk_slices(name: str, chunk: int, numel: int, workers: int) -> Iterator[tuple[int, int, int]]:
    """Start, stop and owner of the slices of one chunk."""
    first, start = rng.number(name), chunk * CHUNK
    if numel < SMALL * workers:
        yield start, start + numel, (first + chunk) % workers
        return
    bounds = [k * numel // workers // ALIGN * ALIGN for k in range(workers)] + [numel]
    for k in range(workers):
        yield start + bounds[k], start + bounds[k + 1], (first + k) % workers


def _chunk_sizes(bucket: Bucket) -> Iterator[int]:
    for size in bucket.sizes:
        yield from (min(CHUNK, size - start) for start in range(0, size, CHUNK))


def _stops(sizes: list[int], count: int) -> list[int]:
    """Where to end groups of `sizes` so that their sums differ least from one `count`th of all, by squares."""
    ends = [0, *itertools.accumulate(sizes)]
    total = ends[-1]
    best = [(0, 0)]  # for every end the least squares up to there, and which end is before it
    for last in range(1, len(ends)):
        # A group of three times its part would better be two, so it need not be tried.
        first = bisect.bisect_left(ends, ends[last] - 3 * total // count)
        options = range(min(first, last - 1), last)
        best.append(min((best[i][0] + (count * (ends[last] - ends[i]) - total) ** 2, i) for i in options))
    stops = []
    last = len(sizes)
    while last:
        stops.append(ends[last])
        last = best[last][1]
    return stops[::-1]


def _piece(bucket: Bucket, start: int, stop: int, workers: int) -> SlicePiece:
    charts = _charts(bucket, workers)
    width = max(int(chart[_span(chart, start, stop), 1].sum()) for chart in charts)
    return SlicePiece(bucket, start, stop, workers, width, Shards(vary=True))


@functools.lru_cache(maxsize=1024)
def _charts(bucket: Bucket, workers: int) -> list[torch.Tensor]:
    """For every worker what `parts` would be if the bucket were one piece."""
    rows: list[list[tuple[int, int, int, int]]] = [[] for _ in range(workers)]
    at = 0
    for index, (name, numel) in enumerate(zip(bucket.names, bucket.sizes, strict=True)):
        seen: Counter[int] = Counter()
        for one in slices(name, numel, workers):
            rows[one.owner].append((at + one.start, one.numel, index, seen[one.owner]))
            seen[one.owner] += 1
        at += numel
    return [torch.tensor(own, dtype=torch.int64, device="cpu").view(-1, 4) for own in rows]


def _span(chart: torch.Tensor, start: int, stop: int) -> slice:
    """The rows of the slices that begin between two coordinates of the bucket."""
    ends = torch.tensor([start, stop], device="cpu")
    return slice(*torch.searchsorted(chart[:, 0].contiguous(), ends).tolist())
