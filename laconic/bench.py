"""How fast the ops are, against a plain copy of the same vector in the same run.

A case is checked against its reference before it is timed. Rounds of copy, op and reference alternate and the
best of each counts, so that a noisy machine slows all alike; only the ratios mean anything elsewhere.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from laconic import kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROUNDS = 7
WORKERS = 4


class Result(NamedTuple):
    """Speed of one op; `of_copy` and `of_reference` are ratios, above 1 where the op is faster."""

    op: str
    coordinates: int
    gigabytes_per_second: float
    of_copy: float
    of_reference: float
    kernels: str


@dataclass(frozen=True)
class Case:
    """An op on prepared inputs; `bytes` is what counts for its speed."""

    op: str
    bytes: int
    run: Callable[[], torch.Tensor]
    reference: Callable[[], torch.Tensor]


def measure(coordinates: int) -> list[Result]:
    """The result of every case, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_measure(case, coordinates) for case in _cases(coordinates)]
    finally:
        torch.set_num_threads(threads)


def text(results: Iterable[Result]) -> str:
    """One line a result."""
    return "\n".join(
        f"{r.op:<24} {r.gigabytes_per_second:7.2f} GB/s   {r.of_copy:5.2f}x copy   {r.of_reference:6.2f}x reference"
        for r in results
    )


def _cases(coordinates: int) -> list[Case]:
    return [_average(coordinates, dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)]


def _average(coordinates: int, dtype: torch.dtype) -> Case:
    messages = torch.randn(WORKERS, coordinates // WORKERS, generator=torch.Generator().manual_seed(0)).to(
        dtype
    )
    mean = torch.empty_like(messages[0])

    def run() -> torch.Tensor:
        kernels.average(messages, mean)
        return mean

    def reference() -> torch.Tensor:
        kernels.average.reference(messages, mean)
        return mean

    return Case(f"average {str(dtype).removeprefix('torch.')}", messages.nbytes, run, reference)


def _measure(case: Case, coordinates: int) -> Result:
    if not torch.equal(case.run().clone(), case.reference()):
        raise RuntimeError(f"{case.op} differs from its reference; its speed means nothing")
    source, copy = torch.randn(coordinates), torch.empty(coordinates)
    best = [min(times) for times in zip(*(_round(case, source, copy) for _ in range(ROUNDS)), strict=True)]
    copied, ran, referred = best
    speed = case.bytes / ran
    return Result(
        case.op,
        coordinates,
        round(speed / 1e9, 3),
        round(speed / (source.nbytes / copied), 3),
        round(referred / ran, 3),
        kernels.description(),
    )


def _round(case: Case, source: torch.Tensor, copy: torch.Tensor) -> tuple[float, float, float]:
    return _seconds(lambda: copy.copy_(source)), _seconds(case.run), _seconds(case.reference)


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
