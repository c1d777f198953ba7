"""How a data set is divided among workers: evenly at random, by label, or by Dirichlet draws.

A split is a small value; `shards` applies it, and `draws` goes through one worker's shard. All depends on the
seed alone, so each worker computes all shards by itself and all agree. No two shards have a sample in common.

Labels is the pathological split of McMahan et al. (2017), Dirichlet that of Hsu et al. (2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Indices = NDArray[np.int64]
    Shares = NDArray[np.float64]  # [classes, workers]: how much of a class each worker gets


class Split(Protocol):
    """A rule that gives each worker its samples."""

    def deal(self, labels: Indices, workers: int, rng: np.random.Generator) -> list[Indices]:
        """Each worker's samples, as indices into `labels`."""
        ...


@dataclass(frozen=True)
class IID:
    """Every worker draws from the same distribution; shard sizes differ by at most one."""

    def __str__(self) -> str:
        return "iid"

    def deal(self, labels: Indices, workers: int, rng: np.random.Generator) -> list[Indices]:
        """All samples, shuffled and cut into equal parts."""
        return np.array_split(rng.permutation(len(labels)), workers)


@dataclass(frozen=True)
class Labels:
    """Every worker sees `count` labels, and workers with the same label share its samples evenly.

    Every sample is used when count × workers is at least the number of labels; else some labels are left out.
    """

    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"split {self} gives a worker no label; use labels:1 or more")

    def __str__(self) -> str:
        return f"labels:{self.count}"

    def deal(self, labels: Indices, workers: int, rng: np.random.Generator) -> list[Indices]:
        """Labels in a shuffled order, `count` to each worker in turn, over and over."""
        classes = len(np.unique(labels))
        if self.count > classes:
            raise ValueError(
                f"split {self} asks for more labels than there are; use labels:{classes} or less"
            )
        turn = np.arange(workers * self.count)
        held = np.zeros((classes, workers))
        held[rng.permutation(classes)[turn % classes], turn // self.count] = 1
        return _deal_classes(labels, held / held.sum(1, keepdims=True).clip(1), rng)


@dataclass(frozen=True)
class Dirichlet:
    """Each label's samples are shared in proportions drawn from a symmetric Dirichlet(alpha).

    Small values give each worker few labels (0.1 is harsh); 100 is nearly even.
    """

    alpha: float

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1e6:  # near 1e308 the draws overflow
            raise ValueError(f"split {self} has no such distribution; use an alpha above 0 and up to 1000000")

    def __str__(self) -> str:
        return f"dirichlet:{self.alpha!r}"

    def deal(self, labels: Indices, workers: int, rng: np.random.Generator) -> list[Indices]:
        """Every class, cut at proportions of its own."""
        classes = len(np.unique(labels))
        return _deal_classes(labels, rng.dirichlet(np.full(workers, self.alpha), size=classes), rng)


def parse_split(text: str) -> Split:
    """The split that `str` writes as `text`: iid, labels:N or dirichlet:ALPHA."""
    kind, _, value = text.partition(":")
    number = _number(value)
    if text == "iid":
        return IID()
    if kind == "labels" and number is not None and number.is_integer():
        return Labels(int(number))
    if kind == "dirichlet" and number is not None:
        return Dirichlet(number)
    raise ValueError(
        f"unknown split {text!r}; use iid, labels:N (as labels:2) or dirichlet:ALPHA (as dirichlet:0.3)"
    )


def shards(split: Split, labels: Indices, workers: int, seed: int) -> list[Indices]:
    """Each worker's samples, none of them empty; the same for the same arguments."""
    if seed < 0:
        raise ValueError(f"seed {seed} is negative; use 0 or more")
    if workers > len(labels):
        raise ValueError(f"{len(labels)} samples are too few for {workers} workers; use fewer workers")
    dealt = split.deal(labels, workers, np.random.default_rng(seed))
    for worker, shard in enumerate(dealt):
        if len(shard) == 0:
            raise ValueError(
                f"worker {worker} of {workers}: split {split} with seed {seed} leaves it without samples; "
                "use a more even split, another seed or fewer workers"
            )
    return dealt


def draws(
    split: Split, labels: Indices, worker: int, workers: int, batch: int, seed: int
) -> Iterator[Indices]:
    """The indices of one worker's batches, without end."""
    if not 0 <= worker < workers:
        raise ValueError(f"worker {worker} is not one of {workers} workers; count workers from 0")
    if batch < 1:
        raise ValueError(f"a batch of {batch} samples trains nothing; use 1 or more")
    shard = shards(split, labels, workers, seed)[worker]
    own = np.random.SeedSequence(seed, spawn_key=(worker,))
    return _rounds(shard, batch, np.random.default_rng(own))


def _rounds(shard: Indices, batch: int, rng: np.random.Generator) -> Iterator[Indices]:
    """The shard over and over, newly shuffled each time and cut into batches regardless of its end."""
    order = shard[:0]
    while True:
        while len(order) < batch:
            order = np.concatenate([order, rng.permutation(shard)])
        yield order[:batch]
        order = order[batch:]


def _deal_classes(labels: Indices, shares: Shares, rng: np.random.Generator) -> list[Indices]:
    """Each worker's part of every class, the parts in proportion to `shares` and the order random."""
    parts = []
    for label, share in zip(np.unique(labels), shares, strict=True):
        members = rng.permutation(np.flatnonzero(labels == label))
        ends = np.rint(share.cumsum() * len(members)).astype(int)
        parts.append(np.split(members[: ends[-1]], ends[:-1]))
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


def _number(text: str) -> float | None:
    """The number that `text` spells, if it does."""
    try:
        return float(text)
    except ValueError:
        return None
