"""How fast the ops are, against a plain copy of the same vector in the same run.

A case is checked against its reference before it is timed. Rounds of copy and op alternate and the best of each
counts, so that a noisy machine slows all alike; only the ratios mean anything elsewhere. Speeds count the gradients
that an op serves in their own format, as a copy of them would, not the fewer bytes that it may touch.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import torch

from laconic import kernels
from laconic.bench_cases import Case, cases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROUNDS = 15
REFERENCE_ROUNDS = 2


class Result(NamedTuple):
    """Speed of one op; `of_…` are ratios, above 1 where the op is faster: than a copy, than its reference in PyTorch,
    and than `peer`, the way that others do it, where there is one.
    """

    op: str
    coordinates: int
    gigabytes_per_second: float
    of_copy: float
    of_reference: float
    kernels: str
    peer: str | None = None
    of_peer: float | None = None


def measure(coordinates: int) -> list[Result]:
    """The result of every case, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_measure(case, coordinates) for case in cases(coordinates)]
    finally:
        torch.set_num_threads(threads)


def text(results: Iterable[Result]) -> str:
    """One line a result."""
    return "\n".join(
        f"{r.op:<20} {r.gigabytes_per_second:7.2f} GB/s of gradients   {r.of_copy:5.2f}x copy   "
        f"{r.of_reference:7.2f}x reference" + (f"   {r.of_peer:.1f}x {r.peer}" if r.peer else "")
        for r in results
    )


def _measure(case: Case, coordinates: int) -> Result:
    ours = [result.clone() for result in case.run()]
    for one, other in zip(ours, case.reference(), strict=True):
        if not torch.allclose(one, other, rtol=case.tolerance, atol=0):
            raise RuntimeError(f"{case.op} differs from its reference; its speed means nothing")
    source, copy = torch.randn(coordinates), torch.empty(coordinates)
    rounds = [(_seconds(lambda: copy.copy_(source)), _seconds(case.run)) for _ in range(ROUNDS)]
    copied, ran = (min(times) for times in zip(*rounds, strict=True))
    referred = min(_seconds(case.reference) for _ in range(REFERENCE_ROUNDS))
    name, peer = case.peer or (None, None)
    of_peer = min(_seconds(peer) for _ in range(REFERENCE_ROUNDS)) / ran if peer else None
    speed = case.bytes / ran
    return Result(
        case.op,
        coordinates,
        round(speed / 1e9, 3),
        round(speed / (source.nbytes / copied), 3),
        round(referred / ran, 3),
        kernels.description(),
        name,
        of_peer and round(of_peer, 3),
    )


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
