"""GenNorm's ops on CUDA: triton.py has the kernels.

Values stay on the device; only levels leave it, a byte each, and come back so. However many parts there are, the
number of launches is the same, and the host waits once an op: for moments, or for levels with their counts. Means
are not waited for.

Codes are made and read on the host. Beside an H200 one thread seals and unseals 2 G levels a second in Huffman codes,
which keeps up with a link of 3 Gbit/s between four workers; levels go to the host and back at 54 G a second. Beyond
that more threads help, as every message has one aggregator and is sealed alone. A device would not do much better
with these messages: they are coded on 64 lanes, two warps, which leaves 8192 steps one after the other for the 2^19
levels of a message. It would need a format with thousands of lanes, at four bytes each.
"""
# ruff: noqa: A002 (a format is the field's word)

from __future__ import annotations

import functools
import typing
from typing import NamedTuple

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from laconic.kernels import coding
from laconic.kernels import gennorm as reference
from laconic.kernels.gennorm import triton as kernels
from laconic.numerics import ans
from laconic.numerics.damage import DamagedMessage
from laconic.numerics.minifloat import FORMATS, Format

ALIGN = 16
"""Coordinates of which tiles start at multiples."""
TILE, READ_TILE = 1024, 2048
"""Coordinates of a program that reads values, or levels."""
BLOCKS = 32
"""Blocks of a program that counts."""
ROW = 16
"""Bytes of a row of the table of scales."""
SUMS = 1024
"""Of all tiles' sums at a time."""
EXACT = {"num_warps": 4, "enable_fp_fusion": False}
"""Nothing is fused, as the reference rounds products before it adds."""


class Layout(NamedTuple):
    """Parts on a device: their tiles, which of these are whose, and what is counted; and where the last one ends."""

    tiles: torch.Tensor
    spans: torch.Tensor
    items: torch.Tensor
    sample: torch.Tensor
    stop: int


def gennorm_moments(
    grad: torch.Tensor, old: torch.Tensor | None, memory: float, parts: torch.Tensor, moments: torch.Tensor
) -> None:
    """The sums of |t| and t² of every part; see the reference."""
    plan = _plan(parts, grad, TILE)
    with torch.cuda.device_of(grad):
        sums = grad.new_empty(len(plan.tiles), 2, dtype=torch.float64)
        found = grad.new_empty(len(parts), 2, dtype=torch.float64)
        kernels.moments[(len(plan.tiles),)](grad, old, memory, plan.tiles, sums, TILE, **EXACT)
        kernels.total[(len(parts),)](sums, plan.spans, found, SUMS)
        moments.copy_(found)


def gennorm_quantize(
    grad: torch.Tensor,
    old: torch.Tensor | None,
    memory: float,
    parts: torch.Tensor,
    scales: torch.Tensor,
    format: str,
    new: torch.Tensor | None,
    symbols: torch.Tensor,
    counts: torch.Tensor,
) -> bool:
    """Whether t is finite in all parts; see the reference. `symbols` had better be pinned."""
    with torch.cuda.device_of(grad):
        codes, told = quantized(grad, old, memory, parts, scales, FORMATS[format], new)
        symbols[: len(codes)].copy_(codes, non_blocking=True)
        known = told.cpu()  # which waits for the symbols too
    counts.copy_(known[:-1].view_as(counts))
    return not known[-1]


def quantized(
    grad: torch.Tensor,
    old: torch.Tensor | None,
    memory: float,
    parts: torch.Tensor,
    scales: torch.Tensor,
    form: Format,
    new: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The symbols, on the device; and their counts, behind which there is 1 if something is not finite."""
    plan = _plan(parts, grad, TILE)
    held, factors = torch.empty(len(parts) * ROW, dtype=torch.uint8, pin_memory=grad.is_cuda), scales.numpy()
    spoken = _fill(held, factors, parts[:, 1].numpy(), factors[:, 0] > 0)
    table = held.to(grad.device, non_blocking=True).view(torch.int64)
    codes = grad.new_empty(spoken, dtype=torch.uint8)
    told = grad.new_zeros(256 * len(parts) + 1, dtype=torch.int32)
    inputs = grad, old, memory, plan.tiles, table
    kernels.quantize[(len(plan.tiles),)](*inputs, new, codes, told[-1:], *_constants(form), TILE, **EXACT)
    bins = triton.next_power_of_2(max(32, len(form.levels)))
    kernels.count[(len(plan.items),)](
        plan.items, table, plan.sample, codes, told, bins, BLOCKS, reference.BLOCK
    )
    return codes, told


def gennorm_average(
    messages: typing.Sequence[torch.Tensor],
    offset: int,
    parts: torch.Tensor,
    inverses: torch.Tensor,
    books: torch.Tensor,
    format: str,
    out: torch.Tensor,
) -> None:
    """Every part of `out` is the mean of what the messages say; see the reference."""
    form, rows = FORMATS[format], parts.numpy()
    said = rows[:, :, 2] >= 0
    counts = (rows[:, :, 1] * said).sum(1).tolist()
    held = torch.empty(said.size * ROW + sum(counts), dtype=torch.uint8, pin_memory=out.is_cuda)
    table, *levels = held.split([said.size * ROW, *counts])
    for worker, (message, symbols) in enumerate(zip(messages, levels, strict=True)):
        own = torch.from_numpy(np.ascontiguousarray(rows[worker, said[worker], 1:]))
        _unseal(worker, message, own, books, offset, form, symbols)
    factors = np.zeros((said.size, 2), np.float32)
    factors[:, 1] = inverses.numpy().ravel()
    _fill(table, factors, rows[:, :, 1].ravel(), said.ravel())
    with torch.cuda.device_of(out):
        table, symbols = held.to(out.device, non_blocking=True).split([said.size * ROW, sum(counts)])
        averaged(symbols, table.view(torch.int64), parts[0, :, :2], len(messages), form, out)


def averaged(
    symbols: torch.Tensor,
    table: torch.Tensor,
    parts: torch.Tensor,
    messages: int,
    form: Format,
    out: torch.Tensor,
) -> None:
    """Every part of `out` is the mean of what messages say whose symbols and table are on the device."""
    plan = _plan(parts, out, READ_TILE)
    kernels.average[(len(plan.tiles),)](
        symbols, plan.tiles, table, len(parts), messages, out, *_constants(form), READ_TILE, **EXACT
    )


def _unseal(
    worker: int,
    message: torch.Tensor,
    parts: torch.Tensor,
    books: torch.Tensor,
    offset: int,
    form: Format,
    symbols: torch.Tensor,
) -> None:
    """`symbols` are the levels in a worker's message."""
    try:
        coding.unseal(message, parts, books, reference.width(form), offset, symbols)
        known = not len(symbols) or int(symbols.numpy().max()) < len(form.levels)
        ans.require(known, "has a symbol that there is not")
    except ValueError as error:
        what = str(error).removeprefix("the message ")
        raise DamagedMessage(worker, what) from None


def _constants(form: Format) -> tuple[int, int, int]:
    return form.mantissa, form.bias, len(form.levels) // 2


def _fill(
    table: torch.Tensor, factors: NDArray[np.float32], numels: NDArray[np.int64], said: NDArray[np.bool_]
) -> int:
    """How many symbols there are; `table` is the bytes of the kernels' table of scales."""
    rows, ends = table.numpy().view(np.int64).reshape(-1, 2), np.cumsum(numels * said)
    rows[:, 0] = np.ascontiguousarray(factors).view(np.int64)[:, 0]
    rows[:, 1] = np.where(said, ends - numels, -1)
    return int(ends[-1]) if len(ends) else 0


def _plan(parts: torch.Tensor, values: torch.Tensor, tile: int) -> Layout:
    """The plan of parts, made once for all charts with the same numbers."""
    plan = _planned(parts.contiguous().numpy().tobytes(), values.device, tile, BLOCKS)
    if plan.stop > len(values):
        raise ValueError("a part lies outside its gradient")
    return plan


@functools.lru_cache(maxsize=4096)
def _planned(parts: bytes, device: torch.device, tile: int, blocks: int) -> Layout:
    start, numel = torch.from_numpy(np.frombuffer(parts, np.int64).reshape(-1, 2).copy()).unbind(1)
    base = start // ALIGN * ALIGN
    many = torch.where(numel > 0, -(-(start + numel - base) // tile), 0)
    part, number = _spread(many)
    base = base[part] + number * tile
    before, behind = base - start[part], start[part] + numel[part] - base
    first = many.cumsum(0) - many
    sampled = numel >= reference.SAMPLED
    sample = _sample(int(numel[sampled].max()) if sampled.any() else 0)
    every = -(-numel // reference.BLOCK)
    counted = torch.where(sampled, torch.searchsorted(sample, every), every)
    whose, item = _spread(-(-counted // blocks))
    return Layout(
        _columns(device, part, base // ALIGN, before, behind),
        _columns(device, first, first + many),
        _columns(device, whose, item * blocks, counted[whose], numel[whose]),
        sample.int().to(device),
        int((start + numel).max()) if len(start) else 0,
    )


def _sample(numel: int) -> torch.Tensor:
    """The numbers of the blocks that are counted of large parts, up to one of `numel` coordinates."""
    blocks = torch.arange(-(-numel // reference.BLOCK))
    return blocks[(blocks * reference.MIX & 0xFFFFFFFF) >> reference.EIGHTH == 0]


def _spread(counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For each of all the counts' things whose it is, and its number there."""
    whose = torch.arange(len(counts)).repeat_interleave(counts)
    return whose, torch.arange(len(whose)) - (counts.cumsum(0) - counts)[whose]


def _columns(device: torch.device, *columns: torch.Tensor) -> torch.Tensor:
    return torch.stack(columns, 1).int().to(device)
