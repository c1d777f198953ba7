"""GenNorm's ops: moments of every part, the levels of minifloats, and the mean of what messages say.

A part is a run of coordinates with a shape of its own; all-zero parts have no levels. With s and 1/s as it has them
in `scales`, both 0 for zeros,

    t = memory · old + grad;   level = the one nearest to t · s;   new = t - level · (1/s), but at most h · (1/s)

in single precision, one operation after the other, so that all backends agree to the bit. h is half the distance of
the last two levels, so only values beyond the last are concerned: what these have too much is not kept, as otherwise
it would pile up where a gradient stays large, and go on when it no longer is. Levels are symbols, their codes in
numerics/minifloat.py, and travel coded (kernels/coding).
"""
# ruff: noqa: A002 (a format is the field's word)

from __future__ import annotations

import typing

import torch

from laconic.kernels import op
from laconic.kernels.coding import unsealed
from laconic.numerics import ans
from laconic.numerics.damage import DamagedMessage
from laconic.numerics.minifloat import FORMATS, Format, dequantize, quantize

BLOCK, SAMPLED = 64, 1 << 16
"""Of parts with this many coordinates an eighth of all blocks is counted."""
MIX, EIGHTH = 0x9E3779B1, 29
"""Block b is counted if b · MIX, in 32 bits, has none of the bits from EIGHTH on."""


def width(format: Format) -> int:
    """The bits of a level that is not coded."""
    return 1 + format.exponent + format.mantissa


def half_gap(format: Format) -> float:
    """Half the distance of the last two levels."""
    return (format.magnitudes[-1] - format.magnitudes[-2]) / 2


@op("moments")
def gennorm_moments(
    grad: torch.Tensor, old: torch.Tensor | None, memory: float, parts: torch.Tensor, moments: torch.Tensor
) -> None:
    """For every part, which is (start, numel), the sums of |t| and t², in double precision."""
    exact = _exact(grad, old, memory)
    for row, (start, numel) in zip(moments, parts.tolist(), strict=True):
        part = exact[start : start + numel].double()
        row[0], row[1] = part.abs().sum(), part.square().sum()


@op("new", "symbols", "counts")
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
    """Whether t is finite in all parts; if so, `symbols` begin with their levels, one part after the other.

    counts[k] say of part k how often each level occurs, of large parts in an eighth of the blocks.
    """
    exact, minifloat, place = _exact(grad, old, memory), FORMATS[format], 0
    counts.zero_()
    for (start, numel), (scale, inverse), count in zip(
        parts.tolist(), scales.to(exact.device), counts, strict=True
    ):
        part = exact[start : start + numel]
        if not bool(part.isfinite().all()):
            return False
        if scale > 0:
            levels = quantize(part * scale, minifloat)
            symbols[place : place + numel] = levels
            count.copy_(torch.bincount(levels[_counted(numel)], minlength=count.shape[0]))
            place += numel
            left, most = part - dequantize(levels, minifloat) * inverse, half_gap(minifloat) * inverse
            part = left.clamp(-most, most)
        if new is not None:
            new[start : start + numel] = part
    return True


@op("out")
def gennorm_average(
    messages: typing.Sequence[torch.Tensor],
    offset: int,
    parts: torch.Tensor,
    inverses: torch.Tensor,
    books: torch.Tensor,
    format: str,
    out: torch.Tensor,
) -> None:
    """Every part of `out` is the mean of what the messages say, added in their order.

    parts[k] are those of message k: (start, numel, book), where all have the same starts and numbers, and a part that
    is all zero has book -1. A damaged message is a ValueError.
    """
    total = torch.zeros_like(out, dtype=torch.float32)
    for worker, (message, rows, own) in enumerate(zip(messages, parts.tolist(), inverses, strict=True)):
        spoken = [(start, numel, books[book], k) for k, (start, numel, book) in enumerate(rows) if book >= 0]
        try:
            levels = _levels(
                message, offset, [(book, numel) for _, numel, book, _ in spoken], FORMATS[format]
            )
        except ValueError as error:
            raise DamagedMessage(worker, str(error)) from None
        values, place = dequantize(levels, FORMATS[format]).to(out.device), 0
        for start, numel, _, k in spoken:
            total[start : start + numel] += values[place : place + numel] * own[k].to(out.device)
            place += numel
    count = total.new_tensor(len(messages))  # as a scalar, CUDA would multiply by its rounded inverse
    for start, numel, _ in parts[0].tolist():
        span = slice(start, start + numel)
        out[span] = (total[span] / count).to(out.dtype)


def _exact(grad: torch.Tensor, old: torch.Tensor | None, memory: float) -> torch.Tensor:
    return grad.float() if old is None else old * memory + grad.float()


def _counted(numel: int) -> torch.Tensor:
    """Whether each coordinate of a part is counted."""
    if numel < SAMPLED:
        return torch.ones(numel, dtype=torch.bool)
    blocks = torch.arange(-(-numel // BLOCK))
    return ((blocks * MIX & 0xFFFFFFFF) >> EIGHTH == 0).repeat_interleave(BLOCK)[:numel]


def _levels(
    message: torch.Tensor, offset: int, models: list[tuple[torch.Tensor, int]], format: Format
) -> torch.Tensor:
    """The levels in a message."""
    books, counts = [book for book, _ in models], [numel for _, numel in models]
    levels = unsealed(message, books, counts, width(format), offset).long()
    ans.require(not len(levels) or int(levels.max()) < len(format.levels), "has a symbol that there is not")
    return levels
