"""How fast the ops are, against a plain copy of the same vector in the same run.

A case is checked against its reference before it is timed. Rounds of copy, op and peer alternate and the best of
each counts, so that a noisy machine slows all alike; only the ratios mean anything elsewhere. Speeds count the
gradients that an op serves in their own format, as a copy of them would, not the fewer bytes that it may touch.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import torch

from benchmarks.ops import gennorm
from benchmarks.ops.cases import Case, cases
from laconic import kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROUNDS = 15
PATIENCE = 1.0
"""References that take more seconds are timed once, while the op is checked."""


class Result(NamedTuple):
    """Speed of one op; `of_…` are ratios, above 1 where the op is faster: than a copy, than its reference in PyTorch,
    and than `peer`, the way that others do it, where there is one. `bits` are those of a symbol, by whom.
    """

    op: str
    coordinates: int
    gigabytes_per_second: float
    of_copy: float
    of_reference: float
    kernels: str
    peer: str | None = None
    of_peer: float | None = None
    bits: dict[str, float] | None = None


def measure(coordinates: int) -> list[Result]:
    """The result of every case, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        every = [*cases(coordinates), *gennorm.cases(coordinates)]
        return [measured(case, case.coordinates or coordinates) for case in every]
    finally:
        torch.set_num_threads(threads)


def measured(case: Case, coordinates: int) -> Result:
    """The result of a case, if it equals its reference; with more than one thread it means little."""
    ours = [result.clone() for result in case.run()]
    start = time.perf_counter()
    theirs = case.reference()
    referred = time.perf_counter() - start
    for one, other in zip(ours, theirs, strict=True):
        if one.shape != other.shape or not torch.allclose(one, other, rtol=case.tolerance, atol=0):
            raise RuntimeError(f"{case.op} differs from its reference; its speed means nothing")
    if referred < PATIENCE:
        referred = min(referred, _seconds(case.reference))
    source, copy = torch.randn(coordinates), torch.empty(coordinates)
    ways = [lambda: copy.copy_(source), case.run, *(case.peer.ways if case.peer else ())]
    rounds = [[_seconds(way) for way in ways] for _ in range(ROUNDS)]
    copied, ran, *peers = (min(times) for times in zip(*rounds, strict=True))
    speed = case.bytes / ran
    return Result(
        case.op,
        coordinates,
        round(speed / 1e9, 3),
        round(speed / (source.nbytes / copied), 3),
        round(referred / ran, 3),
        kernels.description(),
        case.peer.name if case.peer else None,
        round(min(peers) / ran, 3) if peers else None,
        case.bits or None,
    )


def text(results: Iterable[Result]) -> str:
    """One line a result."""
    return "\n".join(
        f"{r.op:<27} {r.gigabytes_per_second:7.2f} GB/s of gradients   {r.of_copy:5.2f}x copy   "
        f"{r.of_reference:7.2f}x reference{_peer_text(r)}{_bits_text(r)}"
        for r in results
    )


def _peer_text(result: Result) -> str:
    if result.of_peer is None:
        return f"   ({result.peer})" if result.peer else ""
    return f"   {result.of_peer:.2f}x {result.peer}"


def _bits_text(result: Result) -> str:
    return "".join(f"   {bits:.3f} bits {whose}" for whose, bits in (result.bits or {}).items())


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
